"""The strategies by name, and how a global batch is cut among workers.

The user gives `global_batch`; the rest follows. A cut that does not divide is answered with the nearest that does.
"""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from gearshift.errors import UserError
from gearshift.sync.asynchronous import Async
from gearshift.sync.backup_workers import BackupWorkers
from gearshift.sync.bounded_staleness import BoundedStaleness
from gearshift.sync.buffered_async import BufferedAsync
from gearshift.sync.global_batch import GlobalBatch
from gearshift.sync.settings import check_values
from gearshift.sync.strategy import Strategy
from gearshift.sync.synchronous import Sync

STRATEGIES: dict[str, type[Any]] = {
    kind.name: kind for kind in (Sync, Async, BoundedStaleness, BufferedAsync, BackupWorkers, GlobalBatch)
}
IN_ROUNDS = ("sync", "backup_workers")  # a round has one lease per worker, so the batch must divide


def make_strategy(name: str, settings: dict[str, Any]) -> Strategy:
    """A strategy from its name and settings, checked."""
    check(name, settings)
    strategy: Strategy = STRATEGIES[name](**settings)
    return strategy


def check(name: str, settings: dict[str, Any]) -> None:
    """Whether there is such a strategy, with such settings."""
    if name not in STRATEGIES:
        close = get_close_matches(name, STRATEGIES, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise UserError(f"unknown strategy `{name}`.{hint} ({', '.join(STRATEGIES)})")
    kind = STRATEGIES[name]
    known = [field.name for field in fields(kind)]
    for key in settings:
        if key not in known:
            own = [k for k in known if k not in ("global_batch", "batch")]
            raise UserError(f"strategy {name} has no setting `{key}`: it has {', '.join(own) or 'none'}")
    check_values(kind, settings)


def local_batch(
    name: str, global_batch: int, workers: int, *, backups: int = 0, batch: int | None = None
) -> int:
    """The examples of one lease: `batch` if given, else the global batch divided by the workers of a round."""
    if batch is not None:
        if global_batch % batch:
            raise UserError(_does_not_divide(global_batch, workers, batch))
        return batch
    in_round = workers - backups
    if in_round < 1:
        raise UserError(f"backups={backups} leave none of {workers} workers to wait for; take fewer")
    if global_batch % in_round and name in IN_ROUNDS:
        raise UserError(_does_not_divide(global_batch, in_round, None))
    return max(1, global_batch // in_round)


def _does_not_divide(global_batch: int, workers: int, batch: int | None) -> str:
    if batch is not None:
        lower, upper = global_batch // batch * batch, -(-global_batch // batch) * batch
        near = [str(n) for n in (lower, upper) if n > 0]
        return (
            f"global_batch {global_batch} is not a multiple of batch {batch}. Nearest: "
            f"global_batch={' or '.join(near)}, or leave batch out"
        )
    fitting = [n for n in range(1, global_batch + 1) if global_batch % n == 0]
    nearest = min(fitting, key=lambda n: (abs(n - workers), -n))
    down = global_batch // workers
    options = [f"workers={nearest}"]
    if down:
        options.append(f"global_batch={down * workers} ({workers} x {down})")
    options.append("strategy=gba (any count)")
    return f"global_batch {global_batch} does not divide among {workers} workers. Nearest: {', or '.join(options)}"
