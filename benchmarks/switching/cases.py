"""What is trained: models, data, rates for sync and the grids they were chosen from (seed 100, which is not reported).

They were tuned with a base of 50,000 examples a day (`--tune --base-per-day 50000`). A dense rate of 4e-3, beyond the
grid, was tried at the best row rate: within .0003 of 2e-3 for DeepFM and Frappe, below it for DLRM. Strategies that are
not in `rates` were not tuned for that case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

import gearshift as gs

DENSE = (5e-4, 1e-3, 2e-3)
RATES = {  # of sync's, for each strategy's own
    "async": (1.0, 0.5, 0.35, 0.25),
    "bounded_staleness": (1.0, 0.5, 0.35, 0.25),
    "buffered_async": (1.4, 1.0, 0.7),
    "backup_workers": (1.4, 1.0, 0.7),
}


@dataclass(frozen=True)
class Case:
    build: Callable[[gs.Schema], nn.Module]
    dense_lr: float
    row_lr: float
    rates: dict[str, float] = field(default_factory=dict)  # the best of RATES for each strategy
    sequences: bool = False  # the log has histories
    epochs: bool = False  # Frappe, whose examples have no time
    row_grid: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05)


def deepfm(schema: gs.Schema) -> nn.Module:
    return gs.models.DeepFM(schema, dim=8, hidden=[64, 64])


def din(schema: gs.Schema) -> nn.Module:
    return gs.models.DIN(schema, dim=8, hidden=[64, 64], target="ad_category", history="history")


def dlrm(schema: gs.Schema) -> nn.Module:
    return gs.models.DLRM(schema, dim=8, hidden=[64, 32], bottom=[64, 32])


CASES = {
    "deepfm": Case(
        deepfm,
        2e-3,
        0.02,
        {"async": 0.25, "bounded_staleness": 0.5, "buffered_async": 1.0, "backup_workers": 1.4},
    ),
    "din": Case(din, 2e-3, 0.05, {"async": 0.25, "bounded_staleness": 0.25}, sequences=True),
    "dlrm": Case(dlrm, 2e-3, 0.1, {"async": 0.25, "bounded_staleness": 0.5}, row_grid=(0.02, 0.05, 0.1, 0.2)),
    "frappe": Case(
        deepfm,
        2e-3,
        0.2,
        {"async": 0.35, "bounded_staleness": 0.5},
        epochs=True,
        row_grid=(0.02, 0.05, 0.1, 0.2, 0.4),
    ),
}
