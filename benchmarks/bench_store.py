"""How fast the row store is, beside what the memory itself can do and beside hash maps off the shelf.

One caller, 64 Ki different ids a call through Python, width 16, rows on huge pages; ids uniform and zipf
1.05. Sides take turns, call by call; figures are medians over calls. The last line is one JSON object; its
headline keys are from the slower of the two distributions. `memory_vs_minimum` is measured in a process of
its own: resident bytes over weights + Adagrad state + a 16-byte slot per row.

    python benchmarks/bench_store.py [--rows 16000000] [--rounds 40] [--memory-rows 10000000]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gearshift.embedding.store import RowAdagrad, RowAdam, RowPart
from gearshift.embedding.table_store import MemoryStore

WIDTH, CALL = 16, 65_536
MINIMUM_BYTES = 64 + 64 + 16  # weights, state, slot


# ---- the other side ----


def load_baselines(folder: Path) -> ctypes.CDLL:
    """Compiles store_baselines.cpp against whatever map headers are here (nanobind and torch bring some)."""
    packages = Path(sysconfig.get_paths()["purelib"])
    includes = [packages / "nanobind/ext/robin_map/include", packages / "torch/include"]
    absl = subprocess.run(
        ["pkg-config", "--libs", "absl_flat_hash_map"], capture_output=True, text=True, check=False
    )
    link = [*absl.stdout.split(), "-DLINK_ABSL"] if absl.returncode == 0 else []
    library = folder / "baselines.so"
    source = str(Path(__file__).with_name("store_baselines.cpp"))
    flags = ["-std=c++20", "-O3", "-march=x86-64-v3", "-shared", "-fPIC", *(f"-I{i}" for i in includes)]
    subprocess.run(["g++", *flags, source, "-o", str(library), *link], check=True)
    baselines = ctypes.CDLL(str(library))
    baselines.new_rows.restype = baselines.new_map.restype = ctypes.c_void_p
    baselines.map_names.restype = ctypes.c_char_p
    return baselines


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class Gather:
    """The same rows in one block, read by known indices."""

    def __init__(self, baselines: ctypes.CDLL, rows: int) -> None:
        self.baselines = baselines
        self.rows = ctypes.c_void_p(baselines.new_rows(ctypes.c_uint64(rows)))

    def __call__(self, indices: np.ndarray, out: np.ndarray) -> None:
        self.baselines.gather(self.rows, pointer(indices), ctypes.c_uint32(len(indices)), pointer(out))


class GatherTwice:
    """The same with a line of an index before each row: what no index apart from the rows can beat."""

    def __init__(self, gather: Gather, rows: int) -> None:
        self.gather, self.lines = gather, ctypes.c_uint64(rows * 3 // 8)  # four slots a line, two thirds full
        self.index = ctypes.c_void_p(gather.baselines.new_rows(self.lines))
        gather.baselines.fill_index(self.index, self.lines, ctypes.c_uint64(rows))

    def __call__(self, indices: np.ndarray, out: np.ndarray) -> None:
        n, rows = ctypes.c_uint32(len(indices)), self.gather.rows
        self.gather.baselines.gather_twice(self.index, self.lines, rows, pointer(indices), n, pointer(out))


class Map:
    def __init__(self, gather: Gather, name: str, ids: np.ndarray) -> None:
        self.gather, self.map = gather, ctypes.c_void_p(gather.baselines.new_map(name.encode()))
        gather.baselines.fill_map(self.map, pointer(ids), ctypes.c_uint32(len(ids)))

    def __call__(self, ids: np.ndarray, out: np.ndarray) -> None:
        n = ctypes.c_uint32(len(ids))
        self.gather.baselines.pull_map(self.map, pointer(ids), n, self.gather.rows, pointer(out))

    def close(self) -> None:
        self.gather.baselines.free_map(self.map)


# ---- ids ----


class Draw:
    """Calls of CALL different row indices, uniform or zipf; a rank says nothing about the order of birth."""

    def __init__(self, rows: int, zipf: float | None, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.rows, self.cumulative = rows, None
        if zipf is not None:
            self.cumulative = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -zipf)
            self.by_rank = self.rng.permutation(rows).astype(np.uint32)

    def some(self, n: int) -> np.ndarray:
        if self.cumulative is None:
            return self.rng.integers(0, self.rows, n, dtype=np.uint32)
        ranks = np.searchsorted(self.cumulative, self.rng.random(n) * self.cumulative[-1])
        return self.by_rank[ranks]

    def __call__(self) -> np.ndarray:
        indices = np.unique(self.some(CALL))
        while len(indices) < CALL:
            indices = np.unique(np.concatenate([indices, self.some(CALL)]))
        return self.rng.permutation(indices)[:CALL]


def aligned(rows: int) -> np.ndarray:
    """Float32 rows that begin on a cache line, as torch's do."""
    raw = np.zeros(rows * WIDTH + 16, np.float32)
    skip = (-raw.ctypes.data // 4) % 16
    return raw[skip : skip + rows * WIDTH].reshape(rows, WIDTH)


# ---- measuring ----


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def rate(times: list[float], rows: int = CALL) -> float:
    return rows / float(np.median(times))


def build(optimizer: RowAdagrad | RowAdam, ids: np.ndarray) -> MemoryStore:
    store = MemoryStore([RowPart("embedding", WIDTH, optimizer)], seed=1)
    for begin in range(0, len(ids), CALL):
        store.pull(ids[begin : begin + CALL])
    return store


class Sides:
    """Everything that takes a turn in one distribution."""

    def __init__(
        self, ids: np.ndarray, twice: GatherTwice, stores: dict[str, MemoryStore], draw: Draw
    ) -> None:
        self.ids, self.gather, self.twice, self.stores, self.draw = ids, twice.gather, twice, stores, draw
        self.out, self.grads = aligned(CALL), aligned(CALL)
        self.grads[:] = np.random.default_rng(3).normal(size=self.grads.shape)
        self.counts = np.ones(CALL, np.uint32)

    def one_thread(self, rounds: int) -> dict[str, float]:
        times: dict[str, list[float]] = {k: [] for k in ("gather", "gather_twice", "pull", "adagrad", "adam")}
        for step in range(rounds):
            indices = self.draw()
            times["gather"].append(seconds(lambda i=indices: self.gather(i, self.out)))
            indices = self.draw()
            times["gather_twice"].append(seconds(lambda i=indices: self.twice(i, self.out)))
            ids = self.ids[self.draw()]  # other ids: a turn must not warm the next one's rows
            times["pull"].append(seconds(lambda i=ids: self.stores["adagrad"].pull(i, self.out)))
            for name in ("adagrad", "adam"):
                ids = self.ids[self.draw()]
                times[name].append(seconds(lambda n=name, i=ids, s=step: self.push(n, i, s)))
        return {name: rate(t) for name, t in times.items()}

    def push(self, name: str, ids: np.ndarray, step: int) -> None:
        self.stores[name].push(ids, self.grads, self.counts, examples=4096, step=step)

    def against_map(self, other: Map, rounds: int) -> tuple[float, float]:
        ours, theirs = [], []
        for _ in range(rounds):
            ids = self.ids[self.draw()]
            theirs.append(seconds(lambda i=ids: other(i, self.out)))
            ids = self.ids[self.draw()]
            ours.append(seconds(lambda i=ids: self.stores["adagrad"].pull(i, self.out)))
        return rate(ours), rate(theirs)

    def two_threads(self, rounds: int, calls: int = 4) -> dict[str, float]:
        """Each thread's calls alone, then both threads at once; the gain is the ratio of total rates."""
        pull = self.stores["adagrad"].pull
        outs = (self.out, aligned(CALL))
        times: dict[str, list[float]] = {k: [] for k in ("gather1", "gather2", "pull1", "pull2")}
        for _ in range(rounds):
            drawn = [[self.draw() for _ in range(calls)] for _ in range(2)]
            ids = [[self.ids[i] for i in some] for some in drawn]
            for name, work, args in (("gather", self.gather, drawn), ("pull", pull, ids)):
                for count in (1, 2):
                    times[f"{name}{count}"].append(together(work, args[:count], outs))
        gain = {n: 2 * np.median(times[f"{n}1"]) / np.median(times[f"{n}2"]) for n in ("gather", "pull")}
        return {"gather_gain": float(gain["gather"]), "pull_gain": float(gain["pull"])}


def together(
    work: Callable[..., object], args: list[list[np.ndarray]], outs: tuple[np.ndarray, ...]
) -> float:
    """Seconds until every thread has done its calls, from a common start."""
    start = threading.Barrier(len(args) + 1)

    def run(number: int) -> None:
        start.wait()
        for call in args[number]:
            work(call, outs[number])

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(args))]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


