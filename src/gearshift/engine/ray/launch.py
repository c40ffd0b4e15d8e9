"""Starts the processes of a run on Ray, from the user's process.

The run does not depend on the process that started it: it continues without it, and `gearshift watch` shows it again.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from gearshift.engine.ray.cluster_settings import ClusterSettings
from gearshift.engine.ray.connection import Connection
from gearshift.engine.ray.coordinator_process import coordinate
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.engine.ray.local_cluster import LocalRay
from gearshift.engine.ray.outcome import LaunchedProcesses
from gearshift.engine.ray.process_context import ProcessContext, ProcessEnvironment, Recipe
from gearshift.engine.ray.relay_process import relay
from gearshift.engine.ray.shard_process import serve
from gearshift.engine.ray.shared_folder import FOLDER_SECONDS, SharedFolder, read_state, write_state
from gearshift.engine.ray.silence import LOST_SECONDS
from gearshift.engine.ray.worker_process import work
from gearshift.errors import UserError
from gearshift.run import event_log, ownership, process_identity, temporary_folders
from gearshift.run import folder as run_folder

if TYPE_CHECKING:
    from gearshift.engine.ray import actors

PLACE_SECONDS = 30.0  # timeout for Ray to find resources


def start(
    recipe: Recipe,
    settings: ClusterSettings,
    *,
    folder: Path,
    workers: int,
    shards: int,
    origin: Path | None = None,
    model: nn.Module | None = None,
    private: bool = False,
    warns: bool = False,
) -> LaunchedRun:
    """`folder` is the run's folder, which the run takes over; `origin` a checkpoint of another run to continue from.

    With `warns`, `wait` also gives the warning about steps as a `DataWarning`, for users who read no messages.
    """
    for name in ("ray", "zmq"):
        if find_spec(name) is None:
            raise UserError("engine=ray needs the extra: pip install 'gearshift-ctr[ray]'")
    wire = settings.wire if settings.wire != "auto" else ("ipc" if settings.address == "local" else "curve")
    transport = settings.transport(wire)
    cpus = settings.coordinator_cpus + shards * settings.shard_cpus + workers * settings.worker_cpus
    session = run_folder.hand_over(folder)
    local = LocalRay.start(cpus, folder) if settings.address == "local" else None
    plan, coordinator, sockets, connected = None, None, local.sockets if local else "", False
    try:
        ray = _ray()
        ray.connect(local.address if local else settings.address)
        connected = True
        plan = _plan(ray, settings, folder, workers, shards)
        if wire == "ipc" and not local:
            ray.refuse_several_machines(plan)
            sockets = str(temporary_folders.make(temporary_folders.SOCKETS, folder))
        context = ProcessContext(
            recipe,
            SharedFolder(folder.resolve(), session, FOLDER_SECONDS),
            ProcessEnvironment(str(Path.cwd()), settings.threads, private),
            Connection(wire, sockets, settings, transport=transport),
            shards,
            local=local,
        )
        write_state(folder, token=session, starts_before=read_state(folder).get("start", 0))
        write_state(folder, logs_before=len(event_log.files(folder)))
        if origin is not None:
            write_state(folder, origin=str(origin.resolve()))
        write_state(folder, ray=local.address if local else settings.address)
        write_state(folder, workers=None, strategy=None, tries=None)  # from an earlier start
        ownership.LeaseKeeper(folder, session, "ray", process_identity.identity(local.pid) if local else {})
        coordinator = ray.launch(plan, coordinate, {"shard": serve, "worker": work, "relay": relay}, context)
        return LaunchedRun(LaunchedProcesses(context, ray, coordinator, plan), model, warns=warns)
    except BaseException:
        if coordinator is not None:
            ray.end(coordinator, plan)
        elif plan is not None:
            ray.leave_place(plan)
        if connected:
            ray.leave()
        if local is not None:
            local.stop()
        elif sockets:
            shutil.rmtree(sockets, ignore_errors=True)
        raise


def _ray() -> Any:
    # By default Ray ends this process a minute after its head is gone. We end it earlier, with a message that says what
    # to do.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", f"{2 * LOST_SECONDS:.0f}")
    from gearshift.engine.ray import actors

    return actors


def _plan(
    ray: Any, settings: ClusterSettings, folder: Path, workers: int, shards: int
) -> actors.ProcessPlacement:
    needs = {
        "coordinator": ray.ProcessResources(settings.coordinator_cpus),
        "shard": ray.ProcessResources(settings.shard_cpus),
        "worker": ray.ProcessResources(settings.worker_cpus, settings.worker_gpus),
        "relay": ray.ProcessResources(0.0),
    }
    plan: actors.ProcessPlacement = ray.ProcessPlacement(
        f"{folder.name}-{os.getpid()}", needs, shards, workers, settings.spread
    )
    return replace(plan, group=ray.reserve(plan, PLACE_SECONDS))
