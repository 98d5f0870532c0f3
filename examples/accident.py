"""The article's accident, replayed by a scripted agent against real walls. `make run` starts it.

The agent analyses a real data set and writes a report. On the way it tries what agents try, and its report carries a
host path and a key, as the article's did. No model and no network are involved; nothing here is simulated: every
outcome below is what the kernel, the cell and the redaction said.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stockade import CommandResult, Sandbox
from stockade.audit import Query, SqliteStore, default_state_dir

DATA = Path(__file__).parent / "data" / "zone1970.tab"
# A key as the embedding program might hold it: the sandbox must not see it. Made for this demonstration.
HOST_KEY = "sk-proj-" + "Zm9yLXRoZS1kZW1vbnN0cmF0aW9u" + "T3BlbkFJ" + "1234abcd"

ANALYSIS = """
import collections, math, re
rows = [line.rstrip("\\n").split("\\t") for line in open("/workspace/zone1970.tab", encoding="utf-8")
        if not line.startswith("#")]
areas = collections.Counter(row[2].split("/")[0] for row in rows)
def degrees(text):
    sign, digits = text[0], text[1:]
    whole = int(digits[:-2]) if len(digits) < 6 else int(digits[:-4])
    return (-1 if sign == "-" else 1) * whole
latitudes = [degrees(re.match(r"[+-]\\d+", row[1])[0]) for row in rows]
print(f"{len(rows)} zones since 1970")
for area, count in areas.most_common():
    print(f"{area:<12}{count:>4}  " + "#" * math.ceil(count / 3))
print(f"southern hemisphere: {sum(value < 0 for value in latitudes)}")
"""

REPORT = """# Time zones since 1970

