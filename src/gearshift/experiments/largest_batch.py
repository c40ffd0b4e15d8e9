"""How large may the batch be? Optimizers at growing batches, each at its best rates, against the small batch's best.

At each batch an optimizer's two rates, of the dense parameters and of the rows, are searched downhill on a lattice of
factors, on one seed that is not reported and on a share of the data; with the same seed and all of the data it is seen
whether lower ones are better there. The winner alone is trained with three seeds, and with the others if those leave it
open whether it is worse than the tolerance. Differences are paired by seed with the best optimizer of the smallest
batch. A batch is *within* the tolerance while the lower 95 % bound of that difference is; an optimizer's largest batch
is the last one before the first that is not. Decides what to train and what it means; who calls it trains.
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
    """One training to be made; `dense` and `rows` are factors of the optimizer's own rates."""

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
    tuning_loss: float  # by which rates are chosen; not from the data that the AUC is from, where that can be
    steps: int
    seconds: float


STEPS = 200  # of a search, at least
FIRST_SEEDS = 3  # of every optimizer at every batch; finalists get all
LEAST_GAIN = 1e-5  # of the loss, for another rate to be better: where none matters, the search ends
RETREATS = 6  # from rates at which training diverges, to lower ones, before that is the result
Run = Callable[[Trial], Score | None]  # None: it diverged


@dataclass(frozen=True)
class Search:
    """Where rates are looked for: factors of `step`, from `strides` apart to the nearest.

    On `share` of the `examples`, wider strides on `coarse` of that; or on more where it would be fewer than `steps`
    steps: they would say little.
    """

    examples: int
    step: float = 1.5
    strides: tuple[int, ...] = (4, 2, 1)  # at the smallest batch; later ones leave the first out
    share: float = 0.25
    coarse: float = 1.0
    steps: int = STEPS
    rule: str = "square_root"  # from one batch's rates to where the next one's are looked for

    def share_at(self, batch: int, stride: int) -> float:
        share = self.share * (1.0 if stride == self.strides[-1] else self.coarse)
        return min(1.0, max(share, self.steps * batch / self.examples))


@dataclass(frozen=True)
class SweepRow:
    """An optimizer at a batch: its best rates, and what came of each seed."""

    optimizer: str
    batch: int
    dense: float  # factors of the optimizer's own rates
    rows: float
    scores: tuple[Score | None, ...]
    settings: tuple[str, ...] = ()  # that make a run like it, as written after `gearshift train CONFIG`

    @property
    def aucs(self) -> list[float]:
        """A training that diverged is worth no more than a coin."""
        return [0.5 if score is None else score.auc for score in self.scores]

    def mean(self, figure: str) -> float:
        found = [float(getattr(score, figure)) for score in self.scores if score is not None]
        return mean(found) if found else math.nan

    @property
    def seconds(self) -> float:
        return median([score.seconds for score in self.scores if score is not None] or [math.nan])


