"""`gearshift sweep-batch` and `gearshift.sweep_batch`, on small generated logs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gearshift as gs
from gearshift.cli import app as cli
from gearshift.cli.sweep_batch import FILES
from gearshift.config import build
from gearshift.data.batch import Batch
from gearshift.data.dataset import Dataset
from gearshift.data.examples import MemoryExamples
from gearshift.errors import UserError
from gearshift.experiments import batch_sweep as sweep_module
from gearshift.experiments.batch_sweep import BatchSweep, SweepRequest, _Quiet
from gearshift.experiments.largest_batch import TUNING_SEED, Score, SweepRow, Trial
from gearshift.training.evaluation import Evaluation

CONFIG = """\
data: {synthetic: {examples: 3000, days: 3, seed: 3}}
model: {name: deepfm, dim: 4, hidden: [8]}
train: {global_batch: 128}
cluster: {threads: 1}
optimizer: {dense: {name: adam, lr: 5e-3}, embeddings: {name: adagrad, lr: 0.05, l2: 1e-6}}
"""


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks.yaml").write_text(CONFIG)
    return tmp_path / "clicks.yaml"


def swept(*words: str, optimizers: tuple[str, ...] = (), factors: tuple[int, ...] = (1, 4)) -> BatchSweep:
    return BatchSweep(SweepRequest("clicks.yaml", words, optimizers, factors, seeds=2), lambda _: None)


def test_a_sweep_trains_recommends_and_leaves_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    command = (
        "sweep-batch clicks.yaml model.dim=8 --batches 1x,4x --optimizers adam,lamb --seeds 2 --tolerance .5"
    )
    assert cli.run([*command.split(), "--out", "found", "--tune-share", "0.5"]) == 0
    output = capsys.readouterr().out
    assert "adam, lamb at global batches 128, 512." in output
    assert "rates of lamb at 512" in output and "seed 2   adam at 512" in output
    saved = json.loads(Path("found/sweep.json").read_text())
    assert saved["largest_batch"] == {"adam": 512, "lamb": 512}
    assert (saved["config"], saved["factors"], saved["seeds"]) == ("clicks.yaml", [1, 4], 2) and saved[
        "finished"
    ]
    assert [(line["optimizer"], line["batch"], line["steps"]) for line in saved["lines"]] == [
        ("adam", 128, 16), ("lamb", 128, 16), ("adam", 512, 4), ("lamb", 512, 4)]  # fmt: skip
    assert all(0.5 < line["auc"]["mean"] < 1 and line["gap"] > 0 for line in saved["lines"])
    assert Path("found/sweep.md").read_text().count("\n") == 6
    assert all(f">{name}</text>" in Path("found/sweep.svg").read_text() for name in saved["largest_batch"])
    assert all("model.dim=8" in line["settings"] for line in saved["lines"])
    advice = next(line for line in output.splitlines() if line.startswith("Train it: gearshift train"))
    assert "clicks.yaml model.dim=8 train.global_batch=512" in advice
    assert not Path("runs").exists()


def test_the_advice_gives_the_run_that_was_measured() -> None:
    """A config, laid over with a line's settings, trains to the same figures."""
    sweep = swept("train.epochs=2", optimizers=("vr_adam:row_trust=touched",))
    score = sweep.run(Trial("vr_adam:row_trust=touched", 512, 2.0, 0.5, 1))
    assert score is not None
    line = SweepRow("vr_adam:row_trust=touched", 512, 2.0, 0.5, (score,))
    dense, rows = sweep.rates(line)
    config = gs.config.load_config("clicks.yaml", [*sweep.with_settings(line).settings, "eval_every=none"])
    assert config.train.epochs == 2, "asked on the command line, not in the file"
    assert config.optimizer.dense.name == "vr_adam" and config.optimizer.row_trust == "touched"
    assert config.optimizer.dense.lr == pytest.approx(
        dense
    ) and config.optimizer.embeddings.lr == pytest.approx(rows)
    assert config.train.global_batch == line.batch and config.train.micro_batches == 8
    assert build.start(config).wait().auc == score.auc


