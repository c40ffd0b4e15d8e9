"""What the event log and the control channel cost: the log alone, by arithmetic, and both in a whole run, measured.

    python benchmarks/bench_event_log.py [alone] [whole] [libraries] [--triples 300]     under a minute, 3, and one

alone   The same decisions with and without a log, taking turns. A lease is three events (its examples are supplied, a
        worker asks, its gradient arrives). The share of a second that 1,000 leases take is what the log holds the
        interpreter for: about the loss of examples/s if all else is bound by it.
whole   One run of eight worker threads with small batches, so that there are many leases. It is cut into segments of
        a fraction of a second, which come in triples in random order: with log and channel, without both, and
        without both again. Compared within a triple: CPU seconds of the whole process per example, which other
        processes disturb less than wall time. The third arm says how much of a difference is noise.
libraries
        A line made by hand, as the log does, by msgspec and by json, and parsed by json and by msgspec; CPU time,
        taking turns. msgspec writes no five decimals, so it gets `at` as text; other lines that differ are shown.

The last line is JSON. alone: microseconds per event and per lease with the median of the rounds, and that share.
whole: `whole_run_cost`, the mean of with / without - 1 with Student's interval; `same_again`, of without / without.
libraries: microseconds per line, the median of the rounds.
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
from typing import Any

import msgspec
import torch

import gearshift as gs
from gearshift.experiments.paired_runs import interval
from gearshift.run.event_log import EventLog, Head, files, line
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.events import (
    Action,
    Apply,
    Begin,
    Event,
    GradientArrived,
    Part,
    Reissue,
    Supplied,
    SwitchRequested,
    WorkerJoined,
    WorkerLost,
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
            run.parts.events.write()  # what it has still to write is its own cost
        examples = run.training.progress.examples - self.examples
        cpu, wall = time.process_time() - self.cpu, time.perf_counter() - self.wall
        self.found.append((self.arm, cpu / examples, wall / examples))

    def _begin(self, run: gs.Run, arm: str) -> None:
        self._turn(run, on=arm == "with")
        self.arm, self.examples = arm, run.training.progress.examples
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def _turn(self, run: gs.Run, on: bool) -> None:
        if on == (run.thread._observer.happened is not _nothing):
            return
        run.thread._observer.happened = run.parts.events if on else _nothing  # type: ignore[method-assign]
        if on:
            run.thread.channel.open()
        else:
            run.thread.channel.close()


def _nothing(event: Event, actions: list[Action]) -> None:
    """In place of the event log."""


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
        )
        trainer.fit(gs.models.DNN(data.schema, dim=8, hidden=[32]), data, callbacks=[segments])
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


# ---- libraries ----

ENCODER = msgspec.json.Encoder()
ODD: list[tuple[Event, list[Action]]] = [
    (WorkerLost(0, "ünanswered", 2.0), [Reissue(6, "lost")]),
    (GradientArrived(0, 4, 1.25), [Apply(4, (Part(4, 1e-5, "late", 2, 1),))]),
    (SwitchRequested("gba", {"max_lag": 3, "batch": 128}, "slow worker", 3.0), []),
]


def decisions() -> list[tuple[Event, list[Action]]]:
    """Of a run of 2,000 leases."""
    coordinator = Coordinator(make_strategy("gba", SETTINGS), make_strategy)
    found: list[tuple[Event, list[Action]]] = []
    begun: list[Begin] = []

    def tell(event: Event) -> None:
        actions = coordinator.handle(event)
        found.append((event, actions))
        begun.extend(action for action in actions if isinstance(action, Begin))

    for worker in range(WORKERS):
        tell(WorkerJoined(worker, 0.0))
        tell(WorkRequested(worker, 0.0))
    for lease in range(2000):
        at = lease / 997
        tell(Supplied(lease * 128, 128, 128, at))
        if len(begun) == WORKERS:
            for begin in [begun.pop(0) for _ in range(WORKERS)]:
                tell(GradientArrived(begin.worker, begin.lease.number, at))
                tell(WorkRequested(begin.worker, at))
    return found


def plain_event(event: Event) -> tuple[str, list[Any]]:
    match event:
        case WorkerJoined(worker):
            return "join", [worker]
        case WorkRequested(worker):
            return "ask", [worker]
        case GradientArrived(worker, lease):
            return "push", [worker, lease]
        case Supplied(first, count, batch):
            return "supply", [first, count, batch]
        case WorkerLost(worker, reason):
            return "lost", [worker, reason]
        case SwitchRequested(strategy, settings, reason):
            return "switch", [strategy, settings, reason]
    raise ValueError(event)


def plain_action(action: Action) -> list[Any]:
    match action:
        case Begin(worker, lease, token, version):
            return ["begin", worker, [lease.number, lease.first, lease.count, lease.attempt], token, version]
        case Apply(step, parts):
            return ["apply", step, [plain_part(part) for part in parts]]
        case Reissue(lease, reason):
            return ["reissue", lease, reason]
    raise ValueError(action)


def plain_part(part: Part) -> list[Any]:
    head = [part.lease, part.staleness, part.lag]
    return head if part.weight == 1.0 and not part.reason else [*head, part.weight, part.reason]


def plain_line(event: Event, actions: list[Action], at: Any) -> dict[str, Any]:
    word, values = plain_event(event)
    more = {"do": [plain_action(action) for action in actions]} if actions else {}
    return {"at": at, word: values, **more}


def by_msgspec(event: Event, actions: list[Action]) -> bytes:
    return ENCODER.encode(plain_line(event, actions, msgspec.Raw(b"%.5f" % event.at))) + b"\n"


def by_json(event: Event, actions: list[Action]) -> str:
    return json.dumps(plain_line(event, actions, event.at), separators=(",", ":")) + "\n"


def libraries() -> dict[str, object]:
    events = decisions()
    lines = [line(event, actions).encode() for event, actions in events]
    assert lines == [by_msgspec(event, actions) for event, actions in events]
    sides: dict[str, Callable[[], object]] = {
        "write_by_hand": lambda: [line(*one) for one in events],
        "write_msgspec": lambda: [by_msgspec(*one) for one in events],
        "write_json": lambda: [by_json(*one) for one in events],
        "parse_json": lambda: [json.loads(one) for one in lines],
        "parse_msgspec": lambda: [msgspec.json.decode(one) for one in lines],
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(15):
        for name, side in sides.items():
            began = time.process_time()
            side()
            times[name].append((time.process_time() - began) / len(events) * 1e6)
    found: dict[str, object] = {f"{name}_microseconds": round(median(t), 3) for name, t in times.items()}
    for name, took in times.items():
        print(f"{name:16} {median(took):6.2f} us a line  [{min(took):.2f}, {max(took):.2f}]")
    for event, actions in ODD:
        ours, theirs = line(event, actions), by_msgspec(event, actions).decode()
        print(f"  by hand  {ours}  msgspec  {theirs}" if ours != theirs else f"  the same {ours}", end="")
    found["odd_lines_that_differ"] = sum(line(*one).encode() != by_msgspec(*one) for one in ODD)
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
    if "libraries" in options.parts:
        found |= libraries()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
