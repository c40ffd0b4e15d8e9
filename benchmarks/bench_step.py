"""One training step, and the time to a given AUC: Gearshift beside the dense computation alone and its peers.

    python benchmarks/bench_step.py --peers-dir FOLDER      about 20 minutes; first set-up of the peers apart

A step: look rows up, forward, backward, dense Adam, Adagrad on the rows; batch 4096, 26 fields of width 16
drawn from zipf 1.05, 13 numbers; DNN 400-400 and DLRM (bottom 512-256-16, top 512-256-1); two threads. Every
side is a process of its own on the same batches in memory. They take turns, one computing at a time, in an
order that rotates; a ratio is taken within each round, and the median of the rounds is reported. FuxiCTR and
DeepCTR-Torch run Adam over whole tables and are measured at the smallest size only. Where several models and
sizes give several ratios, the last line has the worst for us; all stand under `details`. A peer that cannot
run is null.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from peers.protocol import BATCH, Examples, Task, zipf_task
from peers.sides import (
    DEEPCTR,
    DENSE,
    FUXICTR,
    GEARSHIFT,
    PYTORCH,
    TORCHREC,
    TWO_CALLERS,
    Kind,
    Running,
    SideFailed,
)

SMALL = (GEARSHIFT, DENSE, TWO_CALLERS, PYTORCH, TORCHREC, FUXICTR, DEEPCTR)
LARGE = (GEARSHIFT, DENSE, PYTORCH, TORCHREC)
LEARNERS = (GEARSHIFT, PYTORCH, TORCHREC, FUXICTR, DEEPCTR)


@dataclass
class Race:
    """The rounds of one model at one size: seconds per step of each side, and why others are missing."""

    model: str
    rows: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    losses: dict[str, tuple[float, float]] = field(
        default_factory=dict
    )  # of the first steps, and of the last
    missing: dict[str, str] = field(default_factory=dict)

    def times_ours(self, other: str) -> float | None:
        """How many of our steps fit into one of theirs: above 1, we are ahead."""
        if other not in self.seconds or other in self.missing:
            return None
        pairs = zip(self.seconds[other], self.seconds[GEARSHIFT.name], strict=True)
        return median(theirs / ours for theirs, ours in pairs)

    def to_dict(self) -> dict[str, Any]:
        return {
            "milliseconds": {name: round(1e3 * median(s), 2) for name, s in self.seconds.items()},
            "times_ours": {name: _round(self.times_ours(name)) for name in self.seconds},
            "loss_first_last": {name: [round(x, 4) for x in pair] for name, pair in self.losses.items()},
            "missing": self.missing,
        }

    def table(self) -> str:
        lines = []
        for name, times in self.seconds.items():
            time, (first, last) = median(times), self.losses[name]
            lines.append(
                f"  {name:15} {1e3 * time:8.1f} ms {BATCH / time:9,.0f} examples/s"
                f"  {self.times_ours(name) or 0:5.2f} times ours  loss {first:.3f} -> {last:.3f}"
            )
        return "\n".join(lines)


class Field:
    """The sides that run here, waiting for their turn. One that does not start, or dies, is out."""

    def __init__(self, kinds: Sequence[Kind], peers: Path, task: Path, model: str) -> None:
        self.sides: list[Running] = []
        self.missing: dict[str, str] = {}
        for kind in kinds:
            try:
                self.sides.append(Running(kind, peers, task, model))
            except SideFailed as reason:
                self._leave(kind, reason)

    def each(self, turn: Callable[[Running], None], first: int = 0) -> None:
        """One turn for every side, beginning with side `first`."""
        for side in self.sides[first:] + self.sides[:first]:
            try:
                turn(side)
            except SideFailed as reason:
                self.sides.remove(side)
                self._leave(side.kind, reason)

    def _leave(self, kind: Kind, reason: SideFailed) -> None:
        if kind is GEARSHIFT:
            raise reason
        print(f"  {kind.name} is out: {reason}", flush=True)
        self.missing[kind.name] = str(reason)

    def close(self) -> None:
        for side in self.sides:
            side.close()


def race(kinds: Sequence[Kind], task: Path, model: str, rows: int, options: argparse.Namespace) -> Race:
    print(f"{model} at {rows:,} rows", flush=True)
    with closing(Field(kinds, options.peers_dir, task, model)) as field:
        result = Race(model, rows, missing=field.missing)
        steps: dict[str, int] = {}

        def warm_up(side: Running) -> None:
            _, loss = side.train(5)  # first touches: memory, plans, caches
            pace, _ = side.train(3)
            result.losses[side.kind.name] = (loss, loss)
            steps[side.kind.name] = max(
                4, min(40, 2 * round(options.turn / pace / 2))
            )  # even: for two callers

        def turn(side: Running) -> None:
            name = side.kind.name
            seconds, loss = side.train(steps[name])
            result.seconds.setdefault(name, []).append(seconds)
            result.losses[name] = (result.losses[name][0], loss)

        field.each(warm_up)
        for number in range(options.rounds):
            field.each(turn, first=number % len(field.sides))
    print(result.table(), flush=True)
    return result


@dataclass
class Climb:
    """One side's way to the target: examples trained and seconds spent in steps, at each held-out AUC."""

    seconds: float = 0.0
    examples: int = 0
    auc: float = 0.5
    reached: tuple[float, float] | None = None  # seconds and examples, between two looks by straight line

    def look(self, seconds: float, steps: int, auc: float, target: float) -> None:
        if auc >= target and self.reached is None:
            share = (target - self.auc) / (auc - self.auc)
            self.reached = (self.seconds + share * seconds, self.examples + share * steps * BATCH)
        self.seconds, self.examples, self.auc = self.seconds + seconds, self.examples + steps * BATCH, auc

    def to_dict(self) -> dict[str, Any]:
        seconds, examples = self.reached or (None, None)
        return {
            "seconds": _round(seconds),
            "examples": examples and round(examples),
            "last_auc": round(self.auc, 4),
            "examples_per_second": round(self.examples / self.seconds),
        }


