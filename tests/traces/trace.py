"""Stories told to a coordinator, as text: what happens (`>`), and under it, indented, what follows.

    # a comment, part of the story
    > start sync global_batch=4 batch=2
      -
    > supply 8 by 2                 the next 8 examples, in leases of 2
    > 0 1 join                      one or more workers; then `ask`
    > 0 delivers                    the gradient of its lease arrives, and it asks for more, in one message
    > 0 reports 3                   the gradient of lease 3 arrives from it, whether it holds that lease or not
    > 0 fails: not finite           the gradient of its lease cannot be used
    > 1 is lost: no sign of life
    > switch to gba global_batch=4 batch=1
    > replicas have met             the exchange that was asked for is done
    > time passes                  nothing else happens; between any two events lies a second
    > data end
    > show                          where everything stands

`retell` plays a story and writes it again with what really follows: a story that holds is unchanged. The laws of
`tests/unit/sync/ledger.py` are checked on the way. To write or accept one: python -m tests.traces.trace FILE ...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gearshift.sync.events import (
    Action,
    Apply,
    Begin,
    DataExhausted,
    Discard,
    Duplicate,
    Event,
    Exchange,
    ExchangeDone,
    GradientArrived,
    GradientRefused,
    Lease,
    Part,
    Reissue,
    Supplied,
    SwitchRequested,
    TimePassed,
    WorkerJoined,
    WorkerLost,
    WorkRequested,
)
from tests.unit.sync.ledger import Ledger


def retell(story: str) -> str:
    told: list[str] = []
    ledger: Ledger | None = None
    for number, line in enumerate(story.splitlines(), 1):
        if not line.startswith("  "):
            told.append(line)
        if line.startswith("> start "):
            ledger = Ledger(*_strategy(line.removeprefix("> start ")))
        elif line.startswith("> "):
            assert ledger is not None, "a story begins with `> start STRATEGY setting=value ...`"
            try:
                answers = _answers(ledger, line.removeprefix("> "))
            except ValueError as error:
                raise ValueError(f"line {number}, `{line}`: {error}") from error
            told += [f"  {answer}" for answer in answers] or ["  -"]
    assert ledger is not None
    ledger.check_replay()
    return "\n".join(told) + "\n"


def _answers(ledger: Ledger, line: str) -> list[str]:
    if line == "show":
        return list(_show(ledger))
    return [_say(ledger, action) for event in _events(ledger, line) for action in ledger.handle(event)]


def _events(ledger: Ledger, line: str) -> Iterator[Event]:
    words, _, reason = line.partition(": ")
    match words.split():
        case ["supply", count, "by", batch]:
            yield Supplied(ledger.supplied, int(count), int(batch))
        case ["replicas", "have", "met"]:
            yield ExchangeDone(ledger.work.merges.count + 1)
        case ["time", "passes"]:
            yield TimePassed()
        case ["data", "end"]:
            yield DataExhausted()
        case ["switch", "to", *_]:
            yield SwitchRequested(*_strategy(line.removeprefix("switch to ")))
        case [worker, "reports", lease]:
            yield GradientArrived(int(worker), int(lease))
        case [worker, "fails"]:
            yield GradientRefused(int(worker), _lease_of(ledger, int(worker)), reason)
        case [worker, "is", "lost"]:
            yield WorkerLost(int(worker), reason)
        case [*workers, "join" | "joins"]:
            yield from (WorkerJoined(int(worker)) for worker in workers)
        case [*workers, "ask" | "asks"]:
            yield from (WorkRequested(int(worker)) for worker in workers)
        case [*workers, "deliver" | "delivers"]:
            for worker in map(int, workers):
                yield GradientArrived(worker, _lease_of(ledger, worker))
                yield WorkRequested(worker)
        case _:
            raise ValueError("this is not a line of a story")


def _lease_of(ledger: Ledger, worker: int) -> int:
    held = ledger.work.flights_of.get(worker, ())
    if len(held) != 1:
        raise ValueError(f"worker {worker} holds {len(held)} leases; only who holds one delivers or fails")
    (lease,) = held
    return int(lease)


def _strategy(words: str) -> tuple[str, dict[str, Any]]:
    name, *settings = words.split()
    pairs = (setting.split("=") for setting in settings)
    return name, {key: _value(text) for key, text in pairs}


def _value(text: str) -> Any:
    return int(text) if text.isdecimal() else {"true": True, "false": False}.get(text, text)


# ---- what is told ----


def _say(ledger: Ledger, action: Action) -> str:
    match action:
        case Begin(worker, lease, token, _, extrapolation):
            again = f", attempt {lease.attempt + 1}" if lease.attempt else ""
            ahead, waiting = extrapolation.steps, extrapolation.waiting
            predicted = f", predicted {ahead} ahead with {waiting:g} of a step waiting" if ahead else ""
            return f"{worker} begins lease {lease.number}: {_examples(lease)}, for step {token + 1}{again}{predicted}"
        case Apply(step, parts, over_kept, dense_rate):
            kept = " over the kept ones" if over_kept else ""
            rate = f" at a dense rate of {dense_rate:g}" if dense_rate != 1 else ""
            return f"step {step}{kept}{rate}: {'; '.join(_part(ledger, part) for part in parts)}"
        case Discard(lease, reason, ended_before):
            return f"lease {lease} {'is not counted' if ended_before else 'is discarded'}: {reason}"
        case Reissue(lease, reason):
            return f"lease {lease} is given back: {reason}"
        case Duplicate(lease, reason):
            return f"lease {lease} is not needed: {reason}"
        case Exchange(number):
            return f"replicas meet, exchange {number}"


def _examples(lease: Lease) -> str:
    last = lease.first + lease.count - 1
    return f"example {last}" if lease.count == 1 else f"examples {lease.first}-{last}"


def _part(ledger: Ledger, part: Part) -> str:
    facts = [f"x{part.weight:.3g}"] if part.weight != 1 else []
    facts += [f"stale {part.staleness}"] if part.staleness else []
    facts += [f"lag {part.lag}"] if part.lag else []
    facts += [part.reason] if part.reason else []
    return f"lease {part.lease}" + (f" ({', '.join(facts)})" if facts else "")


def _show(ledger: Ledger) -> Iterator[str]:
    work = ledger.work
    yield f"{ledger.strategy.name}, step {work.step}" + (", done" if work.done else "")
    copies = work.copies.by_original
    for word, under_way in (("flying", work.flying), ("copies", copies), ("waiting", work.waiting)):
        if under_way:
            flights = (f"lease {f.lease.number} of {f.worker}" for f in under_way.values())
            yield f"{word}: {', '.join(flights)}"
    if work.parked:
        yield f"parked: {', '.join(map(str, work.parked))}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(retell(Path(name).read_text()))
