"""`exec_true`: run /bin/true in a sandbox that is alive."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, closing

from bench.measurement import Measurement, measurement
from bench.ours import check_success
from bench.peers import TRUE, Crun, Peer, nsenter
from bench.processes import Here
from bench.samples import Round, after_quiet, in_a_row, interleave, ms_of, now_ms
from bench.setting import Setting
from stockade import AsyncSandbox

ROUNDS = 500
#: Commands in a row: an agent's tool calls come in bursts, and so do peers.md's. `after_quiet` is the other case.
BLOCK = 10


def measure(setting: Setting) -> Measurement:
    """Ours is `Sandbox.commands.run`; bwrap and nsjail have no exec, so nsenter(1) does it for them."""
    with ExitStack() as stack:
        stack.enter_context(setting.ours.audited())
        sandbox = stack.enter_context(setting.ours.create())
        runner = stack.enter_context(asyncio.Runner())
        twin = runner.run(setting.ours.create_async())
        stack.callback(lambda: runner.run(twin.kill()))
        contenders: dict[str, Round] = {
            "floor": lambda: [Here().run(TRUE)],
            "ours": lambda: [ms_of(lambda: check_success(sandbox.commands.run(TRUE)))],
            "async": lambda: [runner.run(_async_ms(twin))],
        }
        for peer in setting.present.peers:
            contenders[peer.name] = _enter(peer, stack)
        rounds = setting.rounds_or(ROUNDS)
        blocks = {name: in_a_row(one, BLOCK) for name, one in contenders.items()}
        summaries = interleave(blocks, max(3, rounds // BLOCK))
        quiet: dict[str, Round] = {"after_quiet": after_quiet(contenders["ours"])}
        summaries |= interleave(quiet, max(3, rounds // 10), warmups=1)
    note = (
        f"/bin/true in a live sandbox, {BLOCK} in a row; after_quiet: after 0.1 s without any; bwrap and nsjail by "
        f"nsenter; on {setting.view}"
    )
    return measurement("ms", summaries, setting.present, note)


def _enter(peer: Peer, stack: ExitStack) -> Round:
    spawner = stack.enter_context(closing(peer.spawner()))
    if isinstance(peer, Crun):
        command = peer.exec(stack.enter_context(peer.container()), TRUE)
    else:
        command = nsenter(stack.enter_context(peer.live()).payload, TRUE)
    return lambda: [spawner.run(command)]


async def _async_ms(sandbox: AsyncSandbox) -> float:
    begin = now_ms()
    check_success(await sandbox.commands.run(TRUE))
    return now_ms() - begin
