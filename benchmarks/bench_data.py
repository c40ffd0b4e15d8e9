"""How fast are the ways of the data? One JSON object as the last line.

    prepare_vs_read   pyarrow's time to read the same TSV / our time to prepare it (Parquet with ids written)
    feed_vs_train     examples/s of feeding prepared batches of 4096 / those of a plain PyTorch DNN 400-400
    generated_...     examples/s of the synthetic log, made on all cores

All parts of a round run one after the other and rounds repeat, so that a busy machine slows all of them; the
figures are medians. The file is Criteo-like and generated, or any file in Criteo's format with --data.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import torch
from torch import nn

from gearshift.data.dataset import read
from gearshift.data.prepare import prepare
from gearshift.data.synthetic import ClickLog

BATCH = 4096
VOCABULARY = 100_000


def write_criteo_like(path: Path, lines: int) -> None:
    """Label, 13 skewed counts with gaps, 26 categories of 8 hex digits with a Zipf law."""
    rng = np.random.default_rng(1)
    options = pacsv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    writer = None
    for first in range(0, lines, 100_000):
        size = min(100_000, lines - first)
        columns: dict[str, pa.Array] = {"label": pa.array((rng.random(size) < 0.03).astype(np.int8))}
        for i in range(13):
            counts = rng.geometric(0.02, size).astype(np.int32)
            columns[f"I{i}"] = pa.array(counts, mask=rng.random(size) < 0.2).cast(pa.string())
        for i in range(26):
            ranks = rng.zipf(1.3, size) % VOCABULARY
            words = pa.array(
                [f"{(rank * 2654435761 + i * 97) & 0xFFFFFFFF:08x}" for rank in range(VOCABULARY)]
            )
            columns[f"C{i}"] = words.take(pa.array(ranks))
        table = pa.table({name: column.cast(pa.string()).fill_null("") for name, column in columns.items()})
        writer = writer or pacsv.CSVWriter(path, table.schema, write_options=options)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def read_with_pyarrow(path: Path) -> None:
    pacsv.read_csv(
        path,
        read_options=pacsv.ReadOptions(autogenerate_column_names=True),
        parse_options=pacsv.ParseOptions(delimiter="\t", quote_char=False),
    )


def feed(folder: Path) -> tuple[float, float]:
    """(examples per second, CPU seconds per example) of one pass over prepared batches."""
    wall, cpu, examples = time.perf_counter(), time.process_time(), 0
    for batch in read(folder).batches(BATCH):
        examples += len(batch)
    return examples / (time.perf_counter() - wall), (time.process_time() - cpu) / examples


def train(steps: int) -> float:
    """Examples per second of the dense part alone: the fastest that a deep model could train."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Linear(26 * 16 + 13, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1)
    )
    optimizer = torch.optim.Adam(net.parameters())
    inputs, labels = torch.randn(BATCH, 26 * 16 + 13), torch.rand(BATCH, 1).round()
    loss_of = nn.BCEWithLogitsLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss_of(net(inputs), labels).backward()
        optimizer.step()

    step()
    return steps * BATCH / seconds(lambda: [step() for _ in range(steps)])


def generate(sequences: bool, blocks: int = 20) -> float:
    """Examples/s of a generated log, ready for a model, on all cores."""
    log = ClickLog((blocks + 1) * ClickLog.block_size, sequences=sequences)
    log.block(0)
    return blocks * log.block_size / seconds(lambda: [log.block(i) for i in range(1, blocks + 1)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="a TSV in Criteo's format, uncompressed; generated if absent"
    )
    parser.add_argument("--lines", type=int, default=1_000_000, help="lines to generate")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="training steps per round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = options.data or Path(scratch) / "criteo.tsv"
        if options.data is None:
            write_criteo_like(path, options.lines)
        print(json.dumps(measure(path, Path(scratch) / "ready", options.rounds, options.steps)))


def measure(path: Path, folder: Path, rounds: int, steps: int) -> dict[str, float]:
    reads, prepares, feeds, trains, costs, plain, histories = [], [], [], [], [], [], []
    examples = 0
    for number in range(rounds + 1):
        shutil.rmtree(folder, ignore_errors=True)
        read_seconds = seconds(lambda: read_with_pyarrow(path))
        start = time.perf_counter()
        examples = prepare(read(path), folder).examples
        prepare_seconds = time.perf_counter() - start
        fed, cost = feed(folder)
        trained = train(steps)
        made, made_with_histories = generate(False), generate(True)
        if number == 0:
            continue  # warms the file cache and the threads
        print(f"round {number}: read {read_seconds:.2f} s, prepare {prepare_seconds:.2f} s", end=", ")
        print(f"feed {fed:,.0f} examples/s, train {trained:,.0f} examples/s", flush=True)
        reads.append(read_seconds)
        prepares.append(prepare_seconds)
        feeds.append(fed)
        trains.append(trained)
        costs.append(cost)
        plain.append(made)
        histories.append(made_with_histories)
    median = statistics.median
    return {
        "prepare_vs_read": round(median(reads) / median(prepares), 3),
        "feed_vs_train": round(median(feeds) / median(trains), 2),
        "read_seconds": round(median(reads), 3),
        "prepare_seconds": round(median(prepares), 3),
        "prepare_examples_per_second": round(examples / median(prepares)),
        "feed_examples_per_second": round(median(feeds)),
        "train_examples_per_second": round(median(trains)),
        "feed_cores_at_60k_examples_per_second": round(60_000 * median(costs), 4),
        "generated_examples_per_second": round(median(plain)),
        "generated_with_histories_per_second": round(median(histories)),
        "examples": examples,
        "megabytes": round(path.stat().st_size / 1e6, 1),
    }


if __name__ == "__main__":
    main()
