"""Process groups as workers use them: real processes, sums with the same bits, and what a peer that is gone leaves."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from gearshift.engine.protocol.all_reduce import GroupRank
from gearshift.engine.ray.all_reduce import AllReduceError, AllReduceMember

SIZE, PATIENCE = 1000, 30.0
PROCESSES = mp.get_context("forkserver")
PROCESSES.set_forkserver_preload(["gearshift.engine.ray.all_reduce"])
EXAMPLES = 4.0
Asked = tuple[int, GroupRank, int, bool]  # incarnation, place, seed of the gradient, whether it can be used


def dense(seed: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def member(folder: Path, pipe: Connection, spread: bool) -> None:
    """Reduces what it is asked to; says what came of it."""
    torch.set_num_threads(1)
    end = AllReduceMember(folder, "127.0.0.1", SIZE, PATIENCE, spread=spread)
    while (asked := pipe.recv()) is not None:
        incarnation, place, seed, usable = asked
        try:
            end.stay_in(incarnation, place.group)
            if place.group:
                end.reduce(place, dense(seed), EXAMPLES if usable else 0.0)
            pipe.send(end.sum_P.numpy().tobytes() + (end.variance_P.numpy().tobytes() if spread else b""))
        except AllReduceError as error:
            pipe.send(str(error))
    end.close()


class Members:
    def __init__(self, folder: Path, count: int, spread: bool = False) -> None:
        self.folder = folder
        self._pipes, self.processes = [], []
        for _ in range(count):
            ours, theirs = PROCESSES.Pipe()
            process = PROCESSES.Process(target=member, args=(folder, theirs, spread), daemon=True)
            process.start()
            self._pipes.append(ours)
            self.processes.append(process)

    def ask(self, rank: int, *what: Any) -> None:
        self._pipes[rank].send(what)

    def answer(self, rank: int) -> Any:
        assert self._pipes[rank].poll(60), f"rank {rank} does not answer"
        return self._pipes[rank].recv()

    def reduce(
        self, ring: int, ranks: int, seed: int, *, usable: bool = True, incarnation: int = 1
    ) -> list[Any]:
        for rank in range(ranks):
            self.ask(rank, incarnation, GroupRank(ring, rank, ranks), seed + rank, usable or rank > 0)
        return [self.answer(rank) for rank in range(ranks)]

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self.processes, strict=True):
            if process.is_alive():
                pipe.send(None)
            process.join(30)
            if process.is_alive():
                process.kill()


@contextmanager
def members(folder: Path, count: int, spread: bool = False) -> Iterator[Members]:
    made = Members(folder, count, spread)
    try:
        yield made
    finally:
        made.close()


def test_all_have_the_same_bits_round_after_round_and_ring_after_ring(tmp_path: Path) -> None:
    with members(tmp_path, 3) as ring:
        for number, ranks, seed in ((1, 3, 0), (1, 3, 10), (2, 2, 20), (4, 3, 30)):
            sums = ring.reduce(number, ranks, seed)
            assert len(set(sums)) == 1 and isinstance(sums[0], bytes), sums
            expected = sum(dense(seed + rank) for rank in range(ranks))
            torch.testing.assert_close(torch.frombuffer(bytearray(sums[0]), dtype=torch.float32), expected)
        again = ring.reduce(1, 3, 0, incarnation=2)
        assert isinstance(again[0], bytes)
    assert not list(tmp_path.iterdir())


def test_a_ring_finds_the_variance_on_the_way(tmp_path: Path) -> None:
    """Also when it is another ring, with other members, or one that had a gradient which could not be used."""
    with members(tmp_path, 3, spread=True) as ring:
        for number, ranks, seed in ((1, 3, 0), (1, 3, 10), (2, 2, 20), (4, 3, 30)):
            both = ring.reduce(number, ranks, seed)
            assert len(set(both)) == 1 and isinstance(both[0], bytes), both
            total, variance = torch.frombuffer(bytearray(both[0]), dtype=torch.float32).view(2, SIZE)
            gradients = torch.stack([dense(seed + rank) for rank in range(ranks)])
            torch.testing.assert_close(total, gradients.sum(0))
            expected = (gradients / EXAMPLES).var(0, correction=0)
            torch.testing.assert_close(variance, expected, rtol=1e-4, atol=1e-6)
        refused = ring.reduce(4, 3, 40, usable=False)
        assert refused == ["a gradient that cannot be used"] * 3
        assert len(set(ring.reduce(5, 3, 50))) == 1


@pytest.mark.parametrize("spread", [False, True])
def test_one_without_a_gradient_keeps_nobody_waiting(tmp_path: Path, spread: bool) -> None:
    with members(tmp_path, 2, spread) as ring:
        assert ring.reduce(1, 2, 0, usable=False) == ["a gradient that cannot be used"] * 2


@pytest.mark.parametrize("how", ["killed", "elsewhere"])
def test_who_waits_for_one_that_is_gone_is_told(tmp_path: Path, how: str) -> None:
    """Long before its patience ends."""
    with members(tmp_path, 3) as ring:
        assert isinstance(ring.reduce(1, 3, 0)[0], bytes)
        for rank in (0, 1):
            ring.ask(rank, 1, GroupRank(1, rank, 3), rank, True)
        if how == "killed":
            os.kill(ring.processes[2].pid, signal.SIGKILL)
        else:
            ring.ask(2, 2, GroupRank(), 0, True)  # another incarnation, and a round without a ring
        for rank in (0, 1):
            assert isinstance(ring.answer(rank), str)
        assert isinstance(ring.reduce(2, 2, 5)[1], bytes)  # the others go on
