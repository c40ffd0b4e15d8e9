"""Rows beyond memory: a store with a cold tier gives the same bits as one that holds everything in memory."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import warnings
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gearshift as gs
from examples import make_batch
from gearshift._core import RowTable
from gearshift.embedding.cold_tier import ColdTier, StorageSettings, TierFolder
from gearshift.embedding.memory_budget import LITTLE_MEMORY, PARTITIONS, hot_rows
from gearshift.embedding.sharded import IdPlacement
from gearshift.embedding.store import RowAdagrad, RowPart, RowSGD, RowStore
from gearshift.embedding.table_store import MemoryStore, _spec
from gearshift.embedding.table_tier import close_tiers
from gearshift.errors import UserError
from gearshift.parameters import checkpoint
from gearshift.parameters.checkpoint import Checkpoint, resolve
from tests.unit.embedding.store_pair import PARTS, StorePair, assert_same

SMALL = 8 << 20
LITTLE_PART = RowPart("e", 4, RowAdagrad())
PART_16 = RowPart("e", 16, RowAdagrad())


def tiered(folder: Path, hot_rows: int, parts: tuple[RowPart, ...] = PARTS) -> MemoryStore:
    return MemoryStore(parts, seed=1, tier=ColdTier(folder, SMALL, hot_rows))


def test_rows_go_to_disk_and_come_back(tmp_path: Path, disk: str) -> None:
    pair = StorePair(tmp_path, 512, seed=3)
    for _ in range(150):
        pair.train()
    pair.settle()
    pair.look()
    pair.close()
    counts = pair.tiered.tier.counts()
    assert counts is not None and counts.cold_rows > 10 * counts.hot_rows and counts.rows_read > 1000
    assert counts.hot_rows + counts.cold_rows == len(pair.plain)
    assert counts.merges > 0 and counts.space < 2.5
    assert counts.index_bytes / counts.stored_rows < 4  # of small files; large ones need 1.6 bytes per row


def test_an_id_that_occurs_twice_in_a_call_is_updated_twice(tmp_path: Path) -> None:
    part = RowPart("embedding", 4, RowSGD(lr=1.0), init=0.0)
    store = tiered(tmp_path, 1, (part,))
    ids_U = np.repeat(np.arange(3000), 40)
    for step in range(3):
        sums_UW = np.full((len(ids_U), 4), -1, np.float32)
        store.push(ids_U, sums_UW, np.ones(len(ids_U), np.uint32), examples=1, step=step)
    assert (store.pull(np.arange(3000)) == 120).all()


def written_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("rows-*/rows-*.gsr"))


def filled(folder: Path) -> MemoryStore:
    store = tiered(folder, 1)
    for begin in range(0, 40_000, 4000):
        store.pull(np.arange(begin, begin + 4000))
    store.tier.settle()
    return store


def test_a_flipped_bit_is_named(tmp_path: Path, disk: str) -> None:
    store = filled(tmp_path)
    for path in written_files(tmp_path):
        content = bytearray(path.read_bytes())
        for block in range(0, len(content) - 8192, 4096):
            content[block + 200] ^= 1
        path.write_bytes(content)
    told = (
        r"rows-\d+-\d+\.gsr is damaged: the checksum of block \d+ is wrong\. Checkpoints that share this file are "
        r"damaged too\. Resume the run: gearshift train --resume RUN"
    )
    with pytest.raises(UserError, match=told):
        store.pull(np.arange(40_000))


def test_a_truncated_file_is_named(tmp_path: Path, disk: str) -> None:
    store = filled(tmp_path)
    for path in written_files(tmp_path):
        with path.open("r+b") as file:
            file.truncate(0)
    with pytest.raises(UserError, match=r"rows-\d+-\d+\.gsr is damaged: it ends early"):
        store.pull(np.arange(40_000))


def test_a_block_in_the_place_of_another_is_noticed(tmp_path: Path, disk: str) -> None:
    """Its checksum is right, so its rows would seem not to exist, and would be created again."""
    store = filled(tmp_path)
    for path in written_files(tmp_path):
        content = bytearray(path.read_bytes())
        content[4096:8192] = content[:4096]
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"gsr is damaged: the checksum of block 1 is wrong"):
        store.pull(np.arange(40_000))


CROWDED = """
import resource, sys
from pathlib import Path
import numpy as np
from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.table_store import MemoryStore, _spec
from gearshift.embedding.sharded import IdPlacement
from gearshift.embedding.store import RowAdagrad, RowPart
resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600))
store = MemoryStore((RowPart("e", 4, RowAdagrad()),), seed=1, tier=ColdTier(Path(sys.argv[1]), 1 << 20, 256))
for begin in range(0, 300_000, 20_000):
    store.pull(np.arange(begin, begin + 20_000))
