"""The commands with their options and help; each body calls the module that does it, imported when it is needed."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from stockade import __version__

if TYPE_CHECKING:
    from stockade.cli.policy_options import PolicyOptions

_RUN_EXAMPLES = """
[bold]Examples[/bold]

  stockade run -- python3 -c 'print("inside")'

  stockade run --workspace ./data:ro --write ./report -- python3 analyse.py

  generate | stockade run -- sort | less

  stockade run --env API_KEY --timeout 30 --json -- ./agent-tool

  while read name; do stockade run -- greet "$name" < /dev/null; done < names

[bold]Exit status[/bold]: the command's; 124 time limit, 125 Stockade itself failed, 126 not executable, \
127 not found. A command that a signal ended ends stockade by the same signal: 128 + its number in $?.
"""

_EXAMPLES = """
[bold]Start here[/bold]

  stockade doctor                                what this host can enforce

  stockade run -- ls -la /                       a command behind walls

  stockade plan policy.yaml                      check a policy, see the walls

  stockade audit query --since 1h                what was done
"""

app = typer.Typer(
    help="Walls around the tool calls of AI agents, limits on them, and a record of each.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
audit = typer.Typer(help="Ask what was done.", no_args_is_help=True)
app.add_typer(audit, name="audit", rich_help_panel="Records")

_POLICY = "Policy"
_COMMAND = "Command"
_OUTPUT = "Output"


class Level(enum.StrEnum):
    """How thick the wall is."""

    PROCESS = "process"
    CONTAINER = "container"
    MICROVM = "microvm"


class User(enum.StrEnum):
    """Who the command is inside."""

    AGENT = "agent"
    ROOT = "root"


LevelOption = Annotated[
    Level | None,
    typer.Option(help="Isolation level; never replaced by a weaker one.", rich_help_panel=_POLICY),
]
ImageOption = Annotated[
    str | None,
    typer.Option(
        help="'host', or a directory that holds a root file system.", rich_help_panel=_POLICY
    ),
]
WorkspaceOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIR[:/TARGET][:ro]",
        help="Mount a directory of yours, at /workspace unless said otherwise. Repeatable.",
        rich_help_panel=_POLICY,
    ),
]
WriteOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIR[:/TARGET]",
        help="Mount a directory of yours for results, writable, at /output unless said otherwise. Repeatable.",
        rich_help_panel=_POLICY,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=_OUTPUT)]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"stockade {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_show_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Put nothing before the commands; the options of all of them are here."""


@app.command(
    "run",
    epilog=_RUN_EXAMPLES,
    rich_help_panel="Sandboxes",
    context_settings={"allow_interspersed_args": False},
)
def run_command(  # noqa: PLR0913, PLR0917 - one parameter for each option
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="The command and its words.")
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Policy file; options go on top of it.", rich_help_panel=_POLICY
        ),
    ] = None,
    level: LevelOption = None,
    image: ImageOption = None,
    workspace: WorkspaceOption = None,
    write: WriteOption = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            "-e",
            metavar="NAME[=VALUE]",
            rich_help_panel=_COMMAND,
            help="Set a variable, or pass yours on; nothing else of your environment goes in. Repeatable.",
        ),
    ] = None,
    cwd: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Working directory inside.", rich_help_panel=_COMMAND),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.001,
            rich_help_panel=_COMMAND,
            help="Time limit. Without it, the one that the policy file states, else none.",
        ),
    ] = None,
    user: Annotated[
        User, typer.Option(help="Who it runs as, inside.", rich_help_panel=_COMMAND)
    ] = User.AGENT,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            rich_help_panel=_OUTPUT,
            help="Print one JSON object with output, result and protections instead of streaming.",
        ),
    ] = False,
    session: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Session of its records.", rich_help_panel=_OUTPUT),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Agent of its records.", rich_help_panel=_OUTPUT),
    ] = None,
) -> None:
    """Run a command in a sandbox of its own, as if it ran here: streams, terminal, signals and exit status.

    Standard input is forwarded as it comes; use < /dev/null where the command must not take a script's own input.
    """  # fmt: skip
    from stockade.cli import run
    from stockade.cli.environment import read_variables

    options = run.RunOptions(
        argv=command,
        policy=_policy_options(policy, level, image, workspace, write),
        envs=read_variables(env or ()),
        cwd=cwd,
        timeout_s=timeout,
        user=user.value,
        as_json=as_json,
        session_id=session,
        agent_id=agent,
    )
    raise typer.Exit(run.run_to_status(options))


@app.command(rich_help_panel="Sandboxes")
def plan(
    policy: Annotated[
        str | None, typer.Argument(metavar="[POLICY]", help="Policy file; none: the built-in one.")
    ] = None,
    level: LevelOption = None,
    image: ImageOption = None,
    workspace: WorkspaceOption = None,
    write: WriteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a policy and print the steps that build its wall here, without taking them."""
    from stockade.cli.plan import show_plan

    show_plan(_policy_options(policy, level, image, workspace, write), as_json=as_json)


@app.command(rich_help_panel="Host")
def doctor(as_json: JsonOption = False) -> None:
    """Show what this host can enforce, how to get the rest, and build one sandbox to prove it.

    Exit status 0 if the built-in policy's sandbox works here, else 1.
    """
    from stockade.cli.doctor import examine

    raise typer.Exit(examine(as_json=as_json))


@app.command(rich_help_panel="Records")
def purge(yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Remove all state of this user: the audit log and the caches. Refused while sandboxes live."""
    from stockade.cli.purge import purge_state

    raise typer.Exit(purge_state(asks=not yes))


@audit.command("query")
def audit_query(  # noqa: PLR0913, PLR0917 - one parameter for each filter
    session: Annotated[str | None, typer.Option(metavar="ID")] = None,
    sandbox: Annotated[str | None, typer.Option(metavar="ID")] = None,
    agent: Annotated[str | None, typer.Option(metavar="ID")] = None,
    operation: Annotated[
        str | None, typer.Option(metavar="NAME", help="Such as exec or syscall_refused.")
    ] = None,
    result: Annotated[str | None, typer.Option(metavar="WORD", help="Such as denied.")] = None,
    target: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="What the target begins with.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="7d, 1h, 30m ago, or 2026-01-31T12:00 (UTC).")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Likewise; exclusive.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="The latest so many; 0 for all.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Print the latest records that fit, oldest first."""
    from stockade.cli import audit_query as query

    wanted = query.Filters(session, sandbox, agent, operation, result, target, since, until, limit)
    query.show_records(
        wanted, as_json=as_json, width=None if sys.stdout.isatty() else query.FILE_WIDTH
    )


def _policy_options(
    policy: str | None,
    level: Level | None,
    image: str | None,
    workspace: list[str] | None,
    write: list[str] | None,
) -> PolicyOptions:
    from stockade.cli.policy_options import PolicyOptions

    return PolicyOptions(policy, level and level.value, image, workspace or (), write or ())
