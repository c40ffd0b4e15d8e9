"""How the cold tier reads: extents that follow from the disk's rates, many in flight; and freed memory is returned."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gearshift import _core
from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.store import RowAdagrad, RowPart
from gearshift.embedding.table_store import MemoryStore

KIB = 1 << 10
rates = st.floats(10, 1e7)


def reads_per_second(seconds_per_read: float, bytes_per_second: float, size: int) -> float:
    return 1 / (seconds_per_read + size / bytes_per_second)


def test_the_gap_is_what_the_disk_reads_in_the_time_of_another_read() -> None:
    disk = (1 / 100_000, 1e9)  # 10 us beside the bytes, in which 10 kB are read
    gap, extent = _core.read_plan(*(reads_per_second(*disk, size * KIB) for size in (4, 64, 256)))
    assert (gap, extent) == (8 * KIB, 64 * KIB)


def test_a_disk_that_is_slow_to_start_a_read_reads_wider_gaps_and_longer_extents() -> None:
    disk = (1 / 500, 1e9)
    gap, extent = _core.read_plan(*(reads_per_second(*disk, size * KIB) for size in (4, 64, 256)))
    assert (gap, extent) == (32 * KIB, 256 * KIB)


def test_without_a_cost_per_read_no_gap_is_read() -> None:
    gap, extent = _core.read_plan(*(reads_per_second(0, 1e9, size * KIB) for size in (4, 64, 256)))
    assert (gap, extent) == (0, 64 * KIB)


@given(rates, rates, rates)
def test_any_rates_give_a_plan_of_whole_blocks(block: float, extent: float, longest: float) -> None:
    gap, size = _core.read_plan(block, extent, longest)
    assert gap % (4 * KIB) == 0
    assert 0 <= gap <= 32 * KIB
    assert size in (64 * KIB, 256 * KIB)


def test_a_call_keeps_many_reads_in_flight_and_counts_them(tmp_path: Path) -> None:
    tier = ColdTier(tmp_path, 64 << 20, hot_rows=1000)
    store = MemoryStore((RowPart("embedding", 16, RowAdagrad()),), seed=1, tier=tier)
    ids = np.random.default_rng(1).permutation(100_000)
    store.pull(ids)
    store.tier.settle()
    before = store.tier.counts()
    store.peek(ids[:256])
    after = store.tier.counts()
    waits = after.read_waits - before.read_waits
    assert 8 < (after.reads_in_flight - before.reads_in_flight) / waits <= 128


def test_memory_that_was_freed_returns_to_the_system_while_a_tier_is_open(tmp_path: Path) -> None:
    script = f"""
        import time
        from pathlib import Path
        import numpy as np
        from gearshift.embedding.cold_tier import ColdTier
        from gearshift.embedding.store import RowAdagrad, RowPart
        from gearshift.embedding.table_store import MemoryStore

        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

        def wait_for(condition):
            end = time.monotonic() + 60
            while not condition() and time.monotonic() < end:
                time.sleep(0.1)
            return condition()

        tier = ColdTier(Path({str(tmp_path)!r}), 16 << 20)
        store = MemoryStore((RowPart("embedding", 16, RowAdagrad()),), seed=1, tier=tier)
        store.pull(np.arange(1000))
        large = np.ones(30 << 20, np.uint8)
        del large  # from now on malloc keeps blocks of this size
        blocks = [np.ones(1 << 20, np.uint8) for _ in range(256)]
        full, kept = resident(), blocks[::16]
        del blocks
        assert wait_for(lambda: resident() < full - (150 << 20)), (full, resident())
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], check=True, timeout=120)
