"""Training from Python: `Trainer(...).start(model, train, valid)` returns a `Run`, whose `.wait()` returns a `Result`.

A run trains in a background thread, writes its folder (config, metrics, checkpoints, report) and can be watched and
stopped in the meantime. `Trainer` only holds settings; one trainer can start many runs.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import torch
from torch import nn

from gearshift import models
from gearshift.cluster_model.injected_delay import Pacer
from gearshift.data.dataset import Dataset, fitted, has_examples
from gearshift.data.schema import Schema
from gearshift.data.value_forms import observed_forms
from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.store import RowAdagrad
from gearshift.engine.local_engine import LocalEngine
from gearshift.engine.ray.cluster_settings import ClusterSettings
from gearshift.engine.ray.end_session import end_session
from gearshift.errors import UserError, warn
from gearshift.models import first_weights
from gearshift.models.losses import prepared as prepared_loss
from gearshift.optim.first_order import Adam, DenseOptimizer
from gearshift.parameters.checkpoint import Checkpoint, resolve
from gearshift.parameters.server import RowSettings
from gearshift.run import catalog, interrupts, leftovers
from gearshift.run import folder as run_folder
from gearshift.run.callbacks import Callback
from gearshift.run.checkpoint_policy import CheckpointPolicy
from gearshift.run.local_run import Run
from gearshift.run.prepared_run import PreparedRun
from gearshift.run.result import Result
from gearshift.settings.declaration import values_of
from gearshift.sync.registry import not_a_name
from gearshift.trainer.divided_memory import divided
from gearshift.trainer.earlier_run import open_checkpoint, remarks_on
from gearshift.trainer.object_recipe import ObjectRecipe
from gearshift.trainer.optimizer_settings import OptimizerSettings
from gearshift.trainer.removed_keywords import refuse
from gearshift.trainer.worker_settings import WorkerSettings
from gearshift.training.learner import Learner
from gearshift.training.plan import Plan, StrategyPlan
from gearshift.training.train_settings import StepSettings, TrainingSettings
from gearshift.training.training import Training
from gearshift.training.worker import Worker

if TYPE_CHECKING:
    from gearshift.engine.ray.launched_run import LaunchedRun


class Trainer:
    """The settings for training; one trainer can start many runs.

    `fit` trains to the end; `start` trains in the background, to be watched, switched and stopped.

        global_batch   examples of a step, over all workers
        epochs         passes over the data
        seed           determines all initial weights, the order of the data and dropout: same seed, same run
        workers        how many, or gs.WorkerSettings(count=4, shards=2)
        strategy       how workers synchronise: "sync", "gba", "async", "auto", ...; settings as
                       {"name": "gba", "max_lag": 4}
        optimizer      of the dense weights: gs.Adam(lr=1e-3), or gearshift.optim.build("lamb", lr=1e-3); with
                       settings of embedding rows and rates: gs.OptimizerSettings(rows=gs.RowAdagrad(lr=0.1))
        training       gs.TrainingSettings(): batches of a worker, order of the data, loss, evaluations
        cluster        gs.ClusterSettings(): workers and shards become processes on Ray
        checkpoint     gs.CheckpointPolicy(gs.Every(seconds=600), keep=3, path="runs")
    """

    def __init__(
        self,
        *,
        global_batch: int = Plan.global_batch,
        epochs: int = Plan.epochs,
        seed: int = Plan.seed,
        workers: int | WorkerSettings = 1,
        strategy: str | Mapping[str, Any] = "sync",
        optimizer: DenseOptimizer | OptimizerSettings | None = None,
        training: TrainingSettings | None = None,
        cluster: ClusterSettings | None = None,
        checkpoint: CheckpointPolicy | None = None,
        **removed: Never,
    ) -> None:
        refuse(removed, KEYWORDS)
        if not isinstance(strategy, str | Mapping):
            raise not_a_name(strategy)
        _check_value("training", training, TrainingSettings)
        _check_value("cluster", cluster, ClusterSettings)
        _check_value("checkpoint", checkpoint, CheckpointPolicy)
        self.workers = workers if isinstance(workers, WorkerSettings) else WorkerSettings(workers)
        self.training = training or TrainingSettings()
        self.cluster, self.checkpoint = cluster, checkpoint or CheckpointPolicy()
        chosen = optimizer or OptimizerSettings()
        if not isinstance(chosen, OptimizerSettings):
            chosen = OptimizerSettings(chosen)
        self.optimizer = chosen.scaled_to(global_batch)
        self.loss = prepared_loss(self.training.loss)
        self.threads = self.workers.threads or torch.get_num_threads()
        self.plan = Plan(
            global_batch=global_batch,
            workers=self.workers.count,
            strategy=_strategy_plan(strategy, self.training),
            epochs=epochs,
            seed=seed,
            shuffle=bool(self.training.shuffle),
            schedule=self.optimizer.schedule,
            evaluation=self.training.evaluation,
            bad_batches=self.training.bad_batches,
        )

    def fit(
        self,
        model: nn.Module | Callable[[], nn.Module],
        train: Dataset,
        valid: Dataset | None = None,
        *,
        test: Dataset | None = None,
        resume: str | Path | None = None,
        init_from: str | Path | None = None,
        warm_start: bool = False,
        callbacks: Sequence[Callback] = (),
        name: str = "run",
    ) -> Result:
        """Trains to the end: `start` and `wait`, with the same arguments.

        Ctrl-C stops the run after its step and saves it; then `KeyboardInterrupt` explains how to resume it.
        """
        run = self.start(
            model,
            train,
            valid,
            test=test,
            resume=resume,
            init_from=init_from,
            warm_start=warm_start,
            callbacks=callbacks,
            name=name,
        )
        return run.wait()

    def start(
        self,
        model: nn.Module | Callable[[], nn.Module],
        train: Dataset,
        valid: Dataset | None = None,
        *,
        test: Dataset | None = None,
        resume: str | Path | None = None,
        init_from: str | Path | None = None,
        warm_start: bool = False,
        callbacks: Sequence[Callback] = (),
        name: str = "run",
    ) -> Run | LaunchedRun:
        """Starts training in the background and returns at once.

        A run begins with the weights that you gave the module, even if an earlier run has trained it since; a model of
        `gs.models` that you did not change begins with weights drawn with the trainer's `seed`. `warm_start=True` uses
        the module's current weights. For a module of your own, pass a function that creates it, such as
        `lambda: MyNet(schema)`: it is called under the seed, so that the same seed gives the same run.

        `resume` is a stopped run, which continues where it was saved. An earlier checkpoint of a run (`RUN@step-600`,
        `RUN@best` or its path) continues in a new run, and the old one stays unchanged. `init_from` is a run, a
        checkpoint or a saved model whose embedding rows replace random initial values. `callbacks` are objects of
        classes derived from `gs.Callback`; `name` names the run's folder.
        """
        saved = None if resume is None else catalog.resume_from(resume, self.checkpoint.path, "runs")
        model = first_weights.begin(model, self.plan.seed, warm_start=warm_start)
        recipe = ObjectRecipe(self, model, train, valid, test, init_from, tuple(callbacks))
        try:
            if self.cluster is None:
                return self._start(recipe, saved, name)
            launched = self._launch(recipe, saved, self.cluster, name)
        except BaseException:
            first_weights.written(model)
            raise
        first_weights.written(model)  # other processes train copies of the model
        return launched

    def _start(self, recipe: ObjectRecipe, saved: Path | None, name: str) -> Run:
        prepared = self.prepare(
            recipe.model,
            recipe.train,
            recipe.valid,
            recipe.test,
            resume=saved,
            init_from=recipe.init_from,
            callbacks=recipe.callbacks,
        )
        for sentence in prepared.messages:
            warn(sentence)
        folder = self._open_folder(saved, name)
        with interrupts.held_back() as came, run_folder.failed_unless_started(folder):
            run = prepared.start(folder, LocalEngine(), warns=True)
        if came:
            interrupts.stop_now(run)
        return run

    def _open_folder(self, saved: Path | None, name: str) -> Path:
        leftovers.clear(self.checkpoint.path, end_session=end_session)
        return run_folder.open_folder(saved, self.checkpoint.path, name, private=self.checkpoint.private)

    def prepare(
        self,
        model: nn.Module,
        train: Dataset,
        valid: Dataset | None = None,
        test: Dataset | None = None,
        *,
        resume: Path | None = None,
        init_from: str | Path | None = None,
        schema: Schema | None = None,
        rows_elsewhere: bool = False,
        remarks: Sequence[str] = (),
        callbacks: Sequence[Callback] = (),
    ) -> PreparedRun:
        """Prepares a run without starting it; writes nothing. `resume` is a run's folder or a checkpoint.

        `schema` was fitted by another process; with `rows_elsewhere` other processes hold the rows. `remarks` are
        messages from opening the data: the run passes them on to the user, with those that are added here.
        """
        messages = list(remarks)
        try:
            is_first = schema is None  # no other process has read the data
            if not rows_elsewhere:
                self.workers.check_storage()
                messages += filter(None, [self.workers.memory_warning()])
            saved = None
            if resume is not None:
                saved = open_checkpoint(resume, rows_elsewhere=rows_elsewhere)
                schema = Schema.from_dict(saved.facts["schema"])
            train = fitted(train, None, messages.append) if schema is None else train.with_schema(schema)
            valid = None if valid is None else valid.with_schema(train.schema)
            test = None if test is None else test.with_schema(train.schema)
            self._check_data(train, valid, test)
            known = train.schema
            if is_first and saved is None:
                known = replace(known, forms=observed_forms(train.examples))
            training = self._training(model, known, train, valid, saved, shared_memory=not rows_elsewhere)
            run = PreparedRun(training, self.checkpoint, callbacks, test)
            if is_first:
                parts = [train if saved is not None else None, valid, test]
                messages += remarks_on(known, parts, init_from)
            for sentence in dict.fromkeys(messages):
                run.notify(sentence)
            if saved is not None:
                run.restore(saved)
            elif init_from is not None:
                training.learner.warm_start(Checkpoint.open(resolve(Path(init_from))))
            return run
        except BaseException:
            for sentence in messages:  # there is no run to pass them on, and they may explain the error
                warn(sentence)
            raise

    def in_cluster_process(self) -> Trainer:
        """The trainer for a process of a cluster: with its number of threads, and without a baseline."""
        other = copy.copy(self)
        other.training = replace(self.training, baseline=False)
        other.threads = torch.get_num_threads()
        return other

    def _check_data(self, train: Dataset, valid: Dataset | None, test: Dataset | None) -> None:
        chosen = self.plan.evaluation
        if valid is None and (chosen.early_stopping or chosen.plateau):
            raise UserError("early stopping and plateau decay need validation data: give `valid`")
        for dataset, purpose in ((train, "train"), (valid, "validate"), (test, "test")):
            if dataset is not None and not has_examples(dataset):
                raise UserError(f"no examples to {purpose} on: {dataset.describe()} is empty")

    def _training(
        self,
        model: nn.Module,
        schema: Schema,
        train: Dataset,
        valid: Dataset | None,
        saved: Checkpoint | None,
        *,
        shared_memory: bool,
    ) -> Training:
        plain = (
            Worker(models.LR(train.schema), train.schema, threads=self.threads)
            if self.training.baseline
            else None
        )
        worker = Worker(model, schema, loss=self.loss, threads=self.threads)
        of_model, of_baseline = divided(
            self.workers.cold_tier(self.checkpoint.path, batches_here=shared_memory),
            worker.groups,
            None if plain is None else plain.groups,
            shards=self.workers.shards,
            shards_here=self.workers.shards if shared_memory else 1,
        )
        baseline = None if plain is None else self._baseline(plain, of_baseline)
        shuffle, total = self.training.shuffle, None
        if saved is None and shuffle is None:
            shuffle = self._shuffled(train)
        elif saved is not None:
            shuffle = saved.facts["plan"]["train.shuffle"] == "True" if shuffle is None else shuffle
            if saved.facts["plan"]["epochs"] == str(self.plan.epochs):
                total = saved.facts["total"]
        return Training(
            replace(self.plan, shuffle=bool(shuffle)),
            self._learner(worker, of_model),
            train,
            valid,
            baseline=baseline,
            pacer=Pacer(self.workers.inject) if self.workers.inject else None,
            total=total,
            shared_memory=shared_memory,
        )

    def _launch(
        self, recipe: ObjectRecipe, saved: Path | None, cluster: ClusterSettings, name: str
    ) -> LaunchedRun:
        from gearshift.engine.ray import launch

        folder = self._open_folder(saved, name)
        with run_folder.failed_unless_started(folder):
            return launch.start(
                recipe,
                cluster,
                folder=folder,
                workers=self.plan.workers,
                shards=self.workers.shards,
                origin=None if saved in (None, folder) else saved,
                model=recipe.model,
                private=self.checkpoint.private,
                warns=True,
            )

    def _shuffled(self, train: Dataset) -> bool:
        """Whether to shuffle. By default a log with a time that is read once is not shuffled; anything else is."""
        return self.plan.epochs > 1 or train.schema.time is None

    def _learner(self, worker: Worker, tier: ColdTier | None) -> Learner:
        return Learner(
            worker,
            rows=self.optimizer.row_settings,
            optimizer=self.optimizer.dense,
            dense=self.optimizer,
            seed=self.plan.seed,
            shards=self.workers.shards,
            tier=tier,
            average=self.training.average_rule,
        )

    def _baseline(self, worker: Worker, tier: ColdTier | None) -> Learner:
        """A logistic regression, which shows what the deep part of the model contributes."""
        return Learner(
            worker,
            rows=RowSettings(RowAdagrad(lr=0.1)),
            optimizer=Adam(lr=1e-2),
            seed=self.plan.seed,
            prefix="baseline-",
            tier=tier,
        )


KEYWORDS = tuple(
    name for name in inspect.signature(Trainer.__init__).parameters if name not in ("self", "removed")
)


def _check_value(keyword: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise UserError(f"Trainer({keyword}=...) is {value!r}: write {keyword}=gs.{kind.__name__}(...)")


def _strategy_plan(strategy: str | Mapping[str, Any], settings: TrainingSettings) -> StrategyPlan:
    chosen: dict[str, Any] = {"name": strategy} if isinstance(strategy, str) else dict(strategy)
    name, switches = chosen.pop("name", "sync"), tuple(chosen.pop("switch", ()))
    return StrategyPlan(name, chosen, switches, StepSettings(**values_of(settings, StepSettings)))
