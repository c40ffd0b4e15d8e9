"""Finds the largest usable batch: optimizers at growing batches, each at its best rates, against the best small batch.

At each batch, an optimizer's two rates (dense parameters and rows) are searched downhill on a lattice of factors, with
one seed that is not reported and on a share of the data. With the same seed and all data, it is then checked whether
lower rates are better. Only the winner is trained with three seeds, and with the remaining seeds if these leave open
whether it is within the tolerance. Differences are paired by seed with the best optimizer of the smallest batch. A
batch is *within* the tolerance if the lower 95 % bound of the difference is; an optimizer's largest batch is the last
one before the first that is not. This module decides what to train and interprets the results; the caller trains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, median
from typing import Any

from gearshift.experiments.paired_runs import Interval, bounds, interval, seeds_to_settle
from gearshift.experiments.svg_plot import Point, curves
from gearshift.optim.batch_scaling import Rates, scaled

TUNING_SEED = 1000
Each = Callable[[Callable[[Any], "SweepRow"], Iterable[Any]], Iterable["SweepRow"]]


@dataclass(frozen=True)
class Trial:
    """One training run; `dense` and `rows` multiply the optimizer's rates."""

    optimizer: str
    batch: int
    dense: float
    rows: float
    seed: int
    share: float = 1.0  # of the training data


@dataclass(frozen=True)
class Score:
    auc: float  # held out, like the log loss
    logloss: float
    gap: float  # AUC of the trained model on training data, minus held out
    tuning_loss: float  # used to choose rates; measured on data other than that of the AUC if possible
    steps: int
    seconds: float


STEPS = 200  # minimum number of steps of a search
FIRST_SEEDS = 3  # for every optimizer at every batch; finalists get all seeds
LEAST_GAIN = (
    1e-5  # minimum relative gain of the loss for a better rate; ends the search if rates do not matter
)
RETREATS = 6  # attempts with lower rates before a training run counts as diverged
Run = Callable[[Trial], Score | None]  # None: it diverged


@dataclass(frozen=True)
class Search:
    """Parameters of the search for rates: factors of `step`, from `strides` apart down to 1.

    It uses `share` of the `examples`, and `coarse` of that for wider strides; or more data if this would be fewer than
    `steps` steps, which would not be informative.
    """

    examples: int
    step: float = 1.5
    strides: tuple[int, ...] = (4, 2, 1)  # at the smallest batch; later batches skip the first
    share: float = 0.25
    coarse: float = 1.0
    steps: int = STEPS
    rule: str = "square_root"  # scales the rates of one batch to the starting point of the next

    def share_at(self, batch: int, stride: int) -> float:
        share = self.share * (1.0 if stride == self.strides[-1] else self.coarse)
        return min(1.0, max(share, self.steps * batch / self.examples))


@dataclass(frozen=True)
class SweepRow:
    """An optimizer at a batch size: its best rates, and the score of each seed."""

    optimizer: str
    batch: int
    dense: float  # `dense` and `rows` multiply the optimizer's rates
    rows: float
    scores: tuple[Score | None, ...]
    settings: tuple[str, ...] = ()  # settings after `gearshift train CONFIG` that reproduce it

    @property
    def aucs(self) -> list[float]:
        """A training run that diverged counts as a random guess."""
        return [0.5 if score is None else score.auc for score in self.scores]

    def mean(self, figure: str) -> float:
        values = [float(getattr(score, figure)) for score in self.scores if score is not None]
        return mean(values) if values else math.nan

    @property
    def seconds(self) -> float:
        return median([score.seconds for score in self.scores if score is not None] or [math.nan])


