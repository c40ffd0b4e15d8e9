"""python -m tests.chaos.run --events 100 --seed 1: prints every event, a table of the time lost, and a line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path

# Before Ray is imported: it reads them then, and its processes import the tests' modules as we do.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (Path.cwd(), Path.cwd() / "tests")))

from tests.chaos.faults import KINDS, Chaos, Harm, Outcome, nodes, settings_for
from tests.chaos.hosts import hosts

STRATEGIES = ("sync", "async", "gba")
NOISE = 0.01  # of AUC


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--events", type=int, default=100)
    parse.add_argument("--seed", type=int, default=1)
    parse.add_argument("--seconds", type=float, default=60.0, help="of each run, if nothing happened")
    parse.add_argument("--strategies", nargs="*", default=list(STRATEGIES))
    parse.add_argument("--minutes", type=float, default=float("inf"), help="no new run after so long")
    parse.add_argument("--kinds", nargs="*", default=list(KINDS))
    parse.add_argument(
        "--hosts", action="store_true", help="network namespaces, whose links are cut too; as root"
    )
    parse.add_argument("--path", type=Path)
    asked = parse.parse_args()
    path = asked.path or Path(tempfile.mkdtemp(prefix="chaos-"))
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f}  {line}", flush=True)

    kinds = drawn([*asked.kinds, *["cut node"] * asked.hosts], asked.events, asked.seed)
    outcomes: list[Outcome] = []
    with hosts() if asked.hosts else nodes() as raylets:
        chaos = Chaos(settings_for(raylets.address), path, asked.seed, raylets)
        while kinds and time.monotonic() - began < 60 * asked.minutes:
            strategy = asked.strategies[len(outcomes) % len(asked.strategies)]
            outcomes.append(chaos.harm_a_run(strategy, kinds, asked.seconds, tell))
            one = outcomes[-1]
            del kinds[: len(one.harms)]
            tell(
                f"{one.strategy} ended after {one.wall:.0f} s: {one.steps} steps, {one.again} done again, "
                f"{one.incarnations} incarnations, AUC {one.auc:.4f}, undisturbed {one.calm:.4f}; accounts exact"
            )
    return told(outcomes)


def drawn(kinds: list[str], events: int, seed: int) -> list[str]:
    """In turns, so that each kind is there as often as any other; in each turn in an order of its own."""
    draw, found = random.Random(seed), list[str]()
    while len(found) < events:
        found += draw.sample(kinds, len(kinds))
    return found[:events]


def told(outcomes: list[Outcome]) -> int:
    harms = [harm for one in outcomes for harm in one.harms]
    print("\nseconds lost            events    mean  median     max")
    lost = {}
    for kind in sorted({harm.kind for harm in harms}):
        lost[kind] = seconds = [harm.seconds for harm in harms if harm.kind == kind]
        print(f"{kind:22} {len(seconds):7} {row(seconds)}")
    print(f"{'all':22} {len(harms):7} {row([harm.seconds for harm in harms])}")
    worst = max(abs(one.auc - one.calm) for one in outcomes)
    print(
        f"\n{len(outcomes)} runs ended, accounts exact; AUC differs from undisturbed by at most {worst:.4f}"
    )
    print(json.dumps(summary(outcomes, harms, lost, worst)))
    return 0 if worst <= NOISE else 1


def row(seconds: list[float]) -> str:
    return f"{statistics.mean(seconds):7.1f} {statistics.median(seconds):7.1f} {max(seconds):7.1f}"


def summary(outcomes: list[Outcome], harms: list[Harm], lost: dict[str, list[float]], worst: float) -> dict:
    return {
        "events": len(harms),
        "runs": len(outcomes),
        "steps_again": sum(one.again for one in outcomes),
        "auc_difference": round(worst, 5),
        "seconds_lost": {kind: round(statistics.mean(seconds), 2) for kind, seconds in lost.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