assert len(store) == 300_000
"""


def test_merging_keeps_up_with_writing(tmp_path: Path) -> None:
    """The process may open few files, and rows are written as fast as they can be."""
    subprocess.run([sys.executable, "-c", CROWDED, str(tmp_path)], check=True, timeout=240)


@pytest.mark.parametrize("width", [1, 16, pytest.param(64, marks=pytest.mark.slow)])
def test_memory_stays_within_the_budget(tmp_path: Path, width: int) -> None:
    """Also when the index of the files grows from nothing to a large share of it."""
    budget = 6 << 20
    store = MemoryStore((RowPart("e", width, RowAdagrad()),), seed=1, tier=ColdTier(tmp_path, budget))
    for begin in range(0, 600_000, 20_000):
        store.pull(np.arange(begin, begin + 20_000))
        assert store.memory_bytes() < 1.1 * budget
    counts = store.tier.counts()
    assert counts is not None and counts.index_bytes > 400_000


def test_a_warning_when_the_index_of_the_files_takes_most_of_the_memory(tmp_path: Path) -> None:
    """Once, and it says how much memory is enough."""
    store = MemoryStore((LITTLE_PART,), seed=1, tier=ColdTier(tmp_path, 2 << 20))
    store.pull(np.arange(20_000))
    store.tier.settle()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index = store.tier.counts().index_bytes
    store.tier.budget = 2 * index - 1  # as if there were as many rows more
    told = r"memory=2MiB is little for so many rows on disk: .* takes 1MiB, .*at least memory=1MiB$"
    with pytest.warns(gs.DataWarning, match=told):
        store.tier.counts()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.tier.counts()


def test_memory_stays_within_the_budget_while_a_cut_is_open(tmp_path: Path) -> None:
    """Every row in memory is changed before the cut is read: it needs the old ones, too. Few rows leave for them."""
    budget = 16 << 20
    plain = MemoryStore((PART_16,), seed=1)
    store = MemoryStore((PART_16,), seed=1, tier=ColdTier(tmp_path, budget))
    rows = 2 * budget // 150
    for some_U in np.array_split(np.arange(rows), rows // 20_000):
        for each in (store, plain):
            push_ones(each, some_U, 1)
    hot = store.tier.counts().hot_rows
    random, peak = np.random.default_rng(0), 0
    with store.cut() as cut, plain.cut() as expected:
        for step in range(2, 2 + 3 * hot // 8000):
            ids_U = np.unique(random.integers(0, hot, 8000))
            for each in (store, plain):
                push_ones(each, ids_U, step)
            peak = max(peak, store.memory_bytes())
        blocks = iter(cut)
        first = next(blocks)
        push_ones(store, random.integers(0, rows, 4000), step + 1)
        assert_same(iter(expected), iter([first, *blocks]))
    assert peak < 1.1 * budget
    assert store.memory_bytes() < budget
    push_ones(store, np.arange(rows, rows + 20_000), step + 2)
    assert store.tier.counts().hot_rows > 0.8 * hot and store.memory_bytes() < budget


def test_ids_that_are_announced_take_memory_from_rows(tmp_path: Path) -> None:
    store = MemoryStore((PART_16,), seed=1, tier=ColdTier(tmp_path, 4 << 20))
    store.pull(np.arange(40_000))
    store.tier.settle()
    kept = store.tier.counts().hot_rows
    store.tier.begin_chunk()
    before, announced_U = store.memory_bytes(), np.arange(100_000, 160_000)
    store.tier.expect(announced_U)
    assert store.memory_bytes() - before == 16 * len(announced_U)  # vectors grow by doubling
    store.pull(np.arange(200_000, 210_000))
    assert store.tier.counts().hot_rows < 0.8 * kept and store.memory_bytes() < 1.1 * (4 << 20)
    store.tier.begin_chunk()
    store.pull(np.arange(210_000, 220_000))
    assert store.tier.counts().hot_rows > 0.95 * kept


def test_rows_that_the_files_have_make_room_while_a_cut_is_open(tmp_path: Path) -> None:
    """None of them is changed, so the cut needs no copy of those that leave: their records are in its files."""
    budget, ids = 4 << 20, np.arange(100_000)
    filled = MemoryStore((PART_16,), seed=1, tier=ColdTier(tmp_path / "filled", budget))
    for some_U in np.split(ids, 25):
        push_ones(filled, some_U, 1)
    with filled.cut() as cut:
        checkpoint.write(tmp_path / "saved", {}, {}, {"rows0": cut})
    store = MemoryStore((PART_16,), seed=1, tier=ColdTier(tmp_path / "rows", budget))
    assert store.adopt(Checkpoint.open(tmp_path / "saved").stacks("rows0"))
    random = np.random.default_rng(0)
    for _ in range(40):
        store.pull(np.unique(random.integers(0, len(ids), 4000)))
    before = store.memory_bytes()
    with store.cut() as cut:
        for _ in range(40):
            store.pull(np.unique(random.integers(0, len(ids), 4000)))
        assert store.memory_bytes() < before + budget // 16
        assert assert_same(filled.blocks(), iter(cut)) == len(ids)


def push_ones(store: MemoryStore, ids_U: np.ndarray, step: int) -> None:
    sums_UW = np.ones((len(ids_U), store.width), np.float32)
    store.push(ids_U, sums_UW, np.ones(len(ids_U), np.uint32), examples=8, step=step)


def test_a_busy_store_leaves_nothing_behind(tmp_path: Path) -> None:
    for _ in range(10):
        store = tiered(tmp_path, 1)
        store.pull(np.arange(30_000))
        del store
    assert not list(tmp_path.iterdir())


def test_stores_that_start_together_keep_their_folders(tmp_path: Path) -> None:
    def start() -> None:
        for _ in range(100):
            folder = TierFolder(tmp_path)
            kept.append((folder.path / "lock").exists())
            folder.close()

    kept: list[bool] = []
    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert kept == [True] * 400


def test_a_process_that_will_be_killed_removes_its_files(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert written_files(tmp_path)
    close_tiers()
    assert not list(tmp_path.iterdir()) and len(store) == 40_000
    close_tiers()
    del store


def test_files_are_removed_with_the_store(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert written_files(tmp_path)
    del store
    assert not list(tmp_path.iterdir())


OWNER = """
import sys
from pathlib import Path
from gearshift.embedding.cold_tier import TierFolder
folder = TierFolder(Path(sys.argv[1]))
(folder.path / "rows-0-0.gsr").write_text("rows")
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_files_of_a_killed_process_are_reclaimed_and_those_of_a_live_one_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        theirs = Path(owner.stdout.readline().strip())
        TierFolder(tmp_path).close()
        assert (theirs / "rows-0-0.gsr").exists()
        owner.kill()
        owner.wait(30)
    TierFolder(tmp_path).close()
    assert not theirs.exists()


