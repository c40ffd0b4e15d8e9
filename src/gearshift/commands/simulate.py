"""`gearshift simulate`: strategies on a cluster that does not exist, in virtual time; timing only, no torch.

It says how fast each strategy would be, how stale its gradients, and whose data it would throw away. What this
does to the model it does not say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from gearshift import run_folder
from gearshift.commands import terminal
from gearshift.config.cluster_words import (
    MOST_WORKERS,
    parse_bursts,
    parse_failure,
    parse_lognormal,
    parse_preemption,
    parse_slow,
)
from gearshift.config.quantities import parse_bytes, parse_count, parse_number, parse_seconds, parse_share
from gearshift.engine.closed_forms import possible_rate, sync_rate
from gearshift.engine.cluster_model import Cluster, Compute, Crash, Failures, Network, Slow, SlowPeriod
from gearshift.engine.simulated import Switch, simulate
from gearshift.engine.tally import Outcome
from gearshift.errors import UserError
from gearshift.sync.registry import STRATEGIES, local_batch, make_strategy
from gearshift.sync.strategy import Strategy

T = TypeVar("T")
LARGE_SHARE = 0.2  # of a worker's examples; if it loses more, a sentence says so
SCHEDULED_AHEAD = ("gba", "buffered_async")  # for the others, lag is staleness
_HEADS = ("strategy", "ex/s", "x sync", "of possible", "staleness", "lag", "discarded", "")
_UNDER = ("", "", "", "", "mean / p99", "p99", "", "")


@dataclass(frozen=True, slots=True)
class Asked:
    """The command's words, as they were typed."""

    workers: str
    global_batch: str
    examples: str
    strategies: str
    switches: list[str]
    batch: str | None
    step_seconds: str
    slow: list[str]
    lognormal: list[str]
    bursts: list[str]
    fail: list[str]
    preempt: list[str]
    notice: str | None
    latency: str | None
    bandwidth: str | None
    pull_bytes: str | None
    push_bytes: str | None
    all_reduce: str | None
    cores: str | None
    cpu_seconds: str | None
    seed: int


@dataclass(frozen=True, slots=True)
class Arm:
    """One line of the table: a strategy, and what takes over from it."""

    name: str
    strategy: Strategy
    switches: tuple[Switch, ...] = ()


def simulate_command(asked: Asked, *, json_file: Path | None) -> None:
    cluster, examples = cluster_of(asked), _count("--examples", asked.examples)
    arms = arms_of(asked, cluster.workers, examples)
    terminal.say(_opening(asked, cluster, examples, arms[0].strategy))
    outcomes = [simulate(cluster, arm.strategy, examples, switches=arm.switches) for arm in arms]
    sync = next((o for a, o in zip(arms, outcomes, strict=True) if a.name == "sync"), None)
    rows = [_row(arm, outcome, sync) for arm, outcome in zip(arms, outcomes, strict=True)]
    terminal.say(terminal.table(_HEADS, [_UNDER, *rows], right="lrrrrrrl"))
    for arm, outcome in zip(arms, outcomes, strict=True):
        for sentence in warnings(arm, outcome):
            terminal.say(sentence)
    if json_file is not None:
        run_folder.write_json(json_file, _figures(asked, cluster, examples, arms, outcomes, sync))


# ---- from words ----


def cluster_of(asked: Asked) -> Cluster:
    workers = _count("--workers", asked.workers)
    if workers > MOST_WORKERS:
        raise UserError(f"--workers is `{asked.workers}`; at most {MOST_WORKERS:,} are simulated")
    usual = _usual_batch(asked, workers)  # what --step-seconds and --cpu-seconds are about
    slow = [parse_slow(word) for word in asked.slow]
    fail = [parse_failure(word) for word in asked.fail]
    return Cluster(
        workers,
        Compute(per_example=_some_seconds("--step-seconds", asked.step_seconds) / usual),
        slow=tuple(s for s in slow if isinstance(s, Slow)),
        slow_periods=tuple(s for s in slow if isinstance(s, SlowPeriod)),
        lognormal=tuple(map(parse_lognormal, asked.lognormal)),
        bursts=tuple(map(parse_bursts, asked.bursts)),
        crashes=tuple(f for f in fail if isinstance(f, Crash)),
        failures=tuple(f for f in fail if isinstance(f, Failures)),
        preemptions=tuple(map(parse_preemption, asked.preempt)),
        network=_network(asked),
        notice=_seconds("--notice", asked.notice),
        cores=_read("--cores", asked.cores, _positive) if asked.cores else None,
        cpu=Compute(per_example=_some_seconds("--cpu-seconds", asked.cpu_seconds) / usual)
        if asked.cpu_seconds
        else None,
        seed=asked.seed,
    )


