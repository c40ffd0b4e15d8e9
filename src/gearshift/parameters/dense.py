"""The dense parameters of a module in one flat float32 buffer: one copy, one collective, one optimizer step.

`DenseParameters(module)` moves every trainable parameter into `flat` and leaves views of it in the module; their
gradients are views of `grad`. A parameter that several layers share (the same object) is stored once. Each parameter
starts on a 64-byte boundary; the gap before it stays zero in values and gradients. Buffers (running statistics of batch
normalization) and frozen parameters are not trained and are kept separately, in `fixed`. This module does not depend on
optimizers, workers or files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gearshift.errors import UserError

ALIGN = 16  # floats: one cache line


class DenseParameters:
    def __init__(self, module: nn.Module) -> None:
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        for name, parameter in module.named_parameters():
            _check(module, name, parameter)
        self.module = module
        self.names: tuple[str, ...] = tuple(trained)
        self.shapes: tuple[torch.Size, ...] = tuple(p.shape for p in trained.values())
        self.offsets, size = _lay_out([p.numel() for p in trained.values()])
        self.count = sum(p.numel() for p in trained.values())  # number of weights, without the gaps
        device = next(iter(trained.values())).device if trained else torch.device("cpu")
        self.flat = torch.zeros(size, device=device)
        self.grad = torch.zeros(size, device=device)
        self._parameters = tuple(trained.values())
        self._grads = tuple(self.views(self.grad).values())
        self._move_in()

    def _move_in(self) -> None:
        for parameter, values, grad in zip(
            self._parameters, self.views(self.flat).values(), self._grads, strict=True
        ):
            values.copy_(parameter.detach())
            parameter.data = values
            parameter.grad = grad

    def __len__(self) -> int:
        """The number of floats in `flat`, gaps included, for an optimizer's `init`."""
        return self.flat.numel()

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a buffer with the layout of `flat` (also gradients and optimizer state), by name. No copy."""
        return {
            name: flat[at : at + shape.numel()].view(shape)
            for name, shape, at in zip(self.names, self.shapes, self.offsets, strict=True)
        }

    def zero_grad(self) -> None:
        self.grad.zero_()
        for parameter, grad in zip(self._parameters, self._grads, strict=True):
            if parameter.grad is not grad:  # someone called module.zero_grad()
                parameter.grad = grad

    def live_in(self, flat: Tensor) -> None:
        """Make the module's parameters views of this buffer. Several modules may share it.

        It is set through `.data`, so autograd does not notice writes by others between forward and backward passes.
        """
        if flat is not self.flat:
            self.flat = flat
            for parameter, values in zip(self._parameters, self.views(flat).values(), strict=True):
                parameter.data = values

    def copy_from(self, flat: Tensor) -> None:
        """Copy these values. The module sees them at once."""
        self.flat.copy_(flat)

    @contextmanager
    def showing(self, flat: Tensor, buffers: Mapping[str, Tensor]) -> Iterator[None]:
        """In this context the module has these values and running statistics. Nothing is copied."""
        own, statistics = self.flat, dict(self.module.named_buffers())
        self.live_in(flat)
        self._set_buffers(buffers)
        try:
            yield
        finally:
            self.live_in(own)
            self._set_buffers(statistics)

    def _set_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        for name, values in buffers.items():
            owner, _, last = name.rpartition(".")
            setattr(self.module.get_submodule(owner), last, values)

    @property
    def fixed(self) -> dict[str, Tensor]:
        """Buffers and frozen parameters, which training does not update, with their current values."""
        frozen = {name: p.detach() for name, p in self.module.named_parameters() if not p.requires_grad}
        return frozen | dict(self.module.named_buffers())

    def state(self) -> dict[str, Tensor]:
        """A copy of everything that a checkpoint needs, by name: parameters and `fixed`."""
        tensors = self.views(self.flat) | self.fixed
        return {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore such a copy completely, or raise `UserError` and change nothing."""
        mine = self.views(self.flat) | self.fixed
        _check_same(self.module, mine, state)
        for name, tensor in mine.items():
            tensor.copy_(state[name])


def _lay_out(sizes: list[int]) -> tuple[tuple[int, ...], int]:
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += math.ceil(size / ALIGN) * ALIGN
    return tuple(offsets), end


def _check(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    what = f"parameter `{name}` of {type(module).__name__}"
    if is_lazy(parameter):
        raise UserError(
            f"{what} has no size yet: set the sizes of its layer, or run the module once before training"
        )
    if parameter.requires_grad and parameter.dtype != torch.float32:
        dtype = str(parameter.dtype).removeprefix("torch.")
        raise UserError(
            f"{what} is {dtype}; Gearshift trains float32 parameters: call .float() on the module first"
        )


def _check_same(module: nn.Module, mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    model = type(module).__name__
    if missing := [n for n in mine if n not in theirs]:
        raise UserError(
            f"the saved state belongs to another model: {model} has `{missing[0]}`, but the state does not"
        )
    if foreign := [n for n in theirs if n not in mine]:
        raise UserError(
            f"the saved state belongs to another model: it has `{foreign[0]}`, but {model} does not"
        )
    for name, tensor in mine.items():
        if tensor.shape != theirs[name].shape:
            raise UserError(
                f"the saved state belongs to another model: `{name}` is {list(theirs[name].shape)} there "
                f"and {list(tensor.shape)} in {model}"
            )
