"""Processes on a Ray cluster: Ray places, starts and restarts them. Nothing else imports Ray.

One actor runs the coordinator; the others get the list of processes from it. All of them are detached: they outlive the
process that started the run. Every actor begins its work when its process starts, so a restarted one needs no further
call. Only addresses and public keys pass through Ray; rows, gradients and all other messages go over the wire.
"""

from gearshift.engine.ray.actors.context_store import leave_place
from gearshift.engine.ray.actors.nodes import state_of
from gearshift.engine.ray.actors.placement import ProcessPlacement, ProcessResources
from gearshift.engine.ray.actors.process import CoordinatorWatchdog
from gearshift.engine.ray.actors.start import (
    answer,
    answered,
    answers,
    connect,
    end,
    launch,
    leave,
    refuse_several_machines,
    reserve,
)

__all__ = [
    "CoordinatorWatchdog",
    "ProcessPlacement",
    "ProcessResources",
    "answer",
    "answered",
    "answers",
    "connect",
    "end",
    "launch",
    "leave",
    "leave_place",
    "refuse_several_machines",
    "reserve",
    "state_of",
]
