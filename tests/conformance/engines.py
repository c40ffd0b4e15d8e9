"""The engines behind one function each: train a learner over data, under a strategy, and say what was counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.cluster_model.cluster import ClusterModel, Compute, Lognormal
from gearshift.engine.local_engine import LocalEngine
from gearshift.engine.simulation.learning import train_in_virtual_time
from gearshift.parameters.average_rule import AverageRule
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.parameters.server import RowSettings, Server
from gearshift.run import folder as run_folder
from gearshift.run.saver import Saver
from gearshift.run.saving import Saving
from gearshift.run.wall_time import WallTime
from gearshift.sync.events import Action, Event
from gearshift.sync.registry import resolve
from gearshift.training.learner import Learner
from gearshift.training.plan import Plan, StrategyPlan
from gearshift.training.timing import Moment
from gearshift.training.training import Training
from gearshift.training.worker import Worker

GLOBAL = 80
SGD = (gs.SGD(lr=0.1), gs.RowSGD(lr=0.5))


@dataclass(frozen=True)
class Counted:
    steps: int
    examples: int
    discarded: int  # leases
    staleness: float  # mean over leases


class _Quiet:
    """An observer that wants nothing."""

    def began(self, first_lease: int) -> None: ...

    def happened(self, event: Event, actions: list[Action]) -> None: ...

    def stepped(self, before: Moment, ready_to_save: Callable[[], bool]) -> bool:
        return True

    def evaluated(self, evaluation: gs.Evaluation, is_best: bool) -> None: ...

    def switched(self, switch: gs.Switch) -> None: ...

    def notify(self, sentence: str) -> None: ...


def threads(on: Learner, data: gs.Dataset, strategy: str, workers: int, **settings: Any) -> Counted:
    plan = Plan(global_batch=GLOBAL, workers=workers, strategy=StrategyPlan(strategy, settings))
    before = on.server.step
    training = Training(plan, on, data)
    training.run(LocalEngine(), _Quiet())
    progress = training.progress
    leases = sum(progress.staleness.values())
    staleness = sum(int(late) * n for late, n in progress.staleness.items()) / leases
    discarded = sum(progress.discarded.values())
    return Counted(on.server.step - before, progress.examples, discarded, staleness)


def virtual(on: Learner, data: gs.Dataset, strategy: str, workers: int, **settings: Any) -> Counted:
    """Workers of uneven pace: none of the equalities may depend on it."""
    cluster = ClusterModel(workers, Compute(per_batch=0.1), lognormal=(Lognormal(0.3),), seed=2)
    run = train_in_virtual_time(on, data, cluster, resolve(strategy, settings, GLOBAL, workers))
    outcome = run.outcome
    assert outcome is not None
    return Counted(outcome.steps, outcome.examples, outcome.discarded, outcome.staleness.mean)


ENGINES = {"threads": threads, "virtual time": virtual}


@dataclass(frozen=True)
class OnRay:
    """As processes, on two shards: from a checkpoint of the learner, which takes over what they made of it."""

    cluster: gs.ClusterSettings
    path: Path

    def __call__(
        self, on: Learner, data: gs.Dataset, strategy: str, workers: int, **settings: Any
    ) -> Counted:
        before = on.server.step
        trainer = gs.Trainer(
            global_batch=GLOBAL,
            workers=gs.WorkerSettings(workers, shards=2, threads=1),
            strategy={"name": strategy, **settings},
            checkpoint=gs.CheckpointPolicy(None, path=self.path),
            cluster=self.cluster,
            optimizer=gs.OptimizerSettings(on.server.optimizer, rows=on.server.stores[0].parts[0].optimizer),
            training=gs.TrainingSettings(shuffle=False),
        )
        folder = self._begun(on, data, trainer.plan)
        report = trainer.fit(on.model, data, resume=folder).report
        on.restore(Checkpoint.open((folder / "checkpoints" / "last").resolve()))
        steps = report["global_steps"] - before
        return Counted(steps, report["examples"], report["discarded"], report["staleness"]["mean"])

    def _begun(self, on: Learner, data: gs.Dataset, plan: Plan) -> Path:
        """The folder of a run that was stopped where the learner stands."""
        folder = run_folder.create(self.path, "conformance")
        training, saver = Training(plan, on, data), Saver(folder / "checkpoints", 3, print)
        Saving(training, gs.CheckpointPolicy(None), saver, WallTime(), time.monotonic()).save_now()
        saver.wait()
        run_folder.finish(folder, "stopped")
        return folder


def learner(optimizers: tuple[gs.DenseOptimizer, gs.RowOptimizer] = SGD) -> Learner:
    torch.manual_seed(5)
    model = gs.models.DNN(PLAIN, dim=4, hidden=[8, 8])
    dense, rows = optimizers
    return Learner(Worker(model, PLAIN), rows=RowSettings(rows), optimizer=dense, average=AverageRule())


def data(examples: int, seed: int = 0) -> gs.Dataset:
    return gs.read(make_batch(PLAIN, examples, seed), PLAIN)


def state(server: Server) -> dict[str, np.ndarray]:
    """Everything that training moves: parameters, rows, and the optimizer state of both; rows sorted by id."""
    blocks = list(server.stores[0].blocks())
    order = np.argsort(np.concatenate([b.ids_U for b in blocks])) if blocks else np.zeros(0, np.int64)
    found = {f"optimizer {name}": t.numpy().copy() for name, t in server.optimizer_state.items()}
    found["dense"] = server.flat.numpy().copy()
    if server.average is not None:
        found["average"] = server.average.flat.numpy().copy()
        found["age"] = np.array(server.average.clock.age)
    for name in (
        ("ids_U", "weights_UW", "state_US", "touches_U", "last_step_U", "updates_U") if blocks else ()
    ):
        found[name] = np.concatenate([getattr(b, name) for b in blocks])[order]
    return found
