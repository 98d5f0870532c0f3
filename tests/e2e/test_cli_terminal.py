"""`stockade run` on a terminal: the command has one of its own inside, and ours is as it was afterwards."""

import signal
import termios

import pytest

from tests.e2e.cli_program import on_terminal, shell

pytestmark = pytest.mark.slow
LOOP = "while :; do sleep 0.05; done"


def test_the_command_has_a_terminal() -> None:
    """tty(1) names one inside, and it knows its kind."""
    with on_terminal(*shell("tty; echo kind $TERM; test -t 0 -a -t 1 -a -t 2")) as session:
        assert session.read_until(b"\r\n").startswith(b"/dev/pts/")
        assert session.read_until(b"\r\n") == b"kind xterm\r\n"
        assert session.status() == 0


def test_the_terminal_has_our_size() -> None:
    """Rows and columns are those of the local one."""
    with on_terminal("run", "--", "stty", "size", size=(33, 101)) as session:
        assert session.read_until(b"\r\n") == b"33 101\r\n"


def test_a_new_size_reaches_the_command() -> None:
    """SIGWINCH is forwarded with the new rows and columns."""
    with on_terminal(*shell(f"trap 'stty size' WINCH; echo ready; {LOOP}")) as session:
        session.read_until(b"ready\r\n")
        termios.tcsetwinsize(session.master, (40, 120))
        assert session.read_until(b"40 120\r\n")


def test_control_c_interrupts_the_command_not_us() -> None:
    """The key goes in as a byte; the terminal inside makes the signal."""
    with on_terminal(*shell(f"trap 'echo caught; exit 9' INT; echo ready; {LOOP}")) as session:
        session.read_until(b"ready\r\n")
        session.type(b"\x03")
        session.read_until(b"caught\r\n")
        assert session.status() == 9
        assert session.is_restored()


def test_a_command_that_control_c_ends_ends_us() -> None:
    """A shell that started us sees SIGINT."""
    with on_terminal(*shell(f"echo ready; {LOOP}")) as session:
        session.read_until(b"ready\r\n")
        session.type(b"\x03")
        assert session.status() == -signal.SIGINT
        assert session.is_restored()


def test_control_d_ends_the_input() -> None:
    """cat(1) ends as it does on any terminal."""
    with on_terminal("run", "cat") as session:
        session.type(b"typed\n")
        session.read_until(b"typed\r\ntyped\r\n")
        session.type(b"\x04")
        assert session.status() == 0


def test_keys_are_raw_while_the_command_runs() -> None:
    """No line editing and no echo of ours: else each key would be seen twice."""
    with on_terminal(*shell(f"echo ready; {LOOP}")) as session:
        session.read_until(b"ready\r\n")
        assert not termios.tcgetattr(session.slave)[3] & (
            termios.ICANON | termios.ECHO | termios.ISIG
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_the_terminal_is_restored_when_a_signal_ends_us(number: signal.Signals) -> None:
    """Whoever kills us does not leave a raw terminal behind."""
    with on_terminal(*shell(f"echo ready; {LOOP}")) as session:
        session.read_until(b"ready\r\n")
        session.process.send_signal(number)
        assert session.status() == -number
        assert session.is_restored()


def test_the_terminal_is_restored_when_the_program_is_missing() -> None:
    """The message is printed on a terminal in its own mode."""
    with on_terminal("run", "no-such-program") as session:
        assert b"\r\n" in session.read_until(b"next: ")
        assert session.status() == 127
        assert session.is_restored()
