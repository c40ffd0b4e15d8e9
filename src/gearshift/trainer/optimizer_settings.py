"""`OptimizerSettings`, the optimizers that `Trainer` takes from Python; checked when they are created."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace

from gearshift.embedding.row_optimizers import with_initial
from gearshift.embedding.store import RowOptimizer
from gearshift.errors import UserError
from gearshift.optim.batch_scaling import BatchScaling, Rates
from gearshift.optim.first_order import Adam, DenseOptimizer
from gearshift.optim.schedule import Schedule
from gearshift.optim.variance_reduced import VarianceReduced, with_lr
from gearshift.parameters.dense_settings import DensePolicy
from gearshift.parameters.server import RowSettings


@dataclass(frozen=True)
class OptimizerSettings(DensePolicy):
    """How parameters are updated: dense weights by `dense`, embedding rows by `rows`.

    `rows` is an optimizer, such as `gs.RowAdagrad(lr=0.1)`, or `gs.RowSettings(...)` for more row settings.
    """

    dense: DenseOptimizer = field(default_factory=Adam)
    rows: RowSettings | RowOptimizer = field(default_factory=RowSettings)
    _: KW_ONLY
    schedule: Schedule = field(default_factory=Schedule)
    scaling: BatchScaling = field(default_factory=BatchScaling)

    def __post_init__(self) -> None:
        check_optimizer(self.dense)
        trust = self.row_settings.trust
        if trust != "dense_only" and not isinstance(self.dense, VarianceReduced):
            raise UserError(
                f'trust="{trust}" applies the trust of a vr_* rule to rows: choose one, such as '
                'dense=gearshift.optim.build("vr_adam"), or remove it'
            )

    @property
    def row_settings(self) -> RowSettings:
        """`rows` as settings, even if only an optimizer was given."""
        return self.rows if isinstance(self.rows, RowSettings) else RowSettings(self.rows)

    def scaled_to(self, global_batch: int) -> OptimizerSettings:
        """A copy with the learning rates scaled to this batch by `scaling`, and row accumulators that fit it."""
        factors, rows = self.scaling.factors(global_batch), self.row_settings
        divisor = 1 if rows.reduce == "sum" else global_batch
        dense = self.dense
        return replace(
            self,
            dense=dense if factors.dense_lr == 1 else with_lr(dense, dense.lr * factors.dense_lr),
            rows=replace(
                rows,
                embeddings=_scaled(rows.embeddings, factors, divisor),
                linear=rows.linear and _scaled(rows.linear, factors, divisor),
            ),
            schedule=replace(self.schedule, warmup=max(self.schedule.warmup, factors.warmup)),
            scaling=BatchScaling(),
        )


def check_optimizer(optimizer: object) -> None:
    """Raises for a name or a torch optimizer, which would fail in the middle of the first step."""
    if all(hasattr(optimizer, part) for part in ("lr", "init", "step")):
        return
    what = f'"{optimizer}"' if isinstance(optimizer, str) else f"a {type(optimizer).__name__}"
    raise UserError(
        f"Trainer(optimizer=...) is {what}, not a rule for the dense parameters: write "
        'gearshift.optim.build("adam", lr=1e-3) or gs.Adam(lr=1e-3)'
    )


def _scaled(rows: RowOptimizer, factors: Rates, divisor: float) -> RowOptimizer:
    rows = with_initial(rows, divisor)
    return replace(rows, lr=rows.lr * factors.row_lr, l2=rows.l2 * factors.row_l2)
