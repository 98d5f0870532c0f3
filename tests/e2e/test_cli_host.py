"""`stockade doctor`, `plan`, `purge` and the help: what they print and what they leave alone."""

import fcntl
import json
import os
from pathlib import Path

import pytest
import yaml

from stockade import __version__
from tests.e2e.cli_program import started, stockade

pytestmark = pytest.mark.slow


def test_doctor_builds_a_sandbox_and_tells_what_holds() -> None:
    """Its JSON is read by programs: these keys stay."""
    result = stockade("doctor", "--json")
    told = json.loads(result.stdout)
    assert result.returncode == 0, told["trial"]["error"]
    assert {"ok", "version", "host", "findings", "levels", "limits", "trial", "warnings"} == set(
        told
    )
    assert {"name", "ok", "grade", "detail", "how"} == set(told["findings"][0])
    assert told["levels"]["container"]["available"]
    assert not told["levels"]["microvm"]["available"]
    assert {"cpu", "memory", "processes", "disk"} <= set(told["limits"])
    assert told["trial"]["phases_ms"]["total"] > 0
    assert "seccomp" in told["trial"]["protections"]


def test_doctor_says_that_the_kernel_is_shared() -> None:
    """R1: once, in words for people."""
    words = " ".join(stockade("doctor").stdout.decode().split())
    assert words.count("shares this host's kernel") == 1


def test_doctor_fails_where_no_sandbox_can_be_built(tmp_path: Path) -> None:
    """Its exit status can be relied on: the trial is real."""
    broken = tmp_path / "file"
    broken.write_text("")
    result = stockade("doctor", "--json", envs={"STOCKADE_RUN_DIR": str(broken)})
    told = json.loads(result.stdout)
    assert (result.returncode, told["ok"], told["trial"]["ok"]) == (1, False, False)
    assert told["trial"]["error"]["code"] == "host_unsupported"


def test_plan_prints_every_step() -> None:
    """The built-in policy's plan ends with the change of the root."""
    steps = yaml.safe_load(stockade("plan").stdout)["steps"]
    assert steps[-1]["op"] == "Pivot"


def test_plan_takes_a_policy_and_options(tmp_path: Path) -> None:
    """What `run` would build can be seen first, with the same options."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nisolation: {hostname: box}\n")
    result = stockade("plan", str(policy), "--write", str(tmp_path), "--json")
    steps = json.loads(result.stdout)["steps"]
    assert "box" in str([step for step in steps if step["op"] == "Hostname"])
    assert str(tmp_path) in str(steps)


def test_plan_leaves_nothing_behind(tmp_path: Path) -> None:
    """It builds nothing, takes nothing, and makes no state."""
    places = {
        "STOCKADE_STATE_DIR": str(tmp_path / "state"),
        "STOCKADE_RUN_DIR": str(tmp_path / "run"),
    }
    assert stockade("plan", envs=places).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_plan_refuses_a_faulty_policy(tmp_path: Path) -> None:
    """Exit status 1, with the line."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nisolation:\n  level: wall\n")
    result = stockade("plan", str(policy))
    assert result.returncode == 1
    assert b"line 3: isolation.level" in result.stderr


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    """Return places of its own for a program's state and locks."""
    return {
        "STOCKADE_STATE_DIR": str(tmp_path / "state"),
        "STOCKADE_RUN_DIR": str(tmp_path / "run"),
    }


def test_purge_removes_the_state(state: dict[str, str]) -> None:
    """Afterwards the directory is gone."""
    stockade("run", "true", envs={"STOCKADE_STATE_DIR": state["STOCKADE_STATE_DIR"]})
    assert Path(state["STOCKADE_STATE_DIR"]).exists()
    assert stockade("purge", "--yes", envs=state).returncode == 0
    assert not Path(state["STOCKADE_STATE_DIR"]).exists()


def test_purge_of_nothing_is_no_error(state: dict[str, str]) -> None:
    """A second purge has nothing to do."""
    assert stockade("purge", "--yes", envs=state).returncode == 0


def test_purge_removes_nothing_without_an_answer(state: dict[str, str]) -> None:
    """Where nobody can be asked, --yes must have been said."""
    stockade("run", "true", envs={"STOCKADE_STATE_DIR": state["STOCKADE_STATE_DIR"]})
    assert stockade("purge", envs=state).returncode == 1
    assert Path(state["STOCKADE_STATE_DIR"]).exists()


def test_purge_is_refused_while_a_sandbox_lives(state: dict[str, str]) -> None:
    """A slot whose owner lives is locked."""
    stockade("run", "true", envs={"STOCKADE_STATE_DIR": state["STOCKADE_STATE_DIR"]})
    slots = Path(state["STOCKADE_RUN_DIR"]) / "slots"
    slots.mkdir(parents=True)
    with (slots / "0.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = stockade("purge", "--yes", envs=state)
    assert result.returncode == 1
    assert b"live sandboxes: 1" in result.stderr
    assert Path(state["STOCKADE_STATE_DIR"]).exists()


def test_purge_is_refused_while_a_run_is_under_way(state: dict[str, str]) -> None:
    """The same with a real sandbox: what it writes its records to stays."""
    only_state = {"STOCKADE_STATE_DIR": state["STOCKADE_STATE_DIR"]}
    with started("run", "cat", env={**os.environ, **only_state}) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"ready\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ready\n"
        assert stockade("purge", "--yes", envs=only_state).returncode == 1


def test_the_version_is_told_without_a_command() -> None:
    """For bug reports and scripts."""
    assert stockade("--version").stdout.decode() == f"stockade {__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("run", "--help"),
        ("plan", "--help"),
        ("doctor", "--help"),
        ("audit", "query", "--help"),
    ],
)
def test_help_is_there(words: tuple[str, ...]) -> None:
    """Each command explains itself."""
    result = stockade(*words)
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"Usage: stockade" in result.stdout


def test_an_unknown_command_is_a_usage_error() -> None:
    """Exit status 2, as everywhere."""
    assert stockade("frobnicate").returncode == 2
