"""Processes on a Ray cluster: Ray places them, starts them, and starts them anew. Nothing else imports Ray.

One actor runs the coordinator; the others learn from it who else is there. All of them are
detached: they outlive whoever started the run. Every actor begins its work by itself when its process starts, so one
that Ray has started anew needs nobody to tell it. What passes through Ray is where a process listens and its public
key; rows, gradients and everything about the training go over the wire.
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