@dataclass(frozen=True)
class Sweep:
    """The results so far."""

    tolerance: float
    lines: tuple[SweepRow, ...] = ()

    def at(self, batch: int) -> list[SweepRow]:
        return [line for line in self.lines if line.batch == batch]

    @property
    def reference(self) -> SweepRow:
        """The best of the smallest batch, among those with all seeds, because each seed is a different sample."""
        smallest = min(line.batch for line in self.lines)
        return max(self.at(smallest), key=lambda line: (len(line.scores), mean(line.aucs)))

    def difference(self, line: SweepRow) -> Interval:
        return interval(self._differences(line))

    def _differences(self, line: SweepRow) -> list[float]:
        """The differences over the seeds that both have."""
        return [mine - best for mine, best in zip(line.aucs, self.reference.aucs, strict=False)]

    def within(self, line: SweepRow) -> bool:
        """Whether the lower bound (or the difference, with one seed) is within. A diverged run never is."""
        difference = self.difference(line)
        low = difference.mean if math.isnan(difference.half) else difference.low
        return None not in line.scores and low >= -self.tolerance

    def without(self, line: SweepRow) -> bool:
        """Whether it is worse by the upper bound, so that more seeds would not change this."""
        difference = self.difference(line)
        high = difference.mean if math.isnan(difference.half) else difference.high
        return None in line.scores or high < -self.tolerance

    def is_open(self, line: SweepRow, seeds: int) -> bool:
        """Whether it has fewer than `seeds` seeds, and more might show that it is within."""
        return len(line.scores) < seeds and not self.without(line)

    def more_seeds(self, line: SweepRow) -> int | None:
        """The number of additional seeds that would likely decide whether it is within; None if no number would."""
        if self.within(line) or self.without(line):
            return None
        low = -self.tolerance
        return seeds_to_settle(
            self._differences(line), lambda interval: interval.low >= low or interval.high < low
        )

    def having(self, line: SweepRow) -> Sweep:
        """The sweep with this line as the last, replacing an earlier one of the same optimizer and batch."""
        same = (line.optimizer, line.batch)
        others = (x for x in self.lines if (x.optimizer, x.batch) != same)
        return Sweep(self.tolerance, (*others, line))

    def largest_batch(self) -> dict[str, int | None]:
        """The largest batch by optimizer; None if even the smallest batch is not within."""
        largest: dict[str, int | None] = {line.optimizer: None for line in self.lines}
        fallen: set[str] = set()
        for line in sorted(self.lines, key=lambda line: line.batch):
            if not self.within(line):
                fallen.add(line.optimizer)
            elif line.optimizer not in fallen:
                largest[line.optimizer] = line.batch
        return largest

    @property
    def recommended(self) -> SweepRow | None:
        """The largest batch within the tolerance; of several optimizers, the one with the best AUC."""
        largest = self.largest_batch()
        able = [line for line in self.lines if line.batch == largest[line.optimizer]]
        return max(able, key=lambda line: (line.batch, mean(line.aucs)), default=None)

    def as_json(self) -> dict[str, Any]:
        best = self.recommended
        return {
            "largest_batch": self.largest_batch(),
            "recommended": best and {"optimizer": best.optimizer, "batch": best.batch},
            "tolerance": self.tolerance,
            "lines": [self._line(line) for line in self.lines],
        }

    def picture(self, title: str) -> str:
        """An SVG plot of the loss in AUC over the batch size, for each optimizer, and of the tolerance."""
        lines: dict[str, list[Point]] = {}
        for line in self.lines:
            apart = self.difference(line)
            point = Point(line.batch, apart.mean, apart.low, apart.high)
            lines.setdefault(line.optimizer, []).append(point)
        best = f"the best at {self.reference.batch:,}"
        up = f"AUC minus that of {best}, paired by seed, 95 % intervals; dotted: the tolerance"
        return curves(title, "global batch", up, lines, limit=-self.tolerance)

    def _line(self, line: SweepRow) -> dict[str, Any]:
        figures = {name: _known(line.mean(name)) for name in ("logloss", "gap", "steps")}
        return {
            "optimizer": line.optimizer,
            "batch": line.batch,
            "dense_factor": line.dense,
            "row_factor": line.rows,
            "auc": bounds(interval(line.aucs)),
            "difference": bounds(self.difference(line)),
            "within": self.within(line),
            "more_seeds": self.more_seeds(line),
            "seeds": len(line.scores),
            "diverged": sum(score is None for score in line.scores),
            **figures,
            "seconds": _known(line.seconds),
            **({"settings": list(line.settings)} if line.settings else {}),
        }


def sweep(
    optimizers: Sequence[str],
    batches: Sequence[int],
    run: Run,
    search: Search,
    *,
    seeds: int = 5,
    tolerance: float = 0.001,
    rules: Mapping[str, str] | None = None,
    to_the_end: bool = False,
    each: Each = map,
) -> Iterator[Sweep]:
    """Yield the sweep after each line: all optimizers at one batch, then the finalists again, then the next batch.

    Late seeds may change the reference, and therefore the finalists.

    An optimizer that is no longer within the tolerance is not tried at larger batches, unless `to_the_end`.
    `rules` has optimizers whose rates scale by another rule than the search's; `each` may work in parallel.
    """
    tries = _Tries(run, search, rules or {})
    results, alive = Sweep(tolerance), list(optimizers)
    for before, batch in zip((None, *batches), batches, strict=False):
        for line in each(partial(tries.first, batch, before, min(seeds, FIRST_SEEDS)), alive):
            results = results.having(line)
            yield results
        while finalists := [line for line in results.at(batch) if results.is_open(line, seeds)]:
            for line in each(partial(tries.rest, seeds), finalists):
                results = results.having(line)
                yield results
        if not to_the_end:
            alive = [line.optimizer for line in results.at(batch) if results.within(line)]


