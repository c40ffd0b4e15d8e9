"""The inputs of a model: numbers and embedding rows, already looked up and expanded.

    x.numeric                    [B, N]     after the schema's transforms, vectors included
    x.fields                     [B, F, D]  one row per field, schema order; x.fields["country"] -> [B, D]
    x.sequences["recent_items"]  .rows [B, L, D]  .mask [B, L]
    x.linear                     [B, F]     the width-1 part of each field's row, if the model needs it

A module declares its requirements in class or instance attributes (`Needs`). Nothing here knows a store, an id or a
file. The functions at the end turn the rows of ragged fields into these shapes and are differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gearshift.data import schema as columns
from gearshift.data.schema import Schema
from gearshift.errors import UserError


@dataclass(frozen=True)
class Needs:
    """A module's requirements on its inputs. A custom module overrides these defaults with attributes."""

    dim: int = 16  # width of an embedding row, unless the feature sets it
    embedding: bool = True  # False: only the linear part (LR)
    linear: bool = False  # also a width-1 part per field
    sequences: bool = False  # True: `Inputs.sequences`; False: sequences are mean-pooled into fields

    @staticmethod
    def of(module: nn.Module) -> Needs:
        """The requirements declared by a module's attributes."""
        return Needs(
            int(getattr(module, "dim", 16)),
            bool(getattr(module, "embedding", True)),
            bool(getattr(module, "linear", False)),
            bool(getattr(module, "sequences", False)),
        )


def input_fields(schema: Schema, *, sequences: bool = False) -> tuple[columns.Field, ...]:
    """The features in `Inputs.fields`, in order: all fields, or all except sequences if these are separate."""
    return tuple(f for f in schema.fields if not (sequences and isinstance(f, columns.Sequence)))


def row_width(schema: Schema, feature: columns.Field, dim: int) -> int:
    """The width of a field's rows, for stores and models alike: `Schema.row_width`."""
    return schema.row_width(feature, dim)


class Fields:
    """One embedding row per field. Behaves like a tensor [B, F, D] and can also be indexed by name.

    Created from one tensor, or from one [B, D] tensor per field with any widths. If widths differ, there is no
    [B, F, D] tensor, but names and `flatten(1)` still work.
    """

    def __init__(self, names: Sequence[str], rows: Tensor | Sequence[Tensor]) -> None:
        self.names = tuple(names)
        self._rows = rows if isinstance(rows, Tensor) else list(rows)
        count = rows.shape[1] if isinstance(rows, Tensor) else len(rows)
        assert count == len(self.names), f"{len(self.names)} names for {count} fields"

    @property
    def tensor(self) -> Tensor:
        """[B, F, D]; no copy if it was created from one tensor."""
        if not isinstance(self._rows, Tensor):
            self._check_one_width(self._rows)
            self._rows = torch.stack(self._rows, 1)
        return self._rows

    def _check_one_width(self, rows: list[Tensor]) -> None:
        widths = {name: row.shape[-1] for name, row in zip(self.names, rows, strict=True)}
        if len(set(widths.values())) > 1:
            raise UserError(
                f"fields of different width have no [B, F, D] tensor: {widths}. Give all features one `dim`, "
                "or read them with x.fields['name'] or x.fields.flatten(1)"
            )
        if not rows:
            raise UserError(
                "x.fields is empty: the schema has no categorical, bucketized, bag or sequence feature"
            )

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """`flatten(1)` is [B, sum of widths]: a view if created from one tensor, otherwise a copy."""
        if isinstance(self._rows, Tensor) or start_dim != 1 or end_dim not in (-1, 2):
            return self.tensor.flatten(start_dim, end_dim)
        return torch.cat(self._rows, 1) if len(self._rows) > 1 else self._rows[0]

    def flat_parts(self) -> list[Tensor]:
        """The parts that `torch.cat(..., 1)` joins to `flatten(1)`. Avoids a copy before another cat."""
        return [self._rows.flatten(1)] if isinstance(self._rows, Tensor) else self._rows

    def __getitem__(self, key: Any) -> Tensor:
        if not isinstance(key, str):
            return self.tensor[key]
        if key not in self.names:
            raise UserError(f"no field `{key}` in x.fields; it has: {', '.join(self.names) or 'none'}")
        at = self.names.index(key)
        return self._rows[:, at] if isinstance(self._rows, Tensor) else self._rows[at]

    def __len__(self) -> int:
        """B, as for a tensor. The number of fields is `len(x.fields.names)`."""
        return len(self._rows) if isinstance(self._rows, Tensor) else len(self._rows[0])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.tensor, name)  # .shape, .sum(1), .transpose(1, 2), ...

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        _types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return func(*_tensors(args), **_tensors(kwargs or {}))

    def __add__(self, other: Any) -> Tensor:
        return torch.add(self.tensor, other)

    def __radd__(self, other: Any) -> Tensor:
        return torch.add(self.tensor, other)

    def __sub__(self, other: Any) -> Tensor:
        return torch.sub(self.tensor, other)

    def __mul__(self, other: Any) -> Tensor:
        return torch.mul(self.tensor, other)

    def __rmul__(self, other: Any) -> Tensor:
        return torch.mul(self.tensor, other)

    def __truediv__(self, other: Any) -> Tensor:
        return torch.div(self.tensor, other)

    def __matmul__(self, other: Any) -> Tensor:
        return torch.matmul(self.tensor, other)


