"""Runs from Python: the same bits after a resume, the best kept, what is wrong said with its place."""

from __future__ import annotations

import json
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gearshift as gs
from examples import PLAIN, RAGGED, make_batch
from gearshift import optim
from gearshift.data.batch import Batch
from gearshift.embedding.store import CowClip
from gearshift.errors import UserError
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.run import checkpoint_content
from gearshift.run import folder as run_folder
from gearshift.run.resume import plan_facts
from gearshift.sync.asynchronous import Async
from gearshift.training.timing import Every
from gearshift.training.training import Training
from tests.flat_trainer import flat_trainer


def data(size: int = 2000, seed: int = 0, schema=PLAIN) -> gs.Dataset:
    return gs.read(make_batch(schema, size, seed), schema)


def trainer(path: Path, **more) -> gs.Trainer:
    settings = {
        "global_batch": 100,
        "checkpoint": gs.CheckpointPolicy(None, path=path),
        "embeddings": gs.RowAdagrad(lr=0.1),
    }
    return flat_trainer(**settings | more)


def model(**more) -> nn.Module:
    return gs.models.build("deepfm", PLAIN, seed=5, dim=4, hidden=[8, 8], **more)


def state(folder: Path) -> dict[str, np.ndarray]:
    """Everything in a run's last checkpoint, rows in the order of their ids."""
    opened = Checkpoint.open((folder / "checkpoints" / "last").resolve())
    arrays = {f"{f}/{k}": v for f in ("dense", "optimizer", "progress") for k, v in opened.arrays(f).items()}
    blocks = list(opened.rows("rows0"))
    ids = np.concatenate([b.ids_U for b in blocks])
    order = np.argsort(ids)
    for name in ("ids_U", "weights_UW", "state_US", "touches_U", "last_step_U", "updates_U"):
        arrays[name] = np.concatenate([getattr(b, name) for b in blocks])[order]
    return arrays


class StopAt(gs.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run: gs.Run) -> None:
        if run.status().step == self.step:
            run.stop()


PLATEAU = {"epochs": 3, "plateau": gs.Plateau(0.5, 1), "embeddings": gs.RowAdagrad(lr=2.0)}


REDUCED = {"optimizer": optim.build("vr_adam"), "micro_batches": 10, "row_trust": "touched"}


# Evaluations fall on 10 and 20, an epoch ends with 20.
@pytest.mark.parametrize("stop_at", [1, 7, 10, 20, 23])
@pytest.mark.parametrize(
    "settings", [{}, {"epochs": 3, "shuffle": True}, {"baseline": True}, PLATEAU, REDUCED]
)
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, settings: dict, stop_at: int) -> None:
    train, valid = data(), data(500, seed=9)
    settings = settings | {"schedule": gs.Schedule(warmup=0.1, decay="cosine"), "eval_every": Every(steps=10)}
    whole = trainer(tmp_path / "whole", **settings).fit(model(dropout=0.2, batch_norm=True), train, valid)
    stopping = [StopAt(stop_at)]
    stopped = trainer(tmp_path / "cut", **settings)
    folder = stopped.fit(model(dropout=0.2, batch_norm=True), train, valid, callbacks=stopping).folder
    torch.manual_seed(99)
    resumed = trainer(tmp_path / "cut", **settings).fit(
        model(dropout=0.2, batch_norm=True), train, valid, resume=folder
    )
    expected, got = state(whole.folder), state(resumed.folder)
    assert expected.keys() == got.keys()
    for name in expected:
        np.testing.assert_array_equal(expected[name], got[name], err_msg=name)
    timing = {
        "seconds",
        "wall_seconds",
        "checkpoint_age_seconds",
        "examples_per_second",
        "peak_memory_bytes",
        "embedding_bytes",
    }
    assert {k: v for k, v in whole.report.items() if k not in timing} == {
        k: v for k, v in resumed.report.items() if k not in timing
    }


