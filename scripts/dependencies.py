"""Print the requirements in pyproject.toml, with those of the extras named as arguments.

It exists because pip can install a project's dependencies only together with the project, and the set-up
rebuilds the project far more often than its dependencies change.
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Write one requirement a line."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *(line for extra in sys.argv[1:] for line in extras[extra])]:
        print(requirement)


if __name__ == "__main__":
    main()