def climb(task: Path, batches: int, options: argparse.Namespace) -> dict[str, Climb]:
    """All sides in turns over the log, once, until each has passed the target or used up its time."""
    print(f"dnn to a held-out AUC of {options.auc}", flush=True)
    climbs = {kind.name: Climb() for kind in LEARNERS}
    with closing(Field(LEARNERS, options.peers_dir, task, "dnn")) as field:
        for trained in range(0, batches, options.look):
            steps = min(options.look, batches - trained)

            def turn(side: Running, steps: int = steps) -> None:
                way = climbs[side.kind.name]
                if way.reached is None and way.seconds < options.patience:
                    seconds, _ = side.train(steps)
                    way.look(seconds * steps, steps, side.ask("auc")["auc"], options.auc)

            field.each(turn)
    for name in field.missing:
        del climbs[name]
    for name, way in climbs.items():
        print(f"  {name:15} {way.to_dict()}", flush=True)
    return climbs


def click_log_task(examples: int) -> Task:
    """The generated log, ids renumbered from 0 in each field as tables of fixed size need them."""
    from gearshift.data.synthetic import ClickLog

    held_out = 30 * BATCH
    log = ClickLog(examples=examples + held_out, days=1, seed=1, drift=0)
    batch = log.read(0, log.count())
    ids, sizes = np.empty_like(batch.ids_BF), []
    for column in range(ids.shape[1]):
        values, ids[:, column] = np.unique(batch.ids_BF[:, column], return_inverse=True)
        sizes.append(len(values))
    every = Examples.cut(ids, batch.numeric_BN, batch.labels_BT[:, 0])
    print(f"click log: {sum(sizes):,} rows; the teacher's AUC is {log.teacher_auc().value:.4f}", flush=True)
    return Task("", tuple(sizes), False, every[:-30], every[-30:])


def summary(races: list[Race], climbs: dict[str, Climb], options: argparse.Namespace) -> dict[str, Any]:
    """The keys of the last line."""
    keys: dict[str, Any] = {}
    for rows in options.rows:
        dense = _worst([race for race in races if race.rows == rows], DENSE)
        keys[f"step_vs_dense_{rows // 1_000_000}m"] = _round(dense and 1 / dense)
    for peer in (PYTORCH, TORCHREC, FUXICTR, DEEPCTR):
        keys[f"vs_{peer.name}"] = _round(_worst(races, peer))
    two = [1 / times for race in races if (times := race.times_ours(TWO_CALLERS.name)) is not None]
    keys["two_callers_vs_one"] = _round(min(two, default=None))
    ways = {name: way.to_dict() for name, way in climbs.items()}
    keys["time_to_auc"] = ways.get(GEARSHIFT.name, {}).get("seconds")
    keys["details"] = {f"{r.model}_{r.rows}": r.to_dict() for r in races}
    keys["details"]["time_to_auc"] = {"auc": options.auc, **ways}
    return keys


def _worst(races: list[Race], peer: Kind) -> float | None:
    ratios = [ratio for race in races if (ratio := race.times_ours(peer.name)) is not None]
    return min(ratios, default=None)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peers-dir",
        type=Path,
        default=Path(tempfile.gettempdir()) / "gearshift-peers",
        help="for their venvs",
    )
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--models", nargs="+", default=["dnn", "dlrm"], choices=["dnn", "dlrm"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turn", type=float, default=1.5, help="seconds of one side's turn, about")
    parser.add_argument("--batches", type=int, default=40, help="different batches, cycled")
    parser.add_argument("--auc", type=float, default=0.72, help="the target of time to AUC")
    parser.add_argument(
        "--examples", type=int, default=1_000_000, help="of the log; 0 leaves time to AUC out"
    )
    parser.add_argument("--look", type=int, default=16, help="steps between two looks at the held-out AUC")
    parser.add_argument("--patience", type=float, default=150, help="seconds of steps before a side gives up")
    options = parser.parse_args()
    races, climbs = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for rows in options.rows:
            task = Path(folder) / str(rows)
            zipf_task(rows, options.batches).save(task)
            kinds = SMALL if rows == min(options.rows) else LARGE
            races += [race(kinds, task, model, rows, options) for model in options.models]
        if options.examples:
            click_log_task(options.examples).save(Path(folder) / "log")
            climbs = climb(Path(folder) / "log", options.examples // BATCH, options)
    print(json.dumps(summary(races, climbs, options)))


if __name__ == "__main__":
    main()
