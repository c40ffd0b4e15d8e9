"""A custom model: any nn.Module that maps `gs.Inputs` to logits. Run: python examples/own_model.py

Its attributes declare its inputs: `dim`, the width of an embedding row; `sequences = True` for ordered sequences
(by default they are averaged into fields); `linear = True` for one extra number per field, as in FM.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import gearshift as gs


class LastClicks(nn.Module):
    """An MLP over all fields, the last ad of the user's history, and the average of the history."""

    sequences = True

    def __init__(self, schema: gs.Schema, dim: int = 16) -> None:
        super().__init__()
        self.dim = dim
        fields = len(schema.single_fields)
        self.mlp = nn.Sequential(
            nn.Linear(schema.numeric_width + (fields + 2) * dim, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, x: gs.Inputs) -> Tensor:
        history = x.sequences["history"]  # .rows [B, L, D], .mask [B, L]
        last = (history.mask.sum(1) - 1).clamp(min=0)
        newest = history.rows[torch.arange(len(last)), last]
        return self.mlp(torch.cat([x.numeric, x.fields.flatten(1), newest, history.mean()], 1)).squeeze(1)


def main(examples: int = 200_000) -> None:
    data = gs.read(gs.ClickLog(examples, sequences=True))  # or your CSV: gs.read("clicks.csv", schema)
    train, valid = data.split(valid="10%")
    optimizer = gs.OptimizerSettings(rows=gs.RowAdagrad(lr=0.05))
    result = gs.Trainer(global_batch=2048, optimizer=optimizer).fit(LastClicks(data.schema), train, valid)
    print(f"AUC {result.auc:.4f}, {result.examples_per_second:,.0f} examples/s")


if __name__ == "__main__":
    main()