def test_the_gap_is_of_the_epoch_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """At rows of so high a rate the first epoch is the best, and later ones know the training data by heart."""
    sweep = swept("train.epochs=3", "optimizer.embeddings.lr=2.0")
    epochs, evaluated = [], _Quiet.evaluated

    def watched(self: _Quiet, evaluation: Evaluation, is_best: bool) -> None:
        epochs.append((evaluation.measures.auc, self._on_training_data()))
        evaluated(self, evaluation, is_best)

    monkeypatch.setattr(_Quiet, "evaluated", watched)
    score = sweep.run(Trial("adam", 128, 1.0, 1.0, 1))
    best = max(epochs)
    assert len(epochs) == 3 and best != epochs[-1], "an epoch after the best one, for this to be a test"
    assert score is not None and (score.auc, score.gap) == (best[0], best[1] - best[0])


def test_rates_begin_where_the_config_and_its_rule_put_them() -> None:
    ruled = swept(
        "optimizer.batch_rule=linear",
        "optimizer.base_batch=32",
        optimizers=("adam", "lamb", "adam:batch_rule=cowclip"),
    )
    adam, lamb, cowclip = ruled.arms.values()
    assert adam.dense_lr == pytest.approx(0.02) and adam.rows["embeddings"].lr == pytest.approx(0.2)
    assert adam.rule == "linear"
    assert lamb.dense_lr == pytest.approx(4e-3)  # its own 1e-3, as if for the base batch
    words = ruled.with_settings(SweepRow("adam:batch_rule=cowclip", 512, 1.0, 1.0, ())).settings
    assert cowclip.dense_lr == pytest.approx(0.01) and cowclip.rows["embeddings"].lr == 0.05
    assert cowclip.rule == "cowclip" and "optimizer.embeddings.l2=1.6e-05" in words
    assert "optimizer.schedule.warmup=0.1" in words and "optimizer.batch_rule=constant" in words


@pytest.mark.parametrize(
    ("words", "micro_batches"),
    [
        ((), 8),
        (("workers=4",), 2),
        (("optimizer.dense={name: vr_adam, min_gradients: 16}",), 16),
        (("workers=9", "strategy={name: backup_workers, backups: 1}"), 1),
        (("workers=5", "strategy={name: backup_workers, backups: 1}"), 2),
    ],
)
def test_a_vr_optimizer_gets_the_gradients_that_it_asks_for(
    words: tuple[str, ...], micro_batches: int
) -> None:
    (arm,) = swept(*words, optimizers=("vr_adam",)).arms.values()
    assert f"train.micro_batches={micro_batches}" in arm.words


def test_the_configs_trust_in_rows_is_for_its_own_rule() -> None:
    sweep = swept(
        "optimizer.dense={name: vr_adam}", "optimizer.row_trust=touched", optimizers=("adam", "vr_adam")
    )
    trusts = [sweep._config(Trial(word, 128, 1.0, 1.0, 1)).optimizer.row_trust for word in sweep.arms]
    assert trusts == ["dense_only", "touched"]


@pytest.mark.parametrize("batch", [128, 4096])  # 4,096: the one step of 2,000 examples, and no other after it
def test_rates_too_high_are_no_end(batch: int) -> None:
    trial = Trial("adam", batch, 1e30, 1e30, 1)
    assert swept().run(trial) is None


def test_validation_data_of_one_class_are_told() -> None:
    sweep = swept()
    newest = sweep._valid.read(0, 100)
    clicks = Batch(0, np.ones_like(newest.labels_BT), newest.numeric_BN, newest.ids_BF)
    sweep._data = sweep._train, Dataset(MemoryExamples(clicks, sweep._train.schema))
    with pytest.raises(
        UserError, match="the AUC is undefined, because the validation data has only one class"
    ):
        sweep.run(Trial("adam", 128, 1.0, 1.0, 1))


def test_in_python() -> None:
    saved: list[str] = []
    found = gs.sweep_batch("clicks.yaml", factors=[1], seeds=1, tune_share=0.3, tell=saved.append)
    assert found.largest_batch() == {"adam": 128}
    assert len(saved) > 5 and saved[-1].startswith("  seed 1")


