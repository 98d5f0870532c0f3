"""What the entry point costs, and what its commands may not import before they are used."""

import subprocess
import sys

import pytest


def _loaded(*words: str) -> set[str]:
    script = (
        "import sys; sys.argv = ['stockade', *sys.argv[1:]]; from stockade.cli import main\n"
        "main()\n"
        "print('\\n'.join(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, check=True)
    return set(result.stdout.decode().split())


@pytest.mark.parametrize("module", ["typer", "pydantic", "rich", "asyncio", "stockade.policy"])
def test_the_version_loads_nothing_large(module: str) -> None:
    """`stockade --version` is asked by scripts."""
    assert module not in _loaded("--version")


def test_a_policy_is_checked_without_rich() -> None:
    """Only tables need it."""
    assert "rich.console" not in _loaded("plan")
