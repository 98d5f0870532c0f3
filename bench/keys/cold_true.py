"""`cold_true`: create a sandbox, run /bin/true in it, destroy it, from a running Python process."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, closing

from bench.measurement import Measurement, measurement
from bench.ours import Ours
from bench.peers import TRUE, Peer
from bench.processes import Here, Spawner
from bench.samples import Round, after_quiet, interleave, ms_of, now_ms
from bench.setting import Setting

ROUNDS = 300


def measure(setting: Setting) -> Measurement:
    """Ours is `Sandbox`; the variant `async` is `AsyncSandbox` on a loop of the caller's."""
    with ExitStack() as stack:
        stack.enter_context(setting.ours.audited())
        runner = stack.enter_context(asyncio.Runner())
        contenders: dict[str, Round] = {
            "floor": lambda: [Here().run(TRUE)],
            "ours": lambda: [ms_of(setting.ours.cold)],
            "async": lambda: [runner.run(_async_ms(setting.ours))],
        }
        for peer in setting.present.peers:
            contenders[peer.name] = _round(peer, stack.enter_context(closing(peer.spawner())))
        rounds = setting.rounds_or(ROUNDS)
        summaries = interleave(contenders, rounds)
        quiet: dict[str, Round] = {"after_quiet": after_quiet(contenders["ours"])}
        summaries |= interleave(quiet, max(3, rounds // 10), warmups=1)
    note = (
        "create, run /bin/true, destroy; ours: `Sandbox`; after_quiet: after 0.1 s without any; "
        f"on {setting.view}"
    )
    return measurement("ms", summaries, setting.present, note)


def _round(peer: Peer, spawner: Spawner) -> Round:
    return lambda: [spawner.run(peer.cold(TRUE))]


async def _async_ms(ours: Ours) -> float:
    begin = now_ms()
    await ours.cold_async()
    return now_ms() - begin
