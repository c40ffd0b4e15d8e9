"""Ctrl-C and the end of the program that started a run on Ray: the run is stopped and saved, nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import gearshift as gs
from gearshift.run import catalog
from gearshift.run import folder as run_folder
from tests.flat_trainer import flat_trainer
from tests.on_ray.fixtures import ON_RAY
from tests.on_ray.leftovers import folders
from tests.on_ray.modules import Slow

pytestmark = ON_RAY
DATA = gs.read(gs.ClickLog(examples=12_000, days=2))


def ctrl_c_when_it_trains(folder: Path) -> None:
    log, until = folder / "events-000.jsonl", time.monotonic() + 120
    while not (log.exists() and '"apply"' in log.read_text()) and time.monotonic() < until:
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_stops_and_saves_a_run_on_ray(tmp_path: Path, cluster: gs.ClusterSettings) -> None:
    policy = gs.CheckpointPolicy(None, path=tmp_path)
    settings = {"global_batch": 256, "workers": 1, "shards": 1, "checkpoint": policy, "cluster": cluster}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run = flat_trainer(epochs=1000, **settings).start(Slow(DATA.schema), DATA)
        assert repr(run).startswith(f"Run({run.folder}: ")
        threading.Thread(target=ctrl_c_when_it_trains, args=(run.folder,), daemon=True).start()
        with pytest.raises(
            KeyboardInterrupt, match=r"was stopped and saved at step \d+\. Resume: trainer\.fit"
        ):
            run.wait(240)
    finally:
        signal.signal(signal.SIGINT, before)
    assert run_folder.read(run.folder).state == "stopped"
    assert (run.folder / "checkpoints" / "last" / "manifest.json").is_file()


@pytest.mark.slow
def test_a_program_that_ends_takes_its_own_cluster_along(tmp_path: Path, temporary: Path) -> None:
    before, root = folders(temporary), Path(__file__).parents[2]
    program = f"""
import sys, time
import gearshift as gs
from tests.on_ray.modules import Slow

data = gs.read(gs.ClickLog(examples=12_000, days=2))
here = gs.ClusterSettings(coordinator_cpus=0.5, shard_cpus=0.5, worker_cpus=0.5)
trainer = gs.Trainer(
    global_batch=256, workers=1, epochs=1000, cluster=here, checkpoint=gs.CheckpointPolicy(None, path={str(tmp_path)!r})
)
run = trainer.start(Slow(data.schema), data)
while run.status().step < 3:
    time.sleep(0.1)
sys.exit(3)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 3 and "was stopped and saved at step" in done.stderr, done.stderr
    (record,) = catalog.list_runs(tmp_path)
    assert record.state == "stopped"
    assert folders(temporary) == before