@pytest.mark.parametrize("name", ["{run}@step-24", "{run}/checkpoints/step-24"])
def test_a_run_from_an_earlier_checkpoint_ends_with_the_same_bits_in_a_folder_of_its_own(
    tmp_path: Path, name: str
) -> None:
    train, valid = data(), data(500, seed=9)
    settings = {"epochs": 2, "eval_every": Every(steps=10), "embeddings": gs.RowAdagrad(lr=2.0)}
    policy = gs.CheckpointPolicy(every=Every(steps=6), keep=9, path=tmp_path)
    whole = trainer(tmp_path, checkpoint=policy, **settings).fit(model(), train, valid)
    before = state(whole.folder)
    branched = trainer(tmp_path, **settings).fit(model(), train, valid, resume=name.format(run=whole.folder))
    assert branched.folder != whole.folder and branched.report["auc"] == whole.report["auc"]
    for kept in (whole.folder, branched.folder):
        for array, values in state(kept).items():
            np.testing.assert_array_equal(before[array], values, err_msg=f"{kept} {array}")
    best = [(run.folder / "checkpoints" / "best").resolve().name for run in (whole, branched)]
    assert best == ["step-20", "step-20"]  # the branch has it from the run it comes from


def test_two_runs_with_one_seed_are_the_same_and_another_seed_differs(tmp_path: Path) -> None:
    runs = [trainer(tmp_path, seed=seed).fit(model(), data()) for seed in (1, 1, 2)]
    first, second, third = (state(run.folder)["weights_UW"] for run in runs)
    np.testing.assert_array_equal(first, second)
    assert (first != third).any()


def test_it_learns_and_counts_each_example_once_before_it_trains(tmp_path: Path) -> None:
    result = trainer(tmp_path, epochs=5).fit(model(), data(3000), data(1000, seed=4))
    assert result.auc > 0.75
    assert result.report["examples"] == 15_000 and result.report["global_steps"] == 150
    assert result.report["progressive"]["examples"] == 3_000  # later epochs have seen them
    first = trainer(tmp_path).fit(model(), data(100))
    assert first.report["progressive"]["auc"] < 0.65  # nothing was trained when these were predicted


def test_the_best_evaluation_is_what_the_run_ends_with(tmp_path: Path) -> None:
    valid = data(500, seed=7)
    result = trainer(
        tmp_path, epochs=30, embeddings=gs.RowAdagrad(lr=0.5), early_stopping=gs.EarlyStopping(2)
    ).fit(model(), data(400), valid)
    assert result.report["best_step"] < result.report["global_steps"] < 30 * 4
    assert result.auc == pytest.approx(gs.load(result.folder).evaluate(valid).measures.auc)
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert result.auc == pytest.approx(max(line["valid_auc"] for line in lines if "valid_auc" in line))


def test_a_plateau_lowers_the_rates(tmp_path: Path) -> None:
    run = trainer(tmp_path, epochs=6, embeddings=gs.RowSGD(lr=30.0), plateau=gs.Plateau(0.1, 1)).start(
        model(), data(400), data(500, seed=7)
    )
    run.wait()
    assert run.training.progress.rate_factor < 1


def test_early_stopping_without_validation_data_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="need validation data"):
        trainer(tmp_path, early_stopping=gs.EarlyStopping()).fit(model(), data())


def test_a_number_that_is_not_finite_stops_the_run_with_its_place(tmp_path: Path) -> None:
    batch = make_batch(PLAIN, 500)
    batch.numeric_BN[321, 0] = np.inf
    with pytest.raises(UserError, match=r"at step 4 .*300"):
        trainer(tmp_path, shuffle=False).fit(model(), gs.read(batch, PLAIN))


def test_saved_and_loaded_it_predicts_the_same(tmp_path: Path) -> None:
    fresh = data(300, seed=3)
    result = trainer(tmp_path).fit(model(), data())
    expected = result.predict(fresh)
    result.save(tmp_path / "model")
    np.testing.assert_array_equal(gs.load(tmp_path / "model").predict(fresh), expected)
    np.testing.assert_array_equal(gs.load(result.folder).predict(fresh), expected)
    assert not list((tmp_path / "model").glob("optimizer*"))


class Own(nn.Module):
    dim = 4

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(1 + 3 * 4, 1)

    def forward(self, x: gs.Inputs) -> torch.Tensor:
        return self.out(torch.cat([x.numeric, x.fields.flatten(1)], 1)).squeeze(1)


def test_an_own_module_trains_and_is_passed_to_load(tmp_path: Path) -> None:
    result = trainer(tmp_path).fit(Own(), data())
    with pytest.raises(UserError, match="a custom module: pass it"):
        gs.load(result.folder)
    loaded = gs.load(result.folder, model=Own())
    np.testing.assert_array_equal(loaded.predict(data(50, 8)), result.predict(data(50, 8)))


