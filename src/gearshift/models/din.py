"""DIN (Zhou et al. 2018): attention weights each item of a history by its relevance to the target item.

Other fields and numbers are concatenated. A sequence that is not a history is averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from gearshift.data.schema import Schema
from gearshift.models import checks
from gearshift.models.inputs import Inputs, SequenceRows, aligned, join, row_width
from gearshift.models.layers import MLP, flat_width, logits
from gearshift.models.model import Model
from gearshift.models.settings import AttentionSettings, DINSettings


class DIN(Model):
    """`history` names one or more sequences, `target` the field that each is compared with.

    By default every sequence is a history, and its target is the field whose table it shares. `attention` has the
    hidden widths of the attention network, or `gs.models.AttentionSettings(hidden, activation)`.
    """

    sequences = True
    moved: ClassVar[dict[str, str]] = {
        "attention_activation": "DIN(schema, attention=gs.models.AttentionSettings(activation=...))"
    }

    def __init__(
        self,
        schema: Schema,
        dim: int = DINSettings.dim,
        hidden: Sequence[int] = DINSettings.hidden,
        *,
        target: str | Sequence[str] | None = None,
        history: str | Sequence[str] | None = None,
        attention: AttentionSettings | Sequence[int] = AttentionSettings(),
        activation: str = DINSettings.activation,
        batch_norm: bool = DINSettings.batch_norm,
        dropout: float = DINSettings.dropout,
    ) -> None:
        super().__init__()
        checks.some_feature("din", schema, dim)
        self.dim = dim
        self.pairs = checks.histories("din", schema, _listed(target), _listed(history), dim)
        widths = {f.name: row_width(schema, f, dim) for f in schema.fields}
        units, between = (
            (attention.hidden, attention.activation)
            if isinstance(attention, AttentionSettings)
            else (attention, AttentionSettings.activation)
        )
        self.attention = nn.ModuleList(
            Attention(widths[sequence], units, between) for _, sequence in self.pairs
        )
        self.averaged = checks.other_sequences(schema, self.pairs)
        pooled = sum(widths[sequence] for _, sequence in self.pairs) + sum(widths[s] for s in self.averaged)
        self.mlp = MLP(
            aligned(flat_width(schema, dim, sequences=True) + pooled),
            hidden,
            len(schema.labels),
            activation=activation,
            batch_norm=batch_norm,
            dropout=dropout,
        )

    def forward(self, x: Inputs) -> Tensor:
        parts = [x.numeric, *x.fields.flat_parts()]
        for (target, history), attend in zip(self.pairs, self.attention, strict=True):
            parts.append(attend(x.fields[target], x.sequences[history]))
        parts += [x.sequences[name].mean() for name in self.averaged]
        return logits(self.mlp(join(parts)))


class Attention(nn.Module):
    """[B, D]: sum over the history of a(item, target) item; a is a small MLP, not normalized (equation 3).

    It runs only on existing items, so padding costs nothing and does not affect the statistics of Dice.
    """

    def __init__(self, width: int, hidden: Sequence[int], activation: str) -> None:
        super().__init__()
        self.unit = MLP(3 * width, hidden, 1, activation=activation)

    def forward(self, target_BD: Tensor, history: SequenceRows) -> Tensor:
        batch, length, width = history.rows.shape
        present_N = history.mask.flatten().nonzero().squeeze(1)
        example_N = present_N // length
        items_ND = history.rows.reshape(batch * length, width).index_select(0, present_N)
        targets_ND = target_BD.index_select(0, example_N)
        # Figure 2 also uses their difference, but the linear layer can compute it from the first two.
        weights_N1 = self.unit(torch.cat([targets_ND, items_ND, targets_ND * items_ND], 1))
        return torch.zeros_like(target_BD).index_add(0, example_N, items_ND * weights_N1)


def _listed(name: str | Sequence[str] | None) -> list[str] | None:
    return [name] if isinstance(name, str) else None if name is None else list(name)
