"""Fail if a package in this environment, or a crate that the cell links, is under the GPL or the AGPL.

Both would bind users of an Apache-2.0 library; the LGPL does not, as its users can replace that part.
It reads what packages declare; it does not read licence texts.
"""

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

REFUSED = re.compile(r"\bA?GPL|\bGNU (Affero )?General Public", re.IGNORECASE)
"""`\\b` keeps LGPL out: there is no word boundary before its G."""

CRATE = Path("crates/stockade-cell")


def main() -> int:
    """Print the offenders; 1 if there are any, or if a package says nothing."""
    licences = {d.name: _python_licence(d) for d in distributions()} | _crate_licences()
    problems = [
        f"{name}: {said or 'declares no licence'}"
        for name, said in licences.items()
        if _refused(said)
    ]
    print(
        "\n".join(sorted(problems)) or f"licences: {len(licences)} packages, none under GPL or AGPL"
    )
    return 1 if problems else 0


def _refused(licence: str) -> bool:
    # "MIT OR GPL-2.0" leaves the choice to us.
    choices = licence.split(" OR ")
    return not licence or all(REFUSED.search(choice) for choice in choices)


def _python_licence(distribution: Distribution) -> str:
    metadata = distribution.metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    classifiers = [c for c in metadata.get_all("Classifier") or () if c.startswith("License ::")]
    if classifiers or "License" not in metadata:
        return "; ".join(classifiers)
    return metadata["License"].split("\n")[0]


def _crate_licences() -> dict[str, str]:
    cargo = shutil.which("cargo")
    if cargo is None:
        sys.exit("check_licences: cargo was not found")
    command = [cargo, "metadata", "--format-version=1", "--locked"]
    output = subprocess.run(command, cwd=CRATE, check=True, capture_output=True).stdout
    return {f"crate {p['name']}": p["license"] or "" for p in json.loads(output)["packages"]}


if __name__ == "__main__":
    sys.exit(main())
