"""`gearshift.sweep_batch`: a config trained at growing batches under several optimizers, to see how large it may be.

`largest_batch.py` decides what is trained and what it means; here is what a trial is for a config: its optimizer,
batch, rates and seed laid over the file, trained without a run folder, measured on the validation data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from gearshift import models, optim
from gearshift.cadence import Moment
from gearshift.config import Config, load_config
from gearshift.config.optimizer_words import parse_optimizer
from gearshift.data.dataset import Dataset
from gearshift.data.examples import MemoryExamples
from gearshift.embedding.store import ROW_OPTIMIZERS
from gearshift.errors import UserError
from gearshift.evaluate import Evaluation, evaluate
from gearshift.largest_batch import TUNING_SEED, Line, Score, Search, Sweep, Trial, sweep
from gearshift.optim.batch_scaling import Rates, scaled
from gearshift.train import datasets, make_trainer
from gearshift.training import NotFinite, Switch, Training

FACTORS = (1, 2, 4, 8, 16, 32, 64)
GRADIENTS = 8  # of a step, that a vr_* optimizer wants
SAMPLE = 100_000  # training examples that the generalisation gap is measured on, at most
UNSCALED = ("optimizer.batch_rule=constant", "optimizer.base_batch=null")  # rates are given as they are
Told = Callable[[str], None]


def sweep_batch(
    config: str | Path,
    settings: Sequence[str] = (),
    *,
    optimizers: Sequence[str] = (),
    factors: Sequence[int] = FACTORS,
    seeds: int = 3,
    tolerance: float = 0.001,
    tune_share: float = 0.1,
    tell: Told = lambda _: None,
) -> Sweep:
    """The largest batch at which a model is as good: `.largest_batch()` by optimizer, `.recommended`, `.lines`.

    `factors` are of the config's `train.global_batch`; `optimizers` as on the command line, `lamb`,
    `vr_adam:row_trust=row_wise`, the config's own if none is given.
    """
    swept = BatchSweep(config, settings, optimizers, factors, seeds, tolerance, tune_share, tell)
    *_, last = swept
    return last


class BatchSweep:
    """The same, to be looked at while it goes on: `for found in BatchSweep(...)`, one line more each time."""

    def __init__(
        self,
        config: str | Path,
        settings: Sequence[str],
        optimizers: Sequence[str],
        factors: Sequence[int],
        seeds: int,
        tolerance: float,
        tune_share: float,
        tell: Told,
    ) -> None:
        self.path, self.settings, self.tell = config, list(settings), tell
        self.config = load_config(config, self.settings)
        self.optimizers = list(optimizers) or [self.config.optimizer.dense.name]
        self.factors, self.seeds, self.tolerance, self.share = list(factors), seeds, tolerance, tune_share
        self._head: tuple[float, Dataset] | None = None  # the last share that was searched on
        _check(self)
        self.arms = {word: _arm(self, word) for word in self.optimizers}
        for batch in self.batches:  # refused now rather than after an hour
            for word in self.optimizers:
                self._config(Trial(word, batch, 1.0, 1.0, 1))

    @property
    def batches(self) -> list[int]:
        return [self.config.train.global_batch * factor for factor in self.factors]

    def __iter__(self) -> Iterator[Sweep]:
        search = Search(self._train.estimate(), step=2.0, strides=(2, 1), share=self.share)
        return sweep(
            self.optimizers,
            self.batches,
            self.run,
            search,
            seeds=self.seeds,
            tolerance=self.tolerance,
            rules={word: arm.rule for word, arm in self.arms.items()},
        )

    def rates(self, line: Line) -> tuple[float, float]:
        """Of the dense parameters and the rows."""
        arm = self.arms[line.optimizer]
        return arm.dense_lr * line.dense, arm.row_lr * line.rows

    def chosen(self, line: Line) -> list[str]:
        """The settings that make a run like this line's."""
        return self._words(Trial(line.optimizer, line.batch, line.dense, line.rows, 1))

    def run(self, trial: Trial) -> Score | None:
        score = self._trained(trial)
        tuning = trial.seed == TUNING_SEED
        what = "rates of" if tuning else f"seed {trial.seed}  "
        said = "diverged"
        if score is not None:
            measured = f"log loss {score.tuning_loss:.5f}" if tuning else f"AUC {score.auc:.4f}"
            said = f"{measured}  {score.steps:,} steps  {score.seconds:.1f} s"
        rates = f"dense x{trial.dense:g} rows x{trial.rows:g}"
        self.tell(f"  {what} {trial.optimizer} at {trial.batch:,}  {rates}  {said}")
        return score

    def _trained(self, trial: Trial) -> Score | None:
        config, train = self._config(trial), self._share(trial.share)
        torch.manual_seed(trial.seed)
        model = models.build(config.model.name, train.schema, **config.model.settings())
        training = make_trainer(config).prepare(model, train, self._valid).training
        observer = _Quiet()
        try:
            training.run(observer)
        except NotFinite:
            return None
        valid = observer.best if training.plan.keep_best else observer.last
        assert valid is not None
        return self._score(training, valid, tuning=trial.seed == TUNING_SEED)

    def _score(self, training: Training, valid: Evaluation, *, tuning: bool) -> Score:
        """Rates are chosen by progressive log loss; where examples come again, by that of the validation data."""
        auc, logloss = valid.measures.auc, valid.measures.logloss
        if math.isnan(auc):
            raise UserError(f"{self.path}: the AUC is undefined, the validation data have one class only")
        gap = math.nan if tuning else evaluate(training.learner, self._sample).measures.auc - auc
        once = training.plan.epochs == 1
        by = training.progress.measures.logloss if once else logloss
        return Score(auc, logloss, gap, by, training.step, training.progress.seconds)

    def _config(self, trial: Trial) -> Config:
        quiet = ["train.eval_every=none", "train.baseline=false", f"train.seed={trial.seed}"]
        return load_config(self.path, [*self.settings, *self._words(trial), *quiet])

    def _words(self, trial: Trial) -> list[str]:
        arm, factor = self.arms[trial.optimizer], trial.batch / self.config.train.global_batch
        rates = scaled(arm.rule, Rates(arm.dense_lr, arm.row_lr, arm.row_l2, arm.warmup), factor)
        words = [
            f"train.global_batch={trial.batch}",
            *arm.words,
            *([] if self.config.optimizer.base_batch is None else UNSCALED),
            f"optimizer.dense.lr={arm.dense_lr * trial.dense:.6g}",
            f"optimizer.embeddings.lr={arm.row_lr * trial.rows:.6g}",
        ]
        if arm.linear_lr is not None:
            words.append(f"optimizer.linear.lr={arm.linear_lr * trial.rows:.6g}")
        if rates.row_l2 != arm.row_l2:
            words.append(f"optimizer.embeddings.l2={rates.row_l2:.6g}")
        if rates.warmup != arm.warmup:
            words.append(f"optimizer.schedule.warmup={rates.warmup:g}")
        return words

    # What is read once

    @cached_property
    def _data(self) -> tuple[Dataset, Dataset]:
        data = datasets(self.config)
        if data.valid is None:
            raise UserError(
                f"{self.path}: sweep-batch compares on validation data: set data.valid or data.split "
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
        """The newest of the training data."""
        count = min(self._train.counted(), self._valid.counted(), SAMPLE)
        newest = self._train.read(self._train.counted() - count, count)
        return Dataset(MemoryExamples(newest.moved(0), self._train.schema))

    def _share(self, share: float) -> Dataset:
        if share == 1.0:
            return self._train
        if self._head is None or self._head[0] != share:
            examples = max(1, round(share * self._train.estimate()))
            self._head = share, self._train.head(examples).in_memory()
        return self._head[1]


@dataclass(frozen=True)
class _Arm:
    """An optimizer as words for the config, and the rates that factors are of."""

    words: tuple[str, ...]
    rule: str
    dense_lr: float
    row_lr: float
    row_l2: float
    linear_lr: float | None
    warmup: float


def _arm(swept: BatchSweep, word: str) -> _Arm:
    name, written = parse_optimizer(word)
    own, train = swept.config.optimizer, swept.config.train
    rule = written.pop("batch_rule", own.batch_rule)
    words = [f"optimizer.{key}={value}" for key, value in written.items()]
    if name != own.dense.name:
        words.insert(0, f"optimizer.dense={{name: {name}}}")
    if name.startswith("vr_") and train.batch is None and train.micro_batches == 1:
        words.append(f"train.micro_batches={math.ceil(GRADIENTS / swept.config.cluster.workers)}")
    config = load_config(swept.path, [*swept.settings, *words]).optimizer
    grown = Rates(1.0, 1.0, 1.0)
    if own.base_batch is not None:
        grown = scaled(own.batch_rule, grown, train.global_batch / own.base_batch)
    rows = ROW_OPTIMIZERS[config.embeddings.name](**config.embeddings.settings())
    linear = config.linear and ROW_OPTIMIZERS[config.linear.name](**config.linear.settings())
    dense = optim.build(config.dense.name, **config.dense.settings())
    return _Arm(
        tuple(words),
        "square_root" if rule == "constant" else rule,
        dense.lr * grown.dense_lr,
        rows.lr * grown.row_lr,
        rows.l2 * grown.row_l2,
        linear.lr * grown.row_lr if linear else None,
        max(config.schedule.warmup, grown.warmup),
    )


def _check(swept: BatchSweep) -> None:
    if swept.seeds < 1:
        raise UserError(f"seeds is {swept.seeds}; at least 1, and 5 for an interval that says something")
    if not 0 < swept.share <= 1:
        raise UserError(
            f"the share to search rates on is {swept.share:g}; above 0 and at most 1, such as 0.1"
        )
    if not swept.tolerance > 0:
        raise UserError(f"the tolerance is {swept.tolerance:g}; an AUC above 0, such as .001")
    rising = all(a < b for a, b in zip(swept.factors, swept.factors[1:], strict=False))
    if not swept.factors or min(swept.factors) < 1 or not rising:
        raise UserError("batches are factors of train.global_batch that rise, such as 1,4,16,64")
    if len(set(swept.optimizers)) < len(swept.optimizers):
        raise UserError("optimizers names each once, such as adam,lamb,vr_adam")


class _Quiet:
    """An observer that keeps what was measured."""

    def __init__(self) -> None:
        self.last: Evaluation | None = None
        self.best: Evaluation | None = None

    def began(self) -> None: ...

    def stepped(self, before: Moment) -> bool:
        return True

    def evaluated(self, evaluation: Evaluation, is_best: bool) -> None:
        self.last = evaluation
        if is_best:
            self.best = evaluation

    def switched(self, switch: Switch) -> None: ...

    def tell(self, sentence: str) -> None: ...