def test_a_checkpoint_of_another_model_is_told_and_its_rows_can_start_one(tmp_path: Path) -> None:
    donor = trainer(tmp_path).fit(model(), data())
    other = gs.models.FM(PLAIN, dim=4)
    with pytest.raises(UserError, match=r"was made for DeepFM\(dim=4\).*FM\(dim=4\)"):
        trainer(tmp_path).start(other, data(), resume=donor.folder)
    warm = trainer(tmp_path).prepare(other, data(), init_from=donor.folder)
    ids = make_batch(PLAIN, 1).ids_BF[0]
    np.testing.assert_array_equal(
        warm.training.learner.server.stores[0].peek(ids), donor.learner.server.stores[0].peek(ids)
    )
    assert warm.training.step == 0
    with pytest.raises(
        UserError, match="has embedding rows of width 4, but this model needs embedding rows of width 8:"
    ):
        trainer(tmp_path).prepare(gs.models.FM(PLAIN, dim=8), data(), init_from=donor.folder)


def test_metrics_tell_the_speed_since_the_line_before_and_the_strategy(tmp_path: Path) -> None:
    settings = {"eval_every": Every(steps=10), "epochs": 1}
    run = trainer(tmp_path, **settings).start(model(), data(), data(100, seed=3))
    run.wait()
    first, second = run_folder.metrics(run.folder)
    assert [(line["step"], line["strategy"]) for line in (first, second)] == [(10, "sync"), (20, "sync")]
    seconds = [1000 / line["examples_per_second"] for line in (first, second)]
    assert sum(seconds) == pytest.approx(run.training.progress.seconds)
    run.parts.metrics.write(loss=0.5)
    assert list(run_folder.metrics(run.folder))[-1]["examples_per_second"] is None  # nothing was trained


def test_a_resume_with_other_optimizers_is_told(tmp_path: Path) -> None:
    def asked(**settings: float) -> dict:
        return {"optimizer": optim.build("vr_adam", lr=0.01, **settings), "micro_batches": 10}

    reduced = trainer(tmp_path, **asked(floor=0.1)).fit(model(), data(), callbacks=[StopAt(3)]).folder
    values = r"trained with dense floor=0\.1; this config has dense floor=0\.2\. Resume"
    with pytest.raises(UserError, match=values):  # of the same rule
        trainer(tmp_path, **asked(floor=0.2)).fit(model(), data(), resume=reduced)
    folder = trainer(tmp_path).fit(model(), data(), callbacks=[StopAt(3)]).folder
    with pytest.raises(
        UserError, match=r"RowAdagrad\(.*has embedding.*RowAdam\(.*Resume with the optimizers of the run"
    ):
        trainer(tmp_path, embeddings=gs.RowAdam()).start(model(), data(), resume=folder)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"global_batch": 50}, "train.global_batch"),
        ({"seed": 2}, "train.seed"),
        ({"shuffle": False}, "train.shuffle"),
        ({"embedding_reduce": "touched"}, "optimizer.embedding_reduce"),
        ({"row_clip": CowClip()}, "optimizer.row_clip"),
    ],
)
def test_a_resume_with_another_plan_is_told(tmp_path: Path, change: dict, name: str) -> None:
    folder = trainer(tmp_path).fit(model(), data(), callbacks=[StopAt(3)]).folder
    with pytest.raises(UserError, match=f"started with {name}="):
        trainer(tmp_path, **change).start(model(), data(), resume=folder)
    with pytest.raises(UserError, match="number of training examples=2000, but now it is 1000"):
        trainer(tmp_path).start(model(), data(1000), resume=folder)


def test_a_resume_with_another_trust_in_rows_is_told(tmp_path: Path) -> None:
    reduced = {"optimizer": optim.build("vr_sgd", lr=0.1), "micro_batches": 10}
    folder = (
        trainer(tmp_path, row_trust="touched", **reduced).fit(model(), data(), callbacks=[StopAt(3)]).folder
    )
    with pytest.raises(
        UserError, match=r"started with optimizer\.row_trust=touched, but now it is dense_only"
    ):
        trainer(tmp_path, **reduced).start(model(), data(), resume=folder)


def test_a_checkpoint_that_does_not_tell_of_it_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(training: Training) -> dict[str, str]:
        return {name: value for name, value in plan_facts(training).items() if "row_" not in name}

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_content, "plan_facts", older)
        folder = trainer(tmp_path).fit(model(), data(), callbacks=[StopAt(3)]).folder
    assert trainer(tmp_path).fit(model(), data(), resume=folder).report["global_steps"] == 20


