"""What a step is made of: settings alone, so that a config is read without torch.

A key of the config's section `train` that training code uses is declared here.
"""

from __future__ import annotations

from dataclasses import dataclass

from gearshift.settings.declaration import setting
from gearshift.settings.units import Count


@dataclass(frozen=True)
class StepSettings:
    """Into which batches a worker's share of a step is cut."""

    batch: Count | None = setting(
        None, "Examples a worker takes at a time; global_batch / workers if not set.", at_least=1
    )
    micro_batches: Count = setting(
        1,
        "Into how many batches a worker's share of a step is cut, each with a gradient of its own; "
        "vr_* wants 8 over all workers.",
        at_least=1,
    )
