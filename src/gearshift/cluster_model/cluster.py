"""The description of a cluster: the speed of its workers, disturbances, and the cost of the network to the servers.

Plain frozen values that JSON can represent; nothing here draws random numbers or knows the time. The same terms
describe the simulator's cluster and the delays injected into real workers: slow (constant), lognormal, bursts, slow
period, crash, failures, preemption. `workers` of a disturbance are the affected workers, all if None; several
disturbances of a worker multiply. All units are seconds and bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from math import ceil, inf, log2
from typing import Any

from gearshift.errors import UserError

Workers = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Compute:
    """Seconds that an undisturbed worker needs for a batch: a fixed part and a part per example."""

    per_batch: float = 0.0
    per_example: float = 0.0

    def seconds(self, examples: int) -> float:
        return self.per_batch + self.per_example * examples


@dataclass(frozen=True, slots=True)
class Slow:
    """Every batch takes `factor` times as long."""

    factor: float
    workers: Workers = None


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Each batch takes exp(sigma z - sigma^2 / 2) times as long: 1 on average."""

    sigma: float
    workers: Workers = None


@dataclass(frozen=True, slots=True)
class Bursts:
    """A random share of the batches takes `factor` times as long."""

    share: float
    factor: float
    workers: Workers = None


@dataclass(frozen=True, slots=True)
class SlowPeriod:
    """Batches begun from `start` to `end` take `factor` times as long."""

    factor: float
    start: float
    end: float = inf
    workers: Workers = None


@dataclass(frozen=True, slots=True)
class Crash:
    """The worker dies at `at` without notice, and is back `restart` seconds later."""

    at: float
    restart: float = inf
    workers: Workers = None


@dataclass(frozen=True, slots=True)
class Failures:
    """The worker dies without notice, every `every` seconds on average, and is back `restart` seconds later."""

    every: float
    restart: float
    workers: Workers = None


@dataclass(frozen=True, slots=True)
class Preemption:
    """The worker leaves at `start`, which is noticed immediately, and returns at `end`. With start 0 it joins late."""

    start: float
    end: float = inf
    workers: Workers = None


@dataclass(frozen=True, slots=True)
class Network:
    """The network between a worker and the servers. Each worker has its own link with this bandwidth."""

    latency: float = 0.0
    bandwidth: float = inf  # bytes per second
    pull_bytes: float = 0.0  # per batch
    push_bytes: float = 0.0
    all_reduce: float = 0.0  # seconds per sync step, in which no worker computes
    # Size of the dense parameters: sync reduces it per step, other gradient strategies pull and push it per batch, and
    # replicas exchange it.
    dense_bytes: float = 0.0
    sync_servers: int = 1  # servers that hold the centre of replicas, a share each
    sync_bandwidth: float = inf  # bytes per second of each

    @property
    def pull(self) -> float:
        return self.latency + self.pull_bytes / self.bandwidth

    @property
    def push(self) -> float:
        return self.latency + self.push_bytes / self.bandwidth

    @property
    def dense(self) -> float:
        """Seconds for the dense parameters on a worker's link, one way."""
        return self.dense_bytes / self.bandwidth

    def sync_step(self, workers: int) -> float:
        """Seconds of a sync step in addition to computation, during which no worker computes."""
        return self.all_reduce + (self.reduce(workers) if self.dense_bytes else 0.0)

    def reduce(self, workers: int, times: int = 1) -> float:
        """Seconds for a ring all-reduce of `times` dense buffers over `workers`, with the latency of a tree."""
        return times * 2 * (self.dense * (workers - 1) / workers + self.latency * ceil(log2(workers)))


@dataclass(frozen=True, slots=True)
class ClusterModel:
    workers: int
    compute: Compute = Compute(per_batch=0.1)
    slow: tuple[Slow, ...] = ()
    lognormal: tuple[Lognormal, ...] = ()
    bursts: tuple[Bursts, ...] = ()
    slow_periods: tuple[SlowPeriod, ...] = ()
    crashes: tuple[Crash, ...] = ()
    failures: tuple[Failures, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    network: Network = Network()
    notice: float = 0.0  # seconds until an unannounced death is noticed
    cores: float | None = None  # number of cores that workers share equally; None: one per worker
    cpu: Compute | None = (
        None  # the part of a batch that needs a core, if the rest is waiting; None: all of it
    )
    seed: int = 0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"a cluster needs at least 1 worker, not {self.workers}")
        for disturbance in self.disturbances:
            for worker in disturbance.workers or ():
                if not 0 <= worker < self.workers:
                    last = self.workers - 1
                    raise UserError(
                        f"there is no worker {worker}: the {self.workers} workers are 0 to {last}"
                    )

    @property
    def disturbances(self) -> tuple[Disturbance, ...]:
        return (
            *self.slow,
            *self.lognormal,
            *self.bursts,
            *self.slow_periods,
            *self.crashes,
            *self.failures,
            *self.preemptions,
        )

    def as_json(self) -> dict[str, Any]:
        """Values for `json`; infinities become null."""
        values: dict[str, Any] = _finite(asdict(self))
        return values

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> ClusterModel:
        known = {field.name for field in fields(cls)}
        for key in line:
            if key not in known:
                raise UserError(f"a cluster has no `{key}`: it has {', '.join(sorted(known))}")
        return cls(**{key: _part(key, value) for key, value in line.items()})


Disturbance = Slow | Lognormal | Bursts | SlowPeriod | Crash | Failures | Preemption

_LISTS: dict[str, type[Any]] = {
    "slow": Slow,
    "lognormal": Lognormal,
    "bursts": Bursts,
    "slow_periods": SlowPeriod,
    "crashes": Crash,
    "failures": Failures,
    "preemptions": Preemption,
}
_PARTS: dict[str, type[Any]] = {"compute": Compute, "cpu": Compute, "network": Network}
_INFINITE = ("end", "restart", "bandwidth", "sync_bandwidth")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_finite(item) for item in value]
    return None if value == inf else value


def _part(key: str, value: Any) -> Any:
    if key in _LISTS:
        return tuple(_made(_LISTS[key], item) for item in value)
    return _made(_PARTS[key], value) if key in _PARTS and value is not None else value


def _made(kind: type[Any], item: dict[str, Any]) -> Any:
    values: dict[str, Any] = {
        key: inf if value is None and key in _INFINITE else value for key, value in item.items()
    }
    if values.get("workers") is not None:
        values["workers"] = tuple(values["workers"])
    return kind(**values)
