"""Rows for serving: what is written is found again, to the stated precision, and no damage goes unnoticed."""

from __future__ import annotations

import multiprocessing
import struct
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gearshift as gs
from gearshift.cli import app as cli
from gearshift.embedding.frozen_rows import RowPrecision, write_blocks
from gearshift.embedding.row_files import (
    NO_IDS,
    PartitionChanges,
    RowStack,
    blocks_of,
    changes_in,
    write_changes,
)
from gearshift.embedding.store import RowAdagrad, RowBlock, RowPart
from gearshift.embedding.table_store import MemoryStore
from gearshift.errors import UserError
from gearshift.parameters.row_changes import by_partition

PRECISIONS: tuple[RowPrecision, ...] = ("float32", "bfloat16", "int8")
EXTREME = [0, 1, 2**31, 2**32, 2**62, 2**63 - 2, 2**63 - 1]
ids = st.one_of(st.integers(0, 50), st.sampled_from(EXTREME), st.integers(0, 2**63 - 1))


def block(ids_U: np.ndarray, weights_UW: np.ndarray) -> RowBlock:
    numbers_U = np.arange(len(ids_U), dtype=np.uint32)
    return RowBlock(ids_U, weights_UW, -weights_UW, numbers_U, numbers_U + 1, numbers_U + 2)


def random_rows(ids_U: np.ndarray, width: int, seed: int) -> RowBlock:
    """A fifth of the rows are zeros."""
    random = np.random.default_rng(seed)
    weights_UW = random.normal(size=(len(ids_U), width)).astype(np.float32)
    weights_UW[random.random(len(ids_U)) < 0.2] = 0
    return block(ids_U, weights_UW)


