"""`gearshift.sweep_batch`: trains a config at growing batch sizes with several optimizers, to find the largest batch.

`largest_batch.py` decides what to train and interprets the results. This module defines a trial for a config: the
optimizer, batch, rates and seed override the file, and the run trains in threads of this process, without a run
folder, and is measured on the validation data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path

import torch

from gearshift import models
from gearshift.config import Config, load_config
from gearshift.config.build import datasets, make_trainer
from gearshift.config.optimizer_argument import parse_optimizer
from gearshift.data.dataset import Dataset
from gearshift.data.examples import MemoryExamples
from gearshift.embedding.store import RowOptimizer
from gearshift.engine.local_engine import LocalEngine
from gearshift.errors import UserError
from gearshift.experiments.largest_batch import TUNING_SEED, Score, Search, Sweep, SweepRow, Trial, sweep
from gearshift.optim.batch_scaling import Rates, scaled
from gearshift.optim.variance_reduced import VarianceReduced
from gearshift.sync.events import Action, Event
from gearshift.sync.registry import gradients_per_step, resolve
from gearshift.trainer.trainer import Trainer
from gearshift.training.engine import NotFinite
from gearshift.training.evaluation import Evaluation, evaluate
from gearshift.training.plan import Plan
from gearshift.training.requests import Switch
from gearshift.training.timing import Moment
from gearshift.training.training import Training

FACTORS = (1, 2, 4, 8, 16, 32, 64)
SAMPLE = 100_000  # maximum number of training examples for the generalisation gap
IN_MEMORY = 4_000_000  # maximum size of a data share kept in memory; for larger ones each training run reads the files
TUNE_SHARE = 0.1
UNSCALED = ("optimizer.batch_rule=constant", "optimizer.base_batch=null")  # use the given rates unchanged
Report = Callable[[str], None]


def sweep_batch(
    config: str | Path,
    settings: Sequence[str] = (),
    *,
    optimizers: str | Sequence[str] = (),
    factors: Sequence[int] = FACTORS,
    seeds: int = 5,
    tolerance: float = 0.001,
    tune_share: float | None = None,
    tell: Report = lambda _: None,
) -> Sweep:
    """Find the largest batch without loss of quality: `.largest_batch()` by optimizer, `.recommended`, `.lines`.

    The `settings` of a line reproduce it: `gearshift.config.load_config(config, line.settings)`. `tell=print` shows
    each training run when it ends.

    `factors` multiply the config's `train.global_batch`. `optimizers` are as on the command line, `lamb`,
    `vr_adam:row_trust=row_wise`; the default is the config's optimizer. Rates are searched on `tune_share` of the
    training data: by default a tenth, or all of it if the config has several epochs.
    """
    names = (
        [word.strip() for word in optimizers.split(",") if word.strip()]
        if isinstance(optimizers, str)
        else optimizers
    )
    request = SweepRequest(
        config, tuple(settings), tuple(names), tuple(factors), seeds, tolerance, tune_share
    )
    *_, last = BatchSweep(request, tell)
    return last


@dataclass(frozen=True)
class SweepRequest:
    config: str | Path
    settings: tuple[str, ...] = ()  # override the file
    optimizers: tuple[str, ...] = ()  # default: the config's optimizer
    factors: tuple[int, ...] = FACTORS
    seeds: int = 5
    tolerance: float = 0.001
    tune_share: float | None = None  # default: depends on the epochs

    def __post_init__(self) -> None:
        if not isinstance(self.seeds, int) or self.seeds < 1:
            raise UserError(f"seeds is {self.seeds}; it must be at least 1, and 5 for a useful interval")
        share = self.tune_share
        if share is not None and not (isinstance(share, Real) and 0 < share <= 1):
            raise UserError(f"tune_share is {share}; it must be above 0 and at most 1, such as 0.1")
        if not (isinstance(self.tolerance, Real) and self.tolerance > 0):
            raise UserError(f"the tolerance is {self.tolerance}; it must be an AUC above 0, such as .001")
        whole = all(isinstance(factor, Integral) for factor in self.factors)
        if (
            not self.factors
            or not whole
            or min(self.factors) < 1
            or list(self.factors) != sorted(set(self.factors))
        ):
            raise UserError(
                "batches must be increasing whole multiples of train.global_batch, such as 1,4,16,64"
            )
        if len(set(self.optimizers)) < len(self.optimizers):
            raise UserError("optimizers must be distinct, such as adam,lamb,vr_adam")


class BatchSweep:
    """A sweep that can be followed: `for sweep in BatchSweep(...)` yields it with one more line each time."""

    def __init__(self, request: SweepRequest, tell: Report) -> None:
        self.request, self.tell = request, tell
        self.config = load_config(request.config, request.settings)
        self._head: tuple[float, Dataset] | None = None  # the last share that was searched
        # If examples are repeated, rates that suit a part of the data do not suit all of it.
        self.tune_share = request.tune_share or (TUNE_SHARE if self.config.train.epochs == 1 else 1.0)
        words = request.optimizers or (self.config.optimizer.dense.name,)
        self.arms = {word: _arm(request, self.config, word) for word in words}
        self.batches = [self.config.train.global_batch * factor for factor in request.factors]
        for batch in self.batches:  # fail now rather than after an hour
            for word in words:
                _check_gradients(word, make_trainer(self._config(Trial(word, batch, 1.0, 1.0, 1))))

    def __iter__(self) -> Iterator[Sweep]:
        examples = self._train.estimate()
        if max(self.batches) > examples:
            raise UserError(
                f"a batch of {max(self.batches):,} ({max(self.request.factors)}x) exceeds the {examples:,} training "
                "examples: remove such multiples from --batches"
            )
        search = Search(examples, step=2.0, strides=(2, 1), share=self.tune_share)
        sweeps = sweep(
            list(self.arms),
            self.batches,
            self.run,
            search,
            seeds=self.request.seeds,
            tolerance=self.request.tolerance,
            rules={word: arm.rule for word, arm in self.arms.items()},
        )
        return (replace(one, lines=tuple(map(self.with_settings, one.lines))) for one in sweeps)

    def with_settings(self, line: SweepRow) -> SweepRow:
        """The line with the settings that reproduce it."""
        trial = Trial(line.optimizer, line.batch, line.dense, line.rows, 1)
        return replace(line, settings=(*self.request.settings, *self._words(trial)))

    def rates(self, line: SweepRow) -> tuple[float, float]:
        """The rates of the dense parameters and of the rows."""
        arm = self.arms[line.optimizer]
        return arm.dense_lr * line.dense, arm.rows["embeddings"].lr * line.rows

    def run(self, trial: Trial) -> Score | None:
        score = self._trained(trial)
        tuning = trial.seed == TUNING_SEED
        what = "rates of" if tuning else f"seed {trial.seed}  "
        outcome = "diverged"
        if score is not None:
            measured = f"log loss {score.tuning_loss:.5f}" if tuning else f"AUC {score.auc:.4f}"
            outcome = f"{measured}  {score.steps:,} steps  {score.seconds:.1f} s"
        rates = f"dense x{trial.dense:g} rows x{trial.rows:g}"
        self.tell(f"  {what} {trial.optimizer} at {trial.batch:,}  {rates}  {outcome}")
        return score

    def _trained(self, trial: Trial) -> Score | None:
        config, train = self._config(trial), self._share(trial.share)
        torch.set_num_threads(config.cluster.counts.threads or torch.get_num_threads())
        torch.manual_seed(trial.seed)
        model = models.build(config.model.name, train.schema, **config.model.settings())
        training = make_trainer(config).prepare(model, train, self._valid).training
        tuning = trial.seed == TUNING_SEED
        observer = _Quiet(training, lambda: math.nan if tuning else self._seen(training))
        try:
            training.run(LocalEngine(), observer)
        except NotFinite:
            return None
        return self._score(training, observer)

    def _seen(self, training: Training) -> float:
        """The AUC of the current model on training data."""
        return evaluate(training.learner, self._sample).measures.auc

    def _score(self, training: Training, observer: _Quiet) -> Score | None:
        """Rates are chosen by progressive log loss; if examples are repeated, by that of the validation data."""
        assert observer.valid is not None
        auc, logloss = observer.valid.measures.auc, observer.valid.measures.logloss
        if math.isnan(logloss):  # in the last step, or for an example that no step used
            return None
        if math.isnan(auc):
            raise UserError(
                f"{self.request.config}: the AUC is undefined, because the validation data has only one class"
            )
        once = training.plan.epochs == 1
        by = training.progress.measures.logloss if once else logloss
        return Score(auc, logloss, observer.seen - auc, by, training.step, training.progress.seconds)

    def _config(self, trial: Trial) -> Config:
        quiet = ["train.eval_every=none", "train.baseline=false", f"train.seed={trial.seed}"]
        return load_config(self.request.config, [*self.request.settings, *self._words(trial), *quiet])

    def _words(self, trial: Trial) -> list[str]:
        arm, factor = self.arms[trial.optimizer], trial.batch / self.config.train.global_batch
        growth = scaled(arm.rule, Rates(1.0, 1.0, 1.0, arm.warmup), factor)
        words = [f"train.global_batch={trial.batch}", *arm.words]
        words += [] if self.config.optimizer.scaling.base_batch is None else UNSCALED
        words.append(f"optimizer.dense.lr={arm.dense_lr * trial.dense:.6g}")
        for part, rows in arm.rows.items():
            words.append(f"optimizer.{part}.lr={rows.lr * trial.rows:.6g}")
            if rows.l2:
                words.append(f"optimizer.{part}.l2={rows.l2 * growth.row_l2:.6g}")
        if growth.warmup:
            words.append(f"optimizer.schedule.warmup={growth.warmup:g}")
        return list({word.partition("=")[0]: word for word in words}.values())  # the last one of each key

    # Cached data

    @cached_property
    def _data(self) -> tuple[Dataset, Dataset]:
        data = datasets(self.config)
        if data.valid is None:
            raise UserError(
                f"{self.request.config}: sweep-batch needs validation data: set data.valid or data.split "
                "(data.synthetic: days of 2 or more)"
            )
        train = data.train.fitted()
        return train, data.valid.with_schema(train.schema)

    @property
    def _train(self) -> Dataset:
        return self._data[0]

    @property
    def _valid(self) -> Dataset:
        return self._data[1]

    @cached_property
    def _sample(self) -> Dataset:
        """The latest part of the training data."""
        count = min(self._train.counted(), self._valid.counted(), SAMPLE)
        newest = self._train.read(self._train.counted() - count, count)
        return Dataset(MemoryExamples(newest.moved(0), self._train.schema))

    def _share(self, share: float) -> Dataset:
        if share == 1.0:
            return self._train
        if self._head is None or self._head[0] != share:
            examples = max(1, round(share * self._train.estimate()))
            head = self._train.head(examples)
            self._head = share, head.in_memory() if examples <= IN_MEMORY else head
        return self._head[1]


@dataclass(frozen=True)
class _Arm:
    """An optimizer as config overrides, and its rates at the config's batch."""

    words: tuple[str, ...]
    rule: str
    dense_lr: float
    rows: dict[str, RowOptimizer]  # embeddings, and linear if it has a separate optimizer
    warmup: float


