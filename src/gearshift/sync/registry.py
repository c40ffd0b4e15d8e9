"""The strategies by name, and how a global batch is cut among workers.

`make_strategy` is the only door: a strategy of this package goes by its name, any other by where it is,
`module:Class`. The user gives `global_batch`; the rest follows, and a cut that does not divide is answered with the
nearest that does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from gearshift.errors import UserError
from gearshift.sync.asynchronous import Async
from gearshift.sync.automatic import Auto
from gearshift.sync.backup_workers import BackupWorkers
from gearshift.sync.bounded_staleness import BoundedStaleness
from gearshift.sync.buffered_async import BufferedAsync
from gearshift.sync.global_batch import GlobalBatch
from gearshift.sync.replicated import Bmuf, Easgd, KStepAdam, ModelAveraging, Replicated
from gearshift.sync.strategy import Strategy
from gearshift.sync.synchronous import Sync

STRATEGIES: dict[str, type[Any]] = {
    kind.name: kind
    for kind in (
        Sync, Async, BoundedStaleness, BufferedAsync, BackupWorkers, GlobalBatch, Easgd, Bmuf, ModelAveraging, KStepAdam
    )
}  # fmt: skip
REPLICATED = tuple(name for name, kind in STRATEGIES.items() if issubclass(kind, Replicated))
IN_ROUNDS = ("sync", "backup_workers")  # a round has as many leases for each worker, so the batch must divide


# ---- by name ----


def make_strategy(name: str, settings: dict[str, Any]) -> Strategy:
    """A strategy from its name and settings, checked."""
    kind = check_names(name, settings)
    for key, field in {field.name: field for field in fields(kind)}.items():
        if key not in settings and field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"strategy {name} needs the setting `{key}`")
    try:
        strategy: Strategy = kind(**settings)
    except UserError:
        raise
    except (TypeError, ValueError) as error:  # as somebody's own class may say it
        raise UserError(f"strategy {name}: {error}") from error
    return strategy


def check_names(name: str, settings: Iterable[str]) -> type[Any]:
    """The strategy of this name, if there is one and it has these settings."""
    kind = _find(name)
    known = [field.name for field in fields(kind)]
    for key in settings:
        if key not in known:
            own = [k for k in known if k not in ("global_batch", "batch")]
            raise UserError(f"strategy {name} has no setting `{key}`: it has {', '.join(own) or 'none'}")
    return kind


def _find(name: str) -> type[Any]:
    if not isinstance(name, str):
        raise not_a_name(name)
    if ":" in name:
        return _load(name)
    if name not in STRATEGIES:
        close = get_close_matches(name, [*STRATEGIES, "auto"], 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise UserError(f"unknown strategy `{name}`.{hint} ({', '.join(STRATEGIES)}, auto, or module:Class)")
    return STRATEGIES[name]


def not_a_name(given: object) -> UserError:
    """For who gives a class, an object or a mapping where the name is wanted."""
    kind = given if isinstance(given, type) else type(given)
    own = f"{kind.__module__}:{kind.__qualname__}" if is_dataclass(kind) else "module:Class"
    return UserError(
        f'the strategy is {given!r}; write its name, "gba" or "{own}", and settings beside it: '
        'Trainer(strategy={"name": "gba", "max_lag": 2}), run.switch("gba", max_lag=2)'
    )


def _load(path: str) -> type[Any]:
    module, _, attribute = path.partition(":")
    if not module.strip(".") or not attribute:
        raise UserError(
            f"strategy `{path}`: write module:Class, such as mine:LateBus for that class in mine.py"
        )
    try:
        kind = getattr(import_module(module), attribute, None)
    except Exception as error:  # whatever somebody's file does when it is read
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise UserError(
                f"strategy `{path}`: there is no module `{module}`; is its folder on PYTHONPATH?"
            ) from error
        said = f"{type(error).__name__}: {error}"
        raise UserError(f"strategy `{path}`: importing `{module}` failed: {said}") from error
    wanted = ("name", "start", "form", "refuse")
    if not (isinstance(kind, type) and is_dataclass(kind) and all(hasattr(kind, w) for w in wanted)):
        raise UserError(
            f"strategy `{path}`: module `{module}` has no dataclass `{attribute}` with {', '.join(wanted)}"
        )
    return kind


def shared_replicas_need_threads(name: str) -> str:
    return (
        f"strategy {name} with workers_per_replica above 1 shares memory among workers, and on Ray each is a process "
        "of its own: leave it out, or use engine: threads"
    )


def make_auto(settings: dict[str, Any]) -> Auto:
    check_auto_names(settings)
    return Auto(**settings)


def check_auto_names(settings: Iterable[str]) -> None:
    known = [field.name for field in fields(Auto)]
    for key in settings:
        if key not in known:
            raise UserError(f"strategy auto has no setting `{key}`: it has {', '.join(known)}")


# ---- by size ----


def resolve(
    name: str,
    settings: dict[str, Any],
    global_batch: int,
    workers: int,
    batch: int | None = None,
    micro_batches: int = 1,
) -> Strategy:
    """A strategy for a run's global batch and workers; `batch` and `global_batch` may be among the settings."""
    if name == "auto":  # it begins as sync
        make_auto(settings)
        return resolve("sync", {}, global_batch, workers, batch, micro_batches)
    own = {"global_batch": global_batch, **settings}
    if "batch" not in own:
        backups = int(own.get("backups", 1)) if name == "backup_workers" else 0
        own["batch"] = local_batch(
            name, own["global_batch"], workers, backups=backups, batch=batch, micro_batches=micro_batches
        )
    return make_strategy(name, own)


