"""Training from Python: `Trainer(...).start(model, train, valid)` gives a `Run`, `.wait()` a `Result`.

A run trains in a thread of its own, writes its folder (config, metrics, checkpoints, report) and can be watched
and stopped meanwhile. `Trainer` only holds settings; the same one can start many runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from gearshift import models
from gearshift.cluster_model.cluster import ClusterModel
from gearshift.data.dataset import Dataset, fitted
from gearshift.data.schema import Schema
from gearshift.data.skew import differences
from gearshift.data.value_forms import observed_forms
from gearshift.embedding.memory import PARTITIONS
from gearshift.embedding.store import CowClip, RowAdagrad, RowOptimizer
from gearshift.engine.local_epoch import LocalEngine
from gearshift.engine.ray.end_session import end_session
from gearshift.engine.ray.settings import ClusterSettings
from gearshift.errors import UserError, warn
from gearshift.models import first_weights
from gearshift.models.losses import Loss, binary_cross_entropy
from gearshift.models.losses import prepared as prepared_loss
from gearshift.optim.first_order import Adam, DenseOptimizer
from gearshift.optim.schedule import Schedule
from gearshift.optim.variance_reduced import with_lr
from gearshift.parameters.checkpoint import Checkpoint, resolve
from gearshift.parameters.server import EmbeddingReduce, RowSettings, RowTrust
from gearshift.run import folder as run_folder
from gearshift.run import interrupts, leftovers
from gearshift.run.local_run import Callback, CheckpointPolicy, Run
from gearshift.run.result import Result
from gearshift.sync.registry import not_a_name
from gearshift.trainer.checks import check_optimizer, check_rows, grown, growth
from gearshift.training.learner import Learner, is_of_rows
from gearshift.training.plan import EarlyStopping, Plan, Plateau
from gearshift.training.timing import Every
from gearshift.training.training import Training

if TYPE_CHECKING:
    from gearshift.engine.ray.launch import LaunchedRun


class Trainer:
    """How to train: settings alone, so that one trainer can start many runs.

    `fit` trains to the end; `start` trains in the background, to be watched, switched and stopped.

    What is trained

        global_batch      examples of a step, over all workers
        batch             examples that a worker takes at a time; its share of the global batch if left out
        micro_batches     into how many a worker's share is cut, instead of `batch`
        epochs            passes over the data
        seed              decides all first weights, the order of the data and dropout: same seed, same run
        shuffle           None: a log with a time column is read once in its order, anything else is shuffled
        loss              see `gs.losses`; binary cross-entropy by default
        bad_batches       how many batches may be left out because their loss or gradient is not finite

    How workers synchronise

        workers           threads, or processes with `cluster`
        shards            parts that the embedding rows are divided into
        strategy          "sync", "gba", "async", "auto", ...; settings as {"name": "gba", "max_lag": 4}
        cluster           gs.ClusterSettings(): workers and shards become processes on Ray
        inject            slowness on purpose, for experiments
        threads           of each worker; torch's number if left out

    Optimizers

        optimizer         of the dense weights: gs.Adam(lr=1e-3), or gearshift.optim.build("lamb", lr=1e-3)
        embeddings        of embedding rows: gs.RowAdagrad(lr=0.05)
        linear            of the width-1 part of rows (LR, FM, Wide & Deep); as `embeddings` if left out
        row_init          new rows are uniform in [-row_init, row_init]
        row_clip          gs.CowClip(): clips the gradient of each row
        embedding_reduce  "mean" of a row's gradient over all examples of the step, "touched": over those that have
                          the id, or "sum"
        row_trust         whether variance-reduced optimizers scale rows too
        clip_norm         the largest length of the dense gradient
        schedule          gs.Schedule(warmup=0.05, decay="cosine")
        batch_rule, base_batch   scale the rates from the batch they were tuned for: "linear", "square_root", "cowclip"

    Evaluation and checkpoints

        eval_every        gs.Every(share=0.1), gs.Every(steps=500); at the end of each epoch in any case
        best              "auc" or "logloss": by what evaluations are compared; None: nothing is chosen by them
        early_stopping    gs.EarlyStopping(patience=2)
        plateau           gs.Plateau(factor=0.1, patience=1)
        baseline          trains a logistic regression beside the model, for comparison
        checkpoint        gs.CheckpointPolicy(gs.Every(seconds=600), keep=3, path="runs")
        callbacks         objects of classes derived from gs.Callback
        name              of the run's folder
    """

    def __init__(
        self,
        *,
        global_batch: int = 4096,
        workers: int = 1,
        shards: int = 1,
        strategy: str | Mapping[str, Any] = "sync",
        batch: int | None = None,
        micro_batches: int = 1,
        inject: ClusterModel | None = None,
        embedding_reduce: EmbeddingReduce = "mean",
        row_trust: RowTrust = "dense_only",
        epochs: int = 1,
        seed: int = 1,
        optimizer: DenseOptimizer | None = None,
        embeddings: RowOptimizer | None = None,
        linear: RowOptimizer | None = None,
        row_init: float = 0.01,
        row_clip: CowClip | None = None,
        batch_rule: str = "constant",
        base_batch: int | None = None,
        clip_norm: float | None = None,
        schedule: Schedule | None = None,
        loss: Loss = binary_cross_entropy,
        shuffle: bool | None = None,
        eval_every: Every | None = None,
        best: Literal["auc", "logloss"] | None = "auc",
        early_stopping: EarlyStopping | None = None,
        plateau: Plateau | None = None,
        bad_batches: int = 0,
        baseline: bool = False,
        checkpoint: CheckpointPolicy | None = None,
        callbacks: Sequence[Callback] = (),
        threads: int | None = None,
        cluster: ClusterSettings | None = None,
        name: str = "run",
    ) -> None:
        if not isinstance(strategy, str | Mapping):
            raise not_a_name(strategy)
        rates = growth(batch_rule, base_batch, global_batch)
        schedule, optimizer = schedule or Schedule(), optimizer or Adam()
        check_optimizer(optimizer)
        chosen: dict[str, Any] = {"name": strategy} if isinstance(strategy, str) else dict(strategy)
        self.plan = Plan(
            batch=global_batch,
            workers=workers,
            strategy=chosen.pop("name", "sync"),
            switches=tuple(chosen.pop("switch", ())),
            strategy_settings=chosen,
            local_batch=batch,
            micro_batches=micro_batches,
            injected=inject,
            epochs=epochs,
            seed=seed,
            shuffle=bool(shuffle),
            schedule=replace(schedule, warmup=max(schedule.warmup, rates.warmup)),
            eval_every=eval_every,
            best=best or "auc",
            keep_best=best is not None and (epochs > 1 or early_stopping is not None),
            early_stopping=early_stopping,
            plateau=plateau,
            bad_batches=bad_batches,
        )
        self.optimizer = (
            optimizer if rates.dense_lr == 1 else with_lr(optimizer, optimizer.lr * rates.dense_lr)
        )
        check_rows(self.optimizer, row_trust, row_clip, embedding_reduce)
        self.embedding_reduce: EmbeddingReduce = embedding_reduce
        self.row_trust: RowTrust = row_trust
        self.rows = RowSettings(
            grown(embeddings or RowAdagrad(), rates), linear and grown(linear, rates), row_init, row_clip
        )
        self.clip_norm, self.loss, self.baseline, self.shuffle = (
            clip_norm,
            prepared_loss(loss),
            baseline,
            shuffle,
        )
        self.checkpoint, self.callbacks, self.name = checkpoint or CheckpointPolicy(), tuple(callbacks), name
        self.threads = threads or torch.get_num_threads()
        if not 1 <= shards <= PARTITIONS:
            raise UserError(f"shards={shards}: parameters lie on 1 to {PARTITIONS} shards")
        self.shards, self.cluster = shards, cluster

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
    ) -> Result:
        """Trains to the end: `start` and `wait`, with the same arguments.

        Ctrl-C stops the run after its step and saves it; then `KeyboardInterrupt` says how to resume it.
        """
        run = self.start(
            model, train, valid, test=test, resume=resume, init_from=init_from, warm_start=warm_start
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
    ) -> Run | LaunchedRun:
        """Starts training in the background and returns at once.

        A run begins with the weights that you gave the module, also if an earlier run has trained it since; a model of
        `gs.models` that you did not change begins with those that the trainer's `seed` draws. `warm_start=True` takes
        the module's weights as they are now. For a module of your own, pass a function that makes it, such as
        `lambda: MyNet(schema)`: it is called under the seed, so that the same seed gives the same run.

        `resume` is a run that was stopped: it goes on where it was saved. An earlier checkpoint of a run
        (`RUN@step-600`, `RUN@best` or its path) goes on in a new run, and the old one stays as it is.
        `init_from` is a run, a checkpoint or a saved model whose embedding rows are a better beginning than
        random ones.
        """
        saved = None if resume is None else run_folder.resume_from(resume, self.checkpoint.path, "runs")
        model = first_weights.begin(model, self.plan.seed, warm_start=warm_start)
        try:
            return self._start(model, train, valid, test, saved, init_from)
        except BaseException:
            first_weights.written(model)
            raise

    def _start(
        self,
        model: nn.Module,
        train: Dataset,
        valid: Dataset | None,
        test: Dataset | None,
        saved: Path | None,
        init_from: str | Path | None,
    ) -> Run | LaunchedRun:
        if self.cluster is not None:
            launched = self._launch(
                ObjectRecipe(self, model, train, valid, test, init_from), saved, self.cluster
            )
            first_weights.written(model)  # other processes train copies of it
            return launched
        run = self.prepare(model, train, valid, test, resume=saved, init_from=init_from)
        for sentence in run.messages:
            warn(sentence)
        folder = self._open_folder(saved)
        with interrupts.held_back() as came, run_folder.failed_unless_started(folder):
            run.start(folder, warns=True)
        if came:
            interrupts.stop_now(run)
        return run

    def _open_folder(self, saved: Path | None) -> Path:
        leftovers.clear(self.checkpoint.path, end_session=end_session)
        return run_folder.open_folder(saved, self.checkpoint.path, self.name, private=self.checkpoint.private)

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
    ) -> Run:
        """All of `start` but the start: nothing is written yet. `resume` is a run's folder or a checkpoint.

        `schema` is what another process has learned from the data; with `rows_elsewhere` others hold the rows.
        `remarks` were found when the data were opened: the run tells them, as those that are found here.
        """
        told = list(remarks)
        try:
            return self._prepare(model, train, valid, test, resume, init_from, schema, rows_elsewhere, told)
        except BaseException:
            for sentence in told:  # there is no run to tell them, and they may be the reason
                warn(sentence)
            raise

    def _prepare(
        self,
        model: nn.Module,
        train: Dataset,
        valid: Dataset | None,
        test: Dataset | None,
        resume: Path | None,
        init_from: str | Path | None,
        schema: Schema | None,
        rows_elsewhere: bool,
        told: list[str],
    ) -> Run:
        is_first = schema is None  # no other process has looked at the data
        saved = None
        if resume is not None:
            saved = Checkpoint.open(_last_of(resume), lambda file: not (rows_elsewhere and is_of_rows(file)))
        if saved is not None:
            schema = Schema.from_dict(saved.facts["schema"])
        train = fitted(train, None, told.append) if schema is None else train.with_schema(schema)
        valid = None if valid is None else valid.with_schema(train.schema)
        test = None if test is None else test.with_schema(train.schema)
        if valid is None and (self.plan.early_stopping or self.plan.plateau):
            raise UserError("early stopping and plateau decay need validation data: give `valid`")
        for dataset, purpose in ((train, "train"), (valid, "validate"), (test, "test")):
            if dataset is not None and not dataset.has_examples():
                raise UserError(f"there is nothing to {purpose} on: {dataset.describe()} has no examples")
        baseline = self._baseline(train) if self.baseline else None
        shuffle = self.shuffle
        if shuffle is None:
            shuffle = (
                self._shuffled(train) if saved is None else saved.facts["plan"]["train.shuffle"] == "True"
            )
        plan = replace(self.plan, shuffle=shuffle)
        known = train.schema
        if is_first and saved is None:
            known = replace(known, forms=observed_forms(train.examples))
        training = Training(plan, self._learner(model, known), LocalEngine(), train, valid, baseline)
        run = Run(training, self.checkpoint, self.callbacks, test)
        if is_first:
            parts = [train if saved is not None else None, valid, test]
            told += _remarks(known, parts, init_from)
        for sentence in dict.fromkeys(told):
            run.tell(sentence)
        if saved is not None:
            run.restore(saved)
        elif init_from is not None:
            training.learner.warm_start(Checkpoint.open(resolve(Path(init_from))))
        return run

    def _launch(self, recipe: ObjectRecipe, saved: Path | None, cluster: ClusterSettings) -> LaunchedRun:
        from gearshift.engine.ray import launch

        folder = self._open_folder(saved)
        with run_folder.failed_unless_started(folder):
            return launch.start(
                recipe,
                cluster,
                folder=folder,
                workers=self.plan.workers,
                shards=self.shards,
                origin=None if saved in (None, folder) else saved,
                model=recipe.model,
                private=self.checkpoint.private,
            )

    def _shuffled(self, train: Dataset) -> bool:
        """By default a log with a time is read once in its order; anything else is shuffled."""
        return self.plan.epochs > 1 or train.schema.time is None

    def _learner(self, model: nn.Module, schema: Schema) -> Learner:
        return Learner(
            model,
            schema,
            rows=self.rows,
            optimizer=self.optimizer,
            max_norm=self.clip_norm,
            embedding_reduce=self.embedding_reduce,
            row_trust=self.row_trust,
            loss=self.loss,
            seed=self.plan.seed,
            threads=self.threads,
            shards=self.shards,
        )

    def _baseline(self, train: Dataset) -> Learner:
        """Logistic regression beside the model, so that a reader knows what the deep part brings."""
        return Learner(
            models.LR(train.schema),
            train.schema,
            rows=RowSettings(RowAdagrad(lr=0.1)),
            optimizer=Adam(lr=1e-2),
            seed=self.plan.seed,
            threads=self.threads,
            prefix="baseline-",
        )


def _remarks(known: Schema, parts: Sequence[Dataset | None], init_from: str | Path | None) -> list[str]:
    """Columns of other data, or of the run to start from, that the model would read differently than its own."""
    found = [sentence for part in parts if part is not None for sentence in part.remarks(known).values()]
    if init_from is not None:
        before = Schema.from_dict(Checkpoint.open(resolve(Path(init_from))).facts["schema"])
        found += differences(before.forms, known.forms, "the training data").values()
    return found


@dataclass(frozen=True)
class ObjectRecipe:
    """How the processes of a cluster build a run that was started from Python (`process_context.Recipe`)."""

    trainer: Trainer
    model: nn.Module
    train: Dataset
    valid: Dataset | None
    test: Dataset | None
    init_from: str | Path | None

    def build(self, schema: Schema | None, resume: Path | None) -> Run:
        init_from = self.init_from if schema is None and resume is None else None
        trainer = copy.copy(self.trainer)
        trainer.baseline = False  # the coordinator reads no training data
        trainer.threads = torch.get_num_threads()  # of this process
        return trainer.prepare(
            self.model,
            self.train,
            self.valid,
            self.test,
            resume=resume,
            init_from=init_from,
            schema=schema,
            rows_elsewhere=True,
        )

    def header(self, run: Run, folder: Path) -> tuple[str, ...]:
        return ()


def _last_of(resume: Path) -> Path:
    """The checkpoint to go on from: the last of a run's folder, or the one that is named."""
    if not (resume / run_folder.RUN).is_file():
        return resume
    last = resume / run_folder.CHECKPOINTS / run_folder.LAST
    if not last.exists():
        raise UserError(
            f"run {resume} saved no checkpoint before it ended; start it again with gearshift train CONFIG"
        )
    return last.resolve()
