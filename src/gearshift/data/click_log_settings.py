"""The settings of a generated click log: values alone, so that a config is read without numpy."""

from __future__ import annotations

from dataclasses import dataclass

from gearshift.settings.declaration import setting
from gearshift.settings.units import Count, Number, Share


@dataclass(frozen=True)
class ClickLogSettings:
    """The arguments of `ClickLog`; the defaults are those of a config."""

    examples: Count = setting(2_000_000, "Number of examples over all days.", at_least=1000)
    days: Count = setting(
        7, "Number of days; if there are several, the last one is for validation.", at_least=1
    )
    seed: Count = setting(1, "The same seed gives the same log on every machine.", at_least=0)
    sequences: bool = setting(False, "Add a history of items per user (for DIN).")
    drift: Number = setting(
        1.0, "How fast the click probabilities change from day to day; 0: not at all.", at_least=0, at_most=10
    )
    click_rate: Share = setting(0.2, "The share of clicks.", at_least=0.001, at_most=0.999)