def test_python_takes_what_the_command_takes() -> None:
    with pytest.raises(UserError, match="Did you mean `adam`"):
        gs.sweep_batch("clicks.yaml", optimizers="adm,lamb")
    with pytest.raises(UserError, match="whole multiples"):
        gs.sweep_batch("clicks.yaml", factors=[1.5])  # type: ignore[list-item]


def test_a_share_too_large_for_memory_is_read_from_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial("adam", 128, 1.0, 1.0, TUNING_SEED, share=0.5)
    kept, read = swept(), swept()
    scores = [kept.run(trial)]
    monkeypatch.setattr(sweep_module, "IN_MEMORY", 999)
    scores.append(read.run(trial))
    assert isinstance(kept._share(0.5).examples, MemoryExamples)
    assert not isinstance(read._share(0.5).examples, MemoryExamples)
    assert scores[0] is not None and scores[1] is not None
    assert scores[0].tuning_loss == scores[1].tuning_loss and scores[0].steps == 8


@pytest.mark.parametrize(("words", "asked", "share"), [("1", None, 0.1), ("2", None, 1.0), ("2", 0.3, 0.3)])
def test_where_examples_come_again_rates_are_searched_on_all(
    words: str, asked: float | None, share: float
) -> None:
    sweep = BatchSweep(
        SweepRequest("clicks.yaml", (f"train.epochs={words}",), tune_share=asked), lambda _: None
    )
    assert sweep.tune_share == share


def test_what_three_seeds_leave_open_is_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trained(self: BatchSweep, trial: Trial) -> Score:
        noise = 0.002 * (-1) ** trial.seed if trial.batch > 128 else 0.0
        return Score(0.7 + noise, 0.5, 0.0, 0.5, 10, 1.0)

    monkeypatch.setattr(BatchSweep, "_trained", trained)
    Path("sweep.json").write_text("of an earlier sweep")
    assert cli.run(["sweep-batch", "clicks.yaml", "--batches", "1,2", "--seeds", "4"]) == 0
    output = capsys.readouterr().out
    assert Path("before.sweep.json").read_text() == "of an earlier sweep", (
        "set aside once, not with each line"
    )
    assert "NOT within the tolerance after 3 of 4 seeds" in output and "NOT within the tolerance\n" in output
    assert (
        '"not shown" = undecided with these seeds' in output
        and "more seeds would likely settle one of them" in output
    )
    heads, *_, last = Path("sweep.md").read_text().splitlines()
    row = {head.strip(): value.strip() for head, value in zip(heads.split("|"), last.split("|"), strict=True)}
    assert (row["seeds"], row["within"]) == ("4", "not shown")


def test_what_is_no_better_than_a_coin_is_not_recommended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(BatchSweep, "_trained", lambda self, trial: Score(0.51, 8.0, 0.0, 0.5, 2, 1.0))
    assert cli.run(["sweep-batch", "clicks.yaml", "--batches", "1", "--seeds", "2"]) == 0
    output = capsys.readouterr().out
    assert "Nothing is recommended: the best AUC is .5100, close to chance" in output
    assert "Train it" not in output


def test_an_interrupt_before_the_first_line_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: BatchSweep, trial: Trial) -> Score:
        raise KeyboardInterrupt

    Path("sweep.json").write_text("of an earlier sweep")
    monkeypatch.setattr(BatchSweep, "_trained", interrupted)
    assert cli.run(["sweep-batch", "clicks.yaml", "--batches", "1", "--out", "."]) == 130
    assert cli.run(["sweep-batch", "clicks.yaml", "--batches", "1", "--out", "new"]) == 130
    assert Path("sweep.json").read_text() == "of an earlier sweep" and not Path("new").exists()


def test_settings_are_said_once() -> None:
    sweep = swept(optimizers=("adam:dense.lr=0.1",))
    words = sweep._words(Trial("adam:dense.lr=0.1", 128, 0.5, 1.0, 1))
    assert [word for word in words if word.startswith("optimizer.dense.lr=")] == ["optimizer.dense.lr=0.05"]


