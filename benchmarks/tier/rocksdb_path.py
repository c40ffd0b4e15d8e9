"""The row path on RocksDB (`rocksdict`): `multi_get` with asynchronous reads, write batches without a log.

Keys have 8 bytes, big-endian, values 128. Of the memory five eighths are the block cache, which holds index and
filters (10 bits per key) too, and two write buffers have an eighth each; an eighth is left for what RocksDB does not
count. Reads and compactions are direct, so that no page is cached twice; no compression, which float weights do not
take.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import rocksdict

sys.path.insert(0, str(Path(__file__).parents[1]))
from tier.row_path import WIDTH, Floats, Task, adagrad, serve
from tier.traces import Rows

VALUE = 2 * WIDTH * 4


class RocksDbPath:
    def __init__(self, task: Task) -> None:
        self._db = rocksdict.Rdict(str(task.folder / "db"), _options(task.budget))
        reading, writing = rocksdict.ReadOptions(), rocksdict.WriteOptions()
        reading.set_async_io(True)
        writing.disable_wal = True
        self._db.set_read_options(reading)
        self._writing = writing

    def fill(self, rows_N: Rows, values_NV: Floats) -> None:
        self._write(_keys(rows_N), values_NV)

    def filled(self) -> None:
        self._db.flush()
        self._db.compact_range(None, None)

    def step(self, rows_U: Rows, gradients_UW: Floats) -> None:
        keys = _keys(rows_U)
        values_UV = self._read(keys)
        adagrad(values_UV, gradients_UW)
        self._write(keys, values_UV)

    def settle(self) -> None:
        while any(self._db.property_int_value(f"rocksdb.{name}") for name in BUSY):
            time.sleep(0.02)

    def weights(self, rows_U: Rows) -> Floats:
        return self._read(_keys(rows_U))[:, :WIDTH]

    def close(self) -> None:
        self._db.close()

    def _read(self, keys: list[bytes]) -> Floats:
        found = b"".join(self._db.get(keys))
        return np.frombuffer(bytearray(found), np.float32).reshape(-1, 2 * WIDTH)

    def _write(self, keys: list[bytes], values_UV: Floats) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in zip(keys, values_UV.view(f"V{VALUE}").ravel().tolist(), strict=True):
            batch.put(key, value)
        self._db.write(batch, self._writing)


BUSY = ("compaction-pending", "num-running-compactions", "num-running-flushes", "mem-table-flush-pending")


def _keys(rows_N: Rows) -> list[bytes]:
    keys: list[bytes] = rows_N.astype(">u8").view("V8").tolist()
    return keys


def _options(budget: int) -> rocksdict.Options:
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(budget * 5 // 8))
    table.set_bloom_filter(10, False)
    table.set_block_size(4096)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_write_buffer_size(budget // 8)
    options.set_max_write_buffer_number(2)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_background_jobs(2)
    options.set_use_direct_reads(True)
    options.set_use_direct_io_for_flush_and_compaction(True)
    options.set_compaction_readahead_size(256 << 10)
    options.set_max_open_files(-1)
    return options


if __name__ == "__main__":
    serve(RocksDbPath)