def test_more_epochs_may_follow_where_no_schedule_depends_on_their_number(tmp_path: Path) -> None:
    folder = trainer(tmp_path, epochs=2).fit(model(), data(400)).folder
    longer = trainer(tmp_path, epochs=3).fit(model(), data(400), resume=folder)
    assert longer.report["global_steps"] == 12
    with pytest.raises(UserError, match="epochs=3, but now it is 4"):
        trainer(tmp_path, epochs=4, schedule=gs.Schedule(decay="linear")).start(
            model(),
            data(400),
            resume=trainer(tmp_path, epochs=3, schedule=gs.Schedule(decay="linear"))
            .fit(model(), data(400))
            .folder,
        )


def test_a_stopped_run_does_not_evaluate_any_more(tmp_path: Path) -> None:
    result = trainer(tmp_path).fit(model(), data(), data(100), callbacks=[StopAt(2)])
    assert result.report["measured_on"] != "valid" and not (result.folder / "report.json").exists()


def test_early_stopping_within_an_epoch(tmp_path: Path) -> None:
    result = trainer(
        tmp_path,
        embeddings=gs.RowSGD(lr=0.0),
        optimizer=gs.SGD(lr=0.0),
        eval_every=Every(steps=2),
        early_stopping=gs.EarlyStopping(1),
    ).fit(model(), data(), data(100))
    assert result.report["global_steps"] == 4  # the second evaluation was no better


def test_one_pass_ends_with_its_last_parameters(tmp_path: Path) -> None:
    settings = {"embeddings": gs.RowAdagrad(lr=3.0), "eval_every": Every(steps=1)}
    result = trainer(tmp_path, **settings).fit(model(), data(), data(300, seed=7))
    assert result.report["best_step"] == result.report["global_steps"] == 20
    assert (result.folder / "checkpoints" / "best").resolve().name == "step-20"


def test_a_log_of_many_years_is_measured_by_day(tmp_path: Path) -> None:
    one = make_batch(PLAIN, 3000)
    times = np.arange(3000, dtype=np.int64) * 86_400
    log = Batch(0, one.labels_BT, one.numeric_BN, one.ids_BF, times_B=times)
    schema = gs.Schema(PLAIN.features, PLAIN.labels, time="ts")
    run = trainer(tmp_path).start(model(), gs.read(log, schema), callbacks=[StopAt(25)])
    folder = run.wait(60).folder
    assert run.status().day is not None
    days = trainer(tmp_path).fit(model(), gs.read(log, schema), resume=folder).report["progressive_by_day"]
    assert len(days) == 1001 and days["1970-01-02"]["examples"] == 1


def test_wrong_settings_are_told_at_once(tmp_path: Path) -> None:
    for settings in ({"best": "calibration"}, {"epochs": 0}, {"global_batch": 0}):
        with pytest.raises(UserError):
            trainer(tmp_path, **settings)


def test_predictions_are_corrected_for_negatives_left_out() -> None:
    from gearshift.training.evaluation import correct_for_sampling

    p = np.array([0.0, 0.5, 1.0], np.float32)
    np.testing.assert_allclose(correct_for_sampling(p, 0.1), [0.0, 0.1 / 1.1, 1.0], rtol=1e-6)


def test_several_tasks_are_trained_and_measured(tmp_path: Path) -> None:
    schema = gs.Schema(PLAIN.features, labels=(gs.Label("click", task="click"), gs.Label("buy", task="buy")))
    one = make_batch(PLAIN, 1000)
    two = Batch(0, np.repeat(one.labels_BT, 2, 1), one.numeric_BN, one.ids_BF)
    two.labels_BT[::3, 1] = 0
    dataset = gs.read(two, schema)
    result = trainer(tmp_path, epochs=10, embeddings=gs.RowAdagrad(lr=0.5)).fit(
        gs.models.DNN(schema, dim=4, hidden=[8]), dataset, dataset
    )
    assert result.report["tasks"].keys() == {"click", "buy"} and result.predict(dataset).shape == (1000, 2)
    assert result.report["tasks"]["buy"]["auc"] > 0.7


def test_sequences_train_through_din_and_pooled_through_others(tmp_path: Path) -> None:
    schema = RAGGED
    for net in (
        gs.models.DIN(schema, dim=4, hidden=[8], target="item", history="history"),
        gs.models.DNN(schema, dim=4, hidden=[8]),
    ):
        result = trainer(tmp_path).fit(net, data(600, schema=schema))
        assert np.isfinite(result.predict(data(20, 2, schema))).all()