def _network(asked: Asked) -> Network:
    network = Network(
        latency=_seconds("--latency", asked.latency),
        pull_bytes=_bytes("--pull-bytes", asked.pull_bytes),
        push_bytes=_bytes("--push-bytes", asked.push_bytes),
        all_reduce=_seconds("--all-reduce", asked.all_reduce),
    )
    if asked.bandwidth is None:
        if network.pull_bytes or network.push_bytes:
            raise UserError("bytes take time only on a link of known speed; add --bandwidth, such as 1GB")
        return network
    return replace(network, bandwidth=_bytes("--bandwidth", asked.bandwidth))


def arms_of(asked: Asked, workers: int, examples: int) -> list[Arm]:
    words = [word.strip() for word in asked.strategies.split(",") if word.strip()]
    if not words:
        raise UserError(f"--strategies names none; there are {', '.join(STRATEGIES)}")
    arms = [Arm(word, _strategy(word, asked, workers)) for word in words]
    if asked.switches:
        switches = tuple(_switch(word, asked, workers, examples) for word in asked.switches)
        then = (f"{to} from {when}" for when, _, to in (word.partition("=") for word in asked.switches))
        arms.append(Arm(", ".join([arms[0].name, *then]), arms[0].strategy, switches))
    return arms


def _strategy(word: str, asked: Asked, workers: int) -> Strategy:
    return make_strategy(*_named(word, asked, workers))


def _named(word: str, asked: Asked, workers: int) -> tuple[str, dict[str, Any]]:
    """`gba:max_lag=2` as the name and the settings, with its batch."""
    name, *pairs = word.split(":")
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"strategy `{word}`: settings are written {name}:max_lag=2")
        settings[key] = _plain(value)
    make_strategy(name, {"global_batch": 1, "batch": 1, **settings})  # unknown names first
    global_batch = _count("--global-batch", asked.global_batch)
    batch = _count("--batch", asked.batch) if asked.batch else None
    backups = int(settings.get("backups", 1)) if name == "backup_workers" else 0
    try:
        size = local_batch(name, global_batch, workers, backups=backups, batch=batch)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    return name, {"global_batch": global_batch, "batch": size, **settings}


