"""A checkpoint taken while everything goes on is the state right after one step, on any shards and workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.run.saving import Saving
from gearshift.sync.registry import REPLICATED, STRATEGIES
from gearshift.training.timing import Every
from tests.flat_trainer import flat_trainer

STEP = 20


def data() -> gs.Dataset:
    return gs.read(make_batch(PLAIN, 6000), PLAIN)


def model() -> torch.nn.Module:
    torch.manual_seed(5)
    return gs.models.DeepFM(PLAIN, dim=4, hidden=[8, 8])


def state(learner) -> dict[str, np.ndarray]:
    """Everything that training has made: dense values, optimizer state, rows in the order of their ids."""
    blocks = list(learner.server.stores[0].blocks())
    order = np.argsort(np.concatenate([b.ids_U for b in blocks]))
    rows = {
        name: np.concatenate([getattr(b, name) for b in blocks])[order]
        for name in ("ids_U", "weights_UW", "state_US", "touches_U", "last_step_U", "updates_U")
    }
    # A row that was pulled and never moved is born again whenever it is pulled.
    moved = rows["updates_U"] > 0
    optimizer = {name: values.numpy().copy() for name, values in learner.server.optimizer_state.items()}
    return {
        "flat": learner.server.flat.numpy().copy(),
        **optimizer,
        **{name: values[moved] for name, values in rows.items()},
    }


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name not in REPLICATED])
@pytest.mark.parametrize("shards", [(1, 3), (3, 2)])
def test_a_snapshot_equals_the_cut_on_other_shards_and_workers(
    tmp_path: Path, strategy: str, shards: tuple[int, int]
) -> None:
    class Watch(gs.Callback):
        def on_step(self, run: gs.Run) -> None:
            if run.status().step == STEP:
                self.cut = state(run.training.learner)

    made = {
        "strategy": strategy,
        "global_batch": 60,
        "optimizer": gs.Adam(),
        "embeddings": gs.RowAdam(),
        "checkpoint": gs.CheckpointPolicy(Every(steps=STEP), keep=99, path=tmp_path),
    }
    watch = Watch()
    run = flat_trainer(workers=4, shards=shards[0], **made).start(model(), data(), callbacks=[watch])
    assert run.wait(120).report["examples"] == 6000
    folder = run.folder
    saved = Checkpoint.open(folder / "checkpoints" / f"step-{STEP}")
    learner = flat_trainer(workers=4, shards=shards[1], **made).prepare(model(), data()).training.learner
    learner.restore(saved)
    restored = state(learner)
    assert restored.keys() == watch.cut.keys()
    for name, values in watch.cut.items():
        assert np.array_equal(values, restored[name]), name
    progress = saved.facts["progress"]
    begun = sum(count for _, count in progress["open"])
    assert progress["position"] - begun == progress["examples"], "every example before it ended, or is open"


@pytest.mark.parametrize("strategy", REPLICATED)
@pytest.mark.parametrize("shards", [(1, 3), (3, 2)])
def test_a_snapshot_of_replicas_has_what_its_accounts_say(
    tmp_path: Path, strategy: str, shards: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken when every step that a worker made is accounted for: a few steps later than it was due."""
    cuts, save = {}, Saving.save

    def watched(saving: Saving, *, best: bool) -> None:
        training = saving.training
        cuts[training.step] = state(training.learner), training.progress.applied
        save(saving, best=best)

    monkeypatch.setattr(Saving, "save", watched)
    made = {
        "strategy": strategy,
        "global_batch": 60,
        "optimizer": gs.Adam(),
        "embeddings": gs.RowAdam(),
        "checkpoint": gs.CheckpointPolicy(Every(steps=STEP), keep=99, path=tmp_path),
    }
    run = flat_trainer(workers=4, shards=shards[0], **made).start(model(), data())
    assert run.wait(120).report["examples"] == 6000
    first = min(cuts)
    assert STEP <= first <= STEP + 4
    cut, applied = cuts[first]
    saved = Checkpoint.open(run.folder / "checkpoints" / f"step-{first}")
    learner = flat_trainer(workers=4, shards=shards[1], **made).prepare(model(), data()).training.learner
    learner.restore(saved)
    restored = state(learner)
    for name, values in cut.items():
        assert np.array_equal(values, restored[name]), name
    # Each batch pushes each of its ids once: as many updates as the batches that the accounts have.
    assert applied == first
    progress = saved.facts["progress"]
    begun = sum(count for _, count in progress["open"])
    assert progress["position"] - begun == progress["examples"] == 15 * first
