"""Each rule warns when it should, and no rule warns about an ordinary run."""

from __future__ import annotations

import numpy as np
import pytest

from gearshift.metrics import Measures
from gearshift.metrics.warning_rules import Scored, warnings_of


def measures(
    separation: float = 1.0, shift: float = 0.0, size: int = 5000, rate: float = 0.2, scale: float = 1.0
) -> Measures:
    """Of predictions whose logits differ by `separation` between clicks and others, calibrated except for `shift`."""
    draw = np.random.default_rng(3)
    labels = (draw.random(size) < rate).astype(float)
    evidence = draw.normal(size=size) + separation * labels
    logits = scale * (separation * evidence - separation**2 / 2) + np.log(rate / (1 - rate)) + shift
    warnings = Measures()
    warnings.update(labels, 1 / (1 + np.exp(-logits)))
    return warnings


ORDINARY = measures()


@pytest.mark.parametrize(
    "scored",
    [
        Scored("valid", ORDINARY, training=ORDINARY),
        Scored("valid", measures(0.6), training=measures(0.65)),
        Scored("valid", measures(1.2), training=measures(0.8)),  # the model has learned since
        Scored("valid", measures(0.05, size=2000), training=measures(0.1)),  # hardly anything to learn
        Scored("valid", measures(1.8)),  # an AUC of .90
        Scored("valid", measures(shift=0.15)),
        Scored("valid", measures(6.0, size=150)),  # too few to tell
        Scored("valid", ORDINARY, unseen={"user": 0.5, "item": 0.02}),
        Scored("valid", Measures()),
    ],
)
def test_ordinary_figures_raise_no_warning(scored: Scored) -> None:
    assert warnings_of(scored) == []


def test_too_good() -> None:
    warnings = warnings_of(Scored("valid", measures(4.0)))
    assert len(warnings) == 1
    assert warnings[0].startswith("valid: an AUC of 0.99")
    assert "Remove columns that are only known after the click" in warnings[0]


def test_worse_than_a_constant() -> None:
    warnings = warnings_of(Scored("test", measures(0.5, scale=-3.0), "buy"))
    assert warnings[0].startswith("test (buy): NE is 1.")
    assert "always predicting the click rate would be better" in warnings[0]


def test_far_below_the_training_examples() -> None:
    warnings = warnings_of(Scored("valid", measures(0.3), training=measures(1.2)))
    assert len(warnings) == 1
    assert warnings[0].startswith("valid: the AUC of 0.5")
    assert "Check data.split" in warnings[0]


def test_a_gap_that_may_be_chance_is_no_gap() -> None:
    assert warnings_of(Scored("valid", measures(0.5, size=220, shift=0.1), training=measures(0.9))) == []


def test_users_that_training_never_saw() -> None:
    warnings = warnings_of(Scored("valid", ORDINARY, unseen={"user_id": 0.97, "item": 0.1}))
    assert len(warnings) == 1
    assert warnings[0].startswith(
        "valid: 97 % of the examples have an id in `user_id` that training never saw"
    )
    assert "data.split={by: hash, valid: 10%}" in warnings[0]


@pytest.mark.parametrize(
    ("shift", "words"), [(1.0, "more clicks than there are"), (-1.0, "fewer clicks than there are")]
)
def test_far_from_calibrated(shift: float, words: str) -> None:
    warnings = [
        w for w in warnings_of(Scored("valid", measures(1.2, shift), training=ORDINARY)) if "calibration" in w
    ]
    assert len(warnings) == 1
    assert words in warnings[0]
    assert "% of the training examples)" in warnings[0]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_label_of_one_value(value: float) -> None:
    warnings = Measures()
    warnings.update(np.full(300, value), np.full(300, 0.3))
    assert warnings_of(Scored("valid", warnings, training=ORDINARY, unseen={"user": 1.0})) == [
        f"valid: the label is {value:.0f} in all 300 examples, so nothing can be learned or measured there: check "
        "data.label and its `positive`, and how the data is split"
    ]
