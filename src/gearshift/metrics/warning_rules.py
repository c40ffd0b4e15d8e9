"""What is suspicious about the figures of a run or an evaluation: one sentence each, with what to do.

All rules and their thresholds are here. A rule asks for enough examples; where it compares two figures, the difference
must be several standard errors, more than chance explains. Knows measures, no data and no model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gearshift.metrics import Measures

TOO_GOOD_AUC = 0.99
FEWEST_EXAMPLES = 200
FEWEST_CLICKS = 20  # and as many others
GAP = 0.05  # of the AUC in training over that on held-out data
SURE = 3.0  # standard errors
HARDLY_SEEN = 0.8  # of the examples have an id that is new
WORSE_THAN_CONSTANT = 1.005  # NE, the log loss over that of the click rate itself; chance alone gives 1.002
CALIBRATION = 0.8, 1.25


@dataclass(frozen=True)
class Scored:
    """The measures of one task on one part of the data."""

    part: str  # valid, test, training
    measures: Measures
    task: str = ""  # where there are several
    training: Measures | None = None  # of each training example before it was trained
    unseen: Mapping[str, float] = field(default_factory=dict)  # by field: the share of examples with a new id

    @property
    def where(self) -> str:
        return f"{self.part} ({self.task})" if self.task else self.part


def warnings_of(scored: Scored) -> list[str]:
    """All that is suspicious; a label of one value leaves nothing else to say."""
    if one := one_label(scored):
        return [one]
    rules = (too_good, worse_than_constant, below_training, hardly_seen, badly_calibrated)
    return [sentence for rule in rules for sentence in rule(scored)]


def one_label(scored: Scored) -> str | None:
    found = scored.measures
    if not found.examples or found.mean_label not in (0.0, 1.0):
        return None
    return (
        f"{scored.where}: the label is {found.mean_label:.0f} in all {found.examples:,} examples, so nothing can be "
        "learned or measured there: check data.label and its `positive`, and how the data are split"
    )


def too_good(scored: Scored) -> Iterator[str]:
    if _enough(scored.measures) and scored.measures.auc > TOO_GOOD_AUC:
        yield (
            f"{scored.where}: an AUC of {scored.measures.auc:.4f} is too good for clicks: a feature probably knows the "
            "label. Leave out what is only known after the click; `gearshift init FILE` looks at each column alone"
        )


def worse_than_constant(scored: Scored) -> Iterator[str]:
    found = scored.measures
    if _enough(found) and found.normalized_entropy > WORSE_THAN_CONSTANT:
        yield (
            f"{scored.where}: NE is {found.normalized_entropy:.3f}, above 1: always predicting the click rate would be "
            "better. Train longer if the run was short, fewer epochs if it was lower before (metrics.jsonl), otherwise "
            "with a lower optimizer.dense.lr and optimizer.embeddings.lr"
        )


def below_training(scored: Scored) -> Iterator[str]:
    found, before = scored.measures, scored.training
    if before is None or not (_enough(found) and _enough(before)):
        return
    gap, error = before.auc - found.auc, math.hypot(before.auc_se, found.auc_se)
    if gap > GAP and gap > SURE * error:
        yield (
            f"{scored.where}: the AUC of {found.auc:.4f} is far below {before.auc:.4f}, that of the training examples "
            "before they were trained: the held-out data are of another kind (other users, another time), or the model "
            "overfits after several epochs. Check data.split, or train fewer epochs"
        )


def hardly_seen(scored: Scored) -> Iterator[str]:
    for name, share in scored.unseen.items():
        if share > HARDLY_SEEN:
            yield (
                f"{scored.where}: {100 * share:.0f} % of the examples have a `{name}` that training never saw, so this "
                f"is the score for new ones. To measure known ones, split by time or with data.split={{by: hash, "
                "valid: 10%}"
            )


def badly_calibrated(scored: Scored) -> Iterator[str]:
    found, (low, high) = scored.measures, CALIBRATION
    if not _enough(found) or low <= found.calibration <= high:
        return
    rate = found.mean_label
    chance = math.sqrt((1 - rate) / (rate * found.examples))
    if abs(found.calibration - 1) <= SURE * chance:
        return
    much = f"{100 * abs(found.calibration - 1):.0f} % {'more' if found.calibration > 1 else 'fewer'}"
    known = (
        ""
        if scored.training is None
        else f" ({100 * scored.training.mean_label:.1f} % of the training examples)"
    )
    yield (
        f"{scored.where}: calibration is {found.calibration:.2f}: the model predicts {much} clicks than there are, "
        f"{100 * rate:.1f} %{known}. Train longer, or on data with the same click rate"
    )


def end_of_grouped_file(words: str) -> str:
    """Before the run: its validation data are the end of a file that is not in the order of time."""
    return (
        f"{words}, and the end of the file is for validation: it holds others than training does. Draw single examples "
        "with data.split={by: hash, valid: 10%} (in Python split(hash=True)), or split by time"
    )


def _enough(found: Measures) -> bool:
    clicks = found.mean_label * found.examples
    return (
        found.examples >= FEWEST_EXAMPLES
        and min(clicks, found.examples - clicks) >= FEWEST_CLICKS
        and math.isfinite(found.auc)
    )
