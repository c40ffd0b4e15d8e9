"""Metrics of a run and its processes, in the text format of Prometheus (version 0.0.4). Does not import torch.

Names and labels are a contract: add, never rename. A counter begins at 0 when its process starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from gearshift.run.state import State

Processes = Mapping[str, Mapping[str, float]]  # by name, as worker-3

OF_THE_RUN = {  # fields of `status.Status`
    "step": ("step", "Steps made; decreases if the run returns to a checkpoint after losing a shard."),
    "examples": ("examples", "Examples trained on."),
    "duplicated": (
        "duplicated_examples",
        "Examples that a worker computed although another delivered them first (balanced).",
    ),
    "total": ("examples_expected", "Examples that the run will train on."),
    "seconds": ("training_seconds", "Time spent training."),
    "examples_per_second": ("examples_per_second", "Examples trained on per second, over the whole run."),
    "loss": ("loss", "Recent log loss."),
    "auc_so_far": (
        "auc_so_far",
        "Progressive AUC: each example is predicted before the model is trained on it.",
    ),
    "seconds_since_step": ("seconds_since_step", "Time since the last step, or since the phase began."),
    "checkpoint_age": ("checkpoint_age_seconds", "Age of the newest checkpoint."),
    "failed_saves": (
        "failed_saves",
        "Checkpoints that could not be written since the run was started or resumed.",
    ),
    "missing_workers": ("missing_workers", "Workers that should be running but are not."),
    "wall_seconds": ("wall_seconds", "Wall time of the run, including the sessions before a resume."),
}
COUNTERS = {
    "sent_messages": "Messages sent.",
    "sent_bytes": "Bytes of the messages sent.",
    "received_messages": "Messages received.",
    "received_bytes": "Bytes of the messages received.",
    "refused": "Connections and messages that were refused.",
    "broken": "Connections and messages that broke because the process at the other end died; they are resent.",
    "unsent": "Messages dropped because a queue was full or there was no receiver; they are resent.",
    "waited_seconds": "Idle time, spent waiting for messages from other processes.",
    "loop_cpu_seconds": "CPU time of the thread that handles messages; in a shard this includes rows and steps.",
    "batches": "Batches computed.",
    "computing_seconds": "Time spent computing batches.",
    "exchanges": "Exchanges of a worker's replica.",
    "exchanged_bytes": "Bytes of weights and moments moved by exchanges, in both directions.",
    "ring_rounds": "Rounds of sync whose dense gradients were summed by all-reduce.",
    "rings_broken": "Rings for all-reduce that broke.",
    "relayed_rounds": "Rounds of sync whose gradients were summed by the relays of machines.",
    "restarts": "How many times the process was restarted.",
}
GAUGES = {
    "parked_pulls": "Pulls waiting for a step.",
    "gradients_waiting": "Gradients waiting for their step.",
    "leases_open": "Batches leased to workers.",
    "orders_open": "Orders that not all shards have carried out.",
    "workers": "Connected workers.",
    "incarnation": "How many times the parameters were loaded from a snapshot.",
}
TIER_COUNTERS = {
    "tier_lookups": "Distinct ids that batches pulled from a store with a disk tier.",
    "tier_misses": "Distinct ids that batches pulled and that had no row in memory; new ids included.",
    "tier_prefetched": "Rows brought into memory ahead of their batch.",
    "tier_evicted": "Rows that left memory.",
    "tier_written_back": "Rows that left memory, had changed and were written to disk.",
    "tier_retries": "Fetches repeated because rows left memory meanwhile.",
    "tier_reads": "Reads from row files; neighbouring blocks are one read.",
    "tier_bytes_read": "Bytes read from row files.",
    "tier_rows_read": "Rows found by reads from row files.",
    "tier_needless_reads": "Lookups in a file that turned out not to have the row.",
    "tier_bytes_written": "Bytes of row files written, merges included.",
    "tier_bytes_flushed": "Bytes of row files written when rows left memory, without merges.",
    "tier_merges": "Merges of row files.",
    "tier_read_waits": "Waits for reads from disk.",
    "tier_reads_in_flight": "Reads in flight, summed over all waits.",
}
TIER_GAUGES = {
    "tier_hot_rows": "Rows in memory.",
    "tier_cold_rows": "Rows on disk only.",
    "tier_stored_rows": "Rows in row files, older copies included.",
    "tier_stale_rows": "Older copies of rows in row files.",
    "tier_files": "Row files.",
    "tier_file_bytes": "Bytes of the row files.",
    "tier_index_bytes": "Memory for fences and filters of the row files.",
    "tier_unwritten": "1 while rows cannot be written to disk.",
}
TABLE_COUNTERS = {  # of one table: the figure tier/lookups/TABLE is a sample of the first
    "tier/lookups": "Distinct ids of this table that batches pulled from a store with a disk tier.",
    "tier/misses": "Distinct ids of this table that batches pulled and that had no row in memory; new ids included.",
    "tier/loads": "Rows of this table read from disk, for a batch or ahead of it.",
}
COUNTERS |= TIER_COUNTERS
GAUGES |= TIER_GAUGES


def text(run: str, status: Any, processes: Processes) -> str:
    """`status` is the run's `status.Status`; unknown values are omitted."""
    label = f'{{run="{_escaped(run)}"}}'
    lines: list[str] = []
    for key, (name, help_) in OF_THE_RUN.items():
        if math.isfinite(value := float(getattr(status, key))):
            lines += [*_head(name, "gauge", help_), f"gearshift_{name}{label} {_number(value)}"]
    for key, help_ in (*COUNTERS.items(), *GAUGES.items()):
        kind, name = ("counter", f"{key}_total") if key in COUNTERS else ("gauge", key)
        samples = [
            f"gearshift_{name}{_labels(run, who)} {_number(figures[key])}"
            for who, figures in processes.items()
            if key in figures
        ]
        lines += _head(name, kind, help_) + samples if samples else []
    for key, help_ in TABLE_COUNTERS.items():
        lines += _by_table(run, key, help_, processes)
    return "\n".join(lines) + "\n"


def _by_table(run: str, key: str, help_: str, processes: Processes) -> list[str]:
    name = f"{key.replace('/', '_table_')}_total"
    samples = [
        f"gearshift_{name}{_labels(run, who, table=figure.removeprefix(f'{key}/'))} {_number(value)}"
        for who, figures in processes.items()
        for figure, value in figures.items()
        if figure.startswith(f"{key}/")
    ]
    return _head(name, "counter", help_) + samples if samples else []


def state_text(run: str, state: str) -> str:
    """One sample per state, 1 for the current one; also for a run that does not answer."""
    samples = [
        f'gearshift_state{{run="{_escaped(run)}",state="{one}"}} {int(one == state)}'
        for one in get_args(State)
    ]
    return "\n".join([*_head("state", "gauge", "1 for the current state of the run."), *samples]) + "\n"


def figures_by_role(processes: Processes) -> dict[str, float]:
    """For metrics.jsonl: sums over the processes of a role (worker_sent_bytes), except names with a /."""
    totals: dict[str, float] = {}
    for who, figures in processes.items():
        for key, value in ((key, value) for key, value in figures.items() if "/" not in key):
            name = f"{who.rpartition('-')[0]}_{key}"
            totals[name] = totals.get(name, 0) + value
    return totals


def _head(name: str, kind: str, help_: str) -> list[str]:
    return [f"# HELP gearshift_{name} {help_}", f"# TYPE gearshift_{name} {kind}"]


def _labels(run: str, who: str, **others: str) -> str:
    role, _, number = who.rpartition("-")
    labels = {"run": run, "role": role, "number": number, **others}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
