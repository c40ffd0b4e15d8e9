"""Replays a log of decisions: a fresh coordinator that gets the same events must produce the same actions.

A difference means that the log was changed, or that this version of Gearshift decides differently from the one that
wrote it. Needs no tensors and no data; `story` renders the same log in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gearshift.errors import UserError
from gearshift.run import catalog, event_log
from gearshift.run.event_log import Decision, Head, LogPosition, TornLine, action_text
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.events import (
    Action,
    Apply,
    Begin,
    Discard,
    Duplicate,
    Exchange,
    Reissue,
    SwitchRequested,
    WorkerLost,
)
from gearshift.sync.registry import make_strategy


@dataclass(frozen=True)
class ReplayDifference:
    """The first place where the replayed actions differ from the logged ones."""

    place: LogPosition
    logged: list[Action]
    replayed: list[Action]
    written_by: str  # the version

    def __str__(self) -> str:
        at = next(
            (i for i, (a, b) in enumerate(zip(self.logged, self.replayed, strict=False)) if a != b), None
        )
        at = min(len(self.logged), len(self.replayed)) if at is None else at
        return (
            f"{self.place}: action {at + 1} of this event differs\n"
            f"  logged    {_shown(self.logged, at)}\n"
            f"  replayed  {_shown(self.replayed, at)}"
        )


@dataclass(frozen=True)
class Replayed:
    files: int
    epochs: int
    events: int
    steps: int
    switches: int
    torn: tuple[LogPosition, ...]  # lines that a crash cut short
    difference: ReplayDifference | None

    def __str__(self) -> str:
        figures = {"event": self.events, "step": self.steps, "switch": self.switches, "epoch": self.epochs}
        known = ", ".join(counted(number, noun) for noun, number in figures.items())
        if self.difference:
            return f"different after {known}. {self.difference}"
        torn = "".join(f"; {place} is cut short (the process was killed there)" for place in self.torn)
        return f"same decisions: {known}{torn}"


def find(log_or_run: str | Path) -> list[Path]:
    """The files of a log: one that is named, or all of a run (folder, beginning of its name, or `last`)."""
    path = Path(log_or_run)
    if path.is_file():
        return [path]
    folder = path if event_log.files(path) else catalog.find(log_or_run)
    files = event_log.files(folder)
    if not files:
        raise UserError(
            f"{folder} has no event log (events-000.jsonl); it was created by a version without event logs"
        )
    return files


def replay(log_or_run: str | Path) -> Replayed:
    """Stops at the first difference."""
    files = find(log_or_run)
    coordinator, version = None, ""
    epochs = events = steps = switches = 0
    torn: list[LogPosition] = []
    difference = None
    for place, entry in event_log.read(files):
        match entry:
            case Head():
                strategy = make_strategy(entry.strategy, entry.settings)
                coordinator = Coordinator(
                    strategy, make_strategy, step=entry.step, first_lease=entry.first_lease
                )
                epochs, version = epochs + 1, entry.version
            case TornLine():
                torn.append(place)
            case Decision(event, actions):
                if coordinator is None:
                    raise UserError(
                        f"{place}: an event before the log header; the start of the log is missing"
                    )
                replayed = _handle(coordinator, place, entry)
                if list(map(_decision, replayed)) != list(map(_decision, actions)):
                    difference = ReplayDifference(place, actions, replayed, version)
                    break
                events += 1
                steps += sum(isinstance(action, Apply) for action in actions)
                switches += isinstance(event, SwitchRequested)
    if not epochs:
        raise UserError(f"{files[0]} is empty; there is nothing to replay")
    return Replayed(len(files), epochs, events, steps, switches, tuple(torn), difference)


def _decision(action: Action) -> Action:
    """The action without words: the text of a reason may change between versions, and the log has no `ended_before`."""
    match action:
        case Apply():
            return replace(action, parts=tuple(replace(part, reason="") for part in action.parts))
        case Discard():
            return replace(action, reason="", ended_before=False)
        case Reissue() | Duplicate():
            return replace(action, reason="")
    return action


def _handle(coordinator: Coordinator, place: LogPosition, entry: Decision) -> list[Action]:
    """An event that cannot have happened here (such as a worker that joins twice) means that the log was changed."""
    try:
        return coordinator.handle(entry.event)
    except (KeyError, ValueError, TypeError, AssertionError) as error:
        raise UserError(f"{place}: {entry.event} cannot follow the events before it ({error})") from None


def story(log_or_run: str | Path) -> Iterator[str]:
    """The log in plain words: a line per epoch, step, discard, loss and switch."""
    counts: dict[int, int] = {}  # examples, by lease
    for place, entry in event_log.read(find(log_or_run)):
        match entry:
            case Head():
                counts.clear()
                settings = " ".join(f"{key}={value}" for key, value in entry.settings.items())
                who = f"{entry.strategy}, {counted(entry.workers, 'worker')}"
                yield f"epoch {entry.epoch + 1} from step {entry.step:,}: {who}, {settings}"
            case TornLine():
                yield f"{place} is cut short"
            case Decision(event, actions):
                at = f"{event.at:10.3f} s  "
                if isinstance(event, SwitchRequested):
                    yield at + f"switch to {event.strategy}" + (f": {event.reason}" if event.reason else "")
                if isinstance(event, WorkerLost):
                    yield at + f"worker {event.worker} lost: {event.reason}"
                for action in actions:
                    yield from (at + sentence for sentence in _sentences(action, counts))


def _sentences(action: Action, counts: dict[int, int]) -> Iterator[str]:
    match action:
        case Begin(_, lease):
            counts[lease.number] = lease.count
        case Apply(step, parts, dense_rate=rate):
            examples = sum(counts.pop(part.lease, 0) for part in parts)
            stale = max(part.staleness for part in parts)
            slower = f", dense rate x {rate:g}" if rate != 1.0 else ""
            gradients = counted(len(parts), "gradient")
            yield f"step {step:,}: {gradients}, {examples:,} examples, staleness up to {stale}{slower}"
            for part in parts:
                if part.reason:
                    yield f"  lease {part.lease} at weight {part.weight:g}: {part.reason}"
        case Discard(lease_number, reason):
            counts.pop(lease_number, None)
            yield f"lease {lease_number} discarded: {reason}"
        case Reissue(lease_number, reason):
            counts.pop(lease_number, None)
            yield f"lease {lease_number} reissued: {reason}"
        case Duplicate(lease_number, reason):
            counts.pop(lease_number, None)
            yield f"lease {lease_number} ended as a duplicate: {reason}"
        case Exchange(number):
            yield f"all replicas synchronise (exchange {number:,} since the last switch)"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else noun.endswith('tch') * 'e' + 's'}"


def _shown(actions: list[Action], at: int) -> str:
    return action_text(actions[at]) if at < len(actions) else "nothing"
