"""Walls: from a policy to a plan, and what a plan needs from the host.

Planning is pure (`wall_for`, `ContainerWall.plan`); what touches the system stands in files of its own:
`host`, `workspaces`, `slots`, `cgroups_io` and the cache of `seccomp`.
"""

from stockade.isolation.container import ContainerWall, wall_for
from stockade.isolation.grades import Grade, LimitGrade
from stockade.isolation.host import Host, probe_host
from stockade.isolation.plan import Plan
from stockade.isolation.seccomp import Program, compile_profile
from stockade.isolation.workspaces import Inspected, inspect_directories

__all__ = [
    "ContainerWall",
    "Grade",
    "Host",
    "Inspected",
    "LimitGrade",
    "Plan",
    "Program",
    "compile_profile",
    "inspect_directories",
    "probe_host",
    "wall_for",
]
