"""The layers in a flat buffer, for rules that need a norm or a mean per layer.

A layer is one parameter tensor. `Layout.of(dense.names, dense.shapes, dense.offsets)` describes Gearshift's flat
buffer, whose gaps belong to no layer; `Layout.whole(name, shape)` describes a single tensor in its own shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

Optimizer = TypeVar("Optimizer")


@dataclass(frozen=True)
class Layer:
    name: str
    start: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Biases and scales (1-D) get no trust ratio: their norms are not informative."""
        return len(self.shape) > 1


@dataclass(frozen=True)
class Layout:
    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, names: Iterable[str], shapes: Iterable[Sequence[int]], offsets: Iterable[int]) -> Layout:
        parts = zip(names, shapes, offsets, strict=True)
        return cls(tuple(Layer(name, start, tuple(shape)) for name, shape, start in parts))

    @classmethod
    def whole(cls, name: str, shape: Sequence[int]) -> Layout:
        return cls((Layer(name, 0, tuple(shape)),))

    def within(self, start: int, stop: int) -> Layout:
        """The layers in one part of the buffer. The part does not split a layer."""
        kept = (layer for layer in self.layers if start <= layer.start < stop)
        return Layout(tuple(replace(layer, start=layer.start - start) for layer in kept))

    def views(self, values: Tensor) -> tuple[Tensor, ...]:
        """The elements of each layer in a buffer. A tensor that is exactly one layer is returned unchanged."""
        if self._is_all(values):
            return (values,)
        return tuple(values[layer.start : layer.start + layer.size] for layer in self.layers)

    def gaps(self, values: Tensor) -> tuple[Tensor, ...]:
        """The elements that belong to no layer: before, between and after the layers."""
        if self._is_all(values):
            return ()
        ends = [0, *(layer.start + layer.size for layer in self.layers)]
        starts = [*(layer.start for layer in self.layers), values.numel()]
        return tuple(values[a:b] for a, b in zip(ends, starts, strict=True) if a < b)

    def _is_all(self, values: Tensor) -> bool:
        return len(self.layers) == 1 and values.numel() == self.layers[0].size


def bind(optimizer: Optimizer, layout: Layout) -> Optimizer:
    """The optimizer with this layout if it works per layer, otherwise unchanged."""
    on: Any = getattr(optimizer, "on", None)
    bound: Optimizer = on(layout) if on else optimizer
    return bound