def _tensors(value: Any) -> Any:
    """The same structure of arguments, with plain tensors instead of `Fields`."""
    if isinstance(value, Fields):
        return value.tensor
    if isinstance(value, dict):
        return {k: _tensors(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_tensors(v) for v in value)
    return value


@dataclass
class SequenceRows:
    """A sequence per example, padded at the end. Rows with a False `mask` are zero padding."""

    rows: Tensor  # [B, L, D]
    mask: Tensor  # [B, L] bool

    def mean(self) -> Tensor:
        """[B, D]; zero for an empty sequence."""
        counts_B1 = self.mask.sum(1, keepdim=True).clamp_(min=1)
        return torch.bmm(self.mask.to(self.rows.dtype).unsqueeze(1), self.rows).squeeze(1) / counts_B1


@dataclass
class Inputs:
    """The inputs of a model for one batch: numbers, and the embedding rows of each field."""

    numeric: Tensor  # [B, N], after the schema's transforms
    fields: Fields  # [B, F, D] in schema order; x.fields["country"] is [B, D]
    sequences: dict[str, SequenceRows] = field(
        default_factory=dict
    )  # by name, if the module has `sequences = True`
    linear: Tensor | None = None  # [B, F], one extra number per field, if the module has `linear = True`

    def flat(self) -> Tensor:
        """[B, N + sum of widths]: numbers, then fields; the input of an MLP. At most one copy."""
        parts = [p for p in (self.numeric, *self.fields.flat_parts()) if p.shape[1]]
        return torch.cat(parts, 1) if len(parts) > 1 else (parts[0] if parts else self.numeric)


ALIGN = 16  # an odd input width makes its gradient 1.6x slower (4096 x 367 against 368, one thread)


def aligned(width: int) -> int:
    return -(-width // ALIGN) * ALIGN


def join(parts: Sequence[Tensor]) -> Tensor:
    """[B, W]: the parts concatenated, then zeros up to an aligned width. The weights of the zeros never change."""
    width = sum(part.shape[1] for part in parts)
    gap = parts[0].new_zeros(len(parts[0]), aligned(width) - width)
    return torch.cat([*parts, gap], 1)


def pool_rows(rows_ND: Tensor, offsets: Tensor, mode: Literal["mean", "sum"] = "mean") -> Tensor:
    """[B, D] from B ragged examples: pools rows [offsets[i], offsets[i + 1]); zeros if there are none."""
    return _Pool.apply(rows_ND, offsets, mode)  # type: ignore[no-untyped-call,no-any-return]


class _Pool(torch.autograd.Function):
    # The backward pass of embedding_bag sorts indices that are already sorted; ours is one gather.
    @staticmethod
    def forward(ctx: Any, rows_ND: Tensor, offsets: Tensor, mode: str) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.mode = mode
        positions = torch.arange(len(rows_ND), device=rows_ND.device)
        return torch.nn.functional.embedding_bag(
            positions, rows_ND, offsets, mode=mode, include_last_offset=True
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (offsets,), (grad_BD,) = ctx.saved_tensors, grads
        lengths = offsets.diff()
        if ctx.mode == "mean":
            grad_BD = grad_BD / lengths.clamp(min=1).unsqueeze(1)
        return grad_BD.index_select(0, _examples(lengths)), None, None


def pad_rows(rows_ND: Tensor, offsets: Tensor, max_len: int) -> SequenceRows:
    """[B, L, D] from B ragged examples. L is the longest length, 1 to `max_len`; longer examples are truncated."""
    lengths = offsets.diff()
    batch, longest = len(lengths), int(lengths.max()) if len(lengths) else 0
    length = max(1, min(longest, max_len))
    mask_BL = torch.arange(length, device=offsets.device) < lengths.unsqueeze(1)
    example_N = _examples(lengths)
    position_N = torch.arange(len(rows_ND), device=rows_ND.device) - offsets[:-1].index_select(0, example_N)
    if longest > max_len:
        kept = (position_N < max_len).nonzero().squeeze(1)
        rows_ND, example_N, position_N = (t.index_select(0, kept) for t in (rows_ND, example_N, position_N))
    slots_N = example_N * length + position_N
    padded = rows_ND.new_zeros(batch * length, rows_ND.shape[1]).index_copy(0, slots_N, rows_ND)
    return SequenceRows(padded.view(batch, length, rows_ND.shape[1]), mask_BL)


def _examples(lengths_B: Tensor) -> Tensor:
    """[N]: the example that each row belongs to."""
    return torch.repeat_interleave(torch.arange(len(lengths_B), device=lengths_B.device), lengths_B)
