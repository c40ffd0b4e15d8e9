"""Which machines have a relay: those with several workers and, unless it is forced, a shard elsewhere."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.actors.relays import machines_with_relays


@pytest.mark.parametrize(
    ("workers", "shards", "auto", "on"),
    [
        ("aa", "b", "a", "a"),
        ("aa", "ab", "a", "a"),
        ("aa", "a", "", "a"),
        ("ab", "c", "", ""),
        ("aabb", "a", "b", "ab"),
        ("aab", "", "", "a"),
    ],
)
def test_machines(workers: str, shards: str, auto: str, on: str) -> None:
    places = {To("worker", i): (i, machine) for i, machine in enumerate(workers)}
    places |= {To("shard", i): (i, machine) for i, machine in enumerate(shards)}
    assert machines_with_relays(places, "auto") == list(auto)
    assert machines_with_relays(places, "on") == list(on)
    assert machines_with_relays(places, "off") == []
