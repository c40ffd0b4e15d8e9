"""Strategies by name, and the division of a global batch among workers.

`make_strategy` is the only entry point. A strategy of this package has a name; any other is identified by its
location, `module:Class`. The user sets `global_batch` and the rest follows. If the division is uneven, the error
suggests the nearest valid sizes.
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
from gearshift.sync.balanced import Balanced
from gearshift.sync.bounded_staleness import BoundedStaleness
from gearshift.sync.buffered_async import BufferedAsync
from gearshift.sync.global_batch import GlobalBatch
from gearshift.sync.replicated import Bmuf, Easgd, KStepAdam, ModelAveraging, Replicated
from gearshift.sync.ringmaster import Ringmaster
from gearshift.sync.strategy import Strategy
from gearshift.sync.synchronous import Sync

STRATEGIES: dict[str, type[Any]] = {
    kind.name: kind
    for kind in (
        Sync, Balanced, Async, BoundedStaleness, Ringmaster, BufferedAsync, BackupWorkers, GlobalBatch,
        Easgd, Bmuf, ModelAveraging, KStepAdam
    )
}  # fmt: skip
REPLICATED = tuple(name for name, kind in STRATEGIES.items() if issubclass(kind, Replicated))
IN_ROUNDS = tuple(name for name, kind in STRATEGIES.items() if getattr(kind, "in_rounds", False))
SCHEDULED_AHEAD = tuple(name for name, kind in STRATEGIES.items() if getattr(kind, "scheduled_ahead", False))


# ---- by name ----


def make_strategy(name: str, settings: dict[str, Any]) -> Strategy:
    """Create a strategy from its name and settings, with checks."""
    kind = check_names(name, settings)
    for key, field in {field.name: field for field in fields(kind)}.items():
        if key not in settings and field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"strategy {name} needs the setting `{key}`")
    try:
        strategy: Strategy = kind(**settings)
    except UserError:
        raise
    except (TypeError, ValueError) as error:  # raised by a user's class
        raise UserError(f"strategy {name}: {error}") from error
    return strategy


def check_names(name: str, settings: Iterable[str]) -> type[Any]:
    """The strategy class with this name. Raises UserError if it does not exist or lacks one of the settings."""
    kind = _find(name)
    known = [field.name for field in fields(kind)]
    for key in settings:
        if key not in known:
            shown = [k for k in known if k not in ("global_batch", "batch")]
            raise UserError(f"strategy {name} has no setting `{key}`: it has {', '.join(shown) or 'none'}")
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
    """The error for a class, an object or a mapping where a name is expected."""
    kind = given if isinstance(given, type) else type(given)
    location = f"{kind.__module__}:{kind.__qualname__}" if is_dataclass(kind) else "module:Class"
    return UserError(
        f'the strategy is {given!r}; write its name, "gba" or "{location}", and settings next to it: '
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
    except Exception as error:  # the user's file may raise anything on import
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise UserError(
                f"strategy `{path}`: there is no module `{module}`; is its folder on PYTHONPATH?"
            ) from error
        cause = f"{type(error).__name__}: {error}"
        raise UserError(f"strategy `{path}`: importing `{module}` failed: {cause}") from error
    required = ("name", "start", "form", "refuse")
    if not (isinstance(kind, type) and is_dataclass(kind) and all(hasattr(kind, w) for w in required)):
        raise UserError(
            f"strategy `{path}`: module `{module}` has no dataclass `{attribute}` with {', '.join(required)}"
        )
    return kind


def shared_replicas_need_threads(name: str) -> str:
    return (
        f"strategy {name} with workers_per_replica above 1 shares memory among workers, but on Ray each worker is a "
        "separate process: remove the setting, or use engine: threads"
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
    """The strategy for a run's global batch and workers. `settings` may include `batch` and `global_batch`."""
    if name == "auto":  # it starts as sync
        make_auto(settings)
        return resolve("sync", {}, global_batch, workers, batch, micro_batches)
    resolved = {"global_batch": global_batch, **settings}
    if "batch" not in resolved:
        backups = int(resolved.get("backups", 1)) if name == "backup_workers" else 0
        resolved["batch"] = local_batch(
            name, resolved["global_batch"], workers, backups=backups, batch=batch, micro_batches=micro_batches
        )
    return make_strategy(name, resolved)


def gradients_per_step(strategy: Strategy) -> int:
    """With all workers present. A custom strategy is assumed to form steps of a global batch."""
    if isinstance(strategy, Async | BoundedStaleness | Ringmaster):
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
    """The number of examples per lease, fixed before a run: `batch` if given, else the best divisor.

    `micro_batches` divides a worker's share into that many leases, each with a separate gradient. In sync and
    backup_workers every worker of a round has the same share. Other strategies only need leases that add up to a
    global batch, at least one per worker. A live switch keeps existing leases, so a round may be uneven.
    """
    in_round = workers - backups
    if in_round < 1:
        raise UserError(f"backups={backups} leaves none of {workers} workers to wait for; use fewer backups")
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
    """The largest divisor up to one worker's share. If all are below half of it, the share itself, rounded up."""
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
        options = [_sizes(lower, upper), "remove batch"]
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
