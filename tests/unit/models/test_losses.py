"""Custom losses: those of torch, functions that return one number or one per example, and errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.errors import UserError
from gearshift.models.losses import prepared, summed

DATA = gs.read(make_batch(PLAIN, 650), PLAIN)  # the last batch is shorter


def trained(path: Path, loss: object, data: gs.Dataset = DATA) -> Tensor:
    trainer = gs.Trainer(
        global_batch=100,
        checkpoint=gs.CheckpointPolicy(None, path=path),
        training=gs.TrainingSettings(loss=loss),
    )
    return trainer.fit(gs.models.DNN(PLAIN, dim=4, hidden=[8]), data).learner.worker.dense.flat.clone()


@pytest.mark.parametrize(
    "loss",
    [
        nn.BCEWithLogitsLoss(),
        nn.BCEWithLogitsLoss(reduction="sum"),
        nn.BCEWithLogitsLoss(reduction="none"),
        lambda logits, labels: F.binary_cross_entropy_with_logits(logits, labels, reduction="none"),
        lambda logits, labels: F.binary_cross_entropy_with_logits(
            logits.squeeze(1), labels.squeeze(1), reduction="none"
        ),
    ],
)
def test_it_is_the_default_loss_bit_for_bit(tmp_path: Path, loss: object) -> None:
    assert torch.equal(trained(tmp_path, loss), trained(tmp_path, gs.losses.binary_cross_entropy))


def test_a_mean_is_one_over_the_examples(tmp_path: Path) -> None:
    expected = trained(tmp_path, gs.losses.binary_cross_entropy)
    for loss in (
        F.binary_cross_entropy_with_logits,
        lambda x, y: F.binary_cross_entropy_with_logits(x, y)[None],
    ):
        torch.testing.assert_close(trained(tmp_path, loss), expected, rtol=1e-3, atol=1e-5)


def test_a_loss_whose_reduction_is_a_sum_is_one() -> None:
    class Summing(nn.Module):
        reduction = "sum"

        def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
            return (logits - labels).square().sum()

    logits, labels = torch.randn(5, 1), torch.ones(5, 1)
    expected = (logits - labels).square().sum()
    assert summed(Summing(), logits, labels, None) == expected
    torch.testing.assert_close(summed(prepared(nn.MSELoss()), logits, labels, None), expected)


def test_weights_multiply_the_loss_of_each_example(tmp_path: Path) -> None:
    schema = replace(PLAIN, weight="w")
    batch = replace(make_batch(PLAIN, 300), weights_B=torch.rand(300).numpy())
    data = gs.read(batch, schema)
    expected = trained(tmp_path, gs.losses.binary_cross_entropy, data)
    assert torch.equal(trained(tmp_path, nn.BCEWithLogitsLoss(), data), expected)
    with pytest.raises(UserError, match="the data has example weights, but the loss returned one number"):
        trained(tmp_path, F.binary_cross_entropy_with_logits, data)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        ("bce", r"loss=...\) is 'bce': pass a function of logits and labels"),
        (nn.BCEWithLogitsLoss, r"is the class BCEWithLogitsLoss: pass an instance, BCEWithLogitsLoss\(\)"),
        (nn.BCELoss(), r"takes probabilities, but models return logits: use nn\.BCEWithLogitsLoss\(\)"),
        (nn.CrossEntropyLoss(), "compares classes"),
        (
            lambda logits, labels: logits - labels.squeeze(1),
            r"\[100, 100\] for a batch of 100 .* both \[100, 1\]",
        ),
        (lambda logits, labels: 0.5, "returned a float, not a tensor"),
    ],
)
def test_a_loss_that_cannot_be_is_one_sentence(tmp_path: Path, loss: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        trained(tmp_path, loss)


def test_logits_of_another_shape_are_one_sentence(tmp_path: Path) -> None:
    class Wide(gs.models.DNN):
        def forward(self, x: gs.Inputs) -> Tensor:
            return super().forward(x).unsqueeze(1).repeat(1, 2)

    class Column(gs.models.DNN):
        def forward(self, x: gs.Inputs) -> Tensor:
            return super().forward(x).unsqueeze(1)

    trainer = gs.Trainer(global_batch=100, checkpoint=gs.CheckpointPolicy(None, path=tmp_path))
    with pytest.raises(UserError, match=r"Wide\.forward returned \[100, 2\] logits"):
        trainer.fit(Wide(PLAIN, dim=4, hidden=[8]), DATA)
    assert trainer.fit(Column(PLAIN, dim=4, hidden=[8]), DATA).auc > 0.3  # [B, 1] is [B]
