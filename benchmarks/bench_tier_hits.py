"""The share of rows that the disk tier finds in memory, against a perfect static LFU and Belady's optimum, on one
trace.

    python benchmarks/bench_tier_hits.py                         20 M rows, some minutes, 8 GB of disk
    python benchmarks/bench_tier_hits.py --rows 2000000 --warm 60 --batches 20 --tail 20

26 fields, zipf 1.05; a request is a row of the distinct ones of a batch of 4,096 examples, and a hit one for which
no file was read. All rows exist before, with the counts of occurrences that `--history` batches would have given
them: counts are part of a row, and a store of some age has them. Only the `--batches` measured ones count: `--warm`
batches before them fill every cache, and `--tail` batches after them are known to Belady's, which would otherwise
gain from the end of the trace. `--share` is that of the rows which fit in memory, for all of them alike.

`hit_rate`: our store without look-ahead. `with_lookahead`: in chunks, as training does it: the rows of as many
batches as the store has room for are loaded before the batches in front of them are trained (a row that comes from
disk then is no hit). `of_budget`: without look-ahead again, but with a budget of bytes, out of which buffers and the
index of the files are paid: `--share` of what all rows take in memory. `static_lfu` holds the most probable rows,
which it knows from the distribution; `belady` keeps those whose next use is nearest, decided after each batch, which
is optimal where the rows of a batch are needed together.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tier.traces import Trace, ZipfRows, ids_of, zipf_trace

from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.store import RowAdagrad, RowBlock, RowPart
from gearshift.embedding.table_store import MemoryStore

WIDTH, NEVER = 16, np.iinfo(np.int32).max
PART = RowPart("embedding", WIDTH, RowAdagrad())
FILL_ROWS = 1 << 18  # at a time


def aged_store(tier: ColdTier, counts_N: NDArray[np.uint32]) -> MemoryStore:
    store = MemoryStore([PART], seed=1, tier=tier)
    for begin in range(0, len(counts_N), FILL_ROWS):
        touches = counts_N[begin : begin + FILL_ROWS]
        weights, state = (np.full((len(touches), WIDTH), value, np.float32) for value in (0.01, 0.1))
        ids, once = ids_of(np.arange(begin, begin + len(touches))), np.ones(len(touches), np.uint32)
        store.load(RowBlock(ids, weights, state, touches, once, once))
    return store


def of_store(store: MemoryStore, trace: Trace, measured: range, *, chunks: bool = False) -> float:
    """In chunks the rows of the next one are loaded before one is trained."""
    ahead, ahead_loaded = next_chunk(store, trace, 0) if chunks else (range(measured.stop), 0)
    lookups = loaded = 0.0
    while ahead and ahead.start < measured.stop:
        chunk, chunk_loaded = ahead, ahead_loaded
        ahead, ahead_loaded = next_chunk(store, trace, chunk.stop) if chunks else (range(0), 0)
        inside = range(max(chunk.start, measured.start), min(chunk.stop, measured.stop))
        loaded += chunk_loaded * len(inside) / len(chunk)
        for batch in chunk:
            before = now_loaded(store)
            ids_U = ids_of(trace.rows_of(batch))
            store.pull(ids_U)
            gradients_UW = np.full((len(ids_U), WIDTH), 1e-3, np.float32)
            store.push(ids_U, gradients_UW, trace.counts_of(batch), examples=1.0, step=batch + 1)
            if batch in measured:
                lookups += len(ids_U)
                loaded += now_loaded(store) - before
    return 1 - loaded / lookups


def next_chunk(store: MemoryStore, trace: Trace, start: int) -> tuple[range, int]:
    """As many batches as the store has memory for; their rows are in memory. And how many were loaded."""
    before, end = now_loaded(store), start
    store.tier.begin_chunk()
    while end < len(trace):
        share = store.tier.expect(ids_of(trace.rows_of(end)))
        end += 1
        if share >= 1:
            break
    while store.tier.load_expected():
        pass
    return range(start, end), now_loaded(store) - before


def now_loaded(store: MemoryStore) -> int:
    """Rows that came from disk so far: when they were pulled, or before."""
    counts = store.tier.counts()
    assert counts is not None
    return counts.misses + counts.prefetched


def of_static_lfu(trace: Trace, zipf: ZipfRows, held: int, measured: range) -> float:
    in_memory = zipf.most_frequent(held)
    hits = sum(int(in_memory[trace.rows_of(batch)].sum()) for batch in measured)
    return hits / int(trace.begins[measured.stop] - trace.begins[measured.start])


def of_belady(trace: Trace, held: int, measured: range) -> float:
    """After each batch the `held` rows stay whose next use is nearest; rows that are never used again first leave."""
    coming = next_uses(trace)
    next_use = np.full(trace.rows, NEVER, np.int32)  # of rows in memory
    in_memory = np.zeros(trace.rows, np.bool_)
    kept = np.empty(0, np.int64)
    hits = 0
    for batch in range(measured.stop):
        rows_U = trace.rows_of(batch)
        found = in_memory[rows_U]
        if batch in measured:
            hits += int(found.sum())
        next_use[rows_U] = coming[trace.begins[batch] : trace.begins[batch + 1]]
        kept = np.concatenate([kept, rows_U[~found]])
        in_memory[rows_U] = True
        kept = kept[next_use[kept] != NEVER] if len(kept) > held else kept
        if len(kept) > held:
            kept = kept[np.argpartition(next_use[kept], held)[:held]]
        in_memory[:] = False
        in_memory[kept] = True
    return hits / int(trace.begins[measured.stop] - trace.begins[measured.start])


def next_uses(trace: Trace) -> NDArray[np.int32]:
    """The batch in which the row of each request is requested again."""
    coming = np.empty(len(trace.rows_N), np.int32)
    next_use = np.full(trace.rows, NEVER, np.int32)
    for batch in reversed(range(len(trace))):
        rows_U = trace.rows_of(batch)
        coming[trace.begins[batch] : trace.begins[batch + 1]] = next_use[rows_U]
        next_use[rows_U] = batch
    return coming


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--share", type=float, default=1 / 8)
    parser.add_argument("--history", type=int, default=4000, help="batches before the trace")
    parser.add_argument("--warm", type=int, default=300)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--tail", type=int, default=200)
    parser.add_argument("--folder", default=None, help="for the files; the system's temporary one if not set")
    options = parser.parse_args()
    zipf = ZipfRows(options.rows, seed=1)
    trace = zipf_trace(zipf, options.warm + options.batches + options.tail, seed=2)
    measured, held = range(options.warm, options.warm + options.batches), int(zipf.rows * options.share)
    in_bytes = int(zipf.rows * options.share * bytes_per_row())
    results: dict[str, float] = {}

    def note(name: str, rate: float, began: float) -> None:
        results[name] = round(rate, 4)
        print(f"{name:16}{rate:.4f}   {time.perf_counter() - began:.0f} s", flush=True)

    began = time.perf_counter()
    note("static_lfu", of_static_lfu(trace, zipf, held, measured), began)
    note("belady", of_belady(trace, held, measured), began)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        counts_N = zipf.counts(options.history, seed=3)
        by_rows = ColdTier(Path(folder), in_bytes, hot_rows=held)
        by_bytes = ColdTier(Path(folder), in_bytes)
        note("hit_rate", of_store(aged_store(by_rows, counts_N), trace, measured), began)
        note("with_lookahead", of_store(aged_store(by_rows, counts_N), trace, measured, chunks=True), began)
        note("of_budget", of_store(aged_store(by_bytes, counts_N), trace, measured), began)
    short = {
        "below_static_lfu": round(results["static_lfu"] - results["hit_rate"], 4),
        "below_belady": round(results["belady"] - results["with_lookahead"], 4),
    }
    sizes = {"rows": zipf.rows, "rows_in_memory": held, "history": options.history}
    print(json.dumps({**results, **short, **sizes}))


def bytes_per_row() -> float:
    """What a row takes in memory, its place in the index included."""
    store, rows = MemoryStore([PART], seed=1), 1 << 20
    store.pull(ids_of(np.arange(rows)))
    return store.memory_bytes() / rows


if __name__ == "__main__":
    main()
