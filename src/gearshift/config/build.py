"""Builds the parts of a run from a config and starts them. The only file that knows all the others."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gearshift import models, optim
from gearshift.config import Config, load_config
from gearshift.config.data import SplitSection
from gearshift.config.few_steps import FEW_STEPS, SMALL_BATCH
from gearshift.data.dataset import Dataset, open_dataset
from gearshift.data.readers.generated import GeneratedExamples
from gearshift.data.schema import Schema
from gearshift.data.split import by_example, by_hash, by_position, check_parts
from gearshift.data.synthetic import ClickLog
from gearshift.data.value_forms import marked
from gearshift.embedding.row_optimizers import ROW_OPTIMIZERS, CowClip, RowOptimizer
from gearshift.engine.local_engine import LocalEngine
from gearshift.engine.ray.cluster_settings import ClusterSettings, ConnectionSettings
from gearshift.engine.ray.end_session import end_session
from gearshift.errors import warn
from gearshift.optim.batch_scaling import BatchScaling, Rates, scaled
from gearshift.optim.schedule import Schedule
from gearshift.parameters.server import RowSettings
from gearshift.run import folder as run_folder
from gearshift.run import interrupts, leftovers, startup_interrupts
from gearshift.run.local_run import Run
from gearshift.run.prepared_run import PreparedRun
from gearshift.settings.declaration import values_of
from gearshift.sync.registry import gradients_per_step
from gearshift.trainer.optimizer_settings import OptimizerSettings
from gearshift.trainer.trainer import Trainer
from gearshift.trainer.worker_settings import WorkerSettings
from gearshift.training.estimate import estimate, refuse_too_large
from gearshift.training.learner import describe
from gearshift.training.plan import PlannedSwitch
from gearshift.training.train_settings import RunLength

if TYPE_CHECKING:
    from gearshift.engine.ray.launched_run import LaunchedRun


def start(
    config: Config, *, command: str = "", resume: Path | None = None, init_from: Path | None = None
) -> Run | LaunchedRun:
    """Starts the run that a config describes and returns at once; `run.wait()` returns its result."""
    if config.cluster.engine == "ray":
        return _launch(config, command, resume, init_from)
    prepared = build(config, resume=resume, init_from=init_from)
    needs = estimate(prepared.training)
    refuse_too_large(needs, prepared.training, names_features=config.features is not None)
    folder = _open_folder(config, command, resume)
    with interrupts.held_back() as came, run_folder.failed_unless_started(folder):
        run_folder.write_config(folder, config, command)
        lines = header(config, prepared, folder, needs.text(prepared.training))
        run = prepared.start(folder, LocalEngine(), header=lines)
    if came:
        interrupts.stop_now(run)
    return run


def _launch(config: Config, command: str, resume: Path | None, init_from: Path | None) -> LaunchedRun:
    """Starts the run on a cluster: the folder is created here, everything else by the coordinator."""
    from gearshift.engine.ray import launch

    folder = _open_folder(config, command, resume)
    with run_folder.failed_unless_started(folder):
        run_folder.write_config(folder, config, command)
        return launch.start(
            FromConfig((folder / run_folder.CONFIG).resolve(), init_from and init_from.resolve()),
            cluster_settings(config),
            folder=folder,
            workers=config.cluster.counts.count,
            shards=config.cluster.counts.shards,
            origin=None if resume in (None, folder) else resume,
            private=config.checkpoint.private,
        )


def _open_folder(config: Config, command: str, resume: Path | None) -> Path:
    startup_interrupts.check()
    if config.checkpoint.private:
        os.umask(0o077)
    leftovers.clear(config.checkpoint.path, end_session=end_session)
    return run_folder.open_folder(
        resume,
        config.checkpoint.path,
        config.name or "run",
        command=command,
        private=config.checkpoint.private,
        notify=lambda sentence: print(sentence, file=sys.stderr, flush=True),
    )


def cluster_settings(config: Config) -> ClusterSettings:
    section = config.cluster
    return ClusterSettings(
        **values_of(section, ConnectionSettings),
        **vars(section.resources),
        spread=section.placement == "spread",
        threads=section.counts.threads or 1,
    )


@dataclass(frozen=True)
class FromConfig:
    """How the processes of a cluster build a run that a config describes (`engine.ray.process_context.Recipe`)."""

    config: Path
    init_from: Path | None

    def build(self, schema: Schema | None, resume: Path | None) -> PreparedRun:
        config = load_config(self.config, ["train.baseline=false"])
        init_from = self.init_from if schema is None and resume is None else None
        return build(config, resume=resume, init_from=init_from, schema=schema, rows_elsewhere=True)

    def header(self, run: PreparedRun, folder: Path) -> tuple[str, ...]:
        config = load_config(self.config)
        return header(config, run, folder, estimate(run.training).text(run.training))


def build(
    config: Config,
    *,
    resume: Path | None = None,
    init_from: Path | None = None,
    schema: Schema | None = None,
    rows_elsewhere: bool = False,
) -> PreparedRun:
    """Prepares a run without starting it: reads and checks the data; writes nothing."""
    if config.cluster.counts.threads:
        torch.set_num_threads(config.cluster.counts.threads)
    remarks: list[str] = []  # only of the first process that reads the data
    try:
        data = datasets(config, remarks.append if schema is None else None)
        torch.manual_seed(config.train.seed)
        model = models.build(config.model.name, data.train.schema, **config.model.settings())
    except BaseException:
        for sentence in remarks:  # there is no run to pass them on, and they may explain the error
            warn(sentence)
        raise
    return make_trainer(config).prepare(
        model,
        data.train,
        data.valid,
        data.test,
        resume=resume,
        init_from=init_from,
        schema=schema,
        rows_elsewhere=rows_elsewhere,
        remarks=remarks,
    )


@dataclass(frozen=True)
class DataParts:
    train: Dataset
    valid: Dataset | None
    test: Dataset | None


def datasets(config: Config, notify: Callable[[str], None] | None = warn) -> DataParts:
    """`notify` gets messages about the files. With None the checks behind them are skipped."""
    if config.data.synthetic:
        return _synthetic(config)
    settings, schema = config.data, config.schema()

    def open_files(paths: tuple[str, ...] | None, schema: Schema | None) -> Dataset | None:
        if paths is None:
            return None
        bad_lines = settings.bad_lines.skip
        dataset = open_dataset(
            list(paths),
            schema,
            notify,
            format=settings.format,
            csv=settings.csv,
            bad_lines=bad_lines,
            label_stated=settings.label is not None,
        )
        return dataset if schema is not None else _as_stated(dataset, config)

    train = open_files(settings.train, schema)
    assert train is not None, "a Config without `train` has `synthetic`"
    schema = None if schema is None else marked(schema, train.examples)
    valid, test = (open_files(paths, schema) for paths in (settings.valid, settings.test))
    if settings.split:
        train, valid, cut_off = _split(train, settings.split)
        test = test if cut_off is None else cut_off
    check_parts(train, valid, test, settings.allow_overlap)
    return DataParts(train, valid, test)


def _as_stated(dataset: Dataset, config: Config) -> Dataset:
    """Applies the label, group and weight of the config to data that bring their own features (libfm, prepared)."""
    stated = config.data.stated_roles
    if config.data.label is not None:
        stated["labels"] = config.labels()
    return dataset.with_schema(replace(dataset.schema, **stated)) if stated else dataset


def _split(whole: Dataset, split: SplitSection) -> tuple[Dataset, Dataset, Dataset | None]:
    """Splits off the test data first, then the validation data."""

    def parts(dataset: Dataset, held_out: float | str, name: str) -> tuple[Dataset, Dataset]:
        if split.hash_column:
            return by_hash(dataset, split.hash_column, held_out, name)
        if split.by == "hash":
            return by_example(dataset, held_out, name)
        if split.by == "end":
            return by_position(dataset, held_out)
        if isinstance(held_out, str) and held_out[:4].isdigit():
            return dataset.split(time=held_out)  # a day
        return dataset.split(valid=held_out)

    rest, test = parts(whole, split.test, "test") if split.test is not None else (whole, None)
    return (*parts(rest, split.valid, "valid"), test)


def _synthetic(config: Config) -> DataParts:
    settings = config.data.synthetic
    assert settings is not None
    log = ClickLog(**vars(settings))
    if settings.days == 1:
        return DataParts(Dataset(GeneratedExamples(log)), None, None)
    last_day = log.day_begin(settings.days - 1)
    train, valid = GeneratedExamples(log, 0, last_day), GeneratedExamples(log, last_day)
    return DataParts(Dataset(train), Dataset(valid), None)


def make_trainer(config: Config) -> Trainer:
    train = config.train
    return Trainer(
        **values_of(train, RunLength),
        workers=_worker_settings(config),
        strategy={
            "name": config.strategy.name,
            "switch": tuple(PlannedSwitch(s.at, s.to, s.settings()) for s in config.strategy.switch),
            **config.strategy.settings(),
        },
        optimizer=_optimizer_settings(config),
        training=config.train.training(config.checkpoint.best),
        checkpoint=config.checkpoint,
    )


def _worker_settings(config: Config) -> WorkerSettings:
    counts, inject = config.cluster.counts, config.cluster.inject
    usual_batch = config.train.batch or config.train.global_batch / counts.count
    return WorkerSettings(
        **vars(counts),
        inject=inject.cluster(counts.count, usual_batch) if inject else None,
        memory=config.memory,
        storage=config.storage,
    )


def _optimizer_settings(config: Config) -> OptimizerSettings:
    rates = config.optimizer
    return OptimizerSettings(
        dense=optim.build(rates.dense.name, **rates.dense.settings()),
        rows=RowSettings(
            embeddings=_row_optimizer(rates.embeddings.name, rates.embeddings.settings()),
            linear=_row_optimizer(rates.linear.name, rates.linear.settings()) if rates.linear else None,
            clip=CowClip(**rates.row_clip.settings()) if rates.row_clip else None,
            **vars(rates.rows),
        ),
        schedule=Schedule(**vars(rates.schedule)),
        scaling=BatchScaling(**vars(rates.scaling)),
        **vars(rates.dense_policy),
    )


def _row_optimizer(name: str, settings: dict[str, float]) -> RowOptimizer:
    return ROW_OPTIMIZERS[name](**settings)


def header(config: Config, run: PreparedRun, folder: Path, needs: str) -> tuple[str, ...]:
    """The lines that the user sees before the run starts."""
    learner, name = run.training.learner, config.name or folder.name
    weights = learner.worker.dense.count / 1e6
    lines = [
        f"{name} -> {folder}   {describe(learner.model)}, {weights:.2f} M dense weights   {_how(run)}",
        *_rates(config, run),
        *_few_steps(run),
        f"Data   train: {run.training.train.describe()}",
    ]
    others = {"valid": run.training.valid, "test": run.test}
    lines += [f"       {name}: {dataset.describe()}" for name, dataset in others.items() if dataset]
    if (
        run.resumed is not None
        and run.resumed.parent.resolve() != (folder / run_folder.CHECKPOINTS).resolve()
    ):
        lines.append(f"A new run from {run.resumed}; the original run is not changed")
    return (*lines, needs)


def _how(run: PreparedRun) -> str:
    """`sync, 8 workers, global batch 8,192 = 8 x 1,024`."""
    plan, strategy, count = run.training.plan, run.training.strategy, run.training.workers
    if count == 1 and strategy.batch == plan.global_batch:
        return f"{strategy.name}, 1 worker, global batch {plan.global_batch:,}"
    pieces = f"{plan.global_batch // strategy.batch} x {strategy.batch:,}"
    workers = "1 worker" if count == 1 else f"{count} workers"
    return f"{strategy.name}, {workers}, global batch {plan.global_batch:,} = {pieces}"


def _rates(config: Config, run: PreparedRun) -> list[str]:
    """`Rates  tuned for batch 1,024, square_root to 16,384: dense x4, rows x4`, if a rule scales them."""
    scaling, batch = config.optimizer.scaling, config.train.global_batch
    rule, base = scaling.rule, scaling.base_batch
    if base is None:
        return []
    growth = scaled(rule, Rates(1.0, 1.0, 1.0, config.optimizer.schedule.warmup), batch / base)
    factors = {"dense": growth.dense_lr, "rows": growth.row_lr}
    if any(part.optimizer.l2 for store in run.training.learner.server.stores for part in store.parts):
        factors["L2 of rows"] = growth.row_l2
    moved = [f"{what} x{factor:.4g}" for what, factor in factors.items() if factor != 1]
    if growth.warmup > config.optimizer.schedule.warmup:
        moved.append(f"warm-up over the first {100 * growth.warmup:.0f} %")
    line = f"Rates  tuned for batch {base:,}, {rule} to {batch:,}: {', '.join(moved) or 'unchanged'}"
    strategy = run.training.strategy
    if gradients_per_step(strategy) * strategy.batch < batch:
        line += f". But a step of {strategy.name} has {strategy.batch:,} examples: these rates may be too large for it"
    return [line]


def _few_steps(run: PreparedRun) -> list[str]:
    """A warning if the batch is so large that there are too few steps."""
    training = run.training
    steps = training.plan.epochs * -(-training.train.estimate() // training.plan.global_batch)
    if steps >= FEW_STEPS:
        return []
    if training.plan.global_batch <= SMALL_BATCH:
        return [f"Steps  only about {steps:,} in all: there are few examples; raise train.epochs"]
    return [f"Steps  only about {steps:,} in all, too few to learn much: lower train.global_batch"]
