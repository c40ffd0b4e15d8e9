"""Settings of all dense parameters. Plain values, so that a config can be read without torch."""

from __future__ import annotations

from dataclasses import dataclass

from gearshift.settings.declaration import ComparedOnResume, setting
from gearshift.settings.units import Number


@dataclass(frozen=True, kw_only=True)
class DensePolicy(ComparedOnResume):
    """What is done with the dense gradient of a step before it is applied."""

    clip_norm: Number | None = setting(None, "Largest norm of the dense gradient.", above=0, kept=True)
