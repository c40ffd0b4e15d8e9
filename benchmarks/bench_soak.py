"""Does anything grow? A run on Ray for 20 minutes: memory, descriptors and processes of every role, and what waits.

    python benchmarks/bench_soak.py [--minutes 20]

The data are few and passed over again and again, so that no new row is born after the first pass. Every ten seconds
all processes of the run are looked at; the middle of the second quarter is compared with that of the last. The last
line is one JSON object: `growth` of memory by role (1.0 is none), `descriptors` more at the end than before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

import gearshift as gs
from gearshift.engine.ray.shared_folder import read_state

PAGE = os.sysconf("SC_PAGE_SIZE")
EVERY = 10.0  # seconds


def look(pid: int) -> tuple[float, int]:
    """Resident megabytes, and open descriptors."""
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6
    return resident, len(list(Path(f"/proc/{pid}/fd").iterdir()))


def processes(run: Any) -> dict[str, int]:
    found = {f"{who.role} {who.number}": pid for who, (pid, _) in run.processes().items()}
    return found | {"coordinator": read_state(run.folder)["pid"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20)
    options = parser.parse_args()
    data = gs.read(gs.ClickLog(examples=40_000, days=1, drift=0)).in_memory()
    torch.manual_seed(1)
    model = gs.models.DeepFM(data.schema, dim=8, hidden=[32])
    seen: dict[str, list[tuple[float, int]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        policy = gs.CheckpointPolicy(gs.Every(seconds=30), 2, folder)
        trainer = gs.Trainer(
            workers=gs.WorkerSettings(2, shards=2),
            global_batch=1024,
            epochs=1_000_000,
            strategy="gba",
            cluster=gs.ClusterSettings(),
            checkpoint=policy,
            training=gs.TrainingSettings(evaluation=gs.EvaluationSettings(best=None)),
        )
        run = trainer.start(model, data)
        while run.status().examples < 40_000:
            time.sleep(0.5)
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end and not run.finished:
            for name, pid in processes(run).items():
                seen[name].append(look(pid))
            time.sleep(EVERY)
        status = run.status()
        run.stop()
        run.wait(120)
    growth, more = {}, {}
    for name, found in sorted(seen.items()):
        quarter = max(1, len(found) // 4)
        early, late = found[quarter : 2 * quarter], found[-quarter:]
        memory = [statistics.median(m for m, _ in part) for part in (early, late)]
        descriptors = [statistics.median(d for _, d in part) for part in (early, late)]
        growth[name], more[name] = memory[1] / memory[0], descriptors[1] - descriptors[0]
        print(
            f"{name}: {memory[0]:.1f} -> {memory[1]:.1f} MB, {descriptors[0]:g} -> {descriptors[1]:g} descriptors"
        )
    print(f"{status.step:,} steps, {status.examples:,} examples")
    print(json.dumps({"growth": growth, "descriptors": more, "minutes": options.minutes}))


if __name__ == "__main__":
    main()
