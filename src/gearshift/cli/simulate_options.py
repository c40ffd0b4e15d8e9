"""From the words of `gearshift simulate` to a cluster and strategies; every mistake is one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from gearshift.cluster_model.cluster import ClusterModel, Compute, Crash, Failures, Network, Slow, SlowPeriod
from gearshift.config.disturbances import (
    MOST_WORKERS,
    parse_bursts,
    parse_failure,
    parse_lognormal,
    parse_preemption,
    parse_slow,
)
from gearshift.config.strategy_argument import parse_strategy
from gearshift.config.units import parse_bytes, parse_count, parse_number, parse_seconds, parse_share
from gearshift.engine.simulation.simulator import SimulatedSwitch
from gearshift.errors import UserError
from gearshift.sync.automatic import Auto
from gearshift.sync.registry import (
    STRATEGIES,
    check_auto_names,
    check_names,
    local_batch,
    make_auto,
    make_strategy,
)
from gearshift.sync.strategy import Strategy

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SimulateOptions:
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
    dense_bytes: str | None
    sync_servers: str | None
    sync_bandwidth: str | None
    cores: str | None
    cpu_seconds: str | None
    seed: int


@dataclass(frozen=True, slots=True)
class SimulatedArm:
    """One line of the table: a strategy, and what takes over from it."""

    name: str
    strategy: Strategy
    switches: tuple[SimulatedSwitch, ...] = ()
    auto: Auto | None = None  # whether it changes by itself


def cluster_of(asked: SimulateOptions) -> ClusterModel:
    workers = read_count("--workers", asked.workers)
    if workers > MOST_WORKERS:
        raise UserError(f"--workers is `{asked.workers}`; at most {MOST_WORKERS:,} are simulated")
    usual = _usual_batch(asked, workers)  # what --step-seconds and --cpu-seconds are about
    slow = [parse_slow(word) for word in asked.slow]
    fail = [parse_failure(word) for word in asked.fail]
    return ClusterModel(
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


def _network(asked: SimulateOptions) -> Network:
    network = Network(
        latency=_seconds("--latency", asked.latency),
        pull_bytes=_bytes("--pull-bytes", asked.pull_bytes),
        push_bytes=_bytes("--push-bytes", asked.push_bytes),
        all_reduce=_seconds("--all-reduce", asked.all_reduce),
        dense_bytes=_bytes("--dense-bytes", asked.dense_bytes),
        sync_servers=read_count("--sync-servers", asked.sync_servers or "1"),
    )
    if asked.sync_bandwidth is not None:
        network = replace(network, sync_bandwidth=_bytes("--sync-bandwidth", asked.sync_bandwidth))
    if asked.bandwidth is None:
        if network.pull_bytes or network.push_bytes or network.dense_bytes:
            raise UserError("bytes take time only on a link of known speed; add --bandwidth, such as 1GB")
        return network
    return replace(network, bandwidth=_bytes("--bandwidth", asked.bandwidth))


def arms_of(asked: SimulateOptions, workers: int, examples: int) -> list[SimulatedArm]:
    words = [word.strip() for word in asked.strategies.split(",") if word.strip()]
    if not words:
        raise UserError(f"--strategies names none; there are {', '.join(STRATEGIES)} and auto")
    arms = [_arm(word, asked, workers) for word in words]
    if asked.switches:
        switches = tuple(_switch(word, asked, workers, examples) for word in asked.switches)
        then = (f"{to} from {when}" for when, _, to in (word.partition("=") for word in asked.switches))
        arms.append(replace(arms[0], name=", ".join([arms[0].name, *then]), switches=switches))
    return arms


def _arm(word: str, asked: SimulateOptions, workers: int) -> SimulatedArm:
    name, written = parse_strategy(word)
    if name != "auto":
        return SimulatedArm(word, make_strategy(*_named(word, asked, workers)))
    check_auto_names(written)
    auto = make_auto({key: _setting(word, Auto, key, value) for key, value in written.items()})
    return SimulatedArm(word, make_strategy(*_named("sync", asked, workers)), auto=auto)


def _named(word: str, asked: SimulateOptions, workers: int) -> tuple[str, dict[str, Any]]:
    """The name and the settings, with its batch."""
    name, written = parse_strategy(word)
    kind = check_names(name, written)
    settings = {key: _setting(word, kind, key, value) for key, value in written.items()}
    global_batch = read_count("--global-batch", asked.global_batch)
    batch = read_count("--batch", asked.batch) if asked.batch else None
    backups = settings.get("backups", 1) if name == "backup_workers" else 0
    try:
        size = local_batch(name, global_batch, workers, backups=backups, batch=batch)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    return name, {"global_batch": global_batch, "batch": size, **settings}


def _setting(word: str, kind: type[Any], key: str, value: str) -> Any:
    try:
        meant = TypeAdapter(get_type_hints(kind)[key]).validate_python(value)
    except ValidationError as error:
        raise UserError(f"strategy `{word}`: {key} is `{value}`; {error.errors()[0]['msg']}") from None
    if kind in (*STRATEGIES.values(), Auto) and not isinstance(meant, str) and meant < 0:
        raise UserError(f"strategy `{word}`: {key} is `{value}`; it cannot be below 0")
    return meant


def _usual_batch(asked: SimulateOptions, workers: int) -> float:
    if asked.batch:
        return read_count("--batch", asked.batch)
    return read_count("--global-batch", asked.global_batch) / workers


def _switch(word: str, asked: SimulateOptions, workers: int, examples: int) -> SimulatedSwitch:
    when, equals, to = word.partition("=")
    if not equals or not to:
        raise UserError(f"--switch `{word}` is not understood; write it like 50%=gba, 500k=gba or 60s=gba")
    name, settings = _named(to, asked, workers)
    if when.endswith("%"):
        return SimulatedSwitch(
            name, settings, examples=round(_read("--switch", when, parse_share) * examples)
        )
    if when[-1:].isdigit() or when[-1:] in "kKMGB":
        return SimulatedSwitch(name, settings, examples=read_count("--switch", when))
    return SimulatedSwitch(name, settings, seconds=_read("--switch", when, parse_seconds))


def _read(option: str, text: str, parse: Callable[[Any], T]) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(f"{option} is `{text}`; {error}") from None


def read_count(option: str, text: str) -> int:
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
