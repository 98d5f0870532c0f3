"""`stockade doctor`: what this host can enforce, what it lacks and how to get it, shown by building a sandbox."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from stockade import __version__
from stockade.cli import message
from stockade.errors import HostUnsupported, StockadeError
from stockade.isolation import Host, compile_profile, inspect_directories, probe_host, wall_for
from stockade.isolation.checks import Finding, check_all
from stockade.isolation.grades import LimitGrade
from stockade.policy import DEFAULT_POLICY
from stockade.sandbox import AsyncSandbox

#: R1: said once by every doctor, whatever it found.
SHARED_KERNEL = "Model-written code in less than a microvm shares this host's kernel: a bug in the kernel is a way out."
#: For the records of what doctor itself ran.
AGENT_ID = "stockade-doctor"
#: Below the environment's prefix; `make test` writes it (scripts/run_tests.py).
TEST_RECORD = "share/stockade/not-applicable.json"


class _Recorded(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class RecordedTest(_Recorded):
    """A test that one pass of the suite could not run on this host."""

    test: str
    reason: str
    pass_name: str = Field(alias="pass")


class RecordedHost(_Recorded):
    """Where the suite ran, in uname's words."""

    kernel: str
    machine: str


class SuiteRecord(_Recorded):
    """What the last whole `make test` could not run; `when` is an ISO time."""

    when: str
    host: RecordedHost
    tests: tuple[RecordedTest, ...]

    @property
    def by_reason(self) -> dict[str, list[RecordedTest]]:
        """The tests of each reason, in the order of the reasons."""
        groups: dict[str, list[RecordedTest]] = {}
        for test in sorted(self.tests, key=lambda test: test.reason):
            groups.setdefault(test.reason, []).append(test)
        return groups

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, grouped by reason."""
        groups = [
            {
                "reason": reason,
                "count": _count(tests),
                "tests": [{"test": test.test, "pass": test.pass_name} for test in tests],
            }
            for reason, tests in self.by_reason.items()
        ]
        return {"when": self.when, "host": self.host.model_dump(), "reasons": groups}


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A record is there, and can't be read."""

    problem: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"problem": self.problem}


@dataclass(frozen=True, slots=True)
class Trial:
    """A sandbox that was really built, in which /bin/true ran; times in ms."""

    ok: bool
    phases: dict[str, float]
    command_ms: float
    destroy_ms: float
    protections: tuple[str, ...]
    limits: tuple[LimitGrade, ...]
    error: StockadeError | None = None


