"""What is trained: an arm is a dense optimizer, that of the rows, and where both rates are first looked for.

`vr_adam/row_wise` gives rows an r too, `vr_sgd/norm_matched` is a control (docs/large_batches.md). VR-x has the rates
of x to begin with, and is x where a step has one gradient: at the smallest batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gearshift import optim
from gearshift.embedding.store import CowClip, RowAdagrad, RowAdam, RowOptimizer, RowSGD
from gearshift.optim.first_order import DenseOptimizer
from gearshift.optim.gsnr import Control
from gearshift.parameters.server import RowTrust

GRADIENTS, LEAST = 16, 64  # of a step, for VR; but each of at least 64 examples


@dataclass(frozen=True)
class Arm:
    dense: str
    dense_lr: float
    rows: RowOptimizer
    clip: CowClip | None = None
    rule: str = "square_root"  # where the next batch's rates are looked for
    trust: RowTrust = "dense_only"
    control: Control = "none"

    @property
    def reduces(self) -> bool:
        return self.dense.startswith("vr_")

    @property
    def base(self) -> Arm:
        return replace(self, dense=self.dense.removeprefix("vr_"), trust="dense_only", control="none")

    def optimizer(self, factor: float) -> DenseOptimizer:
        settings = {"control": self.control} if self.reduces else {}
        return optim.build(self.dense, lr=self.dense_lr * factor, **settings)


_PLAIN = {
    "sgd": Arm("sgd", 0.1, RowSGD(1.0), rule="linear"),
    "momentum": Arm("momentum", 0.02, RowSGD(1.0), rule="linear"),
    "lars": Arm("lars", 1.0, RowSGD(1.0), rule="linear"),
    "adam": Arm("adam", 1e-3, RowAdagrad(0.02)),  # rows as Gearshift's default
    "lamb": Arm("lamb", 2e-3, RowAdagrad(0.02)),
    "row_adam": Arm("adam", 1e-3, RowAdam(1e-3)),  # what CowClip is without clipping
    "cowclip": Arm("adam", 1e-3, RowAdam(1e-3), CowClip(), rule="cowclip"),
}
ARMS = _PLAIN | {
    f"vr_{name}": replace(_PLAIN[name], dense=f"vr_{name}")
    for name in ("sgd", "momentum", "adam", "lars", "lamb")
}


def arm(name: str) -> Arm:
    plain, _, more = name.partition("/")
    match more:
        case "":
            return ARMS[plain]
        case "touched" | "row_wise":
            return replace(ARMS[plain], trust=more)
        case "norm_matched" | "layer_mean" | "permuted":
            return replace(ARMS[plain], control=more)
    raise SystemExit(
        f"no arm {name}: write {plain}, {plain}/touched, /row_wise, /norm_matched, /layer_mean or /permuted"
    )
