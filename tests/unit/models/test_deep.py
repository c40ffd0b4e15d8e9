from __future__ import annotations

import torch

from gearshift.data.schema import Categorical, Numeric, Schema
from gearshift.models import DNN, DeepFM

from .feed import random_inputs

SCHEMA = Schema(
    (Numeric("price"), Categorical("user"), Numeric("age"), Categorical("item"), Categorical("country"))
)


def test_deepfm_is_linear_plus_pairs_plus_deep() -> None:
    model = DeepFM(SCHEMA, dim=4, hidden=[8])
    x = random_inputs(SCHEMA, model)
    assert x.linear is not None
    want = []
    for i in range(5):
        first = x.linear[i].sum() + model.first_order.numeric(x.numeric[i])[0]
        vectors = list(x.fields[i]) + [x.numeric[i, n] * model.second_order.numeric[n] for n in range(2)]
        pairs = sum(a @ b for k, a in enumerate(vectors) for b in vectors[:k])
        deep = model.deep(torch.cat([x.numeric[i], *x.fields[i]]))[0]
        want.append(first + pairs + deep)
    torch.testing.assert_close(model(x), torch.stack(want))


def test_dnn_reads_numbers_then_rows() -> None:
    model = DNN(SCHEMA, dim=4, hidden=[8])
    x = random_inputs(SCHEMA, model)
    want = model.mlp(torch.cat([x.numeric, x.fields["user"], x.fields["item"], x.fields["country"]], 1))
    torch.testing.assert_close(model(x), want[:, 0])