def test_too_small_a_budget_and_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"memory=1MiB is too small .*: set at least memory=2MiB"):
        MemoryStore(PARTS, seed=1, tier=ColdTier(tmp_path, 1 << 20))
    (tmp_path / "file").write_text("")
    store = tiered(tmp_path / "file", 100)
    with pytest.raises(UserError, match=r"storage\.path: rows cannot be written below .*file"):
        store.pull(np.arange(10))


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize(
    ("features", "baseline", "least"),
    [
        ({}, True, 20),
        ({}, False, 2),
        ({"min_count": 2}, True, 57),
        ({"min_count": 2}, False, 21),
    ],
)
def test_the_smallest_memory_of_a_model(
    tmp_path: Path, features: dict, baseline: bool, least: int, shards: int
) -> None:
    """The sketches that count ids are taken out before the baseline gets its tenth."""
    schema = gs.Schema((gs.Categorical("user", **features), gs.Categorical("ad")), time=None)
    data = gs.read(make_batch(schema, 100, vocabulary=9), schema)

    def prepare(memory: str) -> None:
        training = gs.TrainingSettings(baseline=baseline)
        workers = gs.WorkerSettings(shards=shards, memory=memory)
        gs.Trainer(workers=workers, training=training).prepare(gs.models.DeepFM(schema, dim=16), data)

    with pytest.raises(UserError, match="is too small for the rows of this model") as told:
        prepare("1kB")
    assert str(told.value).startswith("memory=1kB is too small")
    assert ("features with `min_count`" in str(told.value)) == bool(features)
    assert ("train.baseline=false" in str(told.value)) == baseline
    needed = int(re.search(r"at least memory=(\d+)MiB", str(told.value))[1])  # type: ignore[index]
    assert needed == least or shards > 1
    prepare(f"{needed}MiB")
    with pytest.raises(UserError, match=f"memory={needed - 1}MiB is too small"):
        prepare(f"{needed - 1}MiB")


