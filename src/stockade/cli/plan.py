"""`stockade plan`: a policy's plan on this host, printed; nothing is built, taken or written."""

from __future__ import annotations

from stockade.cli import message, place
from stockade.cli.policy_options import PolicyOptions, policy_from_options
from stockade.isolation import Plan, compile_profile, inspect_directories, probe_host, wall_for
from stockade.policy import Policy

#: Stands for the id that a real sandbox would get; slot 0 for its range of user ids.
EXAMPLE_ID = "sb-example"


def show_plan(options: PolicyOptions, *, as_json: bool) -> None:
    """Print the plan as YAML or JSON; raises `PolicyError`, `HostUnsupported` and what else planning finds."""
    plan = plan_of(policy_from_options(options))
    if as_json:
        message.write_json(plan.to_dict())
    else:
        print(plan.to_yaml(), end="")


def plan_of(policy: Policy) -> Plan:
    """Return the plan that a sandbox of this policy would have here."""
    isolation = policy.isolation
    host = probe_host()
    program = compile_profile(isolation.profile, isolation.allow, isolation.deny, host.machine)
    inspected = inspect_directories(policy, host, (place.state_dir(), place.run_dir()))
    return wall_for(policy, host, program, inspected).plan(0, EXAMPLE_ID)
