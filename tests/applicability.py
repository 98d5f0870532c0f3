"""The one way to leave a test out: it says why the host can't run it.

Any other skip fails the run (see conftest.py), so that an attack test never goes missing unseen.
"""

from typing import NoReturn

from _pytest.outcomes import Skipped  # what pytest.skip raises; its public name has no type


class NotApplicable(Skipped):
    """Raised where this host has no such mechanism (no hardware virtualisation, say)."""


def not_applicable(reason: str) -> NoReturn:
    """End the running test as not applicable; `reason` names what the host lacks."""
    raise NotApplicable(reason)