def test_an_optimizer_that_always_diverges_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(BatchSweep, "_trained", lambda self, trial: None)
    assert cli.run(["sweep-batch", "clicks.yaml", "--batches", "1,2", "--seeds", "2"]) == 0
    output = capsys.readouterr().out
    assert "adam at 128: AUC .5000 +- .0000, diverged with every seed" in output and "nan" not in output
    assert (
        "adam: largest batch none." in output
        and "Nothing is recommended" in output
        and "Train it" not in output
    )
    saved = json.loads(Path("sweep.json").read_text())
    assert saved["recommended"] is None and [line["batch"] for line in saved["lines"]] == [128]


def test_an_interrupt_leaves_what_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trained(self: BatchSweep, trial: Trial) -> Score:
        if trial.batch > 128:
            raise KeyboardInterrupt
        return Score(0.7, 0.5, 0.0, 0.5, 10, 1.0)

    monkeypatch.setattr(BatchSweep, "_trained", trained)
    assert cli.run(["sweep-batch", "clicks.yaml", "--batches", "1,2"]) == 130
    assert "Interrupted; the results so far are in sweep.json" in capsys.readouterr().out
    saved = json.loads(Path("sweep.json").read_text())
    assert saved["largest_batch"] == {"adam": 128} and saved["finished"] is False
    assert Path("sweep.md").read_text().count("\n") == 3  # all files are of the same lines
    written = {name: Path(name).read_bytes() for name in FILES}
    monkeypatch.setattr(BatchSweep, "_trained", lambda self, trial: None)
    assert cli.run(["sweep-batch", "clicks.yaml", "name=again", "--batches", "1"]) == 0
    for name, before in written.items():  # what was there is kept
        assert Path(f"before.{name}").read_bytes() == before != Path(name).read_bytes()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--batches 1,two", "--batches has `two`; write multiples of train.global_batch, such as 1,4,16,64"),
        ("--batches 4,1", "increasing whole multiples of train.global_batch"),
        ("--out clicks.yaml", "--out clicks.yaml is a file; choose a folder"),
        ("--batches 1,100", "a batch of 12,800 (100x) exceeds the 2,000 training examples"),
        ("--optimizers adam:batch_rule=linear:base_batch=64", "remove base_batch"),
        ("--optimizers adm", "Did you mean `adam`"),
        ("--optimizers adam,adam", "must be distinct"),
        (
            "--optimizers adam:row_clip",
            "`row_clip` is not a setting; write key=value, such as adam:row_clip=cowclip",
        ),
        ("--optimizers adam:row_clip=cowclip:row_clip=cowclip", "`row_clip` is set twice"),
        ("--optimizers adam:beta9=1", "unknown key `beta9` in optimizer"),
        ("--seeds 0", "seeds is 0; it must be at least 1"),
        ("--tune-share 10x", "--tune-share is `10x`: expected a share, such as 10% or 0.1"),
        ("--tune-share 0", "tune_share is 0"),
        ("--tolerance -1", "the tolerance is -1"),
        ("--optimizers vr_adam train.global_batch=100", "does not divide among 1 worker x micro_batches 8"),
        (
            "--optimizers vr_adam train.micro_batches=4",
            "vr_adam would have no effect at global batch 128: its min_gradients is 8, but a step of sync has only 4",
        ),
        ("--optimizers vr_adam strategy=async", "but a step of async has only 1"),
        (
            "--optimizers adam:row_trust=row_wise",
            "row_trust `row_wise` applies the trust of a vr_* rule to rows",
        ),
        ("data.synthetic.days=1", "sweep-batch needs validation data: set data.valid or data.split"),
        ("nothing.yaml", "`nothing.yaml` is not a setting"),
    ],
)
def test_bad_input_is_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("sweep.json").write_text("of an earlier sweep")
    assert cli.run(["sweep-batch", "clicks.yaml", *words.split()]) == 2
    output = capsys.readouterr().err
    assert sentence in output and output.count("\n") == 1
    assert Path("sweep.json").read_text() == "of an earlier sweep"
