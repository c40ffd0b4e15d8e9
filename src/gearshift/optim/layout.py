"""Which elements of a flat buffer belong to which layer: what rules with a norm or a mean per layer must know.

A layer is one parameter tensor. `ShardLayout.of(dense.names, dense.shapes, dense.offsets)` describes Gearshift's flat
buffer, whose gaps belong to no layer; `ShardLayout.whole(name, shape)` one tensor by itself, in its own shape.
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
        """Biases and scales (1-D) get no trust ratio: their norms say nothing about a layer."""
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
        """The layers of one part of the buffer, which cuts none of them."""
        kept = (layer for layer in self.layers if start <= layer.start < stop)
        return Layout(tuple(replace(layer, start=layer.start - start) for layer in kept))

    def views(self, values: Tensor) -> tuple[Tensor, ...]:
        """Each layer's elements of a buffer; a tensor that is one whole layer is given back as it is."""
        if self._is_all(values):
            return (values,)
        return tuple(values[layer.start : layer.start + layer.size] for layer in self.layers)

    def gaps(self, values: Tensor) -> tuple[Tensor, ...]:
        """The elements that belong to no layer, before, between and after them."""
        if self._is_all(values):
            return ()
        ends = [0, *(layer.start + layer.size for layer in self.layers)]
        starts = [*(layer.start for layer in self.layers), values.numel()]
        return tuple(values[a:b] for a, b in zip(ends, starts, strict=True) if a < b)

    def _is_all(self, values: Tensor) -> bool:
        return len(self.layers) == 1 and values.numel() == self.layers[0].size


def bind(optimizer: Optimizer, layout: Layout) -> Optimizer:
    """The optimizer with this layout, if it works per layer; else as it is."""
    on: Any = getattr(optimizer, "on", None)
    bound: Optimizer = on(layout) if on else optimizer
    return bound
