"""Losses: what a run minimizes, and the interface of a custom loss.

A loss is a function or module of logits and labels. Both are float tensors [B, T]: B examples, T tasks (T is 1 for
one label). It returns one of

    [B]        the loss of each example
    [B, T]     the loss of each example and task ([B, 1] for one label); tasks are summed
    a number   the mean over the examples, or their sum if the loss has an attribute `reduction = "sum"`

The losses of `torch.nn` are accepted with any `reduction`: `nn.BCEWithLogitsLoss()` trains exactly like the default.
A run needs the sum over examples, to average over batches of any size; a mean is multiplied by B.

Example weights (`schema.weight`) multiply the loss of each example, so they do not work with a loss that returns one
number. A loss gets one worker's batch at a time and must accept any batch size, because the last batch is shorter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import Tensor, nn

from gearshift.errors import UserError

__all__ = ["binary_cross_entropy"]

Loss = Callable[[Tensor, Tensor], Tensor]  # of logits and labels, both [B, T]

# Replacements for these losses. Each would train without an error, or fail in the first step.
_NOT_FOR_LOGITS = {
    nn.BCELoss: "BCELoss takes probabilities, but models return logits: use nn.BCEWithLogitsLoss()",
    nn.CrossEntropyLoss: "CrossEntropyLoss compares classes, but a click has one logit: use nn.BCEWithLogitsLoss()",
    nn.NLLLoss: "NLLLoss compares classes, but a click has one logit: use nn.BCEWithLogitsLoss()",
}


def binary_cross_entropy(logits_BT: Tensor, labels_BT: Tensor) -> Tensor:
    """The default loss: binary cross-entropy of each example, [B], summed over tasks."""
    return nn.functional.binary_cross_entropy_with_logits(logits_BT, labels_BT, reduction="none").sum(1)


LOSSES: dict[str, Loss] = {"bce": binary_cross_entropy}  # by their names in a config


def prepared(loss: object) -> Loss:
    """The loss as workers call it. torch's losses are changed to return the loss of each example."""
    if not callable(loss):
        raise UserError(
            f"TrainingSettings(loss=...) is {loss!r}: pass a function of logits and labels, such as "
            "nn.BCEWithLogitsLoss()"
        )
    for kind, sentence in _NOT_FOR_LOGITS.items():
        if isinstance(loss, kind):
            raise UserError(f"TrainingSettings(loss=...): {sentence}")
    if isinstance(loss, type):
        raise UserError(
            f"TrainingSettings(loss=...) is the class {loss.__name__}: pass an instance, {loss.__name__}()"
        )
    if type(loss).__module__ == "torch.nn.modules.loss" and getattr(loss, "reduction", "none") != "none":
        loss = copy.copy(loss)
        loss.reduction = "none"  # type: ignore[attr-defined]
    return loss


def summed(loss: Loss, logits_BT: Tensor, labels_BT: Tensor, weights_B: Tensor | None) -> Tensor:
    """The weighted loss of a batch, summed over its examples."""
    examples, tasks = logits_BT.shape
    value = loss(logits_BT, labels_BT)
    if not isinstance(value, Tensor):
        raise UserError(f"the loss returned a {type(value).__name__}, not a tensor; see gs.losses")
    if value.dim() == 0 or (value.shape == (1,) and examples > 1):
        return _of_one_number(loss, value, examples, weights_B)
    if value.shape == (examples, tasks):
        value = value.sum(1)
    if value.shape != (examples,):
        raise UserError(
            f"the loss returned {list(value.shape)} for a batch of {examples} examples, whose logits and labels are "
            f"both {list(logits_BT.shape)}; return the loss of each example, [{examples}], or their mean"
        )
    return (value if weights_B is None else value * weights_B).sum()


def _of_one_number(loss: Loss, value: Tensor, examples: int, weights_B: Tensor | None) -> Tensor:
    if weights_B is not None:
        raise UserError(
            f"the data has example weights, but the loss returned one number; return the loss of each of the "
            f"{examples} examples, without a mean or sum over them"
        )
    total = value.reshape(())
    return total if getattr(loss, "reduction", "mean") == "sum" else total * examples
