"""The `optimizer` section: how weights and rows are updated."""

from __future__ import annotations

from pydantic import Field

from gearshift.config.choices import ChoiceSection, rules_of
from gearshift.config.section import FlatSection
from gearshift.embedding.row_optimizers import ROW_OPTIMIZERS, CowClip
from gearshift.optim.batch_scaling import ScalingSettings
from gearshift.optim.rule_settings import DENSE_RULES
from gearshift.optim.schedule import ScheduleSettings
from gearshift.parameters.dense_settings import DensePolicy
from gearshift.parameters.row_settings import RowPolicy


class DenseOptimizerSection(ChoiceSection, rules=rules_of(DENSE_RULES)):
    name: str = Field(
        default="adam",
        description="The update rule; lars and lamb scale each layer's step, vr_* step less where gradients disagree.",
    )


class RowOptimizerSection(
    ChoiceSection, rules=rules_of({name: (rule,) for name, rule in ROW_OPTIMIZERS.items()})
):
    name: str = Field(
        default="adagrad",
        description="The update rule; rowwise_adagrad needs only one number of state per row.",
    )


class RowClipSection(ChoiceSection, rules=rules_of({CowClip.name: (CowClip,)})):
    name: str = Field(default=CowClip.name, description="Which rule.")


class OptimizerSection(FlatSection, of=(RowPolicy, ScalingSettings, DensePolicy)):
    dense: DenseOptimizerSection = Field(
        default=DenseOptimizerSection.model_validate({"name": "adam", "lr": 1e-3}),
        description="For the network's weights.",
    )
    embeddings: RowOptimizerSection = Field(
        default=RowOptimizerSection.model_validate({"name": "adagrad", "lr": 0.05}),
        description="For the embedding rows.",
    )
    linear: RowOptimizerSection | None = Field(
        default=None,
        description="For the linear term of a row (LR, FM, Wide&Deep, DeepFM); as embeddings if not set.",
    )
    row_clip: RowClipSection | None = Field(
        default=None, description="cowclip: a row's gradient is clipped to the row's own norm."
    )
    schedule: ScheduleSettings = Field(
        default=ScheduleSettings(), description="How learning rates change over the run, by examples."
    )

    @property
    def rows(self) -> RowPolicy:
        return self.value(RowPolicy)

    @property
    def scaling(self) -> ScalingSettings:
        return self.value(ScalingSettings)

    @property
    def dense_policy(self) -> DensePolicy:
        return self.value(DensePolicy)