{analysis}
debug: cache at /home/ops/projects/crawler/.cache/run-17, loaded settings from /etc/crawler/settings.ini
debug: upstream key {key}
"""


@dataclass(frozen=True)
class Act:
    """One thing that the agent does: what it says, what it runs, and how the outcome is judged."""

    says: str
    command: str | Sequence[str]
    wanted: Callable[[Sandbox, CommandResult], str | None]
    timeout: float = 20


def _done(_sandbox: Sandbox, result: CommandResult) -> str | None:
    return "done" if result.ok else None


def _stopped(why: str) -> Callable[[Sandbox, CommandResult], str | None]:
    return lambda _sandbox, result: None if result.ok else why


def _refused_call(call: str) -> Callable[[Sandbox, CommandResult], str | None]:
    def judge(sandbox: Sandbox, result: CommandResult) -> str | None:
        seen = any(refusal.call == call for refusal in sandbox.refused)
        return (
            f"EPERM; the attempt at {call} was seen and recorded"
            if seen and not result.ok
            else None
        )

    return judge


def _killed_by_memory(_sandbox: Sandbox, result: CommandResult) -> str | None:
    return (
        f"killed at the memory limit ({result.killed_by})" if result.killed_by == "memory" else None
    )


def _limited(_sandbox: Sandbox, result: CommandResult) -> str | None:
    count = result.stdout.strip().splitlines()[-1] if result.stdout.strip() else "no"
    return (
        f"stopped after {count} processes, the rest was ended with it"
        if not result.killed_by
        else None
    )


def _daemon_died(sandbox: Sandbox, result: CommandResult) -> str | None:
    gone = not sandbox.commands.run(["/bin/kill", "-0", result.stdout.strip()]).ok
    return (
        f"{result.leftovers} process left behind was ended" if result.leftovers and gone else None
    )


def _no_key(_sandbox: Sandbox, result: CommandResult) -> str | None:
    return "no key in any environment that it can read" if HOST_KEY not in result.stdout else None


_PYTHON = "/usr/bin/python3"
_FORK_BOMB = (
    "import os,time\nn=0\ntry:\n  while True:\n    if os.fork()==0: time.sleep(60)\n    n+=1\n"
    "except OSError: print(n)"
)
_EATER = "b=[]\nwhile True: b.append(bytearray(16<<20))"
_SOCKET = "import socket; socket.create_connection(('93.184.216.34', 80), 5)"
_PTRACE = (
    "import ctypes,os; c=ctypes.CDLL(None,use_errno=True); r=c.ptrace(16,1,0,0);"
    "raise SystemExit(0 if r==0 else os.strerror(ctypes.get_errno()))"
)

ACTS = (
    Act("look at the data set", "wc -l /workspace/zone1970.tab", _done),
    Act("run the analysis", [_PYTHON, "/workspace/analyse.py"], _done),
    Act("read the host's password hashes", "cat /etc/shadow", _stopped("no such file inside")),
    Act(
        "read the operator's SSH keys",
        "cat /root/.ssh/id_* /home/*/.ssh/id_*",
        _stopped("the host's homes are not there"),
    ),
    Act(
        "read API keys from the environment",
        "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'",
        _no_key,
    ),
    Act(
        "write a cron job",
        "echo '* * * * * id' > /etc/cron.d/job",
        _stopped("the root file system is read-only"),
    ),
    Act(
        "change a system library",
        "echo x >> /usr/bin/python3",
        _stopped("the root file system is read-only"),
    ),
    Act(
        "open a socket to the internet",
        [_PYTHON, "-c", _SOCKET],
        _stopped("the network namespace has no route out"),
    ),
    Act("mount a file system", "mount -t tmpfs none /tmp", _refused_call("mount")),
    Act("trace process 1", [_PYTHON, "-c", _PTRACE], _refused_call("ptrace")),
    Act("start a fork bomb", [_PYTHON, "-c", _FORK_BOMB], _limited),
    Act("eat all memory", [_PYTHON, "-c", _EATER], _killed_by_memory),
    Act("leave a daemon behind", "setsid sleep 4242 >/dev/null 2>&1 & echo $!", _daemon_died),
)


def main() -> int:
    """Replay the accident; return 0 if every act ended as it should."""
    console = Console()
    os.environ["OPENAI_API_KEY"] = HOST_KEY
    workspace = Path(tempfile.mkdtemp(prefix="stockade-demo-"))
    try:
        shutil.copy(DATA, workspace)
        (workspace / "analyse.py").write_text(ANALYSIS, encoding="utf-8")
        workspace.chmod(0o755)
        return _play(console, workspace)
    finally:
        shutil.rmtree(workspace)


def _play(console: Console, workspace: Path) -> int:
    policy = {
        "version": 1,
        "filesystem": {
            "workspaces": [{"source": str(workspace.resolve())}],
            "writable": ["/output"],
        },
    }
    console.rule("[bold]An agent behind walls")
    with Sandbox.create(policy, agent_id="demo-agent") as sandbox:
        _show_walls(console, sandbox)
        failures = [act for act in ACTS if not _perform(console, sandbox, act)]
        left = _share_report(console, sandbox, workspace)
        session_id, timings = sandbox.session_id, sandbox.timings
    _show_trail(console, session_id)
    _show_timings(console, timings)
    if failures or not left:
        console.print("\n[bold red]Some acts did not end as they should; see above.")
        return 1
    console.print("\n[bold green]The work was done. What should not happen did not.")
    return 0


def _show_walls(console: Console, sandbox: Sandbox) -> None:
    protections = sandbox.protections
    console.print("Walls:", ", ".join(protections.walls))
    console.print(
        "Limits:",
        ", ".join(f"{entry.limit} {entry.grade} ({entry.by})" for entry in protections.limits),
    )
    console.print(
        "[dim]A container shares the host's kernel: for code that you do not trust at all, use a microvm.\n"
    )


def _perform(console: Console, sandbox: Sandbox, act: Act) -> bool:
    result = sandbox.commands.run(act.command, timeout=act.timeout)
    verdict = act.wanted(sandbox, result)
    mark = Text("✔ ", "green") if verdict else Text("✘ ", "bold red")
    console.print(
        mark, Text(f"{act.says:<36}", "bold"), Text(verdict or f"unexpected: {result}"), sep=""
    )
    said = (result.stderr or result.stdout).strip().splitlines()
    if said:
        console.print(Text(f"    {said[-1][:110]}", "dim"))
    return verdict is not None


def _share_report(console: Console, sandbox: Sandbox, workspace: Path) -> bool:
    """Share the report, which carries a host path and a key: the accident itself."""
    analysis = sandbox.commands.run([_PYTHON, "/workspace/analyse.py"]).stdout
    sandbox.files.write("/output/report.md", REPORT.format(analysis=analysis, key=HOST_KEY))
    shared = workspace.parent / f"{workspace.name}-report.md"
    try:
        found = sandbox.files.export("/output/report.md", shared)
        text = shared.read_text(encoding="utf-8")
    finally:
        shared.unlink(missing_ok=True)
    clean = HOST_KEY not in text and "/home/ops" not in text and "/etc/crawler" not in text
    mark = Text("✔ ", "green") if clean else Text("✘ ", "bold red")
    console.print(
        mark, Text(f"{'share the report':<36}", "bold"), f"left with {found} redactions:", sep=""
    )
    for line in text.splitlines()[-2:]:
        console.print(Text(f"    {line[:110]}", "dim"))
    return clean and found >= 1


def _show_trail(console: Console, session_id: str) -> None:
    console.rule("[bold]The record")
    store = SqliteStore.in_state_dir(default_state_dir(os.geteuid(), os.environ))
    table = Table("operation", "target", "result", "ms", "detail", box=None, pad_edge=False)
    try:
        page = store.query(Query(session_id=session_id, limit=200))
    finally:
        store.close()
    for record in page.records:
        detail = {**record.params, **record.detail}
        brief = ", ".join(
            f"{key}={detail[key]}"
            for key in ("argv", "exit_code", "killed_by", "count", "redactions")
            if key in detail
        )
        table.add_row(
            Text(record.operation),
            Text(record.target[:28]),
            Text(record.result),
            str(record.duration_ms),
            Text(brief[:80]),
        )
    console.print(table)


def _show_timings(console: Console, timings: object) -> None:
    console.rule("[bold]How long the walls took")
    assert hasattr(timings, "items")
    for phase, milliseconds in timings.items():
        console.print(f"  {phase:<32}{milliseconds:8.3f} ms")


if __name__ == "__main__":
    sys.exit(main())
