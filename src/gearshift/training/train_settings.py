"""The composition of a step. Settings only, so that a config can be read without torch.

A key of the config's section `train` that training code uses is declared here.
"""

from __future__ import annotations

from dataclasses import dataclass

from gearshift.settings.declaration import setting
from gearshift.settings.units import Count


@dataclass(frozen=True)
class StepSettings:
    """How a worker's share of a step is divided into batches."""

    batch: Count | None = setting(
        None, "Examples a worker takes at a time; global_batch / workers if not set.", at_least=1
    )
    micro_batches: Count = setting(
        1,
        "Number of batches that a worker's share of a step is divided into, each with its own gradient; "
        "vr_* needs 8 over all workers.",
        at_least=1,
    )
