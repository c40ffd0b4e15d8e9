"""What the event log and the control channel cost: the log alone, by arithmetic, and both in a whole run, measured.

    python benchmarks/bench_event_log.py [alone] [whole] [--triples 300]        under a minute, and about 3

alone   The same decisions with and without a log, taking turns. A lease is three events (its examples are supplied, a
        worker asks, its gradient arrives). The share of a second that 1,000 leases take is what the log holds the
        interpreter for: about the loss of examples/s if all else is bound by it.
whole   One run of eight worker threads with small batches, so that there are many leases. It is cut into segments of
        a fraction of a second, which come in triples in random order: with log and channel, without both, and
        without both again. Compared within a triple: CPU seconds of the whole process per example, which other
        processes disturb less than wall time. The third arm says how much of a difference is noise.

The last line is JSON. alone: microseconds per event and per lease with the median of the rounds, and that share.
whole: `whole_run_cost`, the mean of with / without - 1 with Student's interval; `same_again`, of without / without.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

import gearshift as gs
from gearshift.experiments.paired_runs import interval
from gearshift.run import control
from gearshift.run.event_log import EventLog, Head, files
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.messages import (
    Action,
    Begin,
    Event,
    GradientArrived,
    Supplied,
    WorkerJoined,
    WorkRequested,
)
from gearshift.sync.registry import make_strategy

WORKERS, LEASES, ROUNDS = 8, 20_000, 7
SETTINGS = {"global_batch": 1024, "batch": 128}


def run(strategy: str, log: Callable[[Event, list[Action]], None] | None) -> float:
    """Seconds for all leases, eight workers in turn."""
    coordinator = Coordinator(make_strategy(strategy, SETTINGS), make_strategy)
    begun: list[Begin] = []

    def tell(event: Event) -> None:
        actions = coordinator.handle(event)
        if log is not None:
            log(event, actions)
        begun.extend(action for action in actions if isinstance(action, Begin))

    began = time.perf_counter()
    for worker in range(WORKERS):
        tell(WorkerJoined(worker, 0.0))
    for worker in range(WORKERS):
        tell(WorkRequested(worker, 0.0))
    for lease in range(LEASES):
        at = time.perf_counter() - began
        tell(Supplied(lease * 128, 128, 128, at))
        if len(begun) == WORKERS:
            for begin in [begun.pop(0) for _ in range(WORKERS)]:
                tell(GradientArrived(begin.worker, begin.lease.number, at))
                tell(WorkRequested(begin.worker, at))
    return time.perf_counter() - began


def measure(strategy: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        differences, bare, size = [], [], 0
        for _ in range(ROUNDS):
            without = run(strategy, None)
            log = EventLog(Path(folder), print)
            log.begin(Head(strategy, SETTINGS))
            differences.append(run(strategy, log) - without)
            bare.append(without)
            log.close()
        size = sum(path.stat().st_size for path in files(Path(folder)))
    per_lease = median(differences) / LEASES
    return {
        "microseconds_per_event": round(per_lease / 3 * 1e6, 2),
        "microseconds_per_lease": round(per_lease * 1e6, 2),
        "deciding_microseconds_per_lease": round(median(bare) / LEASES * 1e6, 2),
        "share_at_1000_leases_per_second": round(per_lease * 1000, 5),
        "bytes_per_lease": round(size / LEASES / ROUNDS, 1),
    }


# ---- in a whole run ----

ARMS = ("with", "without", "again")
GLOBAL = 512
SEGMENT = 8  # steps: shorter than what else disturbs the machine


class Segments(gs.Callback):
    """Switches log and channel off and on, and keeps CPU seconds and wall seconds per example of each segment."""

    def __init__(self, triples: int) -> None:
        rng = random.Random(1)
        self.order = [
            arm for _ in range(triples + 1) for arm in rng.sample(ARMS, 3)
        ]  # the first triple warms up
        self.found: list[tuple[str, float, float]] = []
        self.steps, self.arm = 0, ""

    def on_step(self, run: gs.Run) -> None:
        self.steps += 1
        if self.steps % SEGMENT:
            return
        if self.arm:
            self._end(run)
        if self.order:
            self._begin(run, self.order.pop(0))
        else:
            self._turn(run, on=True)
            run.stop()
            self.steps, self.arm = 1, ""

    def _end(self, run: gs.Run) -> None:
        if self.arm == "with":
            run._events.write()  # what it has still to write is its own cost
        examples = run.training.progress.examples - self.examples
        cpu, wall = time.process_time() - self.cpu, time.perf_counter() - self.wall
        self.found.append((self.arm, cpu / examples, wall / examples))

    def _begin(self, run: gs.Run, arm: str) -> None:
        self._turn(run, on=arm == "with")
        self.arm, self.examples = arm, run.training.progress.examples
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def _turn(self, run: gs.Run, on: bool) -> None:
        if on == (run.training.log is not None):
            return
        run.training.log = run._events if on else None
        run._end_control()
        run._end_control = control.serve(run.folder, run) if on else lambda: None


def whole(triples: int) -> dict[str, object]:
    torch.manual_seed(1)
    segments = Segments(triples)
    data = gs.read(gs.ClickLog(examples=(3 * triples + 10) * SEGMENT * GLOBAL, days=1))
    with tempfile.TemporaryDirectory() as folder:
        trainer = gs.Trainer(
            global_batch=GLOBAL,
            workers=WORKERS,
            strategy="gba",
            checkpoint=gs.CheckpointPolicy(None, path=folder),
            callbacks=[segments],
        )
        trainer.fit(gs.models.DNN(data.schema, dim=8, hidden=[32]), data)
    rows = [
        {arm: (cpu, wall) for arm, cpu, wall in segments.found[i : i + 3]}
        for i in range(3, 3 * triples + 3, 3)
    ]

    def cost(arm: str, which: int) -> list[float]:
        d = interval([row[arm][which] / row["without"][which] - 1 for row in rows])
        return [d.mean, d.low, d.high]

    found = {
        "whole_run_cost": cost("with", 0),
        "same_again": cost("again", 0),
        "whole_run_cost_in_wall_time": cost("with", 1),
        "same_again_in_wall_time": cost("again", 1),
        "triples": len(rows),
        "leases_per_second": median(WORKERS / (GLOBAL * row["with"][1]) for row in rows),
        "cpu_microseconds_per_example": 1e6 * median(row["without"][0] for row in rows),
    }
    for name in ("whole_run_cost", "same_again", "whole_run_cost_in_wall_time", "same_again_in_wall_time"):
        mean, low, high = found[name]
        print(f"{name:28} {mean:+.4f} [{low:+.4f}, {high:+.4f}]")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["alone", "whole"])
    parser.add_argument("--triples", type=int, default=300)
    options = parser.parse_args()
    found: dict[str, object] = {}
    if "alone" in options.parts:
        found |= {strategy: measure(strategy) for strategy in ("sync", "gba", "async")}
    if "whole" in options.parts:
        found |= whole(options.triples)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
