"""LR and FM: models with all weights in the rows, except those of the numbers."""

from __future__ import annotations

from torch import Tensor

from gearshift.data.schema import Schema
from gearshift.models import checks
from gearshift.models.inputs import Inputs
from gearshift.models.layers import LinearTerm, PairwiseTerm, logits
from gearshift.models.model import Model
from gearshift.models.settings import EmbeddingSettings


class LR(Model):
    """Logistic regression: one weight per value of a field, one per number."""

    linear = True
    embedding = False

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        checks.some_feature("lr", schema)
        self.first_order = LinearTerm(schema)

    def forward(self, x: Inputs) -> Tensor:
        return logits(self.first_order(x))


class FM(Model):
    """Factorization machine of degree 2 (Rendle 2010, equation 1)."""

    linear = True

    def __init__(self, schema: Schema, dim: int = EmbeddingSettings.dim) -> None:
        super().__init__()
        checks.some_feature("fm", schema, dim)
        checks.one_width("fm", schema, dim)
        self.dim = dim
        self.first_order = LinearTerm(schema)
        self.second_order = PairwiseTerm(schema, dim)

    def forward(self, x: Inputs) -> Tensor:
        return logits(self.first_order(x) + self.second_order(x))
