from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from gearshift.errors import UserError
from gearshift.models import MLP, Fields, Inputs, seed_dropout
from gearshift.models.layers import ACTIVATIONS, BatchNorm, Dice, Dropout, InputLinear


def test_mlp_order_is_linear_norm_activation_dropout() -> None:
    mlp = MLP(3, [5, 4], 2, batch_norm=True, dropout=0.1)
    kinds = [type(layer).__name__ for layer in mlp]
    assert kinds == ["Linear", "BatchNorm", "ReLU", "Dropout"] * 2 + ["Linear"]
    assert mlp.width == 2 and mlp(torch.randn(7, 3)).shape == (7, 2)
    assert MLP(3, [5, 4]).width == 4 and MLP(3, []).width == 3


def test_first_weights_keep_the_scale_of_the_signal() -> None:
    torch.manual_seed(0)
    mlp = MLP(300, [400] * 6)
    out = mlp(torch.randn(500, 300))
    assert 0.3 < out.square().mean().sqrt() < 3.0  # with torch's own default: .02
    assert all((m.bias == 0).all() for m in mlp if isinstance(m, nn.Linear))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str) -> None:
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    mlp = MLP(3, [4], 1, activation=activation).double()
    assert torch.autograd.gradcheck(mlp, (x,))


def test_dice_in_its_two_limits() -> None:
    x = torch.randn(50, 2)
    dice = Dice(2).eval()
    torch.testing.assert_close(
        dice(x), x * torch.sigmoid(x / (1 + 1e-8) ** 0.5)
    )  # alpha 0, mean 0, variance 1
    nn.init.ones_(dice.alpha)
    torch.testing.assert_close(dice(x), x)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"activation": "rellu"}, "Did you mean `relu`?"),
        ({"hidden": [0]}, "a list of widths"),
        ({"hidden": "400"}, "a list of widths"),
        ({"dropout": 1.0}, "dropout is the share"),
    ],
)
def test_options_are_checked(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        MLP(3, **({"hidden": [4]} | options))  # type: ignore[arg-type]
    assert sentence in str(error.value)


def test_batch_norm_lets_one_example_pass() -> None:
    norm = BatchNorm(3)
    norm(torch.randn(20, 3) * 2 + 1)
    x = torch.randn(1, 3)
    got = norm(x)
    torch.testing.assert_close(got, norm.eval()(x))


def test_seeded_dropout_drops_the_same_whatever_else_is_drawn() -> None:
    net = nn.Sequential(Dropout(0.5), Dropout(0.5))
    twin, x = copy.deepcopy(net), torch.ones(40, 10)
    seed_dropout(net, 7)
    first = net(x)
    torch.rand(5)
    seed_dropout(twin, 7)
    assert torch.equal(twin(x), first)
    seed_dropout(net, 8)
    assert not torch.equal(net(x), first)
    assert not torch.equal(net[0](x), net[1](x))  # each layer has its own zeros


def test_dropout_keeps_the_mean_and_rests_in_evaluation() -> None:
    layer, x = Dropout(0.25), torch.ones(400, 100)
    for seed in (None, 3):
        layer.seed = seed
        out = layer(x)
        assert abs(float((out == 0).float().mean()) - 0.25) < 0.01 and abs(float(out.mean()) - 1) < 0.02
    assert layer.eval()(x) is x


def test_input_linear_is_the_linear_layer_over_all() -> None:
    whole = nn.Linear(2 + 6, 5)
    numeric, rows = torch.randn(4, 2, requires_grad=True), torch.randn(4, 3, 2, requires_grad=True)
    x = Inputs(numeric, Fields("abc", rows))
    torch.testing.assert_close(InputLinear(whole, 2)(x), whole(x.flat()))
    InputLinear(whole, 2)(x).square().sum().backward()
    got = numeric.grad, rows.grad
    numeric.grad = rows.grad = None
    whole(x.flat()).square().sum().backward()
    torch.testing.assert_close(got, (numeric.grad, rows.grad))
