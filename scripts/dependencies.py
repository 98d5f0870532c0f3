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
    lists = [
        project["dependencies"],
        *(project["optional-dependencies"][extra] for extra in sys.argv[1:]),
    ]
    print("\n".join(requirement for requirements in lists for requirement in requirements))


if __name__ == "__main__":
    main()
