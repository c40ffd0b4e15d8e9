"""Training from Python: `Trainer(...).start(model, train, valid)` gives a `Run`, `.wait()` a `Result`.

A run trains in a thread of its own, writes its folder (config, metrics, checkpoints, report) and can be watched
and stopped meanwhile. `Trainer` only holds settings; the same one can start many runs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import nn

from gearshift import leftovers, models, names, run_folder
from gearshift.cadence import Every
from gearshift.checkpoint import Checkpoint, resolve
from gearshift.cluster.end_session import end_session
from gearshift.cluster.settings import ClusterSettings
from gearshift.data.dataset import Dataset
from gearshift.data.forms import observed_forms
from gearshift.data.schema import Schema
from gearshift.data.skew import differences
from gearshift.embedding.memory import PARTITIONS
from gearshift.embedding.store import CowClip, RowAdagrad, RowOptimizer
from gearshift.engine.cluster_model import Cluster
from gearshift.errors import UserError, warn
from gearshift.learner import Learner, is_of_rows
from gearshift.optim.batch_scaling import Rates, scaled
from gearshift.optim.first_order import Adam, DenseOptimizer
from gearshift.optim.schedule import Schedule
from gearshift.optim.variance_reduced import VarianceReduced, with_lr
from gearshift.result import Result
from gearshift.run import Callback, CheckpointPolicy, Run
from gearshift.server import EmbeddingReduce, RowSettings, RowTrust
from gearshift.sync.registry import not_a_name
from gearshift.training import EarlyStopping, Plan, Plateau, Training
from gearshift.worker import Loss, binary_cross_entropy

if TYPE_CHECKING:
    from gearshift.cluster.launch import LaunchedRun


class Trainer:
    def __init__(
        self,
        *,
        global_batch: int = 4096,
        workers: int = 1,
        shards: int = 1,
        strategy: str | Mapping[str, Any] = "sync",
        batch: int | None = None,
        micro_batches: int = 1,
        inject: Cluster | None = None,
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
        """`cluster` makes workers and shards processes of their own, on Ray: `gs.ClusterSettings()` is this machine."""
        if not isinstance(strategy, str | Mapping):
            raise not_a_name(strategy)
        growth = _growth(batch_rule, base_batch, global_batch)
        schedule, optimizer = schedule or Schedule(), optimizer or Adam()
        _check_optimizer(optimizer)
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
            schedule=replace(schedule, warmup=max(schedule.warmup, growth.warmup)),
            eval_every=eval_every,
            best=best or "auc",
            keep_best=best is not None and (epochs > 1 or early_stopping is not None),
            early_stopping=early_stopping,
            plateau=plateau,
            bad_batches=bad_batches,
        )
        self.optimizer = (
            optimizer if growth.dense_lr == 1 else with_lr(optimizer, optimizer.lr * growth.dense_lr)
        )
        _check_rows(self.optimizer, row_trust, row_clip, embedding_reduce)
        self.embedding_reduce: EmbeddingReduce = embedding_reduce
        self.row_trust: RowTrust = row_trust
        self.rows = RowSettings(
            _grown(embeddings or RowAdagrad(), growth), linear and _grown(linear, growth), row_init, row_clip
        )
        self.clip_norm, self.loss, self.baseline, self.shuffle = clip_norm, loss, baseline, shuffle
        self.checkpoint, self.callbacks, self.name = checkpoint or CheckpointPolicy(), tuple(callbacks), name
        self.threads = threads or torch.get_num_threads()
        if not 1 <= shards <= PARTITIONS:
            raise UserError(f"shards={shards}: parameters lie on 1 to {PARTITIONS} shards")
        self.shards, self.cluster = shards, cluster

    def fit(self, model: nn.Module, train: Dataset, valid: Dataset | None = None, **where: Any) -> Result:
        """Trains to the end: `start` and `wait`."""
        return self.start(model, train, valid, **where).wait()

    def start(
        self,
        model: nn.Module,
        train: Dataset,
        valid: Dataset | None = None,
        *,
        test: Dataset | None = None,
        resume: str | Path | None = None,
        init_from: str | Path | None = None,
    ) -> Run | LaunchedRun:
        """Starts training in the background and returns at once.

        `resume` is a run that was stopped: it goes on where it was saved. An earlier checkpoint of a run
        (`RUN@step-600`, `RUN@best` or its path) goes on in a new run, and the old one stays as it is.
        `init_from` is a run, a checkpoint or a saved model whose embedding rows are a better beginning than
        random ones.
        """
        saved = None if resume is None else run_folder.resume_from(resume, self.checkpoint.path, "runs")
        if self.cluster is not None:
            return self._launch(Objects(self, model, train, valid, test, init_from), saved, self.cluster)
        run = self.prepare(model, train, valid, test, resume=saved, init_from=init_from)
        for sentence in run.messages:
            warn(sentence)
        run.start(self._open_folder(saved))
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
    ) -> Run:
        """All of `start` but the start: nothing is written yet. `resume` is a run's folder or a checkpoint.

        `schema` is what another process has learned from the data; with `rows_elsewhere` others hold the rows.
        """
        is_first = schema is None  # no other process has looked at the data
        saved = None
        if resume is not None:
            saved = Checkpoint.open(_last_of(resume), lambda file: not (rows_elsewhere and is_of_rows(file)))
        if saved is not None:
            schema = Schema.from_dict(saved.facts["schema"])
        train = train.fitted() if schema is None else train.with_schema(schema)
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
        training = Training(plan, self._learner(model, known), train, valid, baseline)
        run = Run(training, self.checkpoint, self.callbacks, test)
        if is_first:
            parts = [train if saved is not None else None, valid, test]
            for sentence in _remarks(known, parts, init_from):
                run.tell(sentence)
        if saved is not None:
            run.restore(saved)
        elif init_from is not None:
            training.learner.warm_start(Checkpoint.open(resolve(Path(init_from))))
        return run

    def _launch(self, recipe: Objects, saved: Path | None, cluster: ClusterSettings) -> LaunchedRun:
        from gearshift.cluster import launch

        folder = self._open_folder(saved)
        try:
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
        except BaseException as error:
            run_folder.finish(folder, "failed", str(error))
            raise

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
    return list(dict.fromkeys(found))


def _check_optimizer(optimizer: object) -> None:
    """A name, or one for a user's own loop, would fail in the middle of the first step."""
    if all(hasattr(optimizer, part) for part in ("lr", "init", "step")):
        return
    what = f'"{optimizer}"' if isinstance(optimizer, str) else f"a {type(optimizer).__name__}"
    raise UserError(
        f"Trainer(optimizer=...) is {what}, not a rule for the dense parameters: write "
        'gearshift.optim.build("adam", lr=1e-3) or gs.Adam(lr=1e-3)'
    )