def _arm(request: SweepRequest, config: Config, word: str) -> _Arm:
    name, written = parse_optimizer(word)
    if "base_batch" in written:
        raise UserError(
            f"optimizer `{word}`: remove base_batch; the search starts from the rates at the config's batch"
        )
    optimizer = config.optimizer
    rule = written.pop(
        "batch_rule", optimizer.scaling.rule
    )  # for this optimizer, also from the base batch to the config's batch
    ruled = UNSCALED if rule == "constant" else (f"optimizer.batch_rule={rule}",)
    words = [f"optimizer.{key}={value}" for key, value in written.items()]
    if name != optimizer.dense.name:
        words.insert(0, f"optimizer.dense={{name: {name}}}")
    if not name.startswith("vr_") and "row_trust" not in written and optimizer.rows.trust != "dense_only":
        words.append("optimizer.row_trust=dense_only")  # the config's value is for its own rule
    chosen = [*request.settings, *words, *(() if optimizer.scaling.base_batch is None else ruled)]
    trainer = make_trainer(load_config(request.config, chosen))
    plan, dense = trainer.plan, trainer.optimizer.dense
    if (
        isinstance(dense, VarianceReduced)
        and plan.strategy.steps.batch is None
        and plan.strategy.steps.micro_batches == 1
    ):
        words.append(f"train.micro_batches={math.ceil(dense.gsnr.min_gradients / _workers_of_a_round(plan))}")
    own_rows = trainer.optimizer.row_settings
    rows = {"embeddings": own_rows.embeddings}
    if own_rows.linear is not None:
        rows["linear"] = own_rows.linear
    rule = "square_root" if rule == "constant" else rule
    return _Arm(tuple(words), rule, dense.lr, rows, trainer.plan.schedule.warmup)


