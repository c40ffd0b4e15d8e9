"""How fast an average of the dense parameters moves. Plain values, so that a config can be read without torch.

Its age is counted in global batches, so its horizon does not depend on how a global batch is cut: after `share` global
batches it keeps `decay ** share` of itself.

The first weights are random and must not stay in the average. So a young average keeps no more than
`(age / (age + share)) ** young`: nothing at the first step, and then about the newest 1 / (young + 1) of the run so
far, until that is longer than the horizon of `decay` (power function averaging: Karras et al. 2024, arXiv 2312.02696,
equation 2). Such factors telescope: many small steps keep as much as one large step. So the average need not move after
every step either: it moves `MOVES` times per horizon, or at every step while that is shorter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MOVES = 50


@dataclass(frozen=True)
class AverageRule:
    decay: float = 0.999  # per global batch
    young: float = 19.0

    def __str__(self) -> str:
        return f"average, decay {self.decay:g}"

    def kept(self, age: float, share: float) -> float:
        """How much of an average of this age remains after `share` more global batches."""
        return min(math.pow(self.decay, share), math.pow(age / (age + share), self.young))

    def is_due(self, age: float, waiting: float) -> bool:
        """Whether an average of this age moves, after `waiting` global batches."""
        horizon = min(1.0 / (1.0 - self.decay), age / self.young)
        return waiting > 0.0 and waiting * MOVES >= horizon
