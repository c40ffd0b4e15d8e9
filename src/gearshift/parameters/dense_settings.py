"""Settings of all dense parameters. Plain values, so that a config can be read without torch."""

from __future__ import annotations

from dataclasses import dataclass

from gearshift.settings.declaration import setting
from gearshift.settings.units import Number


@dataclass(frozen=True, kw_only=True)
class DensePolicy:
    """How the dense gradient of a step is processed before it is applied."""

    clip_norm: Number | None = setting(None, "Largest norm of the dense gradient.", above=0, kept=True)
