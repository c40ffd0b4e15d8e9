"""What a live switch costs: idle time of eight worker threads around it, one of them 5x slower.

    python benchmarks/bench_live_switch.py [--rounds 6] [--seconds 0.1]        about 2 minutes

One run is switched sync -> gba -> async -> sync -> gba -> sync ... from outside, at moments that have nothing to do
with its steps. Slowness is injected: a batch takes .1 s, the slow worker's .5 s. Everything is read off the run's event
log. A wait is the time from a worker's request to its next `Begin`; those count that overlap the time from the switch
to the first step after it, each in full, also what lies before the switch (a worker that waited in sync) or after it.
Idle time per worker is held against the slowest lease of that time + one undisturbed step. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from dataclasses import dataclass
from statistics import median

import torch

import gearshift as gs
from gearshift.cluster_model.cluster import ClusterModel, Compute, Slow
from gearshift.run.event_log import Decision, files, read
from gearshift.sync.events import Apply, Begin, GradientArrived, SwitchRequested, WorkRequested

WORKERS, BATCH, FACTOR = 8, 128, 5.0
GLOBAL = WORKERS * BATCH
ROUND = ("gba", "async", "sync", "gba", "sync")  # from sync: each way once, sync -> gba twice


@dataclass(frozen=True)
class Span:
    """A time of one worker: waiting, or computing."""

    since: float
    until: float

    @property
    def seconds(self) -> float:
        return self.until - self.since


def live_run(rounds: int, seconds: float, folder: str) -> tuple[list[Decision], list[gs.Switch]]:
    torch.manual_seed(1)
    rng, switches = random.Random(1), []
    per_switch = 3 * FACTOR * seconds  # and as much again at random
    lasts = len(ROUND) * rounds * 2 * per_switch + 60
    data = gs.read(gs.ClickLog(examples=int(lasts * GLOBAL / seconds), days=1))
    run = gs.Trainer(
        global_batch=GLOBAL,
        workers=gs.WorkerSettings(
            WORKERS, inject=ClusterModel(WORKERS, Compute(per_batch=seconds), slow=(Slow(FACTOR, (3,)),))
        ),
        checkpoint=gs.CheckpointPolicy(None, path=folder),
    ).start(gs.models.DNN(data.schema, dim=8, hidden=[32]), data)
    while run.status().step < 3:
        time.sleep(seconds)
    for to in ROUND * rounds:
        time.sleep(per_switch * (1 + rng.random()))
        switches.append(run.switch(to))
    time.sleep(per_switch)
    run.stop()
    said = [said for _, said in read(files(run.wait().folder))]
    return [one for one in said if isinstance(one, Decision)], switches


def waits_and_leases(log: list[Decision]) -> tuple[list[Span], list[Span]]:
    """Every time that a worker had nothing to do, and every time from a `Begin` to its gradient's arrival."""
    waits, leases, asked, begun = [], [], {}, {}
    for one in log:
        if isinstance(one.event, WorkRequested):
            asked[one.event.worker] = one.event.at
        elif isinstance(one.event, GradientArrived):
            leases.append(Span(begun.pop(one.event.lease), one.event.at))
        for action in one.actions:
            if isinstance(action, Begin):
                waits.append(Span(asked.pop(action.worker), one.event.at))
                begun[action.lease.number] = one.event.at
    return waits, leases


def overlapping(spans: list[Span], since: float, until: float) -> list[float]:
    return [span.seconds for span in spans if span.until >= since and span.since <= until]


def switched(log: list[Decision]) -> list[tuple[str, float, float]]:
    """(to, when, when the first step after it was applied), in order."""
    found, pending = [], None
    for one in log:
        if isinstance(one.event, SwitchRequested):
            pending = one.event.strategy, one.event.at
        if pending is not None and any(isinstance(action, Apply) for action in one.actions):
            found.append((*pending, one.event.at))
            pending = None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=0.1, help="an undisturbed batch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, switches = live_run(options.rounds, options.seconds, folder)
    waits, leases = waits_and_leases(log)
    idle: dict[str, list[float]] = {}
    of_bound: dict[str, list[float]] = {}
    before = "sync"
    for to, at, first_step in switched(log):
        way, before = f"{before} -> {to}", to
        idle.setdefault(way, []).append(sum(overlapping(waits, at, first_step)) / WORKERS)
        bound = max(overlapping(leases, at, first_step)) + options.seconds
        of_bound.setdefault(way, []).append(idle[way][-1] / bound)
    for way, found in idle.items():
        print(
            f"{way:14} idle per worker: median {median(found):.3f} s, largest {max(found):.3f} s, "
            f"at most {max(of_bound[way]):.2f} of the bound, {len(found)}x"
        )
    figures = {
        "idle_vs_bound_largest": max(map(max, of_bound.values())),
        "idle_per_worker_largest": max(map(max, idle.values())),
        "idle_per_worker": idle,
        "seconds_until_answered": max(switch.seconds for switch in switches),
        "discarded": sum(switch.discarded for switch in switches),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
