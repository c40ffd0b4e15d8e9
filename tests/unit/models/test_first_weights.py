"""The same seed gives the same run; a module that was trained before starts again, unless `warm_start` is set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.config import load_config
from gearshift.config.build import start
from gearshift.errors import UserError
from tests.flat_trainer import flat_trainer

DATA = gs.read(make_batch(PLAIN, 600), PLAIN)


def fit(path: Path, model: object, **more: object) -> Tensor:
    """The dense weights that a run ends with."""
    settings = {"seed": 1, "epochs": 1, "warm_start": False, **more}
    warm = settings.pop("warm_start")
    trainer = flat_trainer(global_batch=100, checkpoint=gs.CheckpointPolicy(None, path=path), **settings)
    return trainer.fit(model, DATA, warm_start=warm).learner.worker.dense.flat.clone()


def dnn() -> gs.models.DNN:
    return gs.models.DNN(PLAIN, dim=4, hidden=[8], batch_norm=True)


class Own(nn.Module):
    dim = 4

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(1 + 3 * 4, 1)

    def forward(self, x: gs.Inputs) -> Tensor:
        return self.out(x.flat()).squeeze(1)


def test_one_seed_one_run_whatever_torch_drew_before(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    first = fit(tmp_path, dnn())
    torch.rand(7)
    assert torch.equal(first, fit(tmp_path, dnn()))
    assert not torch.equal(first, fit(tmp_path, dnn(), seed=2))
    torch.set_rng_state(before)
    dnn()
    expected = torch.rand(1)
    torch.set_rng_state(before)
    fit(tmp_path, dnn())
    assert torch.equal(torch.rand(1), expected), "a run leaves torch's generator alone"


def test_a_config_with_this_seed_is_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(
        "data: {synthetic: {examples: 3000, days: 1}}\nmodel: {name: dcnv2, dim: 4, hidden: [8]}\n"
        "train: {global_batch: 512, seed: 7, baseline: false}\noptimizer: {embeddings: {name: adagrad, lr: 0.05}}\n"
    )
    warned = start(load_config("c.yaml")).wait().learner.worker.dense.flat
    data = gs.read(gs.ClickLog(3000, days=1))
    trainer = gs.Trainer(
        global_batch=512, seed=7, optimizer=gs.OptimizerSettings(rows=gs.RowAdagrad(lr=0.05))
    )
    here = trainer.fit(gs.models.DCNv2(data.schema, dim=4, hidden=[8]), data).learner.worker.dense.flat
    assert torch.equal(warned, here)


@pytest.mark.parametrize("make", [dnn, Own])
def test_a_module_that_was_trained_starts_afresh(tmp_path: Path, make: type[nn.Module]) -> None:
    model = make()
    first = fit(tmp_path, model)
    assert torch.equal(first, fit(tmp_path, model)), "the second run does not go on from the first"
    assert not torch.equal(first, fit(tmp_path, model, warm_start=True))
    assert torch.equal(first, fit(tmp_path, model)), "a warm start is not what the module was given"


def test_weights_of_a_users_own_are_kept(tmp_path: Path) -> None:
    with torch.no_grad():
        changed = dnn()
        next(changed.parameters()).zero_()
        again = dnn()
        again.load_state_dict(changed.state_dict())
    assert torch.equal(fit(tmp_path, changed), fit(tmp_path, again))
    assert not torch.equal(fit(tmp_path, changed), fit(tmp_path, dnn()))
    theirs = {name: torch.full_like(values, 0.1) for name, values in changed.state_dict().items()}
    changed.load_state_dict(theirs)
    again.load_state_dict(theirs)
    assert torch.equal(fit(tmp_path, changed), fit(tmp_path, again)), "also into a module that was trained"
    built = [gs.models.build("dnn", PLAIN, seed=seed, dim=4, hidden=[8]) for seed in (3, 3, 4)]
    one, same, other = (fit(tmp_path, model) for model in built)
    assert torch.equal(one, same) and not torch.equal(one, other), "a model's own seed stays"


def test_a_function_makes_the_module_under_the_seed(tmp_path: Path) -> None:
    one, same, other = (fit(tmp_path, Own, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    with pytest.raises(UserError, match=r"returned a int, not an nn\.Module"):
        fit(tmp_path, lambda: 3)
    with pytest.raises(
        UserError, match=r"the model must be an nn\.Module or a function that returns one, not a str"
    ):
        fit(tmp_path, "dnn")


def test_a_loaded_module_starts_afresh_too(tmp_path: Path) -> None:
    model = Own()
    first = fit(tmp_path / "a", model)
    other = Own()
    given = {name: values.clone() for name, values in other.state_dict().items()}
    loaded = gs.load(tmp_path / "a" / "last", model=other)
    assert np.isfinite(loaded.predict(DATA)).all()
    trained = fit(tmp_path / "b", other)
    assert not torch.equal(first, trained)
    same = Own()
    same.load_state_dict(given)
    assert torch.equal(trained, fit(tmp_path / "b", same))


def test_one_module_is_not_trained_by_two_runs_at_once(tmp_path: Path) -> None:
    model = dnn()
    settings = {"global_batch": 100, "checkpoint": gs.CheckpointPolicy(None, path=tmp_path)}
    run = flat_trainer(epochs=10_000, **settings).start(model, DATA)
    with pytest.raises(UserError, match="this DNN is being trained by another run: use one module per run"):
        flat_trainer(**settings).start(model, DATA)
    run.stop()
    run.wait(60)
    flat_trainer(**settings).fit(model, DATA)
    with pytest.raises(UserError, match="need validation data"):
        flat_trainer(early_stopping=gs.EarlyStopping(), **settings).fit(model, DATA)
    flat_trainer(**settings).fit(model, DATA)  # also after a run that could not start
