"""Warnings about suspicious metrics of a run or an evaluation, each with advice.

All rules and their thresholds are here. A rule requires enough examples. If it compares two metrics, their difference
must be several standard errors. This module uses only measures, no data and no model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gearshift.metrics import Measures

TOO_GOOD_AUC = 0.99
FEWEST_EXAMPLES = 200
FEWEST_CLICKS = 20  # and as many non-clicks
GAP = 0.05  # AUC of training minus AUC on held-out data
SURE = 3.0  # standard errors
HARDLY_SEEN = 0.8  # share of examples with a new id
WORSE_THAN_CONSTANT = 1.005  # NE, the log loss divided by that of the click rate; chance alone gives 1.002
CALIBRATION = 0.8, 1.25


@dataclass(frozen=True)
class Scored:
    """The measures of one task on one part of the data."""

    part: str  # valid, test, training
    measures: Measures
    task: str = ""  # if there are several
    training: Measures | None = None  # of each training example before the model was trained on it
    unseen: Mapping[str, float] = field(default_factory=dict)  # by field: share of examples with a new id

    @property
    def where(self) -> str:
        return f"{self.part} ({self.task})" if self.task else self.part


def warnings_of(scored: Scored) -> list[str]:
    """All warnings. If the label has only one value, this is the only warning."""
    if one := one_label(scored):
        return [one]
    rules = (too_good, worse_than_constant, below_training, hardly_seen, badly_calibrated)
    return [sentence for rule in rules for sentence in rule(scored)]


def one_label(scored: Scored) -> str | None:
    measures = scored.measures
    if not measures.examples or measures.mean_label not in (0.0, 1.0):
        return None
    return (
        f"{scored.where}: the label is {measures.mean_label:.0f} in all {measures.examples:,} examples, so nothing can "
        "be learned or measured there: check data.label and its `positive`, and how the data is split"
    )


def too_good(scored: Scored) -> Iterator[str]:
    if _enough(scored.measures) and scored.measures.auc > TOO_GOOD_AUC:
        yield (
            f"{scored.where}: an AUC of {scored.measures.auc:.4f} is too good for clicks: a feature probably reveals "
            "the label. Remove columns that are only known after the click; `gearshift init FILE` checks each column"
        )


def worse_than_constant(scored: Scored) -> Iterator[str]:
    measures = scored.measures
    if _enough(measures) and measures.normalized_entropy > WORSE_THAN_CONSTANT:
        yield (
            f"{scored.where}: NE is {measures.normalized_entropy:.3f}, above 1: always predicting the click rate would "
            "be better. If the run was short, train longer; if NE was lower before (metrics.jsonl), train fewer epochs."
            " Otherwise lower optimizer.dense.lr and optimizer.embeddings.lr"
        )


def below_training(scored: Scored) -> Iterator[str]:
    measures, before = scored.measures, scored.training
    if before is None or not (_enough(measures) and _enough(before)):
        return
    gap, error = before.auc - measures.auc, math.hypot(before.auc_se, measures.auc_se)
    if gap > GAP and gap > SURE * error:
        yield (
            f"{scored.where}: the AUC of {measures.auc:.4f} is far below {before.auc:.4f}, that of the training "
            "examples before training on them: the held-out data differs (other users, another time), or the model "
            "overfits after several epochs. Check data.split, or train fewer epochs"
        )


def hardly_seen(scored: Scored) -> Iterator[str]:
    for name, share in scored.unseen.items():
        if share > HARDLY_SEEN:
            yield (
                f"{scored.where}: {100 * share:.0f} % of the examples have an id in `{name}` that training never saw, "
                "so this is the score for new values. To measure known ones, split by time or with "
                "data.split={by: hash, valid: 10%}"
            )


def badly_calibrated(scored: Scored) -> Iterator[str]:
    measures, (low, high) = scored.measures, CALIBRATION
    if not _enough(measures) or low <= measures.calibration <= high:
        return
    rate = measures.mean_label
    chance = math.sqrt((1 - rate) / (rate * measures.examples))
    if abs(measures.calibration - 1) <= SURE * chance:
        return
    much = f"{100 * abs(measures.calibration - 1):.0f} % {'more' if measures.calibration > 1 else 'fewer'}"
    known = (
        ""
        if scored.training is None
        else f" ({100 * scored.training.mean_label:.1f} % of the training examples)"
    )
    yield (
        f"{scored.where}: calibration is {measures.calibration:.2f}: the model predicts {much} clicks than there are, "
        f"{100 * rate:.1f} %{known}. Train longer, or on data with the same click rate"
    )


def end_of_grouped_file(words: str) -> str:
    """A warning before the run: its validation data is the end of a file that is not ordered by time."""
    return (
        f"{words}, and the end of the file is for validation: it differs from the training part. Select single "
        "examples with data.split={by: hash, valid: 10%} (in Python split(hash=True)), or split by time"
    )


def _enough(measures: Measures) -> bool:
    clicks = measures.mean_label * measures.examples
    return (
        measures.examples >= FEWEST_EXAMPLES
        and min(clicks, measures.examples - clicks) >= FEWEST_CLICKS
        and math.isfinite(measures.auc)
    )
