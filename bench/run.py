"""The benchmark: `python bench/run.py [--only KEY,KEY] [--check]`. Figures go to bench/results.json and results.md.

Peers come from `make bench-setup`. Run it on a quiet machine; the load before is part of the results.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # instead of bench/ itself, whose files are modules of the package `bench`

from bench import ceilings, machine, report, view  # noqa: E402 - needs the path
from bench.keys import cold_true, exec_true, idle_pss_kib, parallel_50  # noqa: E402
from bench.measurement import Measurement  # noqa: E402
from bench.ours import Ours  # noqa: E402
from bench.peers import present  # noqa: E402
from bench.setting import Setting  # noqa: E402

KEYS: dict[str, Callable[[Setting], Measurement]] = {
    "cold_true": cold_true.measure,
    "exec_true": exec_true.measure,
    "parallel_50": parallel_50.measure,
    "idle_pss_kib": idle_pss_kib.measure,
}


def main() -> int:
    """Measure, write, print; 1 if `--check` finds a ceiling that does not hold."""
    options = _parse_arguments()
    with _setting(options) as setting:
        facts = machine.facts(setting.present)
        print(machine.sentence(facts), flush=True)
        fresh = {}
        for key in options.only:
            print(f"bench: {key}", file=sys.stderr, flush=True)
            fresh[key] = report.entry_of(KEYS[key](setting), facts)
    merged = report.merge(options.output, fresh)
    options.output.with_suffix(".md").write_text(report.markdown(merged), encoding="utf-8")
    print(report.markdown(fresh))
    return _check(fresh, options.slack) if options.check else 0


def _check(fresh: dict[str, report.Entry], slack: float) -> int:
    verdicts = ceilings.judge(fresh, slack)
    print(*verdicts, sep="\n")
    return 0 if all(verdict.holds for verdict in verdicts) else 1


@contextmanager
def _setting(options: argparse.Namespace) -> Iterator[Setting]:
    if os.geteuid() != 0:
        # bwrap, crun and nsjail do other things for an ordinary user, so there would be nothing to compare with.
        sys.exit("bench: needs root, as the figures of the peers do")
    # /var/tmp lies on a disk, which /tmp often does not: what the audit's fsync costs must count.
    scratch = Path(tempfile.mkdtemp(prefix="stockade-bench-", dir="/var/tmp"))
    scratch.chmod(0o711)  # crun's container walks through it to its root with other ids
    try:
        chosen = view.view_of(options.image)
        with closing(Ours(chosen, scratch / "state")) as ours:
            yield Setting(chosen, ours, present(chosen, scratch, options.peers), options.rounds)
    finally:
        shutil.rmtree(scratch)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--only", type=_keys, default=list(KEYS), help="keys, separated by commas")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 unless W1's ceilings hold"
    )
    parser.add_argument(
        "--slack", type=float, default=1.0, help="widen the ceilings of --check by this factor"
    )
    parser.add_argument(
        "--rounds", type=int, help="counted rounds instead of each key's own number"
    )
    parser.add_argument(
        "--peers", type=_words, default=[], help="only these peers, separated by commas"
    )
    parser.add_argument(
        "--image", default="host", help="`host`, or a directory that all use as the root"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results.json")
    return parser.parse_args()


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _keys(text: str) -> Sequence[str]:
    unknown = set(_words(text)) - set(KEYS)
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(KEYS)}"
        )
    return _words(text) or list(KEYS)


if __name__ == "__main__":
    sys.exit(main())
