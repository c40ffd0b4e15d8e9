"""Runs that read ahead in chunks are resized, switched, stopped and resumed in the middle of one, and lose nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gearshift as gs
from gearshift.embedding.cold_tier import ColdTier, StorageSettings
from gearshift.embedding.store import RowBlock
from gearshift.parameters.checkpoint import Checkpoint, resolve

EXAMPLES, GLOBAL, CHUNK, STEPS = 10_240, 512, 2048, 20  # chunks end after steps 1, 3, 7, 11 and 15
DATA = gs.read(gs.ClickLog(EXAMPLES))
READER = "gearshift-read"


@pytest.fixture(autouse=True)
def few_rows_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ColdTier, "share", lambda tier, part: replace(tier, hot_rows=1024))


def readers() -> int:
    return sum(thread.name == READER for thread in threading.enumerate())


class At(gs.Callback):
    """Does something after a step. Then a chunk is being trained, and the next one is read."""

    def __init__(self, actions: dict[int, Callable[[gs.Run], None]]) -> None:
        self.actions, self.readers = actions, list[int]()

    def on_step(self, run: gs.Run) -> None:
        if action := self.actions.pop(run.training.step, None):
            self.readers.append(readers())
            action(run)


def resize(workers: int) -> Callable[[gs.Run], None]:
    return lambda run: run.ask_resize(workers)


def trained(path: Path, workers: int, actions: At, *, chunks: bool = True, **more: Any) -> gs.Result:
    trainer = gs.Trainer(
        global_batch=GLOBAL,
        strategy=more.pop("strategy", "sync"),
        workers=gs.WorkerSettings(
            workers,
            threads=2,
            memory=(4 << 20) if chunks else None,
            storage=StorageSettings(lookahead=CHUNK) if chunks else None,
        ),
        checkpoint=gs.CheckpointPolicy(None, path=path),
    )
    return trainer.fit(gs.models.DeepFM(DATA.schema, dim=8, hidden=[16]), DATA, callbacks=[actions], **more)


def state(result: gs.Result) -> dict[str, np.ndarray]:
    """All parameters of the last checkpoint; rows in the order of their ids."""
    last = Checkpoint.open(resolve(result.folder))
    found = {**last.arrays("dense"), **{f"optimizer {k}": v for k, v in last.arrays("optimizer").items()}}
    blocks = list(last.rows("rows0"))
    order = np.argsort(np.concatenate([block.ids_U for block in blocks]))
    return found | {
        field.name: np.concatenate([getattr(block, field.name) for block in blocks])[order]
        for field in fields(RowBlock)
    }


def assert_same_bits(one: gs.Result, other: gs.Result) -> None:
    expected, got = state(one), state(other)
    assert expected.keys() == got.keys() and len(expected["ids_U"]) > 3000
    for name, values in expected.items():
        np.testing.assert_array_equal(got[name], values, err_msg=name)


RESIZES = {2: 4, 5: 1, 8: 2}


def resizes() -> At:
    return At({step: resize(workers) for step, workers in RESIZES.items()})


@pytest.mark.parametrize("workers", [1, 2])
def test_a_resize_in_the_middle_of_a_chunk_gives_the_same_bits_as_with_all_rows_in_memory(
    tmp_path: Path, workers: int
) -> None:
    in_memory = trained(tmp_path / "memory", workers, resizes(), chunks=False)
    in_chunks = trained(tmp_path / "chunks", workers, watched := resizes())
    assert min(watched.readers) >= 2  # one of batches, one of chunks
    assert_same_bits(in_memory, in_chunks)
    report = in_chunks.report
    assert (report["examples"], report["discarded"], report["global_steps"]) == (EXAMPLES, 0, STEPS)
    assert report["workers"] == 2 and report["tier"]["prefetched"] > 500
    assert readers() == 0


@pytest.mark.parametrize("strategy", ["gba", "async", "bounded_staleness", "easgd"])
def test_no_example_is_lost_by_resizes_in_the_middle_of_chunks(tmp_path: Path, strategy: str) -> None:
    """Each occurrence of an id in an example that counts is counted in its row."""
    result = trained(tmp_path, 2, actions := resizes(), strategy=strategy)
    report = result.report
    assert not actions.actions and actions.readers[0] >= 2
    assert report["examples"] == EXAMPLES and report["progressive"]["examples"] == EXAMPLES
    assert report["workers"] == 2 and readers() == 0
    if report["discarded"] == 0:
        occurrences = EXAMPLES * len(DATA.schema.fields)
        assert int(state(result)["touches_U"].sum(dtype=np.int64)) == occurrences


def stop(run: gs.Run) -> None:
    run.stop()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("steps", [(5,), (2, 8, 9)])
def test_a_run_that_was_stopped_in_the_middle_of_a_chunk_ends_with_the_same_bits(
    tmp_path: Path, workers: int, steps: tuple[int, ...]
) -> None:
    undisturbed = trained(tmp_path / "undisturbed", workers, At({}))
    stopped = trained(tmp_path / "stopped", workers, actions := At({steps[0]: stop}))
    for step in steps[1:]:
        assert min(actions.readers) >= 2 and readers() == 0
        assert stopped.report["global_steps"] < STEPS
        actions = At({step: stop})
        stopped = trained(tmp_path / "stopped", workers, actions, resume=stopped.folder)
    ended = trained(tmp_path / "stopped", workers, At({}), resume=stopped.folder)
    assert_same_bits(undisturbed, ended)
    assert ended.report["examples"] == EXAMPLES and ended.report["global_steps"] == STEPS
