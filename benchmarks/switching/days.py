"""One seed on the generated log: three days in sync, two days of an arm, a day in sync again.

The base's days may be longer, so that it is warm: all arms share it. After it, `per_day` examples of each day are
taken. Every example is measured before it trains. The switch back is made while the run goes on: work in flight is
adopted.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import gearshift as gs
from gearshift.data.batch import Batch
from gearshift.data.dataset import Dataset
from gearshift.data.examples import MemoryExamples
from gearshift.data.readers.generated import GeneratedExamples
from gearshift.engine.simulation.learning import train_in_virtual_time
from gearshift.engine.simulation.simulator import simulate
from gearshift.engine.simulation.switch_plan import SimulatedSwitch
from gearshift.sync.events import Action, Begin, Event
from gearshift.sync.registry import make_strategy
from gearshift.training.evaluation import evaluate
from gearshift.training.learner import Learner
from switching.base import BACK, BASE, DAYS, STRAGGLER, SYNC, Arm, Base, Score, scored, strategy_of, to_itself
from switching.cases import Case


class Days:
    def __init__(self, case: Case, seed: int, per_day: int, base_per_day: int, folder: Path) -> None:
        self.per_day, self.seed, days = per_day, seed, BASE + DAYS + BACK
        log = gs.ClickLog(examples=base_per_day * days, days=days, seed=seed, sequences=case.sequences)
        base = Dataset(GeneratedExamples(log, 0, log.day_begin(BASE))).fitted()
        rest = Batch.concat([log.read(log.day_begin(day), per_day) for day in range(BASE, days)])
        self.rest = MemoryExamples(rest.moved(0), base.schema)
        self.base = Base(case, base.schema, seed, folder)
        on = self.base.learner()
        train_in_virtual_time(on, base, self.base.cluster(), make_strategy("sync", SYNC))
        self.base.keep(on)

    def run(self, arm: Arm) -> tuple[Score, Learner]:
        on, before = self.base.fork(), DAYS * self.per_day
        held_out: list[float] = []

        def rate(examples: int) -> float:
            if examples < before:
                return arm.rate
            if not held_out:  # the arm has made its last step
                held_out.append(evaluate(on, self.day_after()).measures.auc)
            return 1.0

        run = train_in_virtual_time(
            on,
            self.ordered(arm),
            self.base.cluster(arm.workers),
            strategy_of(arm),
            switches=[*to_itself(arm), SimulatedSwitch("sync", SYNC, examples=before)],
            lr_scale=rate,
            piece=before // 10,
        )
        *days, back = [run.days.measures[day].auc for day in sorted(run.days.measures)]
        measures = [run.pieces.measures[i] for i in (0, 10)]
        next_day = None if arm.order == "held" else held_out[0]
        return scored(next_day, days, None, back, measures, run, before), on

    def day_after(self) -> Dataset:
        """The day after those of the arms."""
        last = np.arange(DAYS * self.per_day, (DAYS + BACK) * self.per_day)
        return Dataset(MemoryExamples(self.rest.batch.take(last).moved(0), self.rest.schema))

    def ordered(self, arm: Arm) -> Dataset:
        if arm.order == "same":
            return Dataset(self.rest)
        order = self.other_order() if arm.order == "other" else self.held_by_the_straggler(arm)
        return Dataset(MemoryExamples(self.rest.batch.take(order).moved(0), self.rest.schema))

    def other_order(self) -> np.ndarray:
        draw, size = np.random.default_rng(self.seed), self.per_day
        return np.concatenate(
            [first + draw.permutation(size) for first in range(0, (DAYS + BACK) * size, size)]
        )

    def held_by_the_straggler(self, arm: Arm) -> np.ndarray:
        """An order in which the slowest worker's leases, and no others, hold examples of the day after the arm's.

        Who begins which lease does not depend on gradients, so a simulation of gba without any tells it. All arms
        of this order see these examples at these positions, whoever computes them; only a strategy with gba's
        timing gives them to the straggler. As many examples of the arm's last day are left out for them.
        """
        before = DAYS * self.per_day
        held = np.zeros(before, bool)

        def log(_: Event, actions: list[Action]) -> None:
            for action in actions:
                if isinstance(action, Begin) and action.worker == STRAGGLER:
                    held[action.lease.first : action.lease.first + action.lease.count] = True

        simulate(self.base.cluster(arm.workers), make_strategy("gba", SYNC), before, log=log)
        order = np.empty(before, np.int64)
        order[held] = before + np.arange(held.sum())
        order[~held] = np.arange((~held).sum())
        return np.concatenate([order, np.arange(before + held.sum(), before + BACK * self.per_day)])
