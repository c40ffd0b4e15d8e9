"""Starts a run on a cluster of its own and says where: for tests that kill whoever started it, or Ray's head."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import gearshift as gs
from gearshift.cluster_model.cluster import ClusterModel, Compute
from tests.on_ray.modules import Normed


def main(path: Path, examples: int) -> None:
    data = gs.read(gs.ClickLog(examples=examples, days=2))
    torch.manual_seed(2)
    trainer = gs.Trainer(
        global_batch=256,
        workers=gs.WorkerSettings(1, inject=ClusterModel(1, Compute(per_batch=0.05))),
        cluster=gs.ClusterSettings(coordinator_cpus=0.5, shard_cpus=0.5, worker_cpus=0.5),
        checkpoint=gs.CheckpointPolicy(None, path=path),
    )
    run = trainer.start(Normed(data.schema), data)
    while run.status().step < 3:
        time.sleep(0.1)
    print(run.folder, flush=True)
    run.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