def gradients_per_step(strategy: Strategy) -> int:
    """Of workers that are all there; a strategy of one's own is taken to form steps of a global batch."""
    if isinstance(strategy, Async | BoundedStaleness):
        return 1
    examples = strategy.examples if isinstance(strategy, BufferedAsync) else strategy.global_batch
    return -(-examples // strategy.batch)


def local_batch(
    name: str,
    global_batch: int,
    workers: int,
    *,
    backups: int = 0,
    batch: int | None = None,
    micro_batches: int = 1,
) -> int:
    """The examples of one lease, decided before a run: `batch` if given, else what cuts the global batch best.

    `micro_batches` cuts a worker's share into so many leases, each with a gradient of its own. In sync and
    backup_workers every worker of a round has the same share. The others need only leases that make up a global batch,
    at least one for each worker. A live switch keeps the leases it has: a round may be uneven.
    """
    in_round = workers - backups
    if in_round < 1:
        raise UserError(f"backups={backups} leave none of {workers} workers to wait for; take fewer")
    share = in_round if name in IN_ROUNDS else 1
    pieces = in_round * micro_batches
    if batch is None and micro_batches > 1:
        if pieces > global_batch or (name in IN_ROUNDS and global_batch % pieces):
            raise UserError(_not_that_many_pieces(global_batch, in_round, micro_batches))
        return _near_share(global_batch, pieces)
    if global_batch % (share * (batch or 1)):
        raise UserError(_does_not_divide(global_batch, share, backups, batch))
    if batch is not None:
        return batch
    return global_batch // share if share == in_round else _near_share(global_batch, in_round)


def _near_share(global_batch: int, workers: int) -> int:
    """The largest divisor up to one worker's share; where all are less than half of it, the share, rounded up."""
    share = global_batch / workers
    for lease in range(int(share), int(share / 2), -1):
        if global_batch % lease == 0:
            return lease
    return -(-global_batch // workers)


def _does_not_divide(global_batch: int, share: int, backups: int, batch: int | None) -> str:
    unit = share * (batch or 1)
    lower, upper = global_batch // unit * unit, -(-global_batch // unit) * unit
    if share == 1:
        wrong = f"global_batch {global_batch} is not a multiple of batch {batch}"
        options = [_sizes(lower, upper), "leave batch out"]
    elif batch is None:
        wrong = f"global_batch {global_batch} does not divide among {share} workers"
        size = lower or upper
        shares = f"global_batch={size} ({share} x {size // share})"
        options = [_workers(global_batch, share, backups), shares, "strategy=gba (any count)"]
    else:
        wrong = f"global_batch {global_batch} does not divide among {share} workers x batch {batch}"
        options = [_sizes(lower, upper), "strategy=gba without batch"]
        if global_batch % batch == 0:
            fitting = _workers(global_batch // batch, share, backups)
            options = [fitting, _sizes(lower, upper), "strategy=gba (any count)"]
    return f"{wrong}. Nearest: {', or '.join(options)}"


def _not_that_many_pieces(global_batch: int, workers: int, micro_batches: int) -> str:
    pieces = workers * micro_batches
    lower, upper = global_batch // pieces * pieces, -(-global_batch // pieces) * pieces
    among = f"{workers} worker{'s' * (workers > 1)} x micro_batches {micro_batches}"
    return f"global_batch {global_batch} does not divide among {among}. Nearest: {_sizes(lower, upper)}"


def _sizes(lower: int, upper: int) -> str:
    return f"global_batch={lower} or {upper}" if lower else f"global_batch={upper}"


def _workers(leases: int, share: int, backups: int) -> str:
    fitting = [n for n in range(1, leases + 1) if leases % n == 0]
    return f"workers={min(fitting, key=lambda n: (abs(n - share), -n)) + backups}"
