"""Rules of the whole suite: who runs which test, what a skip means, and where state goes."""

import getpass
import json
import os
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest

from tests.applicability import NotApplicable, not_applicable

pytest_plugins = ["pytester"]  # for the tests of these rules

NOT_APPLICABLE = "not applicable"
RECORD_VARIABLE = "STOCKADE_NOT_APPLICABLE"
RECORD: pytest.StashKey[Path] = pytest.StashKey()
UNDECLARED = "skipped or expected to fail without not_applicable(): "


@pytest.fixture(autouse=True, scope="session")
def _private_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the product's state (audit log, locks, caches) out of the developer's directories."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOCKADE_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Take the record's name out of the environment: no test's own pytest, and no xdist worker, may write to it."""
    path = os.environ.pop(RECORD_VARIABLE, "")
    if path:
        config.stash[RECORD] = Path(path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave root's tests to root's pass and the ordinary user's to theirs."""
    foreign = "rootless" if os.geteuid() == 0 else "root"
    left_out = [item for item in items if item.get_closest_marker(foreign)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker(foreign)]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Honour `@pytest.mark.not_applicable_if(condition, reason=...)`."""
    for marker in item.iter_markers("not_applicable_if"):
        if marker.args[0]:
            not_applicable(marker.kwargs["reason"])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the reason of a test that is not applicable; turn every other skip and xfail into a failure."""
    report = yield
    if call.excinfo is not None and call.excinfo.errisinstance(NotApplicable):
        report.user_properties.append((NOT_APPLICABLE, str(call.excinfo.value)))
    elif report.skipped:
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a skip of a whole module into a failure: a missing import is a broken set-up."""
    report = yield
    if report.skipped:
        _fail(report)
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """List what this host could not run, with reasons; on record too where a file was named.

    xdist's workers have no terminal, so only their controller comes here, with the reports of all.
    """
    reasons = sorted(
        (report.nodeid, value)
        for report in terminalreporter.getreports("skipped")
        for name, value in report.user_properties
        if name == NOT_APPLICABLE
    )
    if RECORD in config.stash:
        _append(config.stash[RECORD], reasons)
    if reasons:
        terminalreporter.section("not applicable on this host")
        for nodeid, reason in reasons:
            terminalreporter.write_line(f"{nodeid}: {reason}")


def _append(path: Path, reasons: Sequence[tuple[str, str]]) -> None:
    """Add a line of JSON for each test: scripts/run_tests.py reads them."""
    user = getpass.getuser()
    with path.open("a", encoding="utf-8") as file:
        for test, reason in reasons:
            file.write(json.dumps({"test": test, "reason": reason, "user": user}) + "\n")


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = UNDECLARED + reason
    if hasattr(report, "wasxfail"):
        del report.wasxfail
