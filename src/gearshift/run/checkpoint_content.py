"""The content of a run's checkpoint besides the learners, and how training is restored from it.

Works on `Training`, plans and checkpoints; it starts no run and writes no file.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from gearshift.parameters.checkpoint import Arrays, Checkpoint
from gearshift.run.resume import measure_arrays, plan_facts, refuse_other_plan, restore_measures
from gearshift.run.trained_model import model_facts
from gearshift.training.training import Training


def checkpoint_facts(training: Training, wall_seconds: dict[str, Any]) -> dict[str, Any]:
    """The content of a checkpoint besides the arrays."""
    counted = {k: v for k, v in vars(training.progress).items() if k not in ("measures", "days")}
    progress = copy.deepcopy(counted)  # copied, because it is written while training continues
    return {
        "step": training.step,
        "seed": training.plan.seed,
        "total": training.total,
        "wall_seconds": wall_seconds,
        "progress": progress,
        "model": model_facts(training.learner.model),
        "schema": training.learner.schema.to_dict(),
        "settings": training.learner.settings,
        "strategy": training.active_strategy.facts(),
        "workers": {"planned": training.plan.workers, "now": training.workers},
        "parts": training.learner.parts,
        "plan": plan_facts(training),
    }


def checkpoint_arrays(training: Training) -> dict[str, Arrays]:
    """The arrays that belong to no learner."""
    arrays: dict[str, Arrays] = {
        "progress": measure_arrays(training.progress),
        "random": {"torch": torch.get_rng_state().numpy()},  # a custom module may draw from it
    }
    if training.replicas.velocity is not None:
        arrays["replicas"] = {"velocity": training.replicas.velocity.numpy()}
    return arrays


def restore_training(training: Training, checkpoint: Checkpoint, notify: Callable[[str], None]) -> None:
    """The training continues where the checkpoint was made, bit for bit."""
    facts = checkpoint.facts
    refuse_other_plan(training, checkpoint)
    training.learner.restore(checkpoint)
    if not training.baseline.restore(checkpoint):
        notify(
            "the checkpoint has no baseline (a logistic regression), so the resumed run continues without one"
        )
    training.progress.restore(facts["progress"])
    training.replicas.restore_counts()
    active = training.active_strategy
    active.restore_workers(facts.get("workers", {}))
    saved_strategy = facts["strategy"]
    if saved_strategy.get("planned", active.planned) == active.planned:
        active.restore(saved_strategy)  # the run may have switched strategy
    else:
        notify(
            f"the run continues with {training.plan.strategy.name}, as requested; "
            f"before, it used {saved_strategy['name']}"
        )
    restore_measures(training.progress, checkpoint.arrays("progress"))
    if checkpoint.has("replicas"):
        training.replicas.restore_velocity(torch.from_numpy(checkpoint.arrays("replicas")["velocity"]))
    torch.set_rng_state(torch.from_numpy(checkpoint.arrays("random")["torch"]))
