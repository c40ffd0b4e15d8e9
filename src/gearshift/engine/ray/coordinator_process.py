"""The run in the coordinator's process: its accounts, evaluations and checkpoints, while others compute.

A `Run` like any other, with its folder, log and control socket; only the training itself happens in other processes. It
holds no rows: an evaluation reads those of the shards, at the run's current step.
"""

from __future__ import annotations

import time
from pathlib import Path

from gearshift.engine.ray.process_context import Membership, ProcessContext
from gearshift.engine.ray.process_manager import ProcessManager
from gearshift.engine.ray.ray_engine import RayEngine
from gearshift.engine.ray.shared_folder import read_state, write_state
from gearshift.errors import UserError
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run.event_log import last_step
from gearshift.run.local_run import Run
from gearshift.run.prepared_run import PreparedRun
from gearshift.run.retry import backoff

TRIES = 8  # starts of the coordinator without a new checkpoint between them, after which the run ends


def coordinate(member: Membership, context: ProcessContext, process_manager: ProcessManager) -> Run:
    """Starts the run in its threads and returns it."""
    context.enter(restarted=member.restarted)
    folder, session = context.folder.path, context.folder.token or None
    mine = run_folder.claim(folder, command=run_folder.read(folder).command, session=session)
    resumed = (folder / run_folder.CHECKPOINTS / run_folder.LAST).exists()
    limit_restarts(folder, member.start)
    engine = RayEngine(member, context, process_manager)
    run = context.build(resume=folder if resumed else origin_of(folder))
    header = context.recipe.header(run, folder)
    if context.records.restarts():
        report_restart(run, folder, mine.seconds_without_owner)
    return run.start(
        folder, engine, header=header, make_saver=engine.make_saver, processes=process_manager.figures
    )


def report_restart(run: PreparedRun, folder: Path, seconds: float) -> None:
    """The previous coordinator was lost this many `seconds` ago. Its event log shows which step it had reached."""
    where = run.resumed.name if run.resumed else "the beginning"
    logs_before = int(read_state(folder).get("logs_before", 0))
    again = max(0, (last_step(folder, logs_before) or 0) - run.training.step)
    more = f": {again:,} steps are repeated" if again else ""
    run.notify(f"the coordinator was lost and restarted; the run continues from {where}{more}")
    # The steps of a coordinator that was lost during its restart are counted already.
    counted = sum(fault.redone_steps for fault in run_log.unrecovered(folder) if fault.role == "coordinator")
    run.health.recovers(
        "lost",
        "coordinator",
        reason="the coordinator was lost",
        action="it was restarted",
        seconds_before=seconds,
        redone_steps=max(0, again - counted),
    )


def limit_restarts(folder: Path, start: int) -> None:
    """Ends the run if the coordinator keeps restarting without progress: Ray would restart it without limit.

    The first restart is immediate; the delays between later ones grow.
    """
    last = (folder / run_folder.CHECKPOINTS / run_folder.LAST).resolve().name
    before, tries, counted = read_state(folder).get("tries") or ("", 0, 0)
    if counted != start:  # the same start may call this twice
        tries = tries + 1 if before == last else 1
        write_state(folder, tries=[last, tries, start])
        if 2 < tries <= TRIES:
            time.sleep(backoff(tries - 3))
    if tries > TRIES:
        raise UserError(
            f"the coordinator was lost {TRIES} times without progress beyond {last}. Check whether it ran out "
            f"of memory (the kernel log names killed processes), then resume the run: gearshift train --resume {folder}"
        )


def origin_of(folder: Path) -> Path | None:
    """The checkpoint of another run that this one continues from, if any."""
    origin = read_state(folder).get("origin")
    return Path(origin) if origin else None
