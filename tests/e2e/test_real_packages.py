"""Real input that no one here wrote: the test suites of two well-known packages pass inside exactly as outside.

click's suite works with terminals, streams, temporary files, signals and child processes; toolz' is plain computing.
Their source distributions are pinned in sdists.txt.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest

from stockade import Sandbox

SDISTS = Path(sys.prefix) / "share" / "stockade-sdists"
PYTEST = [
    f"{sys.prefix}/bin/python",
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:randomly",
]
ENVIRONMENT = {"PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"}

Outcomes = dict[tuple[str, str], str]


@pytest.mark.slow
@pytest.mark.timeout(90)  # each suite runs twice; on two idle cores 7 s
@pytest.mark.parametrize(
    ("package", "words", "at_least"), [("click", "tests", 2400), ("toolz", "toolz", 180)]
)
def test_a_packages_own_suite_passes_inside_as_outside(
    tmp_path: Path, package: str, words: str, at_least: int
) -> None:
    """Test by test, the outcome inside is the one outside, and it is not failure."""
    inside, outside = (_unpack(package, tmp_path / name) for name in ("inside", "outside"))
    words_outside = [*PYTEST, f"--junit-xml={outside}.xml", words]
    with subprocess.Popen(
        words_outside,
        cwd=outside,
        env={**_plain_environment(tmp_path), **ENVIRONMENT},
        stdout=subprocess.DEVNULL,
    ) as process:
        found = _run_inside(inside, words)
        process.wait()
    expected = _outcomes(Path(f"{outside}.xml").read_bytes())
    assert found == expected
    counts = Counter(found.values())
    assert counts["passed"] >= at_least
    assert set(counts) <= {"passed", "skipped"}


def _unpack(package: str, target: Path) -> Path:
    [archive] = SDISTS.glob(f"{package}-*.tar.gz")  # `make setup` fetches it
    target.mkdir()
    subprocess.run(["tar", "-xzf", archive, "--no-same-owner", "-C", target], check=True)
    [root] = target.iterdir()
    return root


def _run_inside(source: Path, words: str) -> Outcomes:
    policy = {
        "version": 1,
        "limits": {"cpu": 4, "memory": "1G", "processes": 200},
        "filesystem": {
            "workspaces": [{"source": str(source)}],
            "toolchains": [sys.prefix],
        },
    }
    with Sandbox.create(policy) as made:
        command = [*PYTEST, "--junit-xml=/output/report.xml", words]
        result = made.commands.run(command, envs=ENVIRONMENT, timeout=80)
        assert made.files.exists("/output/report.xml"), result.stdout[-2000:] + result.stderr
        return _outcomes(made.files.read("/output/report.xml", "bytes"))


def _outcomes(report: bytes) -> Outcomes:
    """Return each test's outcome by class and name."""
    found: Outcomes = {}
    for case in ET.fromstring(report).iter("testcase"):
        kinds = [child.tag for child in case if child.tag in {"failure", "error", "skipped"}]
        found[case.get("classname", ""), case.get("name", "")] = (*kinds, "passed")[0]
    return found


def _plain_environment(tmp_path: Path) -> dict[str, str]:
    """Return what a sandbox has too: no variable of the caller's."""
    (tmp_path / "home").mkdir()
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path / "home"),
        "LANG": "C.UTF-8",
    }
