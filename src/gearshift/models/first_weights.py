"""The dense weights that a run begins with (docs/adr/0018-first-weights.md).

A run begins with the weights that the user gave the module, never with those that an earlier run or `gs.load` left in
it: the embedding rows that belong to those are not in the module, so going on with them would be half a model. A model
of `gs.models` that is as it was made gets the weights of the run's seed. `warm_start` takes the module as it is.

Knows modules, no run: whoever writes weights into a module says so with `written`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gearshift.errors import UserError
from gearshift.models.model import Model

Tensors = dict[str, Tensor]


@dataclass
class _Known:
    first: Tensors  # as the user gave it
    left: int | None = None  # checksum of what Gearshift left in it; None while a run trains it


_known: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()


def begin(model: nn.Module | Callable[[], nn.Module], seed: int, *, warm_start: bool = False) -> nn.Module:
    """The module with the weights that a run begins with. A function is called under the seed to make it."""
    if not isinstance(model, nn.Module):
        return _made(model, seed)
    known = _known.get(model)
    if known is not None and known.left is None:
        raise UserError(
            f"this {type(model).__name__} is being trained by another run: make a module for each run, or wait for it"
        )
    if not warm_start:
        if known is not None and known.left == _checksum(model):
            _put(known.first, model)
        given = _copy(model)
        _draw_again(model, seed)
        _known[model] = _Known(given)
    else:
        _known[model] = known or _Known(_copy(model))
        _known[model].left = None
    return model


def remember(model: nn.Module) -> None:
    """Before weights are written into a module other than by a run that `begin` knows of."""
    _known.setdefault(model, _Known(_copy(model)))


def written(model: nn.Module) -> None:
    """What is in the module now is Gearshift's work, not the user's."""
    known = _known.get(model)
    if known is not None:
        known.left = _checksum(model)


def _made(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    if not callable(make):
        raise UserError(f"a model is an nn.Module, or a function that makes one, not a {type(make).__name__}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
    if not isinstance(model, nn.Module):
        raise UserError(
            f"the function that makes the model returned a {type(model).__name__}, not an nn.Module"
        )
    return model


def _draw_again(model: nn.Module, seed: int) -> None:
    """Of a model of ours that nobody has changed since it was made."""
    if not isinstance(model, Model) or model.born is None or not model.is_built_in:
        return
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(model.born)
        if not _same(_tensors(model), _tensors(model.made_again())):
            return
        torch.manual_seed(seed)
        _put(_tensors(model.made_again()), model)


def _tensors(model: nn.Module) -> Tensors:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _copy(model: nn.Module) -> Tensors:
    return {name: values.detach().clone() for name, values in _tensors(model).items()}


@torch.no_grad()
def _put(values: Tensors, model: nn.Module) -> None:
    for name, tensor in _tensors(model).items():
        tensor.copy_(values[name])


def _same(ours: Tensors, theirs: Tensors) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def _checksum(model: nn.Module) -> int:
    """Of names, shapes and bits."""
    found = 0
    for name, tensor in _tensors(model).items():
        found = zlib.crc32(f"{name} {list(tensor.shape)}".encode(), found)
        bits = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        found = zlib.crc32(bits.data, found)
    return found
