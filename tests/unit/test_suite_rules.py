"""The suite's own rules: no test goes missing unseen, and no test sees its caller's environment."""

import getpass
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from scripts.run_tests import Outcome, _read_outcome, _write_record, merge_record

CONFTEST = Path(__file__).parent.parent / "conftest.py"


def _run(pytester: pytest.Pytester, body: str, *arguments: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
    pytester.makepyfile("import pytest\nfrom tests.applicability import not_applicable\n" + body)
    return pytester.runpytest("-p", "no:randomly", *arguments)


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


def _recorded(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    "arguments", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["alone", "xdist"]
)
def test_a_run_records_each_such_test_once(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """The file that run_tests.py names gets a line a test, from the controller and not from workers too."""
    path = pytester.path / "record"
    monkeypatch.setenv("STOCKADE_NOT_APPLICABLE", str(path))
    body = "@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n): not_applicable(f'no {n}')"
    _run(pytester, body, *arguments).assert_outcomes(skipped=2)
    file, user = "test_a_run_records_each_such_test_once.py", getpass.getuser()
    assert _recorded(path) == [
        {"test": f"{file}::test_it[{n}]", "reason": f"no {n}", "user": user} for n in (1, 2)
    ]


def test_no_test_sees_the_record(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pytest inside a test, such as these, must not write to the outer one's record."""
    monkeypatch.setenv("STOCKADE_NOT_APPLICABLE", str(pytester.path / "record"))
    body = "import os\ndef test_it(): assert 'STOCKADE_NOT_APPLICABLE' not in os.environ"
    _run(pytester, body).assert_outcomes(passed=1)


def test_the_passes_are_merged() -> None:
    """Each test keeps the name of its pass: what root can't run, an ordinary user may."""
    one = {"test": "t::a", "reason": "no KVM", "user": "root"}
    outcomes = [Outcome("root", 0, not_applicable=(one,)), Outcome("ordinary user", 1)]
    host = os.uname()
    assert merge_record(outcomes, datetime(2026, 11, 2, tzinfo=UTC), host) == {
        "when": "2026-11-02T00:00:00+00:00",
        "host": {"kernel": host.release, "machine": host.machine},
        "tests": [{"test": "t::a", "reason": "no KVM", "pass": "root"}],
    }


def test_an_outcome_has_its_passes_record(tmp_path: Path) -> None:
    """The lines of the private directory outlive it."""
    (tmp_path / "report.xml").write_text(
        '<testsuites><testsuite tests="3" skipped="1" failures="0" errors="0"/></testsuites>'
    )
    entry = {"test": "t::a", "reason": "no KVM", "user": "root"}
    (tmp_path / "record").write_text(json.dumps(entry) + "\n")
    outcome = _read_outcome("root", 0, tmp_path / "report.xml", tmp_path / "record")
    assert outcome == Outcome("root", 0, 2, 0, 1, (entry,))


def test_a_record_replaces_the_last_one(tmp_path: Path) -> None:
    """Every user can read it, and no draft stays beside it."""
    path = tmp_path / "share/stockade/not-applicable.json"
    for tests in ([1], []):
        _write_record(path, {"tests": tests})
    assert json.loads(path.read_text(encoding="utf-8")) == {"tests": []}
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


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
