"""Rows under replicas: a batch moves them by its share of the global batch, as gradient strategies do."""

from __future__ import annotations

import copy

import numpy as np
import torch

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.data.ranges import Ranges
from gearshift.parameters.replicas.group import Replicas
from gearshift.sync.registry import make_strategy
from gearshift.sync.replicated import choices_of
from gearshift.training.learner import Learner


def a_learner() -> Learner:
    torch.manual_seed(3)
    trainer = gs.Trainer(
        global_batch=40, optimizer=gs.OptimizerSettings(gs.SGD(lr=0.0), rows=gs.RowSGD(lr=0.5))
    )
    model = gs.models.DeepFM(PLAIN, dim=4, hidden=[8])
    return trainer.prepare(model, gs.read(make_batch(PLAIN, 80), PLAIN)).training.learner


def rows_of(learner: Learner) -> dict[int, np.ndarray]:
    return {
        int(row): weights
        for block in learner.server.stores[0].blocks()
        for row, weights in zip(block.ids_U, block.weights_UW, strict=True)
    }


def test_four_batches_move_rows_as_their_global_batch_does() -> None:
    data = gs.read(make_batch(PLAIN, 80), PLAIN)
    together, apart = a_learner(), a_learner()
    found = [apart.find(Ranges(data).read(first, 10)) for first in (0, 10, 20, 30)]
    pushes = [(copy.deepcopy(apart.compute(one, 0)), 1.0) for one in found]  # buffers are used again
    for one in found:
        together.server.pull(one, together.worker.buffers)
    together.server.apply_group(pushes, lr_scale=1.0)
    choices = choices_of(make_strategy("easgd", {"global_batch": 40, "batch": 10}))
    assert choices is not None and choices.share == 0.25
    replicas = Replicas(apart.server, choices)
    for worker, (push, _) in enumerate(pushes):
        replicas.join(worker)
        replicas.step(worker, push, lr_scale=1.0)
    expected, moved = rows_of(together), rows_of(apart)
    assert expected.keys() == moved.keys() and len(moved) > 20
    for row, weights in expected.items():
        np.testing.assert_allclose(moved[row], weights, rtol=1e-5, atol=1e-6)
