"""How often a large unanswered message is resent: a slow link must not be filled with copies."""

from __future__ import annotations

SELDOM = 32  # ticks


class ResendBackoff:
    def __init__(self) -> None:
        self._ticks = 0  # since it was first sent

    def restart(self) -> None:
        """As if it had just been sent: it goes another way from now on."""
        self._ticks = 0

    def due(self) -> bool:
        """Called at every tick. True after 1, 2, 4, 8, 16 and 32 ticks, and then every 32."""
        self._ticks += 1
        return self._ticks % SELDOM == 0 or (self._ticks.bit_count() == 1 and self._ticks < SELDOM)
