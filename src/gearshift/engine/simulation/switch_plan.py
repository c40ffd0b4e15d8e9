"""Which switches of strategy are due: those that were planned, and those that `auto` proposes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gearshift.sync.automatic import Automatic, Change, Proposal
from gearshift.sync.events import Action, Event, SwitchRequested
from gearshift.sync.strategy import Strategy


@dataclass(frozen=True, slots=True)
class SimulatedSwitch:
    """A switch to another strategy after `seconds`, or when this many `examples` are applied or discarded."""

    strategy: str
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    examples: int | None = None


class SwitchPlan:
    """Switches that were planned, and those that `automatic` proposes; a planned one ends the automatic ones."""

    def __init__(self, switches: Iterable[SimulatedSwitch], automatic: Automatic | None) -> None:
        planned = tuple(switches)
        self.at_seconds = [s for s in planned if s.examples is None]
        self._at_examples = deque(sorted((s for s in planned if s.examples is not None), key=_examples))
        self._automatic, self._watching = automatic, automatic is not None
        self._proposal: Proposal | None = None

    @property
    def changes(self) -> tuple[Change, ...]:
        """That `automatic` made."""
        return tuple(self._automatic.changes) if self._automatic else ()

    def observe(self, event: Event, actions: list[Action], strategy: str) -> None:
        if self._automatic is not None and self._watching:
            self._proposal = self._automatic.observe(event, actions, strategy)

    def next(self, strategy: Strategy, ended: int, now: float) -> SwitchRequested | None:
        """The switch that is due when this many examples are applied or discarded."""
        if (proposal := self._proposal) is not None:
            sizes = {"global_batch": strategy.global_batch, "batch": strategy.batch}
            return SwitchRequested(proposal.strategy, {**sizes, **proposal.settings}, proposal.reason, now)
        if self._at_examples and ended >= _examples(self._at_examples[0]):
            return self.planned(self._at_examples.popleft(), now)
        return None

    def planned(self, switch: SimulatedSwitch, now: float) -> SwitchRequested:
        """A planned switch ends `auto`, as in a real run."""
        self._watching = False
        return SwitchRequested(switch.strategy, switch.settings, "as scheduled", now)


def _examples(switch: SimulatedSwitch) -> int:
    assert switch.examples is not None
    return switch.examples
