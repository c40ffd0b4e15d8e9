"""Losses: what a run minimizes, and what a loss of your own has to look like.

A loss is a function, or a module, of logits and labels. Both come as float tensors [B, T]: B examples, T tasks (T is 1
for one label). It returns one of

    [B]        the loss of each example
    [B, T]     the loss of each example and task ([B, 1] for one label); tasks are added up
    a number   the mean over the examples, or their sum if the loss has an attribute `reduction = "sum"`

The losses of `torch.nn` are taken whatever their `reduction` is: `nn.BCEWithLogitsLoss()` trains exactly as the default
does. A run needs the sum over examples, to average over batches of any size; a mean is multiplied by B.

Example weights (`schema.weight`) multiply the loss of each example, so a loss that returns one number cannot have them.
A loss sees one worker's batch at a time, and it must work for a batch of any size, the last one being shorter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import Tensor, nn

from gearshift.errors import UserError

__all__ = ["binary_cross_entropy"]

Loss = Callable[[Tensor, Tensor], Tensor]  # of logits and labels, [B, T] both

# What takes these losses instead; each would train without an error, or fail in the first step.
_NOT_FOR_LOGITS = {
    nn.BCELoss: "BCELoss takes probabilities, and models return logits: use nn.BCEWithLogitsLoss()",
    nn.CrossEntropyLoss: "CrossEntropyLoss compares classes, and a click has one logit: use nn.BCEWithLogitsLoss()",
    nn.NLLLoss: "NLLLoss compares classes, and a click has one logit: use nn.BCEWithLogitsLoss()",
}


def binary_cross_entropy(logits_BT: Tensor, labels_BT: Tensor) -> Tensor:
    """The default loss: binary cross-entropy of each example, [B], summed over tasks."""
    return nn.functional.binary_cross_entropy_with_logits(logits_BT, labels_BT, reduction="none").sum(1)


LOSSES: dict[str, Loss] = {"bce": binary_cross_entropy}  # by their names in a config


def prepared(loss: object) -> Loss:
    """The loss as workers call it: torch's own give the loss of each example, whatever their reduction."""
    if not callable(loss):
        raise UserError(
            f"Trainer(loss=...) is {loss!r}: pass a function of logits and labels, such as nn.BCEWithLogitsLoss()"
        )
    for kind, sentence in _NOT_FOR_LOGITS.items():
        if isinstance(loss, kind):
            raise UserError(f"Trainer(loss=...): {sentence}")
    if isinstance(loss, type):
        raise UserError(f"Trainer(loss=...) is the class {loss.__name__}: make one of it, {loss.__name__}()")
    if type(loss).__module__ == "torch.nn.modules.loss" and getattr(loss, "reduction", "none") != "none":
        loss = copy.copy(loss)
        loss.reduction = "none"  # type: ignore[attr-defined]
    return loss


def summed(loss: Loss, logits_BT: Tensor, labels_BT: Tensor, weights_B: Tensor | None) -> Tensor:
    """The loss of a batch, summed over its examples, each times its weight."""
    examples, tasks = logits_BT.shape
    found = loss(logits_BT, labels_BT)
    if not isinstance(found, Tensor):
        raise UserError(f"the loss returned a {type(found).__name__}, not a tensor; see gs.losses")
    if found.dim() == 0 or (found.shape == (1,) and examples > 1):
        return _of_one_number(loss, found, examples, weights_B)
    if found.shape == (examples, tasks):
        found = found.sum(1)
    if found.shape != (examples,):
        raise UserError(
            f"the loss returned {list(found.shape)} for a batch of {examples} examples, whose logits and labels are "
            f"both {list(logits_BT.shape)}; return the loss of each example, [{examples}], or their mean"
        )
    return (found if weights_B is None else found * weights_B).sum()


def _of_one_number(loss: Loss, found: Tensor, examples: int, weights_B: Tensor | None) -> Tensor:
    if weights_B is not None:
        raise UserError(
            f"the data have example weights, and the loss returned one number; return the loss of each of the "
            f"{examples} examples, without a mean or sum over them"
        )
    total = found.reshape(())
    return total if getattr(loss, "reduction", "mean") == "sum" else total * examples
