"""`stockade audit query`: what `run` did can be found, without its secrets and without its control characters."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli_program import started, stockade

pytestmark = pytest.mark.slow
KEY = "sk-ant-api03-" + "a1B2" * 23 + "AA"


def _records(*words: str) -> list[dict[str, Any]]:
    lines = stockade("audit", "query", "--json", *words).stdout.splitlines()
    return [json.loads(line) for line in lines]


def _run(session: str, *words: str) -> None:
    stockade("run", "--session", session, *words)


def test_a_run_is_recorded_in_order() -> None:
    """Creation, command and end, all of one session."""
    _run("se-order", "true")
    operations = [record["operation"] for record in _records("--session", "se-order")]
    assert operations == ["sandbox_create", "exec", "exec_end", "sandbox_destroy"]


def test_a_secret_variable_is_not_in_the_record() -> None:
    """The exec record names the variable, not its value."""
    _run("se-secret", "-e", f"API_KEY={KEY}", "-e", "PLAIN=seen", "true")
    (record,) = _records("--session", "se-secret", "--operation", "exec")
    assert record["params"]["envs"] == {"API_KEY": "[REDACTED]", "PLAIN": "seen"}
    assert KEY not in json.dumps(record)


def test_a_refused_call_is_found() -> None:
    """By session and result."""
    _run("se-refused", "mount", "-t", "tmpfs", "none", "/mnt")
    found = _records("--session", "se-refused", "--result", "denied")
    assert "mount" in {record["target"] for record in found}


def test_the_latest_records_are_shown_oldest_first() -> None:
    """A limit cuts the past, not the present; 0 cuts nothing."""
    _run("se-limit", "true")
    latest = _records("--session", "se-limit", "--limit", "2")
    assert [record["operation"] for record in latest] == ["exec_end", "sandbox_destroy"]
    assert len(_records("--session", "se-limit", "--limit", "0")) == 4


def test_time_bounds_hold() -> None:
    """Nothing is older than an hour, and nothing is in the future."""
    _run("se-time", "true")
    assert len(_records("--session", "se-time", "--since", "1h")) == 4
    assert _records("--session", "se-time", "--until", "1h") == []


def test_hostile_words_do_not_drive_the_terminal() -> None:
    """An escape sequence and rich's markup in an argument are shown as text."""
    _run("se-hostile", "echo", "\x1b]0;owned\x07", "[bold red]x[/]", "\u202eevil")
    shown = stockade("audit", "query", "--session", "se-hostile").stdout.decode()
    assert "[bold" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


@pytest.mark.parametrize(
    ("option", "word"),
    [("--operation", "exce"), ("--result", "bad"), ("--since", "yesterday"), ("--limit", "-1")],
)
def test_a_word_that_no_record_can_have_is_a_usage_error(option: str, word: str) -> None:
    """A typing mistake must not look like an empty log."""
    assert stockade("audit", "query", option, word).returncode == 2


def test_a_reader_that_leaves_ends_a_query_quietly() -> None:
    """`stockade audit query | head -1` prints no error."""
    for _ in range(3):
        _run("se-head", "echo", "x" * 30_000)
    with started("audit", "query", "--json", "--session", "se-head") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""


def test_asking_makes_no_state(tmp_path: Path) -> None:
    """Before the first sandbox there is nothing to find, and nothing is made."""
    result = stockade("audit", "query", envs={"STOCKADE_STATE_DIR": str(tmp_path / "state")})
    assert (result.returncode, result.stdout) == (0, b"No records yet.\n")
    assert list(tmp_path.iterdir()) == []
