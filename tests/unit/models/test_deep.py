from __future__ import annotations

import torch

from gearshift.data.schema import Categorical, Numeric, Schema
from gearshift.models import DNN, DeepFM, Inputs, WideDeep
from gearshift.models.layers import InputMLP

from .feed import random_inputs

SCHEMA = Schema(
    (Numeric("price"), Categorical("user"), Numeric("age"), Categorical("item"), Categorical("os"))
)


def by_hand(mlp: InputMLP, x: Inputs) -> torch.Tensor:
    """The MLP by its formula, from the joined input and the joined first weight."""
    assert mlp.first.numeric is not None and mlp.first.rows is not None
    joined = torch.cat([x.numeric, x.fields["user"], x.fields["item"], x.fields["os"]], 1)
    weight = torch.cat([mlp.first.numeric, mlp.first.rows], 1)
    hidden = (joined @ weight.t() + mlp.first.bias).clamp(min=0)
    last = mlp.rest[-1]
    return (hidden @ last.weight.t() + last.bias)[:, 0]


def linear_by_hand(model: WideDeep | DeepFM, x: Inputs) -> torch.Tensor:
    term = model.wide if isinstance(model, WideDeep) else model.first_order
    assert term.numeric is not None and x.linear is not None
    return x.linear.sum(1) + (x.numeric * term.numeric.weight[0]).sum(1) + term.numeric.bias


def test_dnn() -> None:
    model = DNN(SCHEMA, dim=4, hidden=[8])
    x = random_inputs(SCHEMA, model)
    torch.testing.assert_close(model(x), by_hand(model.mlp, x))


def test_wide_deep_is_linear_plus_deep() -> None:
    model = WideDeep(SCHEMA, dim=4, hidden=[8])
    torch.nn.init.normal_(model.wide.numeric.bias)
    x = random_inputs(SCHEMA, model)
    torch.testing.assert_close(model(x), linear_by_hand(model, x) + by_hand(model.deep, x))


def test_deepfm_is_linear_plus_pairs_plus_deep() -> None:
    model = DeepFM(SCHEMA, dim=4, hidden=[8])
    torch.nn.init.normal_(model.second_order.numeric)
    x = random_inputs(SCHEMA, model)
    pairs = []
    for i in range(5):
        vectors = [*x.fields[i], *(x.numeric[i, n] * model.second_order.numeric[n] for n in range(2))]
        pairs.append(sum(a @ b for k, a in enumerate(vectors) for b in vectors[:k]))
    want = linear_by_hand(model, x) + torch.stack(pairs) + by_hand(model.deep, x)
    torch.testing.assert_close(model(x), want)
