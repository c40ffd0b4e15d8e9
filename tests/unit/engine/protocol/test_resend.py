"""What is large is said again ever more seldom, and never not at all."""

from __future__ import annotations

from gearshift.engine.protocol.resend import ResendBackoff


def test_soon_at_first_and_then_seldom() -> None:
    again = ResendBackoff()
    assert [tick for tick in range(1, 130) if again.due()] == [1, 2, 4, 8, 16, 32, 64, 96, 128]
