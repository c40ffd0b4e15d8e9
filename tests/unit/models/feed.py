"""Random inputs for models, shaped by a schema as the worker shapes them."""

from __future__ import annotations

import torch

from gearshift.data import schema as columns
from gearshift.data.schema import Schema
from gearshift.models.inputs import Fields, Inputs, Needs, SequenceRows, input_fields, row_width


def random_inputs(
    schema: Schema,
    module: torch.nn.Module,
    batch: int = 5,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    g, needs = torch.Generator().manual_seed(seed), Needs.of(module)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=dtype).requires_grad_()

    fields = input_fields(schema, sequences=needs.sequences) if needs.embedding else ()
    rows = [normal(batch, row_width(schema, f, needs.dim)) for f in fields]
    same = len({r.shape[1] for r in rows}) == 1
    stacked = torch.stack(rows, 1).detach().requires_grad_() if same else rows or normal(batch, 0, needs.dim)
    sequences = {}
    for f in schema.fields if needs.sequences else ():
        if isinstance(f, columns.Sequence):
            lengths = torch.randint(0, 5, (batch, 1), generator=g)
            mask = torch.arange(4) < lengths
            width = row_width(schema, f, needs.dim)
            sequences[f.name] = SequenceRows(normal(batch, 4, width), mask)
    arriving = input_fields(schema, sequences=needs.sequences)
    linear = normal(batch, len(arriving)) if needs.linear else None
    return Inputs(
        normal(batch, schema.numeric_width), Fields([f.name for f in fields], stacked), sequences, linear
    )


def take(x: Inputs, examples: list[int]) -> Inputs:
    """The inputs of some examples alone."""
    parts = [x.fields[n][examples] for n in x.fields.names]
    same = len({p.shape[1] for p in parts}) == 1
    rows = torch.stack(parts, 1) if same else parts or x.fields.tensor[examples]
    sequences = {n: SequenceRows(s.rows[examples], s.mask[examples]) for n, s in x.sequences.items()}
    linear = None if x.linear is None else x.linear[examples]
    return Inputs(x.numeric[examples], Fields(x.fields.names, rows), sequences, linear)