# ---- memory ----


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def measure_memory(rows: int) -> dict[str, float]:
    store = MemoryStore([RowPart("embedding", WIDTH, RowAdagrad())], seed=1)
    rng = np.random.default_rng(0)
    grads, out, counts = (
        np.ones((CALL, WIDTH), np.float32),
        np.empty((CALL, WIDTH), np.float32),
        np.ones(CALL, np.uint32),
    )
    before = resident_bytes()
    while len(store) < rows:
        ids = rng.integers(0, 2**63 - 1, min(CALL, rows - len(store)))
        n = len(ids)
        store.pull(ids, out[:n])
        store.push(ids, grads[:n], counts[:n], examples=1, step=1)
    used = resident_bytes() - before
    return {
        "memory_rows": len(store),
        "memory_resident_bytes": used,
        "memory_reported_bytes": store.memory_bytes(),
        "memory_vs_minimum": used / (MINIMUM_BYTES * len(store)),
    }


def memory_in_its_own_process(rows: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--only-memory", "--memory-rows", str(rows)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return result


# ---- the run ----


def run(rows: int, rounds: int) -> dict[str, object]:
    ids = np.random.default_rng(0).integers(0, 2**63 - 1, rows)
    with tempfile.TemporaryDirectory() as folder:
        baselines = load_baselines(Path(folder))
    gather = Gather(baselines, rows)
    twice = GatherTwice(gather, rows)
    stores = {"adagrad": build(RowAdagrad(), ids), "adam": build(RowAdam(), ids)}
    detail: dict[str, dict[str, object]] = {}
    sides = {}
    for name, exponent in (("uniform", None), ("zipf", 1.05)):
        sides[name] = Sides(ids, twice, stores, Draw(rows, exponent, seed=2))
        sides[name].one_thread(3)  # warm-up
        figures: dict[str, object] = dict(sides[name].one_thread(rounds))
        figures |= sides[name].two_threads(max(3, rounds // 4))
        detail[name] = figures
        print(
            name,
            {k: round(v, 3) if v < 100 else f"{v / 1e6:.1f} M/s" for k, v in figures.items()},
            flush=True,
        )
    for map_name in baselines.map_names().decode().split():
        other = Map(gather, map_name, ids)
        for name, side in sides.items():
            ours, theirs = side.against_map(other, max(3, rounds // 4))
            detail[name].setdefault("maps", {})[map_name] = {
                "pull": ours,
                "map": theirs,
                "ratio": ours / theirs,
            }
            print(f"{name} {map_name}: {theirs / 1e6:.1f} M/s, store {ours / 1e6:.1f} M/s", flush=True)
        other.close()
    return headline(detail) | {"rows": rows, "ids_per_call": CALL, "detail": detail}


def headline(detail: dict[str, dict]) -> dict[str, float]:
    """The slower distribution for each figure."""

    def worst(figure: Callable[[dict], float]) -> float:
        return min(figure(d) for d in detail.values())

    return {
        "pull_rows_per_second": worst(lambda d: d["pull"]),
        "adagrad_rows_per_second": worst(lambda d: d["adagrad"]),
        "adam_rows_per_second": worst(lambda d: d["adam"]),
        "pull_vs_gather": worst(lambda d: d["pull"] / d["gather"]),
        "pull_vs_gather_twice": worst(lambda d: d["pull"] / d["gather_twice"]),
        "pull_vs_best_map": worst(lambda d: min(m["ratio"] for m in d["maps"].values())),
        "two_thread_vs_gather": worst(lambda d: d["pull_gain"] / d["gather_gain"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=16_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--memory-rows", type=int, default=10_000_000)
    parser.add_argument("--only-memory", action="store_true")
    args = parser.parse_args()
    if args.only_memory:
        print(json.dumps(measure_memory(args.memory_rows)))
        return
    memory = memory_in_its_own_process(args.memory_rows)
    print(f"memory: {memory['memory_vs_minimum']:.3f}x the minimum", flush=True)
    print(json.dumps(run(args.rows, args.rounds) | memory))


if __name__ == "__main__":
    main()
