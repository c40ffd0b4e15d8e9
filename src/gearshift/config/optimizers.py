"""The `optimizer` section: how weights and rows move."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gearshift.config.section import Named, Section
from gearshift.config.units import Count, Number, Share


class RuleSection(Named):
    """Settings that are not given are the optimizer's own defaults."""

    name: str
    lr: Number | None = Field(
        default=None,
        gt=0,
        description="Learning rate. Not set, dense: 0.1 (sgd, momentum, lars), 0.01 (adagrad), 0.001 (adam, adamw, "
        "lamb), vr_x as x; rows: 0.05, adam 0.001.",
    )
    l2: Number | None = Field(default=None, ge=0, description="L2 penalty on what a step touches.")
    momentum: Number | None = Field(
        default=None, ge=0, lt=1, description="momentum: share of the last move kept."
    )
    nesterov: bool | None = Field(default=None, description="momentum, dense only: look ahead (Nesterov).")
    beta1: Number | None = Field(default=None, ge=0, lt=1, description="adam, adamw: memory of the mean.")
    beta2: Number | None = Field(default=None, ge=0, lt=1, description="adam, adamw: memory of the square.")
    eps: Number | None = Field(default=None, gt=0, description="adagrad, adam: added to the denominator.")
    initial: Number | None = Field(default=None, ge=0, description="adagrad: first value of the accumulator.")

    def settings(self) -> dict[str, Any]:
        """What the user set, as keyword arguments for the optimizer."""
        return self.model_dump(exclude_none=True, exclude={"name"})


class DenseOptimizerSection(RuleSection):
    name: Literal[
        "sgd",
        "momentum",
        "adagrad",
        "adam",
        "adamw",
        "lars",
        "lamb",
        "vr_sgd",
        "vr_momentum",
        "vr_adam",
        "vr_lars",
        "vr_lamb",
    ] = Field(
        default="adam",
        description="Which rule; lars and lamb scale each layer's step, vr_* trust what the step's batches agree on.",
    )
    weight_decay: Number | None = Field(
        default=None, ge=0, description="adamw, lars, lamb: decay apart from the gradient."
    )
    eta: Number | None = Field(
        default=None, gt=0, description="lars: a layer's step, of its weights' length."
    )
    floor: Share | None = Field(default=None, description="vr_*: the least share of a step that is taken.")
    min_gradients: Number | None = Field(
        default=None, ge=2, description="vr_*: from fewer batches a step nothing is reduced."
    )
    beta3: Number | None = Field(
        default=None, ge=0, lt=1, description="vr_adam, vr_lamb: memory of the trust."
    )
    control: Literal["none", "norm_matched", "layer_mean", "permuted"] | None = Field(
        default=None, description="vr_*: for experiments, what replaces the trust."
    )


class RowOptimizerSection(RuleSection):
    name: Literal["sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "ftrl"] = Field(
        default="adagrad", description="Which rule; rowwise_adagrad needs one number of state per row."
    )
    beta: Number | None = Field(default=None, ge=0, description="ftrl: added to the root of the squared sum.")
    l1: Number | None = Field(default=None, ge=0, description="ftrl: makes small weights exactly zero.")


class RowClipSection(Named):
    name: Literal["cowclip"] = Field(default="cowclip", description="Which rule.")
    ratio: Number = Field(default=1.0, gt=0, description="Of the row's length, per occurrence of its id.")
    zeta: Number = Field(
        default=1e-5, ge=0, description="A row counts as at least this long, per root of its width."
    )


class ScheduleSection(Section):
    warmup: Share = Field(default=0.0, description="Share of the run in which the rate rises from 0.")
    decay: Literal["none", "linear", "cosine", "step"] = Field(
        default="none", description="How it falls after."
    )
    floor: Share = Field(default=0.0, description="The share of the rate that decay ends at.")


class OptimizerSection(Section):
    dense: DenseOptimizerSection = Field(
        default=DenseOptimizerSection(name="adam", lr=1e-3), description="For the network's weights."
    )
    embeddings: RowOptimizerSection = Field(
        default=RowOptimizerSection(name="adagrad", lr=0.05), description="For the embedding rows."
    )
    linear: RowOptimizerSection | None = Field(
        default=None,
        description="For the linear term of a row (LR, FM, Wide&Deep, DeepFM); as embeddings if not set.",
    )
    row_init: Number = Field(
        default=0.01, ge=0, description="New embedding rows are drawn from [-row_init, row_init]."
    )
    row_trust: Literal["dense_only", "touched", "row_wise"] = Field(
        default="dense_only", description="Whether vr_* scales rows too: per element, or one number per row."
    )
    row_clip: RowClipSection | None = Field(
        default=None, description="cowclip: a row's gradient is clipped by the row's own length."
    )
    batch_rule: Literal["constant", "linear", "square_root", "cowclip"] = Field(
        default="constant",
        description="How rates that were tuned for base_batch grow with train.global_batch (docs/large_batches.md).",
    )
    base_batch: Count | None = Field(
        default=None, ge=1, description="The global batch that the rates here were tuned for."
    )
    clip_norm: Number | None = Field(default=None, gt=0, description="Largest norm of the dense gradient.")
    embedding_reduce: Literal["mean", "touched", "sum"] = Field(
        default="mean",
        description="What a row's summed gradient is divided by: the examples of the step, those of the batches "
        "that have the id, or nothing.",
    )
    schedule: ScheduleSection = Field(
        default=ScheduleSection(), description="How learning rates move over the run, by examples."
    )