def write(path: Path, rows: RowBlock, parts: tuple[int, ...], precision: RowPrecision) -> gs.WrittenRows:
    return write_blocks(path, (part for _, part in by_partition([rows])), parts, precision)


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounded to nearest even, by torch."""
    import torch

    return torch.from_numpy(values).to(torch.bfloat16).to(torch.float32).numpy()


def int8(values_UW: np.ndarray) -> np.ndarray:
    scales_U1 = np.abs(values_UW).max(1, keepdims=True) / np.float32(127)
    with np.errstate(invalid="ignore"):
        codes_UW = np.nan_to_num(np.rint(values_UW / scales_U1))
    return (codes_UW * scales_U1).astype(np.float32)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    known=st.lists(ids, unique=True, max_size=400),
    others=st.lists(ids, max_size=20),
    precision=st.sampled_from(PRECISIONS),
    load=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_rows_are_found_again(
    known: list[int], others: list[int], precision: RowPrecision, load: bool, seed: int, tmp_path: Path
) -> None:
    rows = random_rows(np.array(known, np.int64), 17, seed)
    path = Path(mkdtemp(dir=tmp_path)) / "rows.gsr"
    written = write(path, rows, (16, 1), precision)
    opened = gs.FrozenRows.open(path, load=load)
    opened.verify()
    assert (len(opened), opened.width, opened.parts) == (len(known), 17, (16, 1))
    asked_U = np.array([*known, *others, *known[:5]], np.int64)
    weights_UW, found_U = opened.lookup(asked_U)
    np.testing.assert_array_equal(found_U, np.isin(asked_U, rows.ids_U))
    assert not weights_UW[~found_U].any()
    expected_UW = rows.weights_UW.copy()
    if precision == "bfloat16":
        expected_UW = bfloat16(expected_UW)
    elif precision == "int8" and known:
        expected_UW[:, :16] = int8(expected_UW[:, :16])
    np.testing.assert_array_equal(weights_UW[: len(known)], expected_UW)
    error = np.abs(expected_UW.astype(np.float64) - rows.weights_UW).max(initial=0)
    assert written.largest_error == error


def test_ties_are_rounded_to_even_and_zeros_stay_zeros(tmp_path: Path) -> None:
    halves = [1 + 1 / 256, 1 + 3 / 256, -(1 + 1 / 256), 0.0, -0.0, 1e-45, 3e38, 1.0]
    rows = block(np.array([7, 8]), np.array([halves, [0.0] * 8], np.float32))
    write(tmp_path / "b", rows, (8,), "bfloat16")
    got_UW = gs.FrozenRows.open(tmp_path / "b").lookup(np.array([7, 8]))[0]
    np.testing.assert_array_equal(got_UW[0, :3], np.array([1, 1 + 4 / 256, -1], np.float32))
    ties = [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 3.0, 0.0]
    rows = block(np.array([7, 8]), np.array([ties, [0.0] * 8], np.float32))
    write(tmp_path / "i", rows, (8,), "int8")
    weights_UW, found_U = gs.FrozenRows.open(tmp_path / "i").lookup(np.array([7, 8, 9]))
    np.testing.assert_array_equal(weights_UW[0], [127, 0, 2, 2, 0, -2, 3, 0])
    assert not weights_UW[1].any() and found_U.tolist() == [True, True, False]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(tmp_path: Path, precision: RowPrecision, value: float) -> None:
    rows = random_rows(np.arange(20), 8, 1)
    rows.weights_UW[11, 3] = value
    with pytest.raises(UserError, match="a weight of the row with id 11 is not finite; use an earlier"):
        write(tmp_path / "rows.gsr", rows, (8,), precision)
    assert not list(tmp_path.iterdir())


def test_what_bfloat16_would_round_to_infinity_is_refused(tmp_path: Path) -> None:
    rows = block(np.array([3]), np.full((1, 8), 3.4e38, np.float32))
    with pytest.raises(UserError, match="id 3 is too large for bfloat16"):
        write(tmp_path / "rows.gsr", rows, (8,), "bfloat16")


@pytest.mark.parametrize("load", [False, True])
def test_a_flip_of_any_byte_is_found(tmp_path: Path, load: bool) -> None:
    rows, path = random_rows(np.arange(300), 8, 1), tmp_path / "rows.gsr"
    write(path, rows, (8,), "int8")
    content = path.read_bytes()
    every = 1 if len(content) < 5000 else 13
    for at in [*range(0, len(content), every), len(content) - 1]:
        path.unlink()
        path.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
        with pytest.raises(UserError, match=r"rows\.gsr (is damaged|has version|has rows of a kind)"):
            gs.FrozenRows.open(path, load=load).lookup(rows.ids_U)


def test_a_flip_of_any_byte_of_complete_rows_is_found(tmp_path: Path) -> None:
    rows = random_rows(np.arange(100), 8, 1)
    changes = (PartitionChanges(n, part, NO_IDS) for n, part in by_partition([rows]))
    (stack,) = write_changes(tmp_path, "rows0", changes)
    (path,) = stack.files
    content = path.read_bytes()
    for at in [*range(0, len(content), 29), len(content) - 1]:
        path.unlink()
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(UserError, match=r"\.gsr (is damaged|has version|has rows of a kind)"):
            list(blocks_of(stack))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    known=st.dictionaries(ids, st.booleans(), max_size=300),
    width=st.sampled_from([1, 4, 33]),
    seed=st.integers(0, 99),
)
def test_complete_rows_and_tombstones_are_read_back(
    known: dict[int, bool], width: int, seed: int, tmp_path: Path
) -> None:
    """A row of zeros is a row; an erased one is a tombstone."""
    rows = random_rows(np.array([i for i, lives in known.items() if lives], np.int64), width, seed)
    gone = block(
        np.array([i for i, lives in known.items() if not lives], np.int64), np.zeros((0, width), np.float32)
    )
    of_rows, of_gone = dict(by_partition([rows])), {}
    for i in gone.ids_U:
        only = block(np.array([i]), np.zeros((1, width), np.float32))
        ((number, _),) = by_partition([only])
        of_gone.setdefault(number, []).append(i)
    none = random_rows(NO_IDS, width, 0)
    written = [
        PartitionChanges(n, of_rows.get(n, none), np.array(of_gone.get(n, []), np.int64))
        for n in sorted(of_rows.keys() | of_gone.keys())
    ]
    stacks = write_changes(Path(mkdtemp(dir=tmp_path)), "rows0", written)
    found = [each for stack in stacks for each in changes_in(stack)]
    live = sorted(int(i) for each in found for i in each.changed.ids_U)
    assert live == sorted(rows.ids_U.tolist())
    assert sorted(int(i) for each in found for i in each.erased_U) == sorted(gone.ids_U.tolist())
    at = {int(i): row for i, row in zip(rows.ids_U, rows.weights_UW, strict=True)}
    for each in found:
        for i, row, step in zip(
            each.changed.ids_U, each.changed.weights_UW, each.changed.last_step_U, strict=True
        ):
            np.testing.assert_array_equal(row, at[int(i)])
            assert step == rows.last_step_U[rows.ids_U == i][0]


def test_files_that_are_cut_short_or_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.gsr"
    write(path, random_rows(np.arange(1000), 8, 1), (8,), "int8")
    content = path.read_bytes()
    for size in (0, 1, 4095, 4096, len(content) - 4096, len(content) - 1):
        (tmp_path / "short").write_bytes(content[:size])
        with pytest.raises(UserError, match="short is damaged"):
            gs.FrozenRows.open(tmp_path / "short")
    (tmp_path / "text").write_text("x" * 8192)
    with pytest.raises(UserError, match="text is damaged, or not a row file"):
        gs.FrozenRows.open(tmp_path / "text")
    with pytest.raises(UserError, match="nothing cannot be opened: No such file"):
        gs.FrozenRows.open(tmp_path / "nothing")
    newer = bytearray(content)
    newer[-4096 + 8 : -4096 + 12] = struct.pack("<I", 9)
    (tmp_path / "newer").write_bytes(newer)
    with pytest.raises(UserError, match="newer has version 9 of the row file format, which this version"):
        gs.FrozenRows.open(tmp_path / "newer")


def test_rows_of_another_layout_are_refused_by_a_store(tmp_path: Path) -> None:
    source = MemoryStore((RowPart("e", 8, RowAdagrad()),), seed=1)
    source.pull(np.arange(100))
    with source.cut() as cut:
        stacks = cut.write_files(tmp_path, "rows0")
    wider = MemoryStore((RowPart("e", 9, RowAdagrad()),), seed=1)
    with pytest.raises(UserError, match="gsr holds rows of other widths or another optimizer"):
        wider.adopt(stacks)
    write(tmp_path / "serving.gsr", random_rows(np.arange(9), 8, 1), (8,), "int8")
    with pytest.raises(UserError, match="gsr holds rows of other widths or another optimizer"):
        source.adopt([RowStack("rows0-00", (tmp_path / "serving.gsr",))])
    with pytest.raises(UserError, match="has rows for training; write rows for serving"):
        gs.FrozenRows.open(stacks[0].files[0])


def _private_bytes(path: str, ready: object, done: object, out: object) -> None:
    rows = gs.FrozenRows.open(path)
    rows.lookup(np.arange(40_000))
    ready.wait(60)  # type: ignore[attr-defined]
    fields = [0, 0]
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            inside = line.endswith(Path(path).name)
        elif inside and line.startswith(("Rss:", "Private_")):
            fields[0 if line.startswith("Rss") else 1] += int(line.split()[1]) << 10
    out.put(fields)  # type: ignore[attr-defined]
    done.wait(60)  # type: ignore[attr-defined]


def test_processes_share_one_mapping(tmp_path: Path) -> None:
    path = tmp_path / "shared.gsr"
    size = write(path, random_rows(np.arange(40_000), 16, 1), (16,), "float32").bytes
    spawn = multiprocessing.get_context("spawn")
    ready, done, out = spawn.Barrier(2), spawn.Barrier(2), spawn.Queue()
    processes = [spawn.Process(target=_private_bytes, args=(str(path), ready, done, out)) for _ in range(2)]
    for process in processes:
        process.start()
    resident = [out.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
    for rss, private in resident:
        assert rss > size * 0.9 and private < size * 0.1


def test_from_a_run_by_python_and_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = gs.read(gs.ClickLog(3000))
    trainer = gs.Trainer(global_batch=512, checkpoint=gs.CheckpointPolicy(path="runs"))
    result = trainer.fit(gs.models.DeepFM(data.schema, dim=8, hidden=[8]), data)
    model = gs.load(result.folder)
    (store,) = model.learner.server.stores
    rows = list(store.blocks())
    for precision, most in (("float32", 0.0), ("bfloat16", 2e-3), ("int8", 4e-3)):
        assert cli.run(["rows", str(result.folder), "rows.gsr", "--precision", precision]) == 0
        assert f"rows    {len(store):,} of width 9 as {precision}, " in capsys.readouterr().out
        opened = gs.FrozenRows.open("rows.gsr")
        assert len(opened) == len(store) and opened.precision == precision and opened.parts == (8, 1)
        for part in rows:
            weights_UW, found_U = opened.lookup(part.ids_U)
            assert found_U.all() and np.abs(weights_UW - part.weights_UW).max() <= most
    again = gs.write_rows(model, tmp_path / "again.gsr", "int8")
    assert (tmp_path / "again.gsr").read_bytes() == (tmp_path / "rows.gsr").read_bytes()
    assert 0 < again.largest_error < 4e-3
    assert cli.run(["rows", str(result.folder), "rows.gsr", "--store", "3"]) == 2
    assert "no store 3 of rows: it has 1" in capsys.readouterr().err
    assert cli.run(["rows", str(result.folder), "."]) == 2
    assert "is a folder: name a file" in capsys.readouterr().err
    assert cli.run(["rows", str(result.folder), "rows.gsr", "--precision", "int4"]) == 2


def test_several_widths_need_a_choice(tmp_path: Path) -> None:
    schema = gs.Schema((gs.Categorical("a"), gs.Categorical("b", dim=4)))
    emb = gs.Embeddings(schema, dim=8)
    for store in emb.stores:
        store.pull(np.arange(50))
    with pytest.raises(
        UserError, match=r"several stores .*: choose one with store=N \(--store N\) of 0 \(width"
    ):
        gs.write_rows(emb, tmp_path / "rows.gsr")
    for i, store in enumerate(emb.stores):
        gs.write_rows(emb, tmp_path / "rows.gsr", store=i)
        opened = gs.FrozenRows.open(tmp_path / "rows.gsr")
        np.testing.assert_array_equal(opened.lookup(np.arange(50))[0], store.pull(np.arange(50)))
