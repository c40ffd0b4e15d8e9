"""Does harm to a live run on several Ray nodes of this machine, and measures what it costs.

    kill WHO      SIGKILL to a worker, a shard or the coordinator
    kill node     SIGKILL to a raylet: Ray ends all that it had started; another node joins for it
    freeze WHO    SIGSTOP for longer than the run is patient, then SIGCONT
    cut node      nothing goes to a host and nothing comes from it for as long; takes `hosts.Hosts`, and so root

Whom and when is drawn from a seed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import gearshift as gs
from gearshift.cluster_model.cluster import ClusterModel, Compute
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.run.replay import replay
from tests.chaos.hosts import Hosts
from tests.ledger import Ledger
from tests.on_ray.modules import Normed

KINDS = (
    "kill worker",
    "kill shard",
    "kill coordinator",
    "kill node",
    "freeze worker",
    "freeze shard",
    "freeze coordinator",
)
PATIENCE = 4.0
FREEZE_SECONDS = {
    "worker": 3 * PATIENCE,
    "shard": 3 * PATIENCE,
    "coordinator": 45.0,
}  # all are given up meanwhile
CUT_SECONDS = 3 * PATIENCE
GLOBAL, BATCH, WORKERS, SHARDS = 512, 128, 2, 2
PACE = 0.1  # seconds that a batch takes at least: a run must last long enough to be harmed
RATE = WORKERS * BATCH / PACE  # examples/s at best
SOME = 2 * GLOBAL  # examples after which a run counts as going on
RECOVERY_SECONDS = 240.0


@dataclass(frozen=True)
class Harm:
    """One event, and what it took until the run was beyond where it was."""

    kind: str
    victim: str
    strategy: str
    at: int  # examples
    seconds: float  # lost


@dataclass(frozen=True)
class Outcome:
    """A run that was harmed, at its end."""

    strategy: str
    harms: list[Harm]
    auc: float
    calm: float  # AUC of the same run undisturbed, on threads
    incarnations: int
    steps: int
    again: int
    wall: float


class Nodes:
    """A Ray cluster of several raylets on this machine."""

    def __init__(self, nodes: int = 3, cpus: float = 2.0) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        # A raylet that is gone shall be missed after seconds, not after half a minute.
        soon = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
        self.cpus = cpus
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": soon}
        self._cluster = RayCluster(initialize_head=True, connect=False, head_node_args=head)
        self._nodes = [self._add() for _ in range(nodes)]

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=self.cpus, object_store_memory=80 << 20)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def kill(self, draw: random.Random) -> int:
        """One of them, at once, without a farewell; the pid it had. Not that of whoever watches the run."""
        from ray._private import worker

        ours = worker._global_node.unique_id if worker._global_node else None
        node = draw.choice([node for node in self._nodes if node.unique_id != ours])
        self._nodes.remove(node)
        (process,) = node.all_processes["raylet"]
        self._cluster.remove_node(node, allow_graceful=False)
        return int(process.process.pid)

    def drain(self, machine: str) -> None:
        """Says that this one will be gone."""
        command = [Path(sys.executable).with_name("ray"), "drain-node", f"--address={self.address}"]
        command += [f"--node-id={machine}", "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=test"]
        subprocess.run(
            [*command, "--deadline-remaining-seconds=60"], check=True, capture_output=True, timeout=60
        )

    def add(self) -> None:
        self._nodes.append(self._add())

    def close(self) -> None:
        import ray

        ray.shutdown()  # a run that failed left us connected to one of them
        self._cluster.shutdown()


@contextlib.contextmanager
def nodes(count: int = 3) -> Iterator[Nodes]:
    made = Nodes(count)
    try:
        yield made
    finally:
        made.close()


def settings_for(address: str, wire: Any = "curve") -> gs.ClusterSettings:
    return gs.ClusterSettings(
        address=address,
        wire=wire,
        patience=PATIENCE,
        spread=True,
        coordinator_cpus=0.5,
        shard_cpus=0.5,
        worker_cpus=0.5,
    )


def trainer(
    path: Path, strategy: str, batch: int = BATCH, inject: ClusterModel | None = None, **more: Any
) -> gs.Trainer:
    return gs.Trainer(
        global_batch=GLOBAL,
        workers=gs.WorkerSettings(WORKERS, SHARDS, threads=1, inject=inject),
        strategy={"name": strategy, "batch": batch},
        checkpoint=gs.CheckpointPolicy(gs.Every(seconds=4.0), path=path),
        **more,
    )


def examples_in(seconds: float) -> int:
    return int(RATE * seconds) // GLOBAL * GLOBAL + 77  # the last step is a short one


def fresh_model(data: gs.Dataset) -> Normed:
    torch.manual_seed(2)
    return Normed(data.schema)


class Chaos:
    """Harms one run after the other until there were enough events."""

    def __init__(
        self,
        cluster: gs.ClusterSettings,
        path: Path,
        seed: int,
        raylets: Nodes | Hosts | None = None,
        batch: int = BATCH,
    ) -> None:
        self.cluster, self.path, self.raylets, self.batch = cluster, path, raylets, batch
        self._draw = random.Random(seed)
        self._calm: dict[tuple[str, int], float] = {}

    def harm_a_run(
        self,
        strategy: str,
        kinds: list[str],
        seconds: float,
        tell: Callable[[str], None] = lambda line: None,
    ) -> Outcome:
        """A run of `seconds`, if nobody harmed it; of `kinds`, those for which it lasts are done."""
        data = gs.read(gs.ClickLog(examples=examples_in(seconds), days=2))
        slowly = ClusterModel(WORKERS, Compute(per_batch=PACE))
        began, harms = time.monotonic(), list[Harm]()
        there = trainer(self.path, strategy, self.batch, inject=slowly, cluster=self.cluster)
        run = there.start(fresh_model(data), data, name=strategy)
        assert isinstance(run, LaunchedRun)
        try:
            self._wait_for(run, SOME)
            for kind in kinds:
                if run.status().examples > 0.7 * run.status().total:
                    break
                time.sleep(self._draw.uniform(0.5, 3.0))
                harms.append(self._harm(run, kind, strategy))
                tell(
                    f"{strategy:8} {harms[-1].kind:18} {harms[-1].victim:12} {harms[-1].seconds:6.1f} s lost"
                )
            result = run.wait(RECOVERY_SECONDS + 3 * seconds)
        except BaseException:
            print("\n".join(run.messages))
            raise
        ledger = check(result.folder, data.counted())
        return Outcome(
            strategy,
            harms,
            result.auc,
            self._calm_auc(strategy, data),
            ledger.heads,
            ledger.step,
            ledger.again,
            time.monotonic() - began,
        )

    def _calm_auc(self, strategy: str, data: gs.Dataset) -> float:
        key = strategy, data.counted()
        if key not in self._calm:
            calm = trainer(self.path / "calm", strategy, self.batch)
            self._calm[key] = calm.fit(fresh_model(data), data, name=strategy).auc
        return self._calm[key]

    def _harm(self, run: LaunchedRun, kind: str, strategy: str) -> Harm:
        what, whom = kind.split()
        so_far, began = run.status().examples, time.monotonic()
        if kind == "cut node":
            assert isinstance(self.raylets, Hosts)
            number = self._draw.choice(self.raylets.numbers)
            self.raylets.cut(number)
            victim = f"host {number}"
            threading.Timer(CUT_SECONDS, self.raylets.mend, (number,)).start()
        elif whom == "node":
            assert self.raylets is not None
            victim = f"raylet {self.raylets.kill(self._draw)}"
            self.raylets.add()
        else:
            pid, victim = self._victim(run, whom)
            os.kill(pid, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
            if what == "freeze":
                threading.Timer(FREEZE_SECONDS[whom], thaw, (pid,)).start()
        self._wait_for(run, so_far + SOME)
        return Harm(kind, victim, strategy, so_far, max(0.0, time.monotonic() - began - SOME / RATE))

    def _victim(self, run: LaunchedRun, whom: str) -> tuple[int, str]:
        if whom == "coordinator":
            return int(json.loads((run.folder / "cluster.json").read_text())["pid"]), whom
        until = time.monotonic() + RECOVERY_SECONDS
        while time.monotonic() < until:  # a coordinator that has just started does not know them yet
            places = {who: pid for who, (pid, _) in run.processes().items() if who.role == whom}
            if places:
                who = self._draw.choice(sorted(places))
                return places[who], f"{whom} {who.number}"
            time.sleep(0.2)
        raise AssertionError(f"the run knows no {whom}")

    def _wait_for(self, run: LaunchedRun, examples: int) -> None:
        until = time.monotonic() + RECOVERY_SECONDS
        while (status := run.status()).examples < min(examples, status.total):
            assert not run.finished, f"it ended: {run.messages}"
            assert time.monotonic() < until, f"stuck at {status}: {run.messages[-5:]}"
            time.sleep(0.05)


def thaw(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def check(folder: Path, examples: int) -> Ledger:
    """Each example of the history that survived ended once; the report and a replay say the same."""
    ledger = Ledger.of(folder)
    ledger.assert_exact(examples)
    said = json.loads((folder / "report.json").read_text())
    assert said["examples"] == examples and said["global_steps"] == ledger.step
    assert (said["applied"], said["discarded"]) == (ledger.leases(applied=True), ledger.leases(applied=False))
    found = replay(folder)
    assert found.difference is None, str(found)
    return ledger
