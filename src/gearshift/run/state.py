"""The current state of a run. All code that shows or queries a run takes it from here.

    starting     a process owns it and prepares the training
    running      it trains or evaluates
    recovering   something was lost and is being replaced: `what` and `since`
    saving       its last checkpoint is being written
    stopped      it was stopped on request, and saved: it can be resumed
    failed       it ended with an error, or its processes are gone: `reason`
    done         it finished
    unknown      its processes are on another machine; watching their heartbeat shows the state (`Watcher`)
    damaged      run.json cannot be read

run.json holds what the owner recorded last; the lease shows whether an owner still exists. If the owner is gone while
other processes of its session live, the state is recovering: they restart the owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gearshift.run import ownership, process_identity

State = Literal[
    "starting", "running", "recovering", "saving", "stopped", "failed", "done", "unknown", "damaged"
]
Ending = Literal["done", "stopped", "failed"]
LIVE = ("starting", "running", "recovering", "saving")
OLD_NAMES = {"ended": "done"}  # names in run.json of older versions
GONE = "its process is gone (killed, or the machine restarted)"


@dataclass(frozen=True)
class RunState:
    """The state of a run, and what is known about it."""

    state: State
    reason: str = ""  # why it stopped or failed, or where it is
    what: str = ""  # what it is recovering from
    since: float | None = None  # epoch seconds, when this state began
    answers: bool = False  # its owner is a live process on this machine, which answers requests
    recorded: State = "unknown"  # recorded by its owner, if only heartbeats can show whether it is still true


NOT_KNOWN = RunState("unknown")


def standing(folder: Path, recorded: Mapping[str, Any]) -> RunState:
    """`recorded` is the content of run.json."""
    recorded_state: State = OLD_NAMES.get(recorded["state"], recorded["state"])
    if recorded_state not in LIVE:
        return RunState(recorded_state, recorded.get("reason", ""))
    owner = ownership.current(folder)
    if owner is None or not owner.beats:  # a run of a version without heartbeats
        return _by_process_alone(recorded)
    what, since = recorded.get("what", ""), recorded.get("since")
    lives = process_identity.lives(owner.process)
    alive = not owner.released and ownership.is_alive(folder, owner)
    if lives and alive:
        return RunState(recorded_state, "", what, since, answers=True)
    if alive is False:
        return RunState("failed", GONE)
    if lives is None and alive:  # the owner is elsewhere, but other processes of the run are here
        return RunState(recorded_state, f"its coordinator is on {owner.host}", what, since)
    if lives is None:
        return RunState("unknown", f"started on {owner.host}", what, since, recorded=recorded_state)
    restarted = f"its owner, process {owner.pid}, died and is being restarted"
    doubt: State = "unknown" if alive else "recovering"
    return RunState("recovering", "", restarted, owner.beat / 1e9, recorded=doubt)


def _by_process_alone(recorded: Mapping[str, Any]) -> RunState:
    alive = process_identity.lives(recorded)
    if alive is None:
        return RunState("unknown", f"started on {recorded.get('host', 'another machine')}")
    return RunState("running", answers=True) if alive else RunState("failed", GONE)


class Watcher:
    """Judges a run on other machines by its heartbeats, watched over time on this process's clock."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._pulse = folder, ownership.HeartbeatWatcher()
        self.quiet = 0.0  # seconds without a heartbeat, at the last check

    def look(self, now: RunState) -> RunState:
        """The state with what the heartbeats have shown so far; call it every second or so."""
        owner = ownership.current(self._folder)
        if now.recorded == "unknown" or owner is None:
            return now
        self.quiet = quiet = self._pulse.look([owner, *ownership.keepers(self._folder, owner.session)])
        if quiet > ownership.LAPSE_SECONDS:
            return RunState("failed", f"it was on {owner.host}, and there was no heartbeat for {quiet:.0f} s")
        if self._pulse.heard:
            return replace(now, state=now.recorded, recorded="unknown", reason=f"on {owner.host}")
        return now
