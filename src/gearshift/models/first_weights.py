"""The initial dense weights of a run (docs/adr/0018-first-weights.md).

A run begins with the weights that the user gave the module, never with those that an earlier run or `gs.load` left
in it: their embedding rows are not in the module, so continuing from them would use half a model. An unchanged model
of `gs.models` gets the weights of the run's seed. `warm_start` uses the module as it is.

This module does not depend on runs. Code that writes weights into a module reports it with `written`.
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
    first: Tensors  # the weights that the user passed in
    left: int | None = None  # checksum of the weights that Gearshift left in it; None while a run trains it


_known: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()


def begin(model: nn.Module | Callable[[], nn.Module], seed: int, *, warm_start: bool = False) -> nn.Module:
    """The module with the initial weights of a run. A function is called under the seed to create the module."""
    if not isinstance(model, nn.Module):
        return _made(model, seed)
    known = _known.get(model)
    if known is not None and known.left is None:
        raise UserError(
            f"this {type(model).__name__} is being trained by another run: use one module per run, or wait for it"
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
    """Call this before writing weights into a module outside of a run started with `begin`."""
    _known.setdefault(model, _Known(_copy(model)))


def written(model: nn.Module) -> None:
    """Record that the current weights of the module come from Gearshift, not from the user."""
    known = _known.get(model)
    if known is not None:
        known.left = _checksum(model)


def _made(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    if not callable(make):
        raise UserError(
            f"the model must be an nn.Module or a function that returns one, not a {type(make).__name__}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
    if not isinstance(model, nn.Module):
        raise UserError(f"the model function returned a {type(model).__name__}, not an nn.Module")
    return model


def _draw_again(model: nn.Module, seed: int) -> None:
    """Re-initialise a built-in model if it has not changed since its construction."""
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
    """The checksum of names, shapes and bits."""
    checksum = 0
    for name, tensor in _tensors(model).items():
        checksum = zlib.crc32(f"{name} {list(tensor.shape)}".encode(), checksum)
        bits = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        checksum = zlib.crc32(bits.data, checksum)
    return checksum
