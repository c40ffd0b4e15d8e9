"""Real processes on this host: they train to the end with the laws kept, whoever is killed and whoever knocks."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
import zmq

from gearshift.engine.protocol.messages import To
from tests.wire.cluster import EXAMPLES, GLOBAL_BATCH, Cluster, cluster
from tests.wire.test_endpoint import client, head, raw

STEPS = EXAMPLES // GLOBAL_BATCH


def test_a_run_goes_to_its_end() -> None:
    with cluster(curve=False) as running:
        found = running.finish()
    assert found["step"] == STEPS and found["incarnation"] == 1


@pytest.mark.parametrize(("curve", "strategy"), [(False, "gba"), (True, "sync")], ids=["ipc", "curve"])
def test_killed_processes_do_not_break_the_laws(curve: bool, strategy: str) -> None:
    with cluster(curve=curve, strategy=strategy) as running:
        running.until(lambda: running.steps() > STEPS // 5)
        running.kill(To("worker", 1))
        running.until(lambda: running.steps() > STEPS * 2 // 5)
        kill_and_restart(running, To("shard", 0))
        running.until(lambda: running.steps() > STEPS * 3 // 5)
        kill_and_restart(running, To("coordinator"))
        running.start(To("worker", 1))
        found = running.finish()
    assert found["incarnation"] >= 3


def kill_and_restart(running: Cluster, who: To) -> None:
    running.kill(who)
    running.start(who)


def test_strangers_do_not_disturb_a_run() -> None:
    with cluster(curve=True) as running:
        running.until(lambda: running.steps() > STEPS // 10)
        contacts = {contact.who: contact for contact in running.place.contacts()}
        public, secret = zmq.curve_keypair()
        keys = {"curve_publickey": public, "curve_secretkey": secret}
        for who in (To("coordinator"), To("shard", 0)):
            address, key = contacts[who].address, contacts[who].key.encode()
            with client(address) as keyless, client(address, curve_serverkey=key, **keys) as unknown:
                for stranger in (keyless, unknown):
                    with suppress(zmq.Again):  # it may have been refused before it could say a word
                        stranger.send(head(), zmq.NOBLOCK)
                noise = [raw(address, os.urandom(1000)) for _ in range(5)]
                so_far = running.steps()
                running.until(lambda n=so_far: running.steps() > n + STEPS // 10)
                for connection in noise:
                    connection.close()
        found = running.finish()
    assert found["incarnation"] == 1 and found["step"] == STEPS
    for refused in (found["refused"], found["shards"][0]["refused"]):
        assert refused["a handshake with an unknown key"] >= 1
        assert refused["a connection without a handshake"] >= 4
    # Nobody came there; a member's own connection may break once before it is known.
    assert found["shards"][1]["refused"].get("a connection without a handshake", 0) < 4
