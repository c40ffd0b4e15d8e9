"""The interfaces around a training: the engine that runs its workers, and the observer that hears what happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gearshift.errors import UserError
from gearshift.sync.messages import Action, Event
from gearshift.sync.strategy import Strategy
from gearshift.training.evaluation import Evaluation
from gearshift.training.requests import Switch
from gearshift.training.timing import Moment

if TYPE_CHECKING:
    from gearshift.training.training import Training

Log = Callable[[Event, list[Action]], None]


class NotFinite(UserError):
    """A loss or gradient that is no number ended the run: most often the rates are too high."""


class Observer(Protocol):
    def began(self) -> None:
        """An epoch starts, where `step`, `strategy` and `progress` say."""

    def stepped(self, before: Moment) -> bool:
        """After every step, with the moment before it; False asks the loop to stop here."""

    def evaluated(self, evaluation: Evaluation, is_best: bool) -> None: ...

    def switched(self, switch: Switch) -> None: ...

    def tell(self, sentence: str) -> None:
        """Something the user should know."""


class Engine(Protocol):
    """Who runs the passes over the data."""

    name: str

    def run(self, training: Training, observer: Observer) -> bool:
        """From where `progress` stands to the end; False if the observer said stop."""

    def refresh(self) -> None:
        """The learner is about to be evaluated: it must hold the parameters of this step."""

    def check_replicas(self, strategy: Strategy) -> None:
        """Refuses a strategy whose replicas this engine cannot have."""
