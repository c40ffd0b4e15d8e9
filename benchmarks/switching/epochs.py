"""One seed on Frappe: three epochs in sync, one of an arm, one in sync again; each in an order of its own.

Tested after the last two. A switch is between two epochs.
"""

from __future__ import annotations

from pathlib import Path

import gearshift as gs
from gearshift.engine.simulation.learning import VirtualRun, train_in_virtual_time
from gearshift.training.evaluation import evaluate
from gearshift.training.learner import Learner
from switching.base import BASE, Arm, Base, Score, scored, strategy_of, to_itself
from switching.cases import Case


class Epochs:
    def __init__(self, case: Case, seed: int, data: Path, folder: Path) -> None:
        self.seed = seed
        self.train = gs.read(data / "train.libfm.zst").fitted().in_memory()
        self.valid, self.test = (
            gs.read(data / f"{name}.libfm.zst", self.train.schema).in_memory() for name in ("valid", "test")
        )
        self.base = Base(case, self.train.schema, seed, folder)
        on = self.base.learner()
        for epoch in range(BASE):
            self.epoch(on, Arm("sync"), epoch)
        self.base.keep(on)

    def epoch(self, on: Learner, arm: Arm, epoch: int) -> VirtualRun:
        order = self.seed + (1000 if arm.order == "other" else 0)
        return train_in_virtual_time(
            on,
            self.train,
            self.base.cluster(arm.workers, epoch),
            strategy_of(arm),
            switches=to_itself(arm),
            lr_scale=arm.rate,
            shuffle=(order, epoch),
            piece=self.train.counted() // 10,
        )

    def run(self, arm: Arm) -> tuple[Score, Learner]:
        on = self.base.fork()
        run = self.epoch(on, arm, BASE)
        test, valid = (evaluate(on, data).measures.auc for data in (self.test, self.valid))
        home = self.epoch(on, Arm("sync", order=arm.order), BASE + 1)
        back = evaluate(on, self.test).measures.auc
        measures = [one.pieces.measures[0] for one in (run, home)]
        return scored(test, [test], valid, back, measures, run, self.train.counted()), on
