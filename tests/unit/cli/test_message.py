"""What is printed can't drive a terminal, and says what to do."""

import pytest

from stockade.cli import message
from stockade.errors import HostUnsupported, PolicyError, PolicyProblem


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\r\tc", "a\\x0ab\\x0d\\x09c"),
        ("\x9b1m", "\\x9b1m"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("a\u2028b\ufeff", "a\\u2028b\\ufeff"),
        ("\udc80", "\\udc80"),
        ("naïve 漢字 [bold]", "naïve 漢字 [bold]"),
    ],
)
def test_what_a_terminal_would_act_on_is_escaped(hostile: str, shown: str) -> None:
    """Escapes, control characters and reordering are shown; letters of any script stay."""
    assert message.printable(hostile) == shown


def test_an_error_has_its_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    """Two lines on standard error, none on standard output."""
    message.show_error(HostUnsupported("walls", "Build them."))
    told = capsys.readouterr()
    assert told.err == "stockade: this host cannot provide walls\n  next: Build them.\n"
    assert told.out == ""


def test_each_fault_of_a_policy_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A person who corrects a file goes through them one by one."""
    problems = (PolicyProblem("a", "is wrong", 3, 1), PolicyProblem("b", "too", 4, 1))
    message.show_error(PolicyError(problems, "p.yaml"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [
        "stockade: p.yaml: this policy can't be used",
        "  line 3: a: is wrong",
        "  line 4: b: too",
    ]


def test_a_bug_leaves_its_traceback_in_a_file(
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message names the file; the traceback is not printed."""
    directory = tmp_path_factory.mktemp("errors")
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    message.show_bug(KeyError("lost"))
    (report,) = directory.iterdir()
    told = capsys.readouterr().err
    assert str(report) in told
    assert len(told.splitlines()) == 2
    assert "KeyError: 'lost'" in report.read_text()