@pytest.mark.parametrize("budget", [3 << 20, 40 << 20, 300 << 20, 4 << 30])
@pytest.mark.parametrize("width", [4, 16, 64])
def test_the_plan_counts_rows_as_the_store_does(tmp_path: Path, budget: int, width: int) -> None:
    part = RowPart("embedding", width, RowAdagrad())
    little = budget < LITTLE_MEMORY
    table = RowTable([_spec(part)], 1, False, little)
    fitting = table.add_cold_tier(str(tmp_path), budget, 0)
    table.close_cold_tier()
    assert hot_rows(budget, 2 * width).most == pytest.approx(fitting, rel=0.04, abs=PARTITIONS)


def test_the_plan_foresees_how_many_rows_stay_in_memory(tmp_path: Path) -> None:
    """Also of shards, each of which holds its part of the partitions."""
    rows, budget = 120_000, 8 << 20
    in_memory = {}
    for shards in (1, 2, 3):
        tier = ColdTier(tmp_path, budget, of_shards=shards)
        stores = [MemoryStore(PARTS, seed=1, tier=tier) for _ in range(shards)]
        floats = stores[0].width + stores[0].state_width
        for begin in range(0, rows, 1000):
            ids_U = np.arange(begin, begin + 1000)
            for store, at in zip(stores, IdPlacement(ids_U, shards).groups, strict=True):
                store.pull(ids_U[at])
        kept = sum(store.tier.counts().hot_rows for store in stores if store.tier)
        expected = hot_rows(shards * budget, floats, 1.25 * rows, shards=shards)
        assert expected.usual == pytest.approx(kept, rel=0.1)
        in_memory[shards] = kept
    assert in_memory[2] > 1.9 * in_memory[1] and in_memory[3] > 2.7 * in_memory[1]


def test_a_checkpoint_shares_its_files_with_the_store(tmp_path: Path) -> None:
    store = filled(tmp_path)
    inodes = {path.stat().st_ino for path in written_files(tmp_path)}
    (tmp_path / "checkpoint").mkdir()
    with store.cut() as cut:
        stacks = cut.write_files(tmp_path / "checkpoint", "rows0")
    linked = [file for stack in stacks for file in stack.files if file.stat().st_ino in inodes]
    written = [file for stack in stacks for file in stack.files if file.stat().st_ino not in inodes]
    assert len(linked) == len(inodes) and sum(map(size, written)) < sum(map(size, linked)) / 4
    expected = {int(i): b for b in store.blocks() for i in b.ids_U}
    del store
    restored = tiered(tmp_path, 1)
    assert restored.adopt(stacks) and len(restored) == len(expected) == 40_000
    assert {int(i) for b in restored.blocks() for i in b.ids_U} == set(expected)


