"""The least number of steps that a run should make, and the smallest batch chosen to reach it. Knows no data."""

from __future__ import annotations

FEW_STEPS = 50  # with fewer an optimizer cannot converge
SMALL_BATCH = 32  # a smaller batch is not worthwhile; more epochs help then


def halved_for_steps(batch: int, examples: float) -> int:
    """The batch, halved until `examples` are enough for `FEW_STEPS` steps.

    >>> halved_for_steps(256, 20_000), halved_for_steps(256, 4_000), halved_for_steps(256, 100)
    (256, 64, 32)
    """
    while batch > SMALL_BATCH and examples < FEW_STEPS * batch:
        batch //= 2
    return batch
