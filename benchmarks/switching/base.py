"""What days and epochs have in common: an arm, its score, a learner, its base, and the fork of an arm.

The cluster has as many workers as a step has gradients (N = M = 8): lognormal jitter of .3, one worker twice as slow,
one 8 times: the last one's gradients are past gba's max_lag, so that gba's rule does something. Arms have the same
examples in the same order and the same worker times, unless an arm says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import gearshift as gs
from gearshift.cluster_model.cluster import ClusterModel, Compute, Lognormal, Slow
from gearshift.engine.simulation.learning import VirtualRun
from gearshift.engine.simulation.switch_plan import SimulatedSwitch
from gearshift.metrics import Measures
from gearshift.parameters import checkpoint
from gearshift.parameters.server import RowSettings
from gearshift.sync.registry import make_strategy
from gearshift.sync.strategy import Strategy
from gearshift.training.learner import Learner, describe
from gearshift.training.worker import Worker
from switching.cases import Case

GLOBAL, BATCH, STRAGGLER = 1024, 128, 5
BASE, DAYS, BACK = 3, 2, 1  # days; of Frappe 3, 1 and 1 epochs
SYNC = {"global_batch": GLOBAL, "batch": BATCH}


@dataclass(frozen=True)
class Arm:
    strategy: str
    settings: dict[str, Any] = field(default_factory=dict)
    rate: float = 1.0  # of sync's, until it goes back
    workers: int = 8
    order: str = "same"  # "other": another order within each day; "held": see `held_by_the_straggler`
    drops_like: str | None = None  # the arm whose share of discarded examples is taken
    itself: bool = False  # a switch from sync to sync on the way


@dataclass(frozen=True)
class Score:
    held_out: (
        float | None
    )  # AUC on the day after the arm, or on test data; None: the arm trained on some of that day
    auc: float  # mean over the arm's days (progressive), or of its epoch (test)
    each: list[float]
    valid: float | None  # on validation data, where there are epochs
    back: float  # the day or epoch after, in sync again
    logloss: float  # of the first 10 % of the arm, before they trained
    calibration: float
    back_auc: float  # of the first 10 % after the way back
    back_logloss: float
    back_calibration: float
    discarded: float  # share of the arm's examples


class Base:
    """A seed of a case: what its arms fork from."""

    def __init__(self, case: Case, schema: gs.Schema, seed: int, folder: Path) -> None:
        self.case, self.schema, self.seed, self.folder = case, schema, seed, folder / "base"

    def learner(self) -> Learner:
        torch.manual_seed(self.seed)
        return Learner(
            Worker(self.case.build(self.schema), self.schema),
            rows=RowSettings(gs.RowAdagrad(lr=self.case.row_lr)),
            optimizer=gs.Adam(lr=self.case.dense_lr),
            seed=self.seed,
        )

    def keep(self, on: Learner) -> None:
        snapshot = on.snapshot()
        facts = {"step": on.server.step, "model": {"text": describe(on.model)}, "settings": on.settings}
        checkpoint.write(self.folder, facts, snapshot.arrays, snapshot.rows)
        snapshot.close()

    def fork(self) -> Learner:
        on = self.learner()
        on.restore(checkpoint.Checkpoint.open(self.folder))
        return on

    def cluster(self, workers: int = 8, epoch: int = 0) -> ClusterModel:
        return ClusterModel(
            workers,
            Compute(per_batch=0.1),
            slow=(Slow(2.0, (3,)), Slow(8.0, (STRAGGLER,))),
            lognormal=(Lognormal(0.3),),
            seed=100 * self.seed + epoch,
        )


def strategy_of(arm: Arm) -> Strategy:
    return make_strategy(arm.strategy, {**SYNC, **arm.settings})


def to_itself(arm: Arm) -> list[SimulatedSwitch]:
    return [SimulatedSwitch("sync", SYNC, examples=20 * GLOBAL)] if arm.itself else []


def scored(
    held_out: float | None,
    each: list[float],
    valid: float | None,
    back: float,
    measures: list[Measures],
    run: VirtualRun,
    examples: int,
) -> Score:
    assert run.outcome is not None
    after, home = measures
    return Score(
        held_out=held_out,
        auc=mean(each),
        each=each,
        valid=valid,
        back=back,
        logloss=after.logloss,
        calibration=after.calibration,
        back_auc=home.auc,
        back_logloss=home.logloss,
        back_calibration=home.calibration,
        discarded=run.outcome.discarded / examples,
    )