class _Tries:
    """Trains, and remembers each optimizer's best rates in the lattice."""

    def __init__(self, run: Run, search: Search, rules: Mapping[str, str]) -> None:
        self._run, self._search, self._rules = run, search, rules
        self._points: dict[str, tuple[int, int]] = {}

    def first(self, batch: int, before: int | None, seeds: int, optimizer: str) -> SweepRow:
        """Search the best rates, starting from those of the previous batch, scaled by the rule or unchanged."""
        starts, strides = [(0, 0)], self._search.strides
        if before is not None:
            rule, point = self._rules.get(optimizer, self._search.rule), self._points[optimizer]
            starts = [_grown(point, rule, batch / before, self._search.step), point]
            strides = strides[1:] or strides
        self._points[optimizer] = _tuned(optimizer, batch, self._run, self._search, starts, strides)
        return self._trained(optimizer, batch, seeds, ())

    def rest(self, seeds: int, line: SweepRow) -> SweepRow:
        return self._trained(line.optimizer, line.batch, seeds, line.scores)

    def _trained(self, optimizer: str, batch: int, seeds: int, scores: tuple[Score | None, ...]) -> SweepRow:
        for attempt in range(RETREATS):
            if attempt:  # the rates suit a share of the data, but not all of it
                self._points[optimizer], scores = _retreated(self._points[optimizer], 1), ()
            at = partial(_trial, optimizer, batch, self._points[optimizer], self._search)
            scores += tuple(self._run(at(seed, 1.0)) for seed in range(len(scores) + 1, seeds + 1))
            if None not in scores:
                break
        trial = at(1, 1.0)
        return SweepRow(optimizer, batch, trial.dense, trial.rows, scores)


def _tuned(
    optimizer: str,
    batch: int,
    run: Run,
    search: Search,
    starts: Sequence[tuple[int, int]],
    strides: Sequence[int],
) -> tuple[int, int]:
    known: dict[tuple[float, tuple[int, int]], float] = {}

    def loss_at(share: float, point: tuple[int, int]) -> float:
        if (share, point) not in known:
            score = run(_trial(optimizer, batch, point, search, TUNING_SEED, share))
            loss = math.nan if score is None else score.tuning_loss
            known[share, point] = math.inf if math.isnan(loss) else loss
        return known[share, point]

    start = min(starts, key=partial(loss_at, search.share_at(batch, strides[0])))
    for stride in strides:
        loss = partial(loss_at, search.share_at(batch, stride))
        for _ in range(RETREATS):
            if loss(start) < math.inf:
                break
            start = _retreated(start, 2)  # it diverges here, so there is no slope to follow
        start = downhill(loss, start, stride)
    return start if search.share_at(batch, strides[-1]) == 1.0 else lower(partial(loss_at, 1.0), start)


def downhill(
    loss: Callable[[tuple[int, int]], float], start: tuple[int, int], stride: int
) -> tuple[int, int]:
    """Descend along one axis and then the other, until neither improves."""
    best, still, axis = start, 0, 0
    while still < 2:
        before = best
        for direction in (stride, -stride):
            while loss(neighbour := _shifted(best, axis, direction)) < loss(best) * (1 - LEAST_GAIN):
                best = neighbour
            if best != before:
                break
        still = 0 if best != before else still + 1
        axis = 1 - axis
    return best


def lower(loss: Callable[[tuple[int, int]], float], start: tuple[int, int]) -> tuple[int, int]:
    """Lower either rate while it helps: a share of the data, with fewer steps, tolerates larger rates than all data."""
    for axis in (0, 1):
        while loss(neighbour := _shifted(start, axis, -1)) < loss(start) * (1 - LEAST_GAIN):
            start = neighbour
    return start


def _retreated(point: tuple[int, int], by: int) -> tuple[int, int]:
    return point[0] - by, point[1] - by


def _shifted(point: tuple[int, int], axis: int, by: int) -> tuple[int, int]:
    return (point[0] + by, point[1]) if axis == 0 else (point[0], point[1] + by)


def _grown(point: tuple[int, int], rule: str, factor: float, step: float) -> tuple[int, int]:
    rates = scaled(rule, Rates(1.0, 1.0), factor)
    dense, rows = (round(math.log(rate, step)) for rate in (rates.dense_lr, rates.row_lr))
    return point[0] + dense, point[1] + rows


def _trial(
    optimizer: str, batch: int, point: tuple[int, int], search: Search, seed: int, share: float
) -> Trial:
    return Trial(optimizer, batch, search.step ** point[0], search.step ** point[1], seed, share)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
