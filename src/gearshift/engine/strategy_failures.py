"""Messages for the user when a strategy, possibly a custom one, fails or lets no worker begin."""

from __future__ import annotations

import traceback

from gearshift.errors import UserError
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.events import Action, Event, SwitchRequested


def decide(coordinator: Coordinator, event: Event) -> list[Action]:
    """The strategy's decision; an exception in a user's strategy becomes a `UserError`."""
    try:
        return coordinator.handle(event)
    except Exception as error:
        if isinstance(event, SwitchRequested) and isinstance(error, UserError):
            raise
        strategy = type(coordinator.strategy)
        if strategy.__module__.startswith("gearshift."):
            raise
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"strategy {strategy.__module__}:{strategy.__qualname__} failed: {type(error).__name__}: {error} "
            f"({at.filename}:{at.lineno}). The last checkpoint is intact; resume with another strategy"
        ) from error


def stuck(coordinator: Coordinator) -> UserError:
    """The error if no worker is busy, none may begin, and examples are left: the strategy has stalled."""
    strategy, work = coordinator.strategy, coordinator.work
    return UserError(
        f"strategy {strategy.name} lets no worker begin: {len(work.parked)} workers wait, "
        f"{len(work.waiting)} gradients are in no step, and examples are left. The last checkpoint is intact"
    )
