"""The row path on LMDB: a transaction per batch, a writable map, nothing synchronised.

Keys are native integers, filled in ascending order, so that pages are full. 16 threads first touch the batch's
values (the map's page faults would come one at a time otherwise), then one transaction reads, updates and writes
them.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from tier.row_path import WIDTH, Floats, Task, adagrad, serve
from tier.traces import Rows

VALUE = 2 * WIDTH * 4
THREADS = 16


class LmdbPath:
    def __init__(self, task: Task) -> None:
        self._environment = lmdb.open(
            str(task.folder / "db"),
            map_size=task.rows * VALUE * 8,
            writemap=True,
            map_async=True,
            sync=False,
            metasync=False,
            readahead=False,
            meminit=False,
            lock=False,
            max_dbs=1,
        )
        self._rows = self._environment.open_db(b"rows", integerkey=True)
        self._pool = ThreadPoolExecutor(THREADS)

    def fill(self, rows_N: Rows, values_NV: Floats) -> None:
        with self._environment.begin(db=self._rows, write=True) as transaction:
            transaction.cursor().putmulti(_items(_keys(rows_N), values_NV), append=True)

    def filled(self) -> None:
        self._environment.sync(True)

    def step(self, rows_U: Rows, gradients_UW: Floats) -> None:
        keys = _keys(rows_U)
        list(self._pool.map(self._touch, [keys[i::THREADS] for i in range(THREADS)]))
        with self._environment.begin(db=self._rows, write=True, buffers=True) as transaction:
            cursor = transaction.cursor()
            values_UV = _values(cursor, keys)
            adagrad(values_UV, gradients_UW)
            cursor.putmulti(_items(keys, values_UV))

    def settle(self) -> None:
        self._environment.sync(True)

    def weights(self, rows_U: Rows) -> Floats:
        with self._environment.begin(db=self._rows, buffers=True) as transaction:
            return _values(transaction.cursor(), _keys(rows_U))[:, :WIDTH]

    def close(self) -> None:
        self._environment.close()

    def _touch(self, keys: list[bytes]) -> None:
        with self._environment.begin(db=self._rows, buffers=True) as transaction:
            for key in keys:
                transaction.get(key)


def _keys(rows_N: Rows) -> list[bytes]:
    keys: list[bytes] = rows_N.astype(np.uint64).view("V8").tolist()
    return keys


def _items(keys: list[bytes], values_UV: Floats) -> list[tuple[bytes, bytes]]:
    return list(zip(keys, values_UV.view(f"V{VALUE}").ravel().tolist(), strict=True))


def _values(cursor: lmdb.Cursor, keys: list[bytes]) -> Floats:
    found = b"".join(value for _, value in cursor.getmulti(keys))
    return np.frombuffer(bytearray(found), np.float32).reshape(-1, 2 * WIDTH)


if __name__ == "__main__":
    serve(LmdbPath)