def test_callbacks_see_steps_evaluations_and_checkpoints(tmp_path: Path) -> None:
    seen: list[str] = []

    class Watch(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            seen.append("step")

        def on_eval(self, run: gs.Run, metrics: object) -> None:
            seen.append("eval")

        def on_checkpoint(self, run: gs.Run, path: Path) -> None:
            assert (path / "manifest.json").is_file()
            seen.append(path.name)

    trainer(tmp_path, checkpoint=gs.CheckpointPolicy(Every(steps=2), path=tmp_path)).fit(
        model(), data(400), data(100), callbacks=[Watch()]
    )
    assert sorted(seen) == ["eval", "step", "step", "step", "step", "step-2", "step-4"]


def test_a_run_can_be_watched_stopped_and_has_no_thread_left(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    run = trainer(tmp_path, epochs=1000).start(model(), data())
    with pytest.raises(TimeoutError):
        run.wait(0.2)
    run.stop()
    run.wait(60)
    assert run.finished and run.status().phase == "stopped" and run.status().examples > 0
    assert not [t for t in set(threading.enumerate()) - before if t.name.startswith("gearshift")]


def test_an_error_in_the_run_reaches_wait_and_the_folder(tmp_path: Path) -> None:
    class Bomb(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            raise RuntimeError("boom")

    run = trainer(tmp_path).start(model(), data(), callbacks=[Bomb()])
    with pytest.raises(RuntimeError, match="boom"):
        run.wait(60)
    assert run.status().phase == "failed"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"strategy": Async},
            r'write its name, "gba" or "gearshift\.sync\.asynchronous:Async", and settings next to it',
        ),
        ({"strategy": Async(80, 20)}, r"the strategy is Async\(global_batch=80, batch=20\); write its name"),
        ({"strategy": None}, "the strategy is None; write its name"),
        ({"workers": "4"}, "^workers='4': it must be a whole number$"),
        ({"workers": 2.5}, r"^workers=2\.5: it must be a whole number$"),
        ({"epochs": True}, "^epochs=True: it must be a whole number$"),
    ],
)
def test_what_a_trainer_cannot_take_is_one_sentence(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        flat_trainer(**settings)


def test_numbers_of_numpy_are_whole_too() -> None:
    assert gs.Trainer(workers=np.int64(2)).plan.workers == 2


def test_a_batch_rule_moves_the_rates_from_the_batch_they_were_tuned_for() -> None:
    def grown(rule: str, **more) -> gs.Trainer:
        return flat_trainer(
            global_batch=1600,
            base_batch=100,
            batch_rule=rule,
            embeddings=gs.RowAdagrad(lr=0.1, l2=1e-5),
            linear=gs.RowSGD(lr=0.2),
            **{"optimizer": gs.Adam(lr=1e-3), **more},
        )

    linear, root, cowclip = (grown(rule) for rule in ("linear", "square_root", "cowclip"))
    assert linear.optimizer.dense.lr == pytest.approx(0.016) and root.optimizer.dense.lr == pytest.approx(
        0.004
    )
    assert linear.optimizer.rows.embeddings.lr == pytest.approx(
        1.6
    ) and linear.optimizer.rows.linear.lr == pytest.approx(3.2)
    assert root.optimizer.rows.embeddings == gs.RowAdagrad(lr=0.4, l2=1e-5) and root.plan.schedule.warmup == 0
    assert cowclip.optimizer.dense.lr == pytest.approx(0.004) and cowclip.plan.schedule.warmup == 0.1
    assert (
        cowclip.optimizer.rows.embeddings.lr == 0.1
        and cowclip.optimizer.rows.embeddings.l2 == pytest.approx(16e-5)
    )
    reduced = grown("linear", optimizer=optim.build("vr_adam", lr=1e-3, floor=0.2)).optimizer.dense
    assert reduced == optim.build("vr_adam", lr=0.016, floor=0.2)


@pytest.mark.parametrize("kind", [gs.RowAdagrad, gs.RowwiseAdagrad])
def test_accumulators_of_rows_may_begin_with_the_gradient_of_one_example(kind: type) -> None:
    def rows(**more) -> gs.RowSettings:
        settings = {"global_batch": 1600, "embeddings": kind(lr=0.1, initial="auto"), "linear": gs.RowSGD()}
        return flat_trainer(**settings | more).optimizer.row_settings

    assert rows().embeddings == kind(lr=0.1, initial=(0.2 / 1600) ** 2) and rows().linear == gs.RowSGD()
    grown = rows(base_batch=400, batch_rule="linear").embeddings
    assert grown.lr == pytest.approx(0.4) and grown.initial == (0.2 / 1600) ** 2
    assert rows(embedding_reduce="sum").embeddings.initial == 0.2**2
    assert rows(linear=kind(initial="auto")).linear.initial == (0.2 / 1600) ** 2
    with pytest.raises(UserError, match="needs the batch of a Trainer"):
        gs.Embeddings(PLAIN, dim=4, optimizer=kind(initial="auto"))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"batch_rule": "linear"}, "set it, such as base_batch=1024"),
        ({"batch_rule": "liner", "base_batch": 10}, "Did you mean `linear`"),
        ({"base_batch": 0}, "base_batch=0: it must be at least 1"),
        ({"base_batch": 3}, "base_batch=3 has no effect without a rule"),
        ({"optimizer": "adam"}, 'optimizer=...\\) is "adam", not a rule'),
        ({"optimizer": torch.optim.SGD([torch.ones(1)], 0.1)}, "is a SGD, not a rule"),
        ({"row_clip": "cowclip"}, "write clip=gs.CowClip"),
        ({"row_trust": "dense-only"}, "unknown row trust `dense-only`. Did you mean `dense_only`"),
        ({"row_trust": "row_wise"}, 'trust="row_wise" applies the trust of a vr_\\* rule to rows'),
        ({"embedding_reduce": "average"}, "unknown row reduce `average`"),
        ({"row_clip": CowClip(), "embedding_reduce": "sum"}, "clip needs the mean gradient of a row"),
        ({"micro_batches": 0}, "micro_batches=0: it must be at least 1"),
        ({"micro_batches": 8, "batch": 10}, "both set the size of a worker's batches"),
    ],
)
def test_batch_settings_that_do_not_fit_are_refused(settings: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        flat_trainer(global_batch=100, **settings)


def test_steps_of_too_few_gradients_are_a_warning_of_python_once(tmp_path: Path) -> None:
    run = trainer(tmp_path, optimizer=optim.build("vr_sgd", lr=0.1), eval_every=None).start(model(), data())
    with pytest.warns(gs.DataWarning, match=r"vr_\* had no effect in a step") as given:
        run.wait()
    assert len(given) == 1 and given[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.wait()


def test_the_wall_time_of_a_resumed_run_is_that_of_all_its_processes(tmp_path: Path) -> None:
    stopped = trainer(tmp_path).fit(model(), data(), callbacks=[StopAt(5)])
    saved = Checkpoint.open((stopped.folder / "checkpoints" / "last").resolve())
    assert saved.facts["wall_seconds"]["here"] > 0
    saved.facts["wall_seconds"]["before"] = 1000.0
    run = trainer(tmp_path).prepare(model(), data())
    run.restore(saved)
    assert run.wall.seconds(Path()) > 1000 + saved.facts["wall_seconds"]["here"]
    del saved.facts["wall_seconds"]  # of an older version
    saved.facts["progress"]["seconds"] = 500.0
    run = trainer(tmp_path).prepare(model(), data())
    run.restore(saved)
    assert 500 < run.wall.seconds(Path()) < 1000


def test_micro_batches_are_the_gradients_that_a_step_is_formed_from(tmp_path: Path) -> None:
    vr = {"optimizer": optim.build("vr_sgd", lr=0.1), "eval_every": None}
    cut = trainer(tmp_path / "a", **vr, micro_batches=10).start(model(), data())
    sized = trainer(tmp_path / "b", **vr, batch=10).start(model(), data())
    for run in (cut, sized):
        run.wait()
        assert run.training.strategy.batch == 10 and run.training.step == 20
        assert run.training.learner.server.trust.spread.gradients == 10
    for name, values in state(cut.folder).items():
        np.testing.assert_array_equal(values, state(sized.folder)[name], err_msg=name)
    more = (
        gs.Trainer(global_batch=96, workers=2, training=gs.TrainingSettings(micro_batches=4))
        .prepare(model(), data())
        .training
    )
    assert more.strategy.batch == 12 and more.active_strategy.recut(4).batch == 6, (
        "a resize keeps the number of micro-batches"
    )