def _workers_of_a_round(plan: Plan) -> int:
    chosen = plan.strategy
    backups = chosen.settings.get("backups", 1) if chosen.name == "backup_workers" else 0
    return max(1, plan.workers - int(backups))


def _check_gradients(word: str, trainer: Trainer) -> None:
    """With too few gradients vr_x equals x, and its line in the table would be meaningless."""
    plan, dense = trainer.plan, trainer.optimizer.dense
    chosen, steps = plan.strategy, plan.strategy.steps
    strategy = resolve(
        chosen.name, chosen.settings, plan.global_batch, plan.workers, steps.batch, steps.micro_batches
    )
    gradients = gradients_per_step(strategy)
    if isinstance(dense, VarianceReduced) and dense.gsnr.too_few(gradients):
        raise UserError(
            f"{word} would have no effect at global batch {plan.global_batch}: its min_gradients is "
            f"{dense.gsnr.min_gradients:g}, but a step of {strategy.name} has only {gradients}. Raise "
            "train.micro_batches, or remove both train.micro_batches and train.batch; a step of an async strategy "
            "always has 1"
        )


class _Quiet:
    """An observer that keeps the measurements of the epoch whose parameters are kept: the best, or the last."""

    def __init__(self, training: Training, on_training_data: Callable[[], float]) -> None:
        self._keep_best, self._on_training_data = training.plan.keep_best, on_training_data
        self.valid: Evaluation | None = None
        self.seen = math.nan  # AUC of the same model on training data

    def began(self, first_lease: int) -> None: ...

    def happened(self, event: Event, actions: list[Action]) -> None: ...

    def stepped(self, before: Moment, ready_to_save: Callable[[], bool]) -> bool:
        return True

    def evaluated(self, evaluation: Evaluation, is_best: bool) -> None:
        if is_best or not self._keep_best:
            self.valid, self.seen = evaluation, self._on_training_data()

    def switched(self, switch: Switch) -> None: ...

    def notify(self, sentence: str) -> None: ...
