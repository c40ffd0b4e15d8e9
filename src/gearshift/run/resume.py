"""What a resumed run must have in common with the stopped one, and how its metrics are saved and restored.

Works on progress, plans and checkpoints; it starts no run and writes no file.
"""

from __future__ import annotations

from typing import Any

from gearshift.errors import UserError
from gearshift.metrics import Measures, Slices
from gearshift.optim.schedule import Schedule
from gearshift.parameters.checkpoint import Arrays, Checkpoint
from gearshift.parameters.dense_settings import DensePolicy
from gearshift.parameters.row_settings import RowPolicy
from gearshift.settings.declaration import ComparedOnResume, kept_values
from gearshift.training.progress import Progress
from gearshift.training.train_settings import ImprovementSettings, RunLength, StepSettings
from gearshift.training.training import Training

# `plan_facts` compares a value of each class that may have `kept` settings.
_COMPARED = {RunLength, StepSettings, ImprovementSettings, DensePolicy, RowPolicy}
_missing = {
    kind for kind in ComparedOnResume.__subclasses__() if kind.__module__.startswith("gearshift.")
} - _COMPARED
assert not _missing, f"add the values of {_missing} to plan_facts"


def plan_facts(training: Training) -> dict[str, str]:
    """What must be the same in a resumed run, by the names of the user's settings."""
    plan, server = training.plan, training.learner.server
    parts = [part for store in server.stores for part in store.parts]
    return {
        **kept_values("train", plan),
        **kept_values("train", plan.strategy.steps),
        **kept_values("train", plan.evaluation),
        "train.shuffle": str(plan.shuffle),
        "optimizer.schedule": str(plan.schedule),
        **kept_values("optimizer", server.dense_policy),
        **kept_values("optimizer", server.row_policy),
        "optimizer.row_clip": str(next((part.clip for part in parts if part.clip), None)),
        "epochs": str(plan.epochs),
        "the number of training examples": str(training.train.estimate()),
    }


def refuse_other_plan(training: Training, checkpoint: Checkpoint) -> None:
    saved, here = checkpoint.facts["plan"], plan_facts(training)
    more_epochs_change_nothing = training.plan.schedule == Schedule()
    for name, value in here.items():
        if value != saved.get(name, value) and not (name == "epochs" and more_epochs_change_nothing):
            raise UserError(
                f"the run was started with {name}={saved[name]}, but now it is {value}: resume with the run's own "
                f"settings, or start a new run with --init-from {checkpoint.path}"
            )


def measure_arrays(progress: Progress) -> Arrays:
    """The progressive metrics as named arrays: `so_far/...`, and `20758/...` for each day."""
    every = {"so_far": progress.measures, **progress.days.measures}
    return {f"{name}/{key}": array for name, m in every.items() for key, array in m.state().items()}


def restore_measures(progress: Progress, arrays: Arrays) -> None:
    by_name: dict[str, dict[str, Any]] = {}
    for path, array in arrays.items():
        name, key = path.split("/")
        by_name.setdefault(name, {})[key] = array
    restored = {name: Measures.from_state(state) for name, state in by_name.items()}
    progress.measures = restored.pop("so_far")
    progress.days = Slices.of({day if day == Slices.OTHER else int(day): m for day, m in restored.items()})