@dataclass(frozen=True)
class Sweep:
    """What is known so far."""

    tolerance: float
    lines: tuple[SweepRow, ...] = ()

    def at(self, batch: int) -> list[SweepRow]:
        return [line for line in self.lines if line.batch == batch]

    @property
    def reference(self) -> SweepRow:
        """The best of the smallest batch; of those that had all the seeds, each of which is another log."""
        smallest = min(line.batch for line in self.lines)
        return max(self.at(smallest), key=lambda line: (len(line.scores), mean(line.aucs)))

    def difference(self, line: SweepRow) -> Interval:
        return interval(self._differences(line))

    def _differences(self, line: SweepRow) -> list[float]:
        """Over the seeds that both had."""
        return [own - best for own, best in zip(line.aucs, self.reference.aucs, strict=False)]

    def within(self, line: SweepRow) -> bool:
        """By the lower bound; one seed has none, and then it is the difference itself. What diverged never is."""
        found = self.difference(line)
        low = found.mean if math.isnan(found.half) else found.low
        return None not in line.scores and low >= -self.tolerance

    def without(self, line: SweepRow) -> bool:
        """By the upper bound: it is worse, and no seeds would bring it within."""
        found = self.difference(line)
        high = found.mean if math.isnan(found.half) else found.high
        return None in line.scores or high < -self.tolerance

    def is_open(self, line: SweepRow, seeds: int) -> bool:
        """Whether it had fewer than these seeds, and more might bring it within."""
        return len(line.scores) < seeds and not self.without(line)

    def more_seeds(self, line: SweepRow) -> int | None:
        """How many would likely tell whether it is within, where its own leave that open; None if none would."""
        if self.within(line) or self.without(line):
            return None
        low = -self.tolerance
        return seeds_to_settle(self._differences(line), lambda found: found.low >= low or found.high < low)

    def having(self, line: SweepRow) -> Sweep:
        """With it as the last line, in the place of an earlier one of its optimizer and batch."""
        same = (line.optimizer, line.batch)
        others = (x for x in self.lines if (x.optimizer, x.batch) != same)
        return Sweep(self.tolerance, (*others, line))

    def largest_batch(self) -> dict[str, int | None]:
        """By optimizer; None if even its smallest batch is not within."""
        found: dict[str, int | None] = {line.optimizer: None for line in self.lines}
        fallen: set[str] = set()
        for line in sorted(self.lines, key=lambda line: line.batch):
            if not self.within(line):
                fallen.add(line.optimizer)
            elif line.optimizer not in fallen:
                found[line.optimizer] = line.batch
        return found

    @property
    def recommended(self) -> SweepRow | None:
        """The largest batch within the tolerance; of several optimizers the one with the best AUC there."""
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
        """An SVG: what each optimizer loses as the batch grows, and how much it may."""
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
    """What is known after each line, all optimizers at a batch before the next batch, finalists a second time.

    Late seeds may change whom all are compared to, and so who is a finalist.

    An optimizer that is not within the tolerance any more is not tried at larger batches, unless `to_the_end`.
    `rules` are of optimizers whose rates grow by another rule than the search's; `each` may work in parallel.
    """
    tries = _Tries(run, search, rules or {})
    found, alive = Sweep(tolerance), list(optimizers)
    for before, batch in zip((None, *batches), batches, strict=False):
        for line in each(partial(tries.first, batch, before, min(seeds, FIRST_SEEDS)), alive):
            found = found.having(line)
            yield found
        while finalists := [line for line in found.at(batch) if found.is_open(line, seeds)]:
            for line in each(partial(tries.rest, seeds), finalists):
                found = found.having(line)
                yield found
        if not to_the_end:
            alive = [line.optimizer for line in found.at(batch) if found.within(line)]


class _Tries:
    """Trains; remembers where in the lattice each optimizer's best rates were."""

    def __init__(self, run: Run, search: Search, rules: Mapping[str, str]) -> None:
        self._run, self._search, self._rules = run, search, rules
        self._points: dict[str, tuple[int, int]] = {}

    def first(self, batch: int, before: int | None, seeds: int, optimizer: str) -> SweepRow:
        """At the best rates, looked for from those of the batch before, grown by the rule or as they were."""
        starts, strides = [(0, 0)], self._search.strides
        if before is not None:
            rule, point = self._rules.get(optimizer, self._search.rule), self._points[optimizer]
            starts = [_grown(point, rule, batch / before, self._search.step), point]
            strides = strides[1:] or strides
        self._points[optimizer] = _tuned(optimizer, batch, self._run, self._search, starts, strides)
        return self._trained(optimizer, batch, seeds, ())

    def rest(self, seeds: int, line: SweepRow) -> SweepRow:
        return self._trained(line.optimizer, line.batch, seeds, line.scores)

    def _trained(self, optimizer: str, batch: int, seeds: int, had: tuple[Score | None, ...]) -> SweepRow:
        for attempt in range(RETREATS):
            if attempt:  # what a share of the data could bear, all of them cannot
                self._points[optimizer], had = _retreated(self._points[optimizer], 1), ()
            at = partial(_trial, optimizer, batch, self._points[optimizer], self._search)
            had += tuple(self._run(at(seed, 1.0)) for seed in range(len(had) + 1, seeds + 1))
            if None not in had:
                break
        trial = at(1, 1.0)
        return SweepRow(optimizer, batch, trial.dense, trial.rows, had)


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
            start = _retreated(start, 2)  # it diverges here: there is no slope to follow
        start = downhill(loss, start, stride)
    return start if search.share_at(batch, strides[-1]) == 1.0 else lower(partial(loss_at, 1.0), start)


def downhill(
    loss: Callable[[tuple[int, int]], float], start: tuple[int, int], stride: int
) -> tuple[int, int]:
    """Along one axis and then the other, as far as it goes down, until neither does."""
    best, still, axis = start, 0, 0
    while still < 2:
        before = best
        for direction in (stride, -stride):
            while loss(there := _shifted(best, axis, direction)) < loss(best) * (1 - LEAST_GAIN):
                best = there
            if best != before:
                break
        still = 0 if best != before else still + 1
        axis = 1 - axis
    return best


def lower(loss: Callable[[tuple[int, int]], float], start: tuple[int, int]) -> tuple[int, int]:
    """As long as one rate or the other may fall: a share of the data, of fewer steps, bears larger ones than all."""
    for axis in (0, 1):
        while loss(there := _shifted(start, axis, -1)) < loss(start) * (1 - LEAST_GAIN):
            start = there
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
