from __future__ import annotations

import pytest

from gearshift.errors import nearest_name, unknown_name


def test_the_nearest_name_is_told() -> None:
    error = unknown_name("model", "DepFM", ["deepfm", "dnn"])
    assert str(error) == "unknown model `DepFM`. Did you mean `deepfm`? (deepfm, dnn)"


def test_without_a_near_one_only_the_choice_is() -> None:
    assert str(unknown_name("model", "xyz", ["dnn"])) == "unknown model `xyz`. (dnn)"
    assert str(unknown_name("parameter", "xyz", [])) == "unknown parameter `xyz`. (none exist)"


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("modle", ["mode", "model"], "model"),  # codespell:ignore modle
        ("workres", ["works", "workers"], "workers"),
        ("lable", ["able", "label", "table"], "label"),  # codespell:ignore lable
        ("epoch", ["epochs", "every"], "epochs"),
        ("xyz", ["model"], None),
    ],
)
def test_the_fewest_typing_errors_win(typed: str, known: list[str], meant: str | None) -> None:
    assert nearest_name(typed, known) == meant
