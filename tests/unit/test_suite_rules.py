"""The suite's own rules: no test goes missing unseen, and no test sees its caller's environment."""

import os
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent.parent / "conftest.py"


def _run(pytester: pytest.Pytester, body: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
    pytester.makepyfile("import pytest\nfrom tests.applicability import not_applicable\n" + body)
    return pytester.runpytest("-p", "no:randomly")


@pytest.mark.parametrize(
    "body",
    [
        "def test_it(): pytest.skip('no time')",
        "@pytest.mark.skip(reason='no time')\ndef test_it(): pass",
        "@pytest.mark.xfail(reason='no time')\ndef test_it(): assert False",
    ],
    ids=["call", "mark", "xfail"],
)
def test_an_undeclared_skip_fails(pytester: pytest.Pytester, body: str) -> None:
    """A test that does not run is a failure, however it was left out."""
    result = _run(pytester, body)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*without not_applicable(): *no time*"])


def test_a_skipped_module_fails(pytester: pytest.Pytester) -> None:
    """A missing import is a broken set-up, not a reason to leave its tests out."""
    result = _run(pytester, "pytest.importorskip('no_such_module')\ndef test_it(): pass")
    result.assert_outcomes(errors=1)


def test_a_test_that_is_not_applicable_is_listed(pytester: pytest.Pytester) -> None:
    """What the host can't run is not a failure, and is named with its reason."""
    result = _run(pytester, "def test_it(): not_applicable('no KVM here')")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*not applicable on this host*", "*test_it: no KVM here"])


def test_the_marker_says_not_applicable_too(pytester: pytest.Pytester) -> None:
    """`not_applicable_if` acts before fixtures are made."""
    mark = "@pytest.mark.not_applicable_if(True, reason='no KVM here')\n"
    _run(pytester, mark + "def test_it(): assert False").assert_outcomes(skipped=1)


def test_each_pass_leaves_the_others_tests_out(pytester: pytest.Pytester) -> None:
    """Of a root test and a rootless one, exactly one runs."""
    body = "@pytest.mark.root\ndef test_root(): pass\n@pytest.mark.rootless\ndef test_rootless(): pass\n"
    _run(pytester, body).assert_outcomes(passed=1, deselected=1)


@pytest.mark.rootless
def test_the_ordinary_user_has_a_private_directory() -> None:
    """The ordinary user's pass can write where its environment says, and nothing of root's is named there."""
    for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR"):
        assert os.access(os.environ[name], os.W_OK)


def test_state_is_kept_out_of_the_users_directories(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The product's state goes below pytest's own directory."""
    assert Path(os.environ["STOCKADE_STATE_DIR"]).is_relative_to(tmp_path_factory.getbasetemp())
