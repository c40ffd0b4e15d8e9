from __future__ import annotations

import pytest
import torch

from gearshift.data.schema import Bag, Categorical, Numeric, Schema, Sequence
from gearshift.errors import UserError
from gearshift.models import DIN, AttentionSettings, Inputs, SequenceRows, build
from gearshift.models.din import Attention
from gearshift.models.inputs import join

from .feed import random_inputs

HISTORY = Sequence("recent", share_embedding="item")
SCHEMA = Schema((Numeric("price"), Categorical("item"), Bag("tags", dim=2), HISTORY, Sequence("searches")))


def test_attention_against_a_loop() -> None:
    unit = Attention(3, [6], "prelu")
    target, rows, lengths = torch.randn(4, 3), torch.randn(4, 5, 3), [0, 2, 5, 1]
    mask = torch.arange(5) < torch.tensor(lengths).unsqueeze(1)
    got = unit(target, SequenceRows(rows, mask))
    for b in range(4):
        want = torch.zeros(3)
        for item in rows[b, : lengths[b]]:
            weight = unit.unit(torch.cat([target[b], item, target[b] * item]).unsqueeze(0))[0, 0]
            want = want + weight * item
        torch.testing.assert_close(got[b], want)


def padded(x: Inputs, more: int) -> Inputs:
    """The same sequences with more padding, full of rubbish."""
    longer = {
        name: SequenceRows(
            torch.cat(
                [s.rows.masked_fill(~s.mask[:, :, None], 7.0), torch.full((5, more, s.rows.shape[2]), 9.0)], 1
            ),
            torch.cat([s.mask, torch.zeros(5, more, dtype=torch.bool)], 1),
        )
        for name, s in x.sequences.items()
    }
    return Inputs(x.numeric, x.fields, longer, x.linear)


@pytest.mark.parametrize("activation", ["dice", "prelu", "sigmoid"])
@pytest.mark.parametrize("training", [True, False])
def test_padding_changes_nothing(activation: str, training: bool) -> None:
    history = Schema((Numeric("price"), Categorical("item"), HISTORY))
    model = DIN(history, dim=4, hidden=[8], attention=AttentionSettings(activation=activation)).train(
        training
    )
    x = random_inputs(history, model)
    torch.testing.assert_close(model(x), model(padded(x, 3)))


def test_a_config_names_the_settings_of_attention_one_by_one() -> None:
    keys = {"attention": [5], "attention_activation": "prelu", "target": "item", "history": "recent"}
    built = build("din", SCHEMA, seed=3, dim=4, **keys)
    assert isinstance(built, DIN) and built.params == {"dim": 4, **keys}
    together = AttentionSettings((5,), "prelu")
    called = build("din", SCHEMA, seed=3, dim=4, attention=together, target="item", history="recent")
    assert called.params == {**built.params, "attention": (5,)} and str(called) == str(built)


def test_the_keyword_of_an_earlier_version_names_its_new_place() -> None:
    with pytest.raises(
        UserError, match=r"DIN has no attention_activation any more: DIN\(schema, attention=gs"
    ):
        DIN(SCHEMA, attention_activation="prelu")


def test_the_target_decides_what_counts() -> None:
    model = DIN(SCHEMA, dim=4, hidden=[8], target="item", history="recent")
    assert model.pairs == [("item", "recent")] and model.averaged == ["searches"]
    x = random_inputs(SCHEMA, model)
    x.sequences["recent"].mask[:] = True
    pooled = model.attention[0](x.fields["item"], x.sequences["recent"])
    other = model.attention[0](-x.fields["item"], x.sequences["recent"])
    assert not torch.allclose(pooled, other, atol=1e-3)


def test_what_goes_into_the_mlp() -> None:
    model = DIN(SCHEMA, dim=4, hidden=[8], target="item", history="recent").eval()
    x = random_inputs(SCHEMA, model)
    attended = model.attention[0](x.fields["item"], x.sequences["recent"])
    parts = [x.numeric, x.fields["item"], x.fields["tags"], attended, x.sequences["searches"].mean()]
    torch.testing.assert_close(model(x), model.mlp(join(parts))[:, 0])


def test_a_batch_of_empty_histories() -> None:
    schema = Schema((Categorical("item"), HISTORY))
    model = DIN(schema, dim=4, hidden=[8])
    x = random_inputs(schema, model)
    x.sequences["recent"].mask[:] = False
    out = model(x)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(buffer.isfinite().all() for buffer in model.buffers())  # Dice saw no item


def test_by_default_a_history_is_compared_with_the_field_it_shares() -> None:
    assert DIN(Schema((Categorical("item"), HISTORY)), dim=4).pairs == [("item", "recent")]


@pytest.mark.parametrize(
    ("schema", "options", "sentence"),
    [
        (Schema((Categorical("item"),)), {}, "needs a feature of type sequence"),
        (SCHEMA, {}, "which field to compare sequence `searches` with"),
        (SCHEMA, {"history": "recentt"}, "Did you mean `recent`?"),
        (SCHEMA, {"history": "recent", "target": "itemm"}, "Did you mean `item`?"),
        (SCHEMA, {"history": "recent", "target": "tags"}, "compares `recent` (dim 16) with `tags` (dim 2)"),
        (SCHEMA, {"history": ["recent"], "target": ["item", "tags"]}, "1 histories (recent) and 2 targets"),
        (Schema((HISTORY,)), {}, "which field to compare sequence `recent` with"),
    ],
)
def test_what_does_not_fit_is_said(schema: Schema, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        DIN(schema, **options)
    assert sentence in str(error.value)
