"""Parses the options of `gearshift simulate` into a cluster and strategies. Every error is one message."""

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
from gearshift.engine.simulation.switch_plan import SimulatedSwitch
from gearshift.errors import UserError
from gearshift.settings.units import parse_bytes, parse_count, parse_number, parse_seconds, parse_share
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
    """The options of the command, as they were typed."""

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
    """One line of the table: a strategy and its switches."""

    name: str
    strategy: Strategy
    switches: tuple[SimulatedSwitch, ...] = ()
    auto: Auto | None = None  # set if it switches automatically


def cluster_of(options: SimulateOptions) -> ClusterModel:
    workers = read_count("--workers", options.workers)
    if workers > MOST_WORKERS:
        raise UserError(f"--workers is `{options.workers}`; the maximum is {MOST_WORKERS:,}")
    usual = _usual_batch(options, workers)  # the batch that --step-seconds and --cpu-seconds refer to
    slow = [parse_slow(word) for word in options.slow]
    fail = [parse_failure(word) for word in options.fail]
    return ClusterModel(
        workers,
        Compute(per_example=_some_seconds("--step-seconds", options.step_seconds) / usual),
        slow=tuple(s for s in slow if isinstance(s, Slow)),
        slow_periods=tuple(s for s in slow if isinstance(s, SlowPeriod)),
        lognormal=tuple(map(parse_lognormal, options.lognormal)),
        bursts=tuple(map(parse_bursts, options.bursts)),
        crashes=tuple(f for f in fail if isinstance(f, Crash)),
        failures=tuple(f for f in fail if isinstance(f, Failures)),
        preemptions=tuple(map(parse_preemption, options.preempt)),
        network=_network(options),
        notice=_seconds("--notice", options.notice),
        cores=_read("--cores", options.cores, _positive) if options.cores else None,
        cpu=Compute(per_example=_some_seconds("--cpu-seconds", options.cpu_seconds) / usual)
        if options.cpu_seconds
        else None,
        seed=options.seed,
    )


def _network(options: SimulateOptions) -> Network:
    network = Network(
        latency=_seconds("--latency", options.latency),
        pull_bytes=_bytes("--pull-bytes", options.pull_bytes),
        push_bytes=_bytes("--push-bytes", options.push_bytes),
        all_reduce=_seconds("--all-reduce", options.all_reduce),
        dense_bytes=_bytes("--dense-bytes", options.dense_bytes),
        sync_servers=read_count("--sync-servers", options.sync_servers or "1"),
    )
    if options.sync_bandwidth is not None:
        network = replace(network, sync_bandwidth=_bytes("--sync-bandwidth", options.sync_bandwidth))
    if options.bandwidth is None:
        if network.pull_bytes or network.push_bytes or network.dense_bytes:
            raise UserError("transfer times need a link speed; add --bandwidth, such as 1GB")
        return network
    return replace(network, bandwidth=_bytes("--bandwidth", options.bandwidth))


def arms_of(options: SimulateOptions, workers: int, examples: int) -> list[SimulatedArm]:
    words = [word.strip() for word in options.strategies.split(",") if word.strip()]
    if not words:
        raise UserError(f"--strategies is empty; choose from {', '.join(STRATEGIES)} and auto")
    arms = [_arm(word, options, workers) for word in words]
    if options.switches:
        switches = tuple(_switch(word, options, workers, examples) for word in options.switches)
        then = (f"{to} from {when}" for when, _, to in (word.partition("=") for word in options.switches))
        arms.append(replace(arms[0], name=", ".join([arms[0].name, *then]), switches=switches))
    return arms


def _arm(word: str, options: SimulateOptions, workers: int) -> SimulatedArm:
    name, written = parse_strategy(word)
    if name != "auto":
        return SimulatedArm(word, make_strategy(*_named(word, options, workers)))
    check_auto_names(written)
    auto = make_auto({key: _setting(word, Auto, key, value) for key, value in written.items()})
    return SimulatedArm(word, make_strategy(*_named("sync", options, workers)), auto=auto)


def _named(word: str, options: SimulateOptions, workers: int) -> tuple[str, dict[str, Any]]:
    """The name and the settings, including its batch."""
    name, written = parse_strategy(word)
    kind = check_names(name, written)
    settings = {key: _setting(word, kind, key, value) for key, value in written.items()}
    global_batch = read_count("--global-batch", options.global_batch)
    batch = read_count("--batch", options.batch) if options.batch else None
    backups = settings.get("backups", 1) if name == "backup_workers" else 0
    try:
        size = local_batch(name, global_batch, workers, backups=backups, batch=batch)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    return name, {"global_batch": global_batch, "batch": size, **settings}


def _setting(word: str, kind: type[Any], key: str, value: str) -> Any:
    try:
        parsed = TypeAdapter(get_type_hints(kind)[key]).validate_python(value)
    except ValidationError as error:
        raise UserError(f"strategy `{word}`: {key} is `{value}`; {error.errors()[0]['msg']}") from None
    if kind in (*STRATEGIES.values(), Auto) and not isinstance(parsed, str) and parsed < 0:
        raise UserError(f"strategy `{word}`: {key} is `{value}`; it must be 0 or more")
    return parsed


def _usual_batch(options: SimulateOptions, workers: int) -> float:
    if options.batch:
        return read_count("--batch", options.batch)
    return read_count("--global-batch", options.global_batch) / workers


def _switch(word: str, options: SimulateOptions, workers: int, examples: int) -> SimulatedSwitch:
    when, equals, to = word.partition("=")
    if not equals or not to:
        raise UserError(f"--switch `{word}` is not understood; write it like 50%=gba, 500k=gba or 60s=gba")
    name, settings = _named(to, options, workers)
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
        raise ValueError("it must be above 0")
    return number


def _seconds(option: str, text: str | None) -> float:
    """A plain number is in seconds."""
    if text is None or text in ("0", "0s"):
        return 0.0
    return _some_seconds(option, text)


def _some_seconds(option: str, text: str) -> float:
    return _read(option, text, lambda text: parse_seconds(text if text[-1:].isalpha() else f"{text}s"))


def _bytes(option: str, text: str | None) -> float:
    return 0.0 if text is None else _read(option, text, parse_bytes)