def _check_rows(
    optimizer: DenseOptimizer, trust: RowTrust, clip: CowClip | None, reduce: EmbeddingReduce
) -> None:
    """What would be something else, or nothing, without a word."""
    if trust not in get_args(RowTrust):
        raise names.unknown("row_trust", trust, get_args(RowTrust))
    if reduce not in get_args(EmbeddingReduce):
        raise names.unknown("embedding_reduce", reduce, get_args(EmbeddingReduce))
    if trust != "dense_only" and not isinstance(optimizer, VarianceReduced):
        raise UserError(
            f'row_trust="{trust}" gives rows the trust of a vr_* rule: choose one, such as '
            'optimizer=gearshift.optim.build("vr_adam"), or leave it out'
        )
    if clip is not None and not isinstance(clip, CowClip):
        raise UserError(f"Trainer(row_clip=...) is {clip!r}: write row_clip=gs.CowClip(), or leave it out")
    if clip is not None and reduce != "mean":
        raise UserError(
            f'row_clip measures the mean gradient of a row: leave it out, or embedding_reduce="{reduce}"'
        )


def _growth(rule: str, base_batch: int | None, global_batch: int) -> Rates:
    """What rates and L2 are multiplied with, and the least warm-up, at this batch."""
    if base_batch is None and rule != "constant":
        raise UserError(
            f'batch_rule="{rule}" scales rates from the batch they were tuned for: give it, such as base_batch=1024'
        )
    if base_batch is not None and base_batch < 1:
        raise UserError(f"base_batch={base_batch}: at least 1")
    if base_batch is not None and rule == "constant":
        raise UserError(
            f'base_batch={base_batch} changes nothing without a rule: give batch_rule="square_root", or leave it out'
        )
    return scaled(rule, Rates(1.0, 1.0, 1.0), 1.0 if base_batch is None else global_batch / base_batch)


def _grown(rows: RowOptimizer, growth: Rates) -> RowOptimizer:
    return replace(rows, lr=rows.lr * growth.row_lr, l2=rows.l2 * growth.row_l2)


@dataclass(frozen=True)
class Objects:
    """How the processes of a cluster build a run that was started from Python (`cluster.site.Recipe`)."""

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
