"""The row path on the disk tier against RocksDB, LMDB and a memory-mapped file: fetch, Adagrad, write back.

    python benchmarks/bench_tier_peers.py                       20 M rows, about half an hour and 12 GB of disk
    python benchmarks/bench_tier_peers.py --rows 1000000 --warm 30 --seconds 10        a few minutes

26 fields, zipf 1.05, rows of 16 weights and 16 floats of state, the distinct rows of batches of 4,096 examples. Each
path is a process of its own with the same memory: a memory cgroup with `--share` of what the rows take in memory and
a tenth more, page cache included; where none can be made, the output says what each got. One after another: fill,
`--warm` batches (`--most-warm` seconds at most), `--seconds` of measuring, then its files are deleted. All paths see
the same batches in the same order; after the first `--check` of them they must hold the same weights. How each is
set up is in its file in tier/; the peers come as wheels into an environment below `--peers`. The time includes
Python's part of each binding, and ends when everything is written and threads in the background have nothing left to
do. CPU time includes the kernel's threads, which write the pages of LMDB and of the map.

`vs_rocksdb`, `vs_lmdb`, `vs_mmap`: our rows per CPU-second over theirs; `..._rows_per_second`: the same of rows per
second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from peers.sides import Kind, Running, SideFailed
from tier.limits import MemoryGroup
from tier.traces import ZipfRows, zipf_trace

HERE = Path(__file__).parent / "tier"
ROW_BYTES = 2 * 16 * 4 + 20 + 16  # in memory: values, counts, slot of the index
LIMIT = 1.1  # of the budget
PATHS = {
    "gearshift": Kind("gearshift", str(HERE / "gearshift_path.py")),
    "rocksdb": Kind("rocksdb", str(HERE / "rocksdb_path.py"), "row_stores"),
    "lmdb": Kind("lmdb", str(HERE / "lmdb_path.py"), "row_stores"),
    "mmap": Kind("mmap", str(HERE / "mmap_path.py")),
}


def measure(name: str, home: Path, budget: int, options: argparse.Namespace) -> dict[str, Any]:
    group = MemoryGroup(f"tier-{name}-{os.getpid()}")
    settings = {"name": name, "group": f"tier-{name}-{os.getpid()}", "budget": budget}
    side = None
    try:
        side = Running(PATHS[name], options.peers, home, json.dumps(settings))
        without = side.ask(f"limit {int(budget * LIMIT) + options.batches_memory}")["without"]
        filled = side.ask("fill")["seconds"]
        checked = side.ask(f"run 0 {options.check} 3600")
        values = side.ask("values")["sum"]
        warm = side.ask(f"run {checked['next']} {options.warm} {options.most_warm}")
        found = side.ask(f"run {warm['next']} {options.batches} {options.seconds}")
        memory, disk = side.ask("memory"), side.ask("end")["bytes"]
    finally:
        if side is not None:
            side.close()
        time.sleep(0.1)
        group.remove()
        shutil.rmtree(home / name, ignore_errors=True)
    return {
        "rows_per_second": round(found["rows"] / found["seconds"]),
        "rows_per_cpu_second": round(found["rows"] / found["cpu"]),
        "batches": found["next"] - warm["next"],
        "warm_batches": warm["next"],
        "fill_seconds": round(filled, 1),
        "values": values,
        "memory": memory["resident"] if without else memory["peak"],
        "limited": "no: " + without if without else "cgroup",
        "disk_bytes": disk,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--share", type=float, default=1 / 8, help="memory over what all rows take")
    parser.add_argument("--check", type=int, default=3, help="batches after which all must agree")
    parser.add_argument("--warm", type=int, default=200, help="batches before the measured ones")
    parser.add_argument("--most-warm", type=int, default=180, help="seconds for them at most")
    parser.add_argument("--seconds", type=int, default=60, help="of measuring")
    parser.add_argument("--batches", type=int, default=1500, help="of the trace")
    parser.add_argument("--paths", nargs="*", default=list(PATHS))
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "gearshift-peers")
    parser.add_argument("--folder", default=None, help="for the files; the system's temporary one if not set")
    options = parser.parse_args()
    options.batches_memory = 64 << 20  # of a batch in numpy and Python, beside the rows
    budget = int(options.rows * ROW_BYTES * options.share)
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        zipf_trace(ZipfRows(options.rows, seed=1), options.batches, seed=2).save(Path(folder))
        for name in options.paths:
            try:
                results[name] = measure(name, Path(folder), budget, options)
            except SideFailed as failed:
                results[name] = {"failed": str(failed)}
            print(name, json.dumps(results[name]), flush=True)
    print(json.dumps(summary(results, options.rows, budget)))


def summary(results: dict[str, dict[str, Any]], rows: int, budget: int) -> dict[str, Any]:
    ratios: dict[str, float] = {}
    ours = results.get("gearshift", {})
    sums = [found["values"] for found in results.values() if "values" in found]
    for name, found in results.items():
        if name == "gearshift" or "failed" in found or "values" not in ours:
            continue
        ratios[f"vs_{name}"] = round(ours["rows_per_cpu_second"] / found["rows_per_cpu_second"], 2)
        ratios[f"vs_{name}_rows_per_second"] = round(ours["rows_per_second"] / found["rows_per_second"], 2)
    agree = bool(sums) and max(sums) - min(sums) <= 1e-5 * abs(sums[0])
    return {**ratios, "agree": agree, "rows": rows, "budget": budget, "paths": results}


if __name__ == "__main__":
    main()
