"""How often what was not answered is said again, if it is large: a link that is slow must not be filled with copies."""

from __future__ import annotations

SELDOM = 32  # ticks


class ResendBackoff:
    def __init__(self) -> None:
        self._ticks = 0  # since it was said first

    def due(self) -> bool:
        """Asked at every tick: yes after 1, 2, 4, 8, 16 and 32 of them, and then every 32."""
        self._ticks += 1
        return self._ticks % SELDOM == 0 or (self._ticks.bit_count() == 1 and self._ticks < SELDOM)
