"""Gearshift: train click-through-rate models on click logs.

The packages, from the user interface down to the foundations. Each imports only from those below it:

    cli/            one file per command; app.py lists them
    experiments/    comparisons of many runs: strategies with paired seeds, optimizers at growing batch sizes
    config/         the typed tree of settings, from YAML and overrides; build.py creates the objects
    trainer/        `Trainer`: settings, and the start of a run on the chosen engine
    engine/         what runs the workers: in this thread, in threads, in virtual time, as processes on Ray
    run/            a run is a folder: ownership, logs, checkpoints, report, control from other processes
    training/       the plan, its progress, what one worker computes, evaluation
    parameters/     where parameters live: dense buffer, server, shards, replicas, checkpoint files
    embedding/      the row store (over the C++ core) and the lookup of a batch's ids
    models/         plain nn.Modules: numbers and embedding rows -> logits; losses
    data/           schema, batches, data sets; readers/: files; infer/: schema inference for `gearshift init`
    sync/           which worker may begin, and which gradients form a step: pure decisions
    optim/          update rules on flat buffers; torch/: the same as torch.optim optimizers
    metrics/        AUC, log loss, calibration: streaming and exact
    cluster_model/  a model of a cluster: speeds, disturbances, links
    settings/       how a setting is declared: its default, description, bounds and unit
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Idle OpenMP threads of torch spin for milliseconds, on cores that the threads of the row store, or another process,
# need. With passive waiting, in two alternating runs each, the ratio of step time to network time fell from 1.17 and
# 1.16 to 1.13 and 1.11 on quiet cores (the step itself was once faster, once slower). With another process on the
# machine, the time of the network alone fell from 317 and 331 ms to 77 and 111 ms. This must be set before torch is
# loaded: import gearshift first.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from gearshift import models as models
    from gearshift.data.batch import Batch as Batch
    from gearshift.data.dataset import CsvFormat as CsvFormat
    from gearshift.data.dataset import Dataset as Dataset
    from gearshift.data.dataset import read as read
    from gearshift.data.infer.schema import infer_schema as infer_schema
    from gearshift.data.row_lifetime import Expire as Expire
    from gearshift.data.schema import Bag as Bag
    from gearshift.data.schema import Bucketized as Bucketized
    from gearshift.data.schema import Categorical as Categorical
    from gearshift.data.schema import Label as Label
    from gearshift.data.schema import Numeric as Numeric
    from gearshift.data.schema import Schema as Schema
    from gearshift.data.schema import Sequence as Sequence
    from gearshift.data.schema import Vector as Vector
    from gearshift.data.synthetic import ClickLog as ClickLog
    from gearshift.embedding.frozen_rows import FrozenRows as FrozenRows
    from gearshift.embedding.frozen_rows import WrittenRows as WrittenRows
    from gearshift.embedding.module import Embeddings as Embeddings
    from gearshift.embedding.row_optimizers import *  # noqa: F403
    from gearshift.engine.ray.cluster_settings import ClusterSettings as ClusterSettings
    from gearshift.errors import DataWarning as DataWarning
    from gearshift.errors import UserError as UserError
    from gearshift.experiments.batch_sweep import sweep_batch as sweep_batch
    from gearshift.models import losses as losses
    from gearshift.models.inputs import Inputs as Inputs
    from gearshift.optim.batch_scaling import BatchScaling as BatchScaling
    from gearshift.optim.first_order import SGD as SGD
    from gearshift.optim.first_order import Adagrad as Adagrad
    from gearshift.optim.first_order import Adam as Adam
    from gearshift.optim.first_order import AdamW as AdamW
    from gearshift.optim.first_order import Momentum as Momentum
    from gearshift.optim.schedule import Schedule as Schedule
    from gearshift.parameters.server import RowSettings as RowSettings
    from gearshift.run.attached_run import RemoteRun as RemoteRun
    from gearshift.run.attached_run import attach as attach
    from gearshift.run.callbacks import Callback as Callback
    from gearshift.run.checkpoint_policy import CheckpointPolicy as CheckpointPolicy
    from gearshift.run.delta import Delta as Delta
    from gearshift.run.delta import apply_deltas as apply_deltas
    from gearshift.run.delta import write_delta as write_delta
    from gearshift.run.local_run import Run as Run
    from gearshift.run.result import Result as Result
    from gearshift.run.row_counts import RowCounts as RowCounts
    from gearshift.run.row_counts import TableRows as TableRows
    from gearshift.run.row_counts import count_rows as count_rows
    from gearshift.run.row_export import write_rows as write_rows
    from gearshift.run.status import Status as Status
    from gearshift.run.trained_model import TrainedModel as TrainedModel
    from gearshift.run.trained_model import load as load
    from gearshift.trainer.optimizer_settings import OptimizerSettings as OptimizerSettings
    from gearshift.trainer.trainer import Trainer as Trainer
    from gearshift.trainer.worker_settings import WorkerSettings as WorkerSettings
    from gearshift.training.evaluation import Evaluation as Evaluation
    from gearshift.training.requests import Switch as Switch
    from gearshift.training.timing import Every as Every
    from gearshift.training.train_settings import EarlyStopping as EarlyStopping
    from gearshift.training.train_settings import EvaluationSettings as EvaluationSettings
    from gearshift.training.train_settings import Plateau as Plateau
    from gearshift.training.train_settings import TrainingSettings as TrainingSettings

# Names are fetched when first used, so that `gearshift --help` need not import torch.
_HOMES = {
    "gearshift.training.timing": "Every",
    "gearshift.engine.ray.cluster_settings": "ClusterSettings",
    "gearshift.run.checkpoint_policy": "CheckpointPolicy",
    "gearshift.run.control_socket": "Status",
    "gearshift.data.batch": "Batch",
    "gearshift.data.dataset": "CsvFormat Dataset read",
    "gearshift.data.infer.schema": "infer_schema",
    "gearshift.data.row_lifetime": "Expire",
    "gearshift.data.schema": "Bag Bucketized Categorical Label Numeric Schema Sequence Vector",
    "gearshift.data.synthetic": "ClickLog",
    "gearshift.embedding.frozen_rows": "FrozenRows WrittenRows",
    "gearshift.embedding.module": "Embeddings",
    "gearshift.errors": "DataWarning UserError",
    "gearshift.training.evaluation": "Evaluation",
    "gearshift.models.inputs": "Inputs",
    "gearshift.optim.batch_scaling": "BatchScaling",
    "gearshift.optim.first_order": "SGD Adagrad Adam AdamW Momentum",
    "gearshift.optim.schedule": "Schedule",
    "gearshift.run.attached_run": "RemoteRun attach",
    "gearshift.run.result": "Result",
    "gearshift.run.callbacks": "Callback",
    "gearshift.run.local_run": "Run",
    "gearshift.experiments.batch_sweep": "sweep_batch",
    "gearshift.run.delta": "Delta apply_deltas write_delta",
    "gearshift.run.row_counts": "RowCounts TableRows count_rows",
    "gearshift.run.row_export": "write_rows",
    "gearshift.run.trained_model": "TrainedModel load",
    "gearshift.parameters.server": "RowSettings",
    "gearshift.trainer.optimizer_settings": "OptimizerSettings",
    "gearshift.trainer.worker_settings": "WorkerSettings",
    "gearshift.trainer.trainer": "Trainer",
    "gearshift.training.train_settings": "EarlyStopping EvaluationSettings Plateau TrainingSettings",
    "gearshift.training.requests": "Switch",
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
__version__ = "0.1.0"
_MODULES = {"losses": "gearshift.models.losses", "models": "gearshift.models"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    if name == "__all__":
        return [*_MODULE_OF, *_row_optimizers(), *_MODULES]
    if not name.startswith("_") and name in _row_optimizers():
        return getattr(import_module("gearshift.embedding.row_optimizers"), name)
    raise AttributeError(f"module 'gearshift' has no attribute {name!r}")


def _row_optimizers() -> list[str]:
    """The names listed by the module that defines them; a new one is public without a change here."""
    from gearshift.embedding import row_optimizers

    return row_optimizers.__all__


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