def size(file: Path) -> int:
    return file.stat().st_size


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_checkpoint_is_refused(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_rows_in_memory(monkeypatch)
    trained_run = trained(tmp_path, 8 << 20)
    folder = resolve(trained_run.folder)
    file = max(folder.glob("*.gsr"), key=size)
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[5000] ^= 1
    file.unlink()
    file.write_bytes(content[:-4096] if damage == "cut" else content)
    told = rf"^checkpoint {folder}: {file.name} is .*\. No other checkpoint of run {trained_run.folder} is intact$"
    with pytest.raises(UserError, match=told):
        trained(tmp_path, 8 << 20, epochs=2, resume=trained_run.folder)
    with pytest.raises(UserError, match=rf"checkpoint .*{file.name}.*use another checkpoint"):
        gs.load(trained_run.folder)


DATA = gs.read(gs.ClickLog(12_000))


def trained(
    path: Path, memory: int | None, workers: int = 1, lookahead: str | int = "auto", **more: object
) -> gs.Result:
    storage = StorageSettings(lookahead=lookahead) if memory else None
    trainer = gs.Trainer(
        global_batch=512,
        workers=gs.WorkerSettings(workers, memory=memory, storage=storage),
        checkpoint=gs.CheckpointPolicy(path=path),
        epochs=int(more.pop("epochs", 1)),  # type: ignore[call-overload]
    )
    return trainer.fit(gs.models.DeepFM(DATA.schema, dim=8, hidden=[16]), DATA, **more)  # type: ignore[arg-type]


def few_rows_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget of n MiB means n rows per partition."""
    monkeypatch.setattr(
        ColdTier, "share", lambda tier, part: replace(tier, hot_rows=256 * (tier.budget >> 20))
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_training_gives_the_same_bits_with_any_memory(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows in memory, a quarter, a twentieth and a hundredth; one by one, in chunks, and with no look-ahead."""
    few_rows_in_memory(monkeypatch)
    probe = DATA.head(3000)
    expected = trained(tmp_path, None, workers)
    rows = expected.report["embedding_rows"]
    for share, lookahead in (
        (1.0, 3000),
        (0.25, 1500),
        (0.25, "off"),
        (0.05, 3000),
        (0.01, 3000),
        (0.01, "auto"),
    ):
        memory = max(1, round(rows * share / 256)) << 20
        result = trained(tmp_path, memory, workers, lookahead)
        np.testing.assert_array_equal(expected.predict(probe), result.predict(probe))
        assert result.report["embedding_rows"] == rows
        tier = result.report["tier"]
        assert (tier["prefetched"] > 0) == (lookahead != "off")
    assert tier["cold_rows"] > 10 * tier["hot_rows"]


def test_a_run_resumes_with_another_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_rows_in_memory(monkeypatch)
    probe = DATA.head(3000)
    scores = []
    for first, second in ((None, None), (4 << 20, 9 << 20), (4 << 20, None), (None, 4 << 20)):
        begun = trained(tmp_path, first, lookahead=3000)
        assert list(resolve(begun.folder).glob("*.gsr"))
        resumed = trained(tmp_path, second, lookahead=5000, epochs=2, resume=begun.folder)
        scores.append(resumed.predict(probe))
        np.testing.assert_array_equal(scores[0], scores[-1])


def test_a_store_whose_rows_stay_in_memory_has_no_tier() -> None:
    store: RowStore = MemoryStore(PARTS, seed=1)
    assert store.tier is None


@pytest.mark.parametrize("shards", [3, 4, 32])
def test_rows_of_any_number_of_shards_are_restored(tmp_path: Path, shards: int) -> None:
    """A group of partitions that lies on two shards has two stacks of files; the tier can take over only one."""
    ids_U = np.arange(20_000)
    expected = MemoryStore(PARTS, seed=1)
    expected.pull(ids_U)
    stores = {}
    for number, at in enumerate(IdPlacement(ids_U, shards).groups):
        shard = stores[f"rows0-s{number}"] = tiered(tmp_path / f"{number}", 512)
        shard.pull(ids_U[at])
    with ExitStack() as cuts:
        opened = {name: cuts.enter_context(store.cut()) for name, store in stores.items()}
        checkpoint.write(tmp_path / "saved", {}, {}, opened)
    saved = Checkpoint.open(tmp_path / "saved")
    store = tiered(tmp_path / "rows", 512)
    taken_over = store.adopt(saved.stacks("rows0"))
    assert taken_over == (shards == 4)
    if not taken_over:
        for block in saved.rows("rows0"):
            store.load(block)
    assert len(store) == len(ids_U)
    np.testing.assert_array_equal(store.peek(ids_U), expected.peek(ids_U))


def test_stale_rows_are_counted_as_they_are(tmp_path: Path) -> None:
    """Rows in buffers that replace others count before a merge and after it, so files are merged in time."""
    ids, part = 20_000, RowPart("e", 4, RowSGD(lr=0.1))
    store = MemoryStore((part,), seed=1, tier=ColdTier(tmp_path, 1 << 20, hot_rows=1))
    random = np.random.default_rng(0)
    for some_U in np.split(np.arange(ids), 10):
        push_ones(store, some_U, 1)
    for step in range(2, 60):
        push_ones(store, np.unique(random.integers(0, ids, 3000)), step)
        if step % 7 == 0:
            assert store.erase(np.arange(100)) <= 100
        store.tier.settle()
        assert store.tier.counts().stored_rows < 2.3 * ids
    with store.cut():  # everything is written to files
        pass
    store.tier.settle()
    counts = store.tier.counts()
    true = counts.stored_rows - len(store)
    assert (
        abs(counts.stale_rows - true) <= 256 and true > 1000
    )  # a row of each partition may be in memory alone


def test_the_index_of_a_file_counts_as_long_as_a_cut_keeps_it(tmp_path: Path) -> None:
    store, ids = tiered(tmp_path, 256), np.arange(400_000)
    for ids_U in np.split(ids, 100):
        store.pull(ids_U)
    store.tier.settle()
    index = store.tier.counts().index_bytes
    with store.cut():
        store.erase(ids)
        store.tier.settle()
        kept = store.memory_bytes()
    assert kept - store.memory_bytes() > 0.9 * index
