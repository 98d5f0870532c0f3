"""`idle_pss_kib`: memory of all that stays alive for one idle sandbox, while ten are."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack

from bench import processes
from bench.measurement import Measurement, measurement
from bench.ours import Ours, check_success
from bench.peers import TRUE, Peer
from bench.samples import Round, interleave
from bench.setting import Setting

ROUNDS = 3
AT_ONCE = 10


def measure(setting: Setting) -> Measurement:
    """Ours has run one command before, so what the cell touches to do that counts.

    Of a peer counts what it keeps alive beside the payload (sleep), which ours need not have.
    """
    with ExitStack() as stack:
        stack.enter_context(setting.ours.audited())
        runner = stack.enter_context(asyncio.Runner())
        contenders: dict[str, Round] = {"ours": lambda: runner.run(_cells(setting.ours))}
        for peer in setting.present.peers:
            contenders[peer.name] = _round(peer)
        summaries = interleave(contenders, setting.rounds_or(ROUNDS), warmups=1)
    note = (
        f"PSS of all processes that stay alive for one idle sandbox, {AT_ONCE} at once; ours: after one command; "
        "peers: without the payload"
    )
    return measurement("KiB", summaries, setting.present, note)


def _round(peer: Peer) -> Round:
    def kept() -> list[float]:
        with ExitStack() as stack:
            alive = [stack.enter_context(peer.live()) for _ in range(AT_ONCE)]
            return [float(sum(map(processes.pss_kib, live.kept))) for live in alive]

    return kept


async def _cells(ours: Ours) -> list[float]:
    async with AsyncExitStack() as stack:
        pids = []
        for _ in range(AT_ONCE):
            sandbox = await stack.enter_async_context(await ours.create_async())
            check_success(await sandbox.commands.run(TRUE))
            pids.append(sandbox.live.pid)
        return [_tree_pss(pid) for pid in pids]


def _tree_pss(pid: int) -> float:
    return float(sum(map(processes.pss_kib, processes.with_descendants(pid))))