@dataclass(frozen=True, slots=True)
class Examination:
    """All that doctor found."""

    host: Host
    findings: tuple[Finding, ...]
    #: why the built-in policy can't be had here; None where it can
    refusal: StockadeError | None
    limits: tuple[LimitGrade, ...]
    trial: Trial
    #: None where no test run is on record
    suite: SuiteRecord | UnreadableRecord | None

    @property
    def ok(self) -> bool:
        """Whether the built-in policy's sandbox works here."""
        return self.refusal is None and self.trial.ok

    @property
    def levels(self) -> dict[str, dict[str, Any]]:
        """Each isolation level, and whether it can be used here."""
        why = "" if self.refusal is None else self.refusal.message
        return {
            "process": {"available": False, "detail": "not built yet"},
            "container": {
                "available": self.ok,
                "detail": why or ("" if self.ok else "the trial failed"),
            },
            "microvm": {"available": False, "detail": "not built yet"},
        }

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data; its keys are a promise to programs."""
        host, trial = self.host, self.trial
        return {
            "ok": self.ok,
            "version": __version__,
            "host": {
                "machine": host.machine,
                "kernel": ".".join(map(str, host.kernel)),
                "uid": host.euid,
                "container": host.container,
                "tests_not_applicable": self.suite.to_dict() if self.suite else None,
            },
            "findings": [asdict(finding) for finding in self.findings],
            "levels": self.levels,
            "limits": {
                entry.limit: {"grade": entry.grade, "by": entry.by} for entry in self.limits
            },
            "trial": {
                "ok": trial.ok,
                "phases_ms": {name: round(ms, 3) for name, ms in trial.phases.items()},
                "command_ms": round(trial.command_ms, 3),
                "destroy_ms": round(trial.destroy_ms, 3),
                "protections": list(trial.protections),
                "error": trial.error.to_dict() if trial.error else None,
            },
            "warnings": [SHARED_KERNEL],
        }


def examine(*, as_json: bool) -> int:
    """Look at the host, build a sandbox, print what was found; returns the exit status."""
    found = look()
    if as_json:
        message.write_json(found.to_dict())
    else:
        _show(found)
    return 0 if found.ok else 1


def look() -> Examination:
    """Examine this host."""
    host = probe_host()
    refusal, limits = _plan(host)
    trial = asyncio.run(_try())
    suite = _read_suite_record(Path(sys.prefix, TEST_RECORD))
    return Examination(host, check_all(host), refusal, limits or trial.limits, trial, suite)


def _read_suite_record(path: Path) -> SuiteRecord | UnreadableRecord | None:
    try:
        return SuiteRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return UnreadableRecord(f"{path}: {error}")


def _plan(host: Host) -> tuple[StockadeError | None, tuple[LimitGrade, ...]]:
    try:
        program = compile_profile(arch=host.machine)
        inspected = inspect_directories(DEFAULT_POLICY, host)
        return None, wall_for(DEFAULT_POLICY, host, program, inspected).grades
    except StockadeError as error:
        return error, ()
    except ImportError as error:  # pyseccomp raises it where libseccomp is missing
        return HostUnsupported(f"system call filters ({error})", "Install libseccomp2."), ()


async def _try() -> Trial:
    begin = time.perf_counter()
    try:
        sandbox = await AsyncSandbox.create(agent_id=AGENT_ID)
        try:
            created = time.perf_counter()
            result = await sandbox.commands.run(["/bin/true"])
            ended = time.perf_counter()
        finally:
            await sandbox.kill()
    except StockadeError as error:
        return Trial(False, {}, 0, 0, (), (), error)
    destroy_ms = (time.perf_counter() - ended) * 1000
    # What is not the launch itself happens once a process: reading the host, opening the log, compiling filters.
    phases = {"prepare": (created - begin) * 1000 - sandbox.timings["total"], **sandbox.timings}
    got = sandbox.protections
    return Trial(result.ok, phases, (ended - created) * 1000, destroy_ms, got.walls, got.limits)


def _show(found: Examination) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    table = Table(box=box.SIMPLE, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for grade, colour in _GRADES.items():
        for finding in found.findings:
            if finding.grade == grade:
                words = Text(message.printable(finding.detail))
                if finding.how:
                    words.append(f"\n→ {message.printable(finding.how)}", "dim")
                table.add_row(Text(grade, colour), Text(finding.name), words)
    console.print(
        f"Stockade {__version__} on {found.host.machine}, Linux {'.'.join(map(str, found.host.kernel))}"
    )
    console.print(table)
    for line in _lines(found):
        console.print(Text(line))


_GRADES = {"missing": "red", "warning": "yellow", "degraded": "yellow", "ok": "green"}


def _lines(found: Examination) -> list[str]:
    trial = found.trial
    lines = ["Levels:"]
    for name, level in found.levels.items():
        words = "available" if level["available"] else "not available"
        lines.append(f"  {name}: {words}" + (f" ({level['detail']})" if level["detail"] else ""))
    lines.append("Limits of the built-in policy:")
    lines += [f"  {entry.limit}: {entry.grade} by {entry.by}" for entry in found.limits]
    lines.append(
        "A sandbox was built to prove it:" if trial.ok else "A sandbox could not be built:"
    )
    if trial.error is not None:
        lines += [
            f"  {message.printable(trial.error.message)}",
            f"  next: {message.printable(trial.error.next_step)}",
        ]
    else:
        lines += [f"  {name}: {ms:.1f} ms" for name, ms in trial.phases.items()]
        lines.append(f"  /bin/true: {trial.command_ms:.1f} ms, destroy: {trial.destroy_ms:.1f} ms")
    return [*lines, *_suite_lines(found.suite, os.uname()), "", SHARED_KERNEL]


def _suite_lines(suite: SuiteRecord | UnreadableRecord | None, host: os.uname_result) -> list[str]:
    match suite:
        case None:
            return ["Tests not applicable on this host: no test run is on record here"]
        case UnreadableRecord(problem):
            return [
                "Tests not applicable on this host: the record can't be read",
                f"  {message.printable(problem)}",
            ]
        case SuiteRecord():
            return _recorded_lines(suite, host)


def _recorded_lines(suite: SuiteRecord, host: os.uname_result) -> list[str]:
    when = message.printable(suite.when)
    lines = [f"Tests not applicable on this host (last `make test`, {when}):"]
    if (suite.host.machine, suite.host.kernel) != (host.machine, host.release):
        then = message.printable(f"{suite.host.machine}, Linux {suite.host.kernel}")
        lines.append(f"  it ran on another kernel: {then}")
    for reason, tests in suite.by_reason.items():
        passes = ", ".join(dict.fromkeys(test.pass_name for test in tests))
        lines.append(message.printable(f"  {_count(tests)}: {reason} ({passes})"))
    return lines if suite.tests else [*lines, "  none"]


def _count(tests: list[RecordedTest]) -> int:
    """Count a test once, however many passes it was left out of."""
    return len({test.test for test in tests})
