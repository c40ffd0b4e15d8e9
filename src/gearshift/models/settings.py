"""The settings of each model, by its name in a config: plain values, so that a config can be read without torch.

A model's constructor takes these, with these defaults, besides the schema. Settings that belong together are one
argument of the constructor (`AttentionSettings`) and several keys of a config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gearshift.data.schema import MOST_DIM
from gearshift.settings.declaration import setting
from gearshift.settings.units import Count, Counts, Share, Text, Texts

Structure = Literal["parallel", "stacked"]


@dataclass(frozen=True)
class LinearSettings:
    """A model without settings."""


@dataclass(frozen=True)
class EmbeddingSettings:
    dim: Count = setting(16, "Width of an embedding row.", at_least=1, at_most=MOST_DIM)


@dataclass(frozen=True)
class DeepSettings(EmbeddingSettings):
    hidden: Counts = setting((400, 400), "Widths of the hidden layers.")
    dropout: Share = setting(0.0, "Share of hidden units dropped while training.")
    activation: Text = setting("relu", "Activation between hidden layers: relu, ...")
    batch_norm: bool = setting(False, "Normalise hidden layers over the batch.")


@dataclass(frozen=True)
class CrossSettings(DeepSettings):
    cross_layers: Count = setting(3, "Number of cross layers.", at_least=1)


@dataclass(frozen=True)
class MatrixCrossSettings(CrossSettings):
    rank: Count | None = setting(None, "Low-rank cross matrices; full if not set.", at_least=1)
    structure: Structure = setting("parallel", "Cross and deep network in parallel, or stacked.")


@dataclass(frozen=True)
class DLRMSettings(DeepSettings):
    hidden: Counts = setting((512, 256), "Widths of the hidden layers.")
    bottom: Counts = setting((512, 256), "Widths of the bottom network, which processes the numbers.")


@dataclass(frozen=True)
class AttentionSettings:
    """The network that weighs each item of a history."""

    hidden: Counts = setting((64,), "Widths of the attention network.", key="attention")
    activation: Text = setting("dice", "Activation between its layers: dice, ...", key="attention_activation")


@dataclass(frozen=True)
class DINSettings(DeepSettings):
    target: Texts | None = setting(None, "The categorical feature that describes the candidate item.")
    history: Texts | None = setting(None, "The sequence feature that it is compared with.")


MODEL_SETTINGS: dict[str, tuple[type[Any], ...]] = {
    "lr": (LinearSettings,),
    "fm": (EmbeddingSettings,),
    "dnn": (DeepSettings,),
    "wide_deep": (DeepSettings,),
    "deepfm": (DeepSettings,),
    "dcn": (CrossSettings,),
    "dcnv2": (MatrixCrossSettings,),
    "dlrm": (DLRMSettings,),
    "din": (AttentionSettings, DINSettings),
}