def _plain(value: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _usual_batch(asked: Asked, workers: int) -> float:
    if asked.batch:
        return _count("--batch", asked.batch)
    return _count("--global-batch", asked.global_batch) / workers


def _switch(word: str, asked: Asked, workers: int, examples: int) -> Switch:
    when, equals, to = word.partition("=")
    if not equals or not to:
        raise UserError(f"--switch `{word}` is not understood; write it like 50%=gba, 500k=gba or 60s=gba")
    name, settings = _named(to, asked, workers)
    if when.endswith("%"):
        return Switch(name, settings, examples=round(_read("--switch", when, parse_share) * examples))
    if when[-1:].isdigit() or when[-1:] in "kKMGB":
        return Switch(name, settings, examples=_count("--switch", when))
    return Switch(name, settings, seconds=_read("--switch", when, parse_seconds))


def _read(option: str, text: str, parse: Callable[[Any], T]) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(f"{option} is `{text}`; {error}") from None


def _count(option: str, text: str) -> int:
    number = _read(option, text, parse_count)
    if number < 1:
        raise UserError(f"{option} is `{text}`; it must be at least 1")
    return number


def _positive(text: str) -> float:
    number = parse_number(text)
    if number <= 0:
        raise ValueError("it must be more than 0")
    return number


def _seconds(option: str, text: str | None) -> float:
    """0.1 is seconds too."""
    if text is None or text in ("0", "0s"):
        return 0.0
    return _some_seconds(option, text)


def _some_seconds(option: str, text: str) -> float:
    return _read(option, text, lambda text: parse_seconds(text if text[-1:].isalpha() else f"{text}s"))


def _bytes(option: str, text: str | None) -> float:
    return 0.0 if text is None else _read(option, text, parse_bytes)


# ---- to words ----


def _opening(asked: Asked, cluster: Cluster, examples: int, first: Strategy) -> str:
    cut = f"{first.global_batch:,} = {first.global_batch / first.batch:g} x {first.batch:,}"
    disturbed = [
        f"{name} {' '.join(words)}"
        for name, words in (
            ("slow", asked.slow),
            ("lognormal", asked.lognormal),
            ("bursts", asked.bursts),
            ("fail", asked.fail),
            ("preempt", asked.preempt),
        )
        if words
    ]
    possible, sync = possible_rate(cluster, first.batch), _sync_rate(cluster, first)
    limit = f"; no strategy beats {possible / sync:.2f} x sync" if sync else ""
    return (
        f"Simulated, timing only: {cluster.workers:,} workers, global batch {cut}, {examples:,} examples, "
        f"seed {cluster.seed}; {', '.join(disturbed) or 'nothing disturbs them'}.\n"
        f"Possible = sum of worker rates = {terminal.count(possible)} ex/s while all are there{limit}."
    )


def _sync_rate(cluster: Cluster, strategy: Strategy) -> float | None:
    """By arithmetic; None where it says nothing: shared cores, absences, several leases per worker and round."""
    away = cluster.crashes or cluster.failures or cluster.preemptions or cluster.slow_periods
    if away or cluster.cores is not None or strategy.batch * cluster.workers != strategy.global_batch:
        return None
    return sync_rate(cluster, strategy.batch)


def _row(arm: Arm, outcome: Outcome, sync: Outcome | None) -> tuple[str, ...]:
    names = {arm.strategy.name, *(switch.strategy for switch in arm.switches)}
    speed = outcome.examples_per_second
    reasons = outcome.discarded_by_reason
    told = ", ".join(
        f"{reason} {terminal.percent(n / outcome.examples)}"
        for reason, n in sorted(reasons.items(), key=lambda item: -item[1])
    )
    return (
        arm.name,
        terminal.count(speed),
        f"{speed / sync.examples_per_second:.2f}" if sync else "-",
        terminal.percent(speed / outcome.possible, 0),
        f"{outcome.staleness.mean:.1f} / {outcome.staleness.p99:g}",
        f"{outcome.lag.p99:g}" if names & set(SCHEDULED_AHEAD) else "-",
        terminal.count(outcome.discarded),
        told,
    )


def warnings(arm: Arm, outcome: Outcome) -> list[str]:
    """What a user should know before choosing this strategy."""
    sentences = []
    losers = losing(outcome)
    if losers:
        worst = max(share for _, share in losers)
        who = f"worker {losers[0][0]} loses" if len(losers) == 1 else _several(losers)
        up_to = "" if len(losers) == 1 else "up to "
        sentences.append(
            f"{arm.name}: {who} {up_to}{terminal.percent(worst, 0)} of the examples it computes, because they come "
            "too late; if its examples differ from the others', the model will not know them. "
            f"{'Raise max_lag' if 'gba' in arm.name else 'Use gba'}, or give it smaller batches."
        )
    gradients = arm.strategy.global_batch / arm.strategy.batch
    if arm.strategy.name == "gba" and outcome.workers > 2 * gradients:
        sentences.append(
            f"{arm.name}: {outcome.workers:,} workers for {gradients:g} gradients per step; accuracy as with sync is "
            "claimed for at most one worker per gradient."
        )
    return sentences


def losing(outcome: Outcome) -> list[tuple[int, float]]:
    """(worker, share) of those that lose a large share of what they compute."""
    pairs = zip(outcome.applied_by_worker, outcome.discarded_by_worker, strict=True)
    shares = [discarded / max(1, applied + discarded) for applied, discarded in pairs]
    return [(worker, share) for worker, share in enumerate(shares) if share >= LARGE_SHARE]


def _several(losers: list[tuple[int, float]]) -> str:
    shown = ", ".join(str(worker) for worker, _ in losers[:3])
    more = f" and {len(losers) - 3:,} more" if len(losers) > 3 else ""
    return f"workers {shown}{more} lose each"


def _figures(
    asked: Asked,
    cluster: Cluster,
    examples: int,
    arms: list[Arm],
    outcomes: list[Outcome],
    sync: Outcome | None,
) -> dict[str, Any]:
    return {
        "simulated": "timing only",
        "examples": examples,
        "cluster": cluster.as_json(),
        "possible": possible_rate(cluster, arms[0].strategy.batch),
        "sync_by_arithmetic": _sync_rate(cluster, arms[0].strategy),
        "strategies": [
            {
                **outcome.as_json(),
                "strategy": arm.name,
                "global_batch": arm.strategy.global_batch,
                "batch": arm.strategy.batch,
                "vs_sync": outcome.examples_per_second / sync.examples_per_second if sync else None,
                "of_possible": outcome.examples_per_second / outcome.possible,
                "losing_workers": dict(losing(outcome)),
            }
            for arm, outcome in zip(arms, outcomes, strict=True)
        ],
    }
