"""What every model promises, whatever the schema: shapes, gradients, independence of examples, names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gearshift import models
from gearshift.data.schema import Bag, Bucketized, Categorical, Label, Numeric, Schema, Sequence, Vector
from gearshift.errors import UserError
from gearshift.models import Inputs
from gearshift.parameters.dense import DenseParameters

from .feed import random_inputs, take

RECENT = Sequence("recent", share_embedding="item")
FULL = Schema(
    (Numeric("price"), Categorical("user"), Vector("v", 3), Categorical("item"), Bag("tags"), RECENT)
)
DEEP = {"hidden": [8, 6]}
SMALL: dict[str, dict[str, Any]] = {
    "lr": {},
    "fm": {"dim": 4},
    "dnn": {"dim": 4, **DEEP},
    "wide_deep": {"dim": 4, **DEEP},
    "deepfm": {"dim": 4, **DEEP},
    "dcn": {"dim": 4, **DEEP},
    "dcnv2": {"dim": 4, **DEEP},
    "dlrm": {"dim": 4, **DEEP, "bottom": [5]},
    "din": {"dim": 4, **DEEP, "attention": [5]},
}
EVERY = pytest.mark.parametrize("name", models.MODELS)


def build(name: str, schema: Schema = FULL, **more: Any) -> nn.Module:
    return models.build(name, schema, seed=1, **(SMALL[name] | more))


def learned(x: Inputs) -> dict[str, Tensor]:
    """Every tensor that a gradient must reach."""
    parts = {"numeric": x.numeric} | {f"sequence {n}": s.rows for n, s in x.sequences.items()}
    parts |= {"fields": x.fields.tensor} if x.fields.names else {}
    return parts | ({} if x.linear is None else {"linear": x.linear})


@EVERY
@pytest.mark.parametrize("tasks", [1, 3])
def test_logits_have_one_column_per_task(name: str, tasks: int) -> None:
    schema = Schema(FULL.features, tuple(Label(f"y{t}", task=f"y{t}") for t in range(tasks)))
    model = build(name, schema)
    assert model(random_inputs(schema, model)).shape == ((5,) if tasks == 1 else (5, 3))


@EVERY
def test_gradients_reach_every_input_and_every_parameter(name: str) -> None:
    model = build(name)
    dense = DenseParameters(model)
    dense.flat.add_(0.01)  # linear weights are born 0, through which nothing flows back
    x = random_inputs(FULL, model, batch=64)
    model(x).square().sum().backward()
    for what, tensor in learned(x).items():
        assert tensor.grad is not None and tensor.grad.flatten(2 if tensor.dim() > 2 else 1).any(0).all(), (
            what
        )
    for parameter, grad in dense.views(dense.grad).items():
        assert grad.any(), parameter


@EVERY
def test_gradcheck_in_float64(name: str) -> None:
    model = build(
        name, **({"activation": "tanh"} if "activation" in models.parameters(name) else {})
    ).double()
    x = random_inputs(FULL, model, batch=3, dtype=torch.float64)
    inputs = learned(x)
    assert torch.autograd.gradcheck(lambda *_: model(x), tuple(inputs.values()), fast_mode=True)


@EVERY
def test_an_example_does_not_depend_on_its_neighbours(name: str) -> None:
    model = build(name).eval()
    x = random_inputs(FULL, model, batch=6)
    with torch.no_grad():
        whole = model(x)
        torch.testing.assert_close(model(take(x, [4, 1])), whole[[4, 1]])
        torch.testing.assert_close(model(take(x, [3])), whole[[3]])


@EVERY
def test_a_seed_gives_the_same_weights_and_leaves_torch_alone(name: str) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b, c = build(name), build(name), models.build(name, FULL, seed=2, **SMALL[name])
    assert torch.equal(torch.rand(3), expected)
    flat_a, flat_b, flat_c = (DenseParameters(m).flat for m in (a, b, c))
    assert torch.equal(flat_a, flat_b)
    assert torch.equal(flat_a, flat_c) == (name == "lr")  # which is born 0


WITH_NORM = [n for n in models.MODELS if "batch_norm" in models.parameters(n)]


@pytest.mark.parametrize("name", WITH_NORM)
def test_benchmark_options(name: str) -> None:
    model = build(name, batch_norm=True, dropout=0.2, activation="prelu")
    x = random_inputs(FULL, model, batch=8)
    first = model(x)
    assert not torch.equal(model(x), first)  # dropout at work
    model.eval()
    assert torch.equal(model(x), model(x))
    assert model.train()(take(x, [2])).isfinite().all()  # the last batch may have one example


NUMBERS = Schema((Numeric("a"), Vector("v", 3)))
FIELDS = Schema((Categorical("user"), Bucketized("age"), Bag("tags")))
SEQUENCES = Schema((Sequence("recent"), Sequence("searches")))
ODD = {
    "numbers": NUMBERS,
    "fields": FIELDS,
    "sequences": SEQUENCES,
    "one field": Schema((Categorical("user"),)),
}
REFUSED = {
    ("dlrm", "numbers"): "dlrm multiplies rows of different fields and the schema has 0",
    ("dlrm", "one field"): "dlrm multiplies rows of different fields and the schema has 1",
    ("din", "numbers"): "din needs a feature of type sequence",
    ("din", "fields"): "din needs a feature of type sequence",
    ("din", "one field"): "din needs a feature of type sequence",
    ("din", "sequences"): "which field to compare sequence `recent` with",
}


@EVERY
@pytest.mark.parametrize("kind", ODD)
def test_odd_schemas_work_or_are_refused_in_words(name: str, kind: str) -> None:
    if sentence := REFUSED.get((name, kind)):
        with pytest.raises(UserError, match=sentence):
            build(name, ODD[kind])
        return
    model = build(name, ODD[kind])
    x = random_inputs(ODD[kind], model)
    out = model(x)
    out.sum().backward()
    assert out.shape == (5,) and out.isfinite().all()


@EVERY
def test_a_schema_without_features_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"model {name} has nothing to learn from"):
        build(name, Schema(()))


WIDTHS = Schema((Numeric("a"), Categorical("user"), Categorical("item", dim=2), RECENT))


@EVERY
def test_rows_of_different_width_work_or_are_refused_in_words(name: str) -> None:
    if name in ("fm", "deepfm", "dlrm"):
        with pytest.raises(
            UserError, match=f"model {name} needs rows of one width: feature `item` has dim 2"
        ):
            build(name, WIDTHS)
        return
    model = build(name, WIDTHS)
    out = model(random_inputs(WIDTHS, model))
    out.sum().backward()
    assert out.shape == (5,)


@pytest.mark.parametrize(
    ("name", "params", "sentence"),
    [
        ("depfm", {}, "unknown model `depfm`. Did you mean `deepfm`?"),
        ("dnn", {"hiddenn": [4]}, "unknown parameter of model dnn: `hiddenn`. Did you mean `hidden`?"),
        ("lr", {"dim": 4}, "model lr has no `dim`: remove it"),
        ("dnn", {"dim": 0}, "dim is the width of an embedding row, 1 or more, not 0"),
    ],
)
def test_unknown_names_are_told_the_nearest(name: str, params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        models.build(name, FULL, **params)
    assert sentence in str(error.value)


def test_parameters_shows_the_defaults() -> None:
    assert models.parameters("dlrm")["bottom"] == (512, 256) and models.parameters("lr") == {}
