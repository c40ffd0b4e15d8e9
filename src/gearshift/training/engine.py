"""The interfaces around training: the engine that runs the workers, and the observer that is notified of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from gearshift.errors import UserError
from gearshift.sync.events import Action, Event
from gearshift.training.evaluation import Evaluation
from gearshift.training.requests import Switch
from gearshift.training.timing import Moment

if TYPE_CHECKING:
    from gearshift.training.training import Training

Log = Callable[[Event, list[Action]], None]


class NotFinite(UserError):
    """A loss or gradient that is not finite ended the run; most often the learning rates are too high."""


class Observer(Protocol):
    """Follows training: the run that owns it, or an experiment."""

    def began(self, first_lease: int) -> None:
        """An epoch starts with the current `step`, `strategy` and `progress`; its leases count from `first_lease`."""

    def happened(self, event: Event, actions: list[Action]) -> None:
        """Called with every event, in order, and the actions that the strategy decided on."""

    def stepped(self, before: Moment, ready_to_save: Callable[[], bool]) -> bool:
        """Called after every step with the moment before it. Returning False stops the loop here.

        Parameters and `progress` can be saved only if `ready_to_save` returns True; otherwise try again after the next
        step.
        """

    def evaluated(self, evaluation: Evaluation, is_best: bool) -> None: ...

    def switched(self, switch: Switch) -> None: ...

    def notify(self, sentence: str) -> None:
        """Passes on a message that the user should see."""


AnyObserver = TypeVar("AnyObserver", bound=Observer, contravariant=True)


class Engine(Protocol[AnyObserver]):
    """Runs the workers. An engine may need more of its observer: `Engine[RunObserver]` runs in a run."""

    name: str

    def run(self, training: Training, observer: AnyObserver) -> bool:
        """Runs from the current `progress` to the end. Returns False if the observer stopped it."""
