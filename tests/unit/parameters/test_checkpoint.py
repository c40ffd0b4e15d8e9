"""A checkpoint is complete or absent; every defect gives a clear error."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from gearshift.embedding import row_files
from gearshift.embedding.store import RowBlock
from gearshift.errors import UserError
from gearshift.parameters import checkpoint
from gearshift.parameters.checkpoint import Checkpoint, CheckpointFolder


def block(rows: int) -> RowBlock:
    numbers = np.arange(rows, dtype=np.uint32)
    weights = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
    return RowBlock(np.arange(rows), weights, weights * 2, numbers, numbers + 1, numbers + 2)


def write(path: Path, rows: int = 8) -> None:
    arrays = {"dense": {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, "empty": {}}
    checkpoint.write(path, {"step": 7}, arrays, {"rows0": [block(rows)]})


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "step-7")
    opened = Checkpoint.open(tmp_path / "step-7")
    assert opened.facts == {"step": 7} and opened.arrays("empty") == {}
    np.testing.assert_array_equal(opened.arrays("dense")["w"], np.arange(6).reshape(2, 3))
    assert_rows(opened, block(8))


def assert_rows(opened: Checkpoint, expected: RowBlock) -> None:
    """The same rows, in any order."""
    blocks = list(opened.rows("rows0"))
    order = np.argsort(np.concatenate([b.ids_U for b in blocks]))
    for field in fields(RowBlock):
        values = np.concatenate([getattr(b, field.name) for b in blocks])[order]
        np.testing.assert_array_equal(values, getattr(expected, field.name))
        assert values.dtype == getattr(expected, field.name).dtype


def test_many_rows_go_to_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "one", 1000)
    monkeypatch.setattr(row_files, "FILE_BYTES", 10_000)
    write(tmp_path / "several", 1000)
    assert len(list((tmp_path / "one").glob("rows0-*"))) == 1
    assert 2 <= len(list((tmp_path / "several").glob("rows0-*"))) <= 8
    for name in ("one", "several"):
        assert_rows(Checkpoint.open(tmp_path / name), block(1000))


def test_rows_as_earlier_versions_wrote_them_are_read(tmp_path: Path) -> None:
    rows = block(8)
    names = {"ids": rows.ids_U, "weights": rows.weights_UW, "state": rows.state_US, "touches": rows.touches_U}
    names |= {"last_step": rows.last_step_U, "updates": rows.updates_U}
    checkpoint.write(tmp_path / "a", {"step": 7}, {"rows0-0000": names}, {})
    assert json.loads((tmp_path / "a" / "manifest.json").read_text())["format"] == 1
    assert_rows(Checkpoint.open(tmp_path / "a"), rows)


def test_one_flipped_bit_is_found(tmp_path: Path) -> None:
    write(tmp_path / "a")
    file = tmp_path / "a" / "dense.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"dense\.safetensors is corrupt"):
        Checkpoint.open(tmp_path / "a")


def test_a_missing_file_is_found(tmp_path: Path) -> None:
    write(tmp_path / "a")
    (tmp_path / "a" / "rows0-00-000.gsr").unlink()
    with pytest.raises(UserError, match=r"rows0-00-000\.gsr is missing"):
        Checkpoint.open(tmp_path / "a")


@pytest.mark.parametrize(("version", "word"), [(checkpoint.FORMAT_DELTA + 1, "newer"), (0, "older")])
def test_another_format_is_told(tmp_path: Path, version: int, word: str) -> None:
    write(tmp_path / "a")
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    (tmp_path / "a" / "manifest.json").write_text(json.dumps(manifest | {"format": version}))
    with pytest.raises(UserError, match=f"has format {version}, {word} than"):
        Checkpoint.open(tmp_path / "a")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', "not json"])
def test_a_foreign_manifest_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="not a Gearshift manifest"):
        Checkpoint.open(tmp_path)


def test_a_folder_without_manifest_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"it has no manifest\.json"):
        Checkpoint.open(tmp_path)


def test_a_failure_half_way_leaves_nothing_and_keeps_the_old(tmp_path: Path) -> None:
    write(tmp_path / "a")

    def broken() -> Iterator[RowBlock]:
        yield block(2)
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        checkpoint.write(tmp_path / "a", {"step": 8}, {}, {"rows0": broken()})
    assert Checkpoint.open(tmp_path / "a").facts == {"step": 7}
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_is_a_disk_error_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        write(small / "first")
        with pytest.raises(OSError) as caught:
            checkpoint.write(small / "second", {}, {"dense": {"w": np.zeros(100_000, np.float32)}}, {})
        assert caught.value.errno == errno.ENOSPC
        assert [p.name for p in small.iterdir()] == ["first"]
        Checkpoint.open(small / "first")
    finally:
        subprocess.run(["umount", small], check=True)


def test_links_and_pruning(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (5, 10, 100, 200):
        write(folder.path(step))
        folder.link("last", folder.path(step))
        if step == 10:
            folder.link("best", folder.path(step))
        folder.prune()
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-10", "step-100", "step-200"]
    assert (tmp_path / "best").resolve().name == "step-10" and (
        tmp_path / "last"
    ).resolve().name == "step-200"


def test_a_run_folder_resolves_to_its_best_then_its_last(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=9)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="no checkpoint yet"):
        checkpoint.resolve(tmp_path)
    write(folder.path(1))
    folder.link("last", folder.path(1))
    assert checkpoint.resolve(tmp_path).name == "step-1"
    write(folder.path(2))
    folder.link("best", folder.path(2))
    assert checkpoint.resolve(tmp_path).name == "step-2"
    assert checkpoint.resolve(folder.path(1)).name == "step-1"
    with pytest.raises(UserError, match="neither a run folder"):
        checkpoint.resolve(tmp_path / "nothing")
