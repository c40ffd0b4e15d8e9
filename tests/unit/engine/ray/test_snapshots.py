"""Parts of a checkpoint: each shard takes its own, whoever wrote it; who holds no rows looks at none."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.embedding.sharded import IdPlacement
from gearshift.engine.ray.connection import layout_of
from gearshift.engine.ray.snapshots import PARTS, ShardSnapshot, commit, load_part
from gearshift.errors import UserError
from gearshift.parameters.average import CLOCK
from gearshift.parameters.checkpoint import Arrays, Checkpoint, write
from gearshift.parameters.row_changes import RowDigest, by_partition
from gearshift.training.learner import Learner, is_of_rows


def a_learner(folder: Path) -> Learner:
    torch.manual_seed(5)
    trainer = gs.Trainer(global_batch=60, checkpoint=gs.CheckpointPolicy(path=str(folder)))
    model = gs.models.DeepFM(PLAIN, dim=4, hidden=[8], batch_norm=True)
    return trainer.prepare(model, gs.read(make_batch(PLAIN, 600), PLAIN)).training.learner


def trained(folder: Path, examples: int = 600) -> Path:
    """The last checkpoint of a run of threads."""
    torch.manual_seed(5)
    trainer = gs.Trainer(global_batch=60, checkpoint=gs.CheckpointPolicy(path=str(folder)))
    model = gs.models.DeepFM(PLAIN, dim=4, hidden=[8], batch_norm=True)
    run = trainer.start(model, gs.read(make_batch(PLAIN, 600), PLAIN).head(examples))
    run.wait(60)
    return (run.folder / "checkpoints" / "last").resolve()


def with_velocity(folder: Path, source: Path, velocity: np.ndarray) -> Path:
    """The same checkpoint, as of a run with bmuf on threads."""
    saved, path = Checkpoint.open(source), folder / "with-velocity"
    names = {name.removesuffix(".safetensors") for name in saved.files if not is_of_rows(name)}
    arrays = {name: saved.arrays(name) for name in names} | {"replicas": {"velocity": velocity}}
    write(path, saved.facts, arrays, {"rows0": saved.rows("rows0")})
    return path


def parted(folder: Path, shards: int, source: Path, more: dict[str, Arrays] | None = None) -> Path:
    """The same checkpoint, as so many shards write it."""
    learner = a_learner(folder)
    layout, beside, path = layout_of(learner, shards), folder / "beside", folder / f"in-{shards}"
    for shard in range(shards):
        ShardSnapshot.of(load_part(a_learner(folder), layout, shard, source), shard).write(beside)
    saved = Checkpoint.open(source)
    commit(learner, layout, beside, path, saved.facts, {"progress": saved.arrays("progress"), **(more or {})})
    return path


def ids_of(server: object) -> np.ndarray:
    store = server.stores[0]  # type: ignore[attr-defined]
    return np.sort(np.concatenate([block.ids_U for block in store.blocks()] or [np.empty(0, np.int64)]))


@pytest.mark.parametrize(("writers", "readers"), [(1, 1), (3, 3), (3, 2), (2, 3)])
def test_any_number_of_shards_takes_what_is_theirs(tmp_path: Path, writers: int, readers: int) -> None:
    whole = trained(tmp_path)
    every = np.sort(np.concatenate([block.ids_U for block in Checkpoint.open(whole).rows("rows0")]))
    path = parted(tmp_path, writers, whole)
    for shard in range(readers):
        learner = a_learner(tmp_path)
        server = load_part(learner, layout_of(learner, readers), shard, path)
        np.testing.assert_array_equal(ids_of(server), every[IdPlacement(every, readers).groups[shard]])


@pytest.mark.parametrize(("writers", "readers"), [(1, 1), (3, 3), (3, 2), (2, 3)])
def test_the_velocity_of_bmuf_is_saved_as_a_run_of_threads_saves_it(
    tmp_path: Path, writers: int, readers: int
) -> None:
    size = len(a_learner(tmp_path).worker.dense)
    velocity = np.random.default_rng(1).normal(size=size).astype(np.float32)
    source = with_velocity(tmp_path, trained(tmp_path), velocity)
    asked = {"replicas": {"velocity": np.zeros(size, np.float32)}}  # its values come from the shards
    path = parted(tmp_path, writers, source, asked)
    saved = Checkpoint.open(path).arrays("replicas")
    assert saved.keys() == {"velocity"}
    np.testing.assert_array_equal(saved["velocity"], velocity)
    learner = a_learner(tmp_path)
    layout = layout_of(learner, readers)
    parts = [load_part(learner, layout, shard, path).block_velocity for shard in range(readers)]
    np.testing.assert_array_equal(torch.cat(parts).numpy(), velocity)


@pytest.mark.parametrize(("writers", "readers"), [(1, 1), (3, 3), (3, 2), (2, 3)])
def test_the_average_is_saved_as_a_run_of_threads_saves_it(
    tmp_path: Path, writers: int, readers: int
) -> None:
    source = trained(tmp_path)
    path = parted(tmp_path, writers, source)
    expected, saved = (Checkpoint.open(each).arrays("average") for each in (source, path))
    assert expected.keys() == saved.keys() and expected[CLOCK].tolist() == [10.0, 0.0]
    for name, values in expected.items():
        np.testing.assert_array_equal(saved[name], values)
    learner = a_learner(tmp_path)
    layout = layout_of(learner, readers)
    parts = [load_part(learner, layout, shard, path).average for shard in range(readers)]
    whole = torch.cat([part.flat for part in parts if part is not None])
    assert all(part is not None and part.clock.age == 10.0 for part in parts)
    for name, values in learner.worker.dense.views(whole).items():
        np.testing.assert_array_equal(values.numpy(), expected[name])


def test_without_a_velocity_none_is_loaded(tmp_path: Path) -> None:
    whole = trained(tmp_path)
    path = parted(tmp_path, 2, with_velocity(tmp_path, whole, np.ones(len(a_learner(tmp_path).worker.dense))))
    assert not Checkpoint.open(path).has("replicas"), "it was not asked for: another pass begins without it"
    layout = layout_of(a_learner(tmp_path), 2)
    for source in (whole, path):
        assert load_part(a_learner(tmp_path), layout, 1, source).block_velocity is None


def test_a_shard_reads_no_files_of_others(tmp_path: Path) -> None:
    path = parted(tmp_path, 3, trained(tmp_path))
    assert Checkpoint.open(path).facts[PARTS] == 3
    damaged = next(path.glob("rows0-s1-*"))
    damaged.write_bytes(damaged.read_bytes()[:-4096] + b"x" * 4096)
    layout = layout_of(a_learner(tmp_path), 3)
    for shard in (0, 2):
        assert len(ids_of(load_part(a_learner(tmp_path), layout, shard, path)))
    with pytest.raises(UserError, match=f"{damaged.name} is corrupt"):
        load_part(a_learner(tmp_path), layout, 1, path)
    with pytest.raises(UserError, match="is corrupt"):
        load_part(a_learner(tmp_path), layout_of(a_learner(tmp_path), 2), 0, path)


def test_who_holds_no_rows_opens_none(tmp_path: Path) -> None:
    path = trained(tmp_path)
    for file in path.glob("rows*"):
        file.unlink()
    saved = Checkpoint.open(path, lambda file: not is_of_rows(file))
    learner = a_learner(tmp_path)
    learner.restore(saved)
    assert learner.server.step == 10 and not len(ids_of(learner.server))
    with pytest.raises(UserError, match="is missing"):
        Checkpoint.open(path)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 1)])
def test_a_delta_joins_checkpoints_of_different_numbers_of_shards(
    tmp_path: Path, before: int, after: int
) -> None:
    folder, run = tmp_path / "runs", tmp_path / "runs" / "run"
    base, newer = trained(tmp_path / "short", 300), trained(tmp_path / "long", 600)
    (folder / "run" / "checkpoints").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    for shards, source in ((before, base), (after, newer)):
        of_shards = parted(tmp_path / f"{shards}", shards, source)
        of_shards.rename(run / "checkpoints" / source.name)
    (run / "checkpoints" / "last").symlink_to(newer.name)
    delta = gs.write_delta(run, 5)
    assert 0 < delta.changed <= delta.rows
    full = gs.apply_deltas(run / "checkpoints" / base.name, [delta.path], tmp_path / "full")
    left, right = (
        RowDigest().reading(by_partition(Checkpoint.open(path).rows("rows0"))) for path in (full, newer)
    )
    for (number, block), (expected_number, expected) in zip(left, right, strict=True):
        assert number == expected_number
        for field in fields(block):
            np.testing.assert_array_equal(getattr(block, field.name), getattr(expected, field.name))
