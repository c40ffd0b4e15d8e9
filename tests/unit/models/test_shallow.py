from __future__ import annotations

import torch

from gearshift.data.schema import Categorical, Label, Numeric, Schema
from gearshift.models import FM, LR, Needs

from .feed import random_inputs

SCHEMA = Schema((Numeric("price"), Categorical("user"), Categorical("item"), Categorical("os")))
TWO_TASKS = Schema(SCHEMA.features, (Label("click"), Label("buy", task="buy")))


def test_lr_asks_for_linear_parts_alone_and_adds_them() -> None:
    model = LR(SCHEMA)
    assert Needs.of(model) == Needs(embedding=False, linear=True)
    torch.nn.init.normal_(model.first_order.numeric.bias)
    x = random_inputs(SCHEMA, model)
    assert x.fields.names == ()
    layer = model.first_order.numeric
    want = [layer.bias[0] + layer.weight[0, 0] * x.numeric[i, 0] + sum(x.linear[i]) for i in range(5)]
    torch.testing.assert_close(model(x), torch.stack(want))


def test_fm_is_the_sum_over_pairs() -> None:
    model = FM(SCHEMA, dim=3)
    torch.nn.init.normal_(model.second_order.numeric)
    x = random_inputs(SCHEMA, model)
    want = []
    for i in range(5):
        rows = [*x.fields[i], x.numeric[i, 0] * model.second_order.numeric[0]]
        pairs = sum(torch.dot(rows[a], rows[b]) for a in range(4) for b in range(a + 1, 4))
        layer = model.first_order.numeric
        want.append(pairs + x.linear[i].sum() + layer.weight[0, 0] * x.numeric[i, 0] + layer.bias[0])
    torch.testing.assert_close(model(x), torch.stack(want))


def test_fm_of_fields_alone_has_a_bias() -> None:
    schema = Schema((Categorical("user"), Categorical("item")))
    model = FM(schema, dim=3)
    torch.nn.init.constant_(model.first_order.bias, 2.0)
    x = random_inputs(schema, model)
    want = 2.0 + x.linear.sum(1) + (x.fields["user"] * x.fields["item"]).sum(1)
    torch.testing.assert_close(model(x), want)


def test_several_tasks_weigh_shared_rows_each_in_their_own_way() -> None:
    for model in (LR(TWO_TASKS), FM(TWO_TASKS, dim=3)):
        x = random_inputs(TWO_TASKS, model)
        first = model(x)
        with torch.no_grad():
            model.first_order.fields.weight[1, 1] = 3.0  # task buy, field item
        torch.testing.assert_close(model(x)[:, 0], first[:, 0])
        torch.testing.assert_close(model(x)[:, 1], first[:, 1] + 2 * x.linear[:, 1])
