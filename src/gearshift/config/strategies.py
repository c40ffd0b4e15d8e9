"""The `strategy` section: how workers synchronise, and when that changes."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails

from gearshift.config.section import Named
from gearshift.config.units import Count, Number, Point, Seconds, Text, plain
from gearshift.errors import UserError
from gearshift.sync.exchange import exchange_of
from gearshift.sync.registry import STRATEGIES

_PLACE = "^.+:.+$"  # module:Class
StrategyName = Annotated[
    Text,
    WithJsonSchema({"anyOf": [{"enum": [*STRATEGIES, "auto"]}, {"type": "string", "pattern": _PLACE}]}),
]


def _exchange(value: Any) -> str | dict[str, int | str]:
    try:
        return exchange_of(plain(value))
    except UserError:
        raise ValueError("expected background, {every: 5} (batches) or {every: 2s}") from None


Exchange = Annotated[
    str | dict[str, int | str],
    PlainValidator(_exchange),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["background"]},
                {"type": ["integer", "string"]},
                {
                    "type": "object",
                    "properties": {"every": {"type": ["integer", "string"]}},
                    "required": ["every"],
                },
            ]
        }
    ),
]


class StrategySettings(Named):
    """Settings that are not given are the strategy's own defaults.

    A strategy of one's own (`module:Class`) has the fields of its class: any key is taken here, and `make_strategy`
    says which there are.
    """

    model_config = ConfigDict(extra="allow")  # as far as `_own_settings` lets it
    about_itself: ClassVar[tuple[str, ...]]  # the keys that are no settings of the strategy

    max_lag: Number | None = Field(
        default=None, ge=0, description="gba: steps behind schedule up to which a gradient counts in full."
    )
    decay: Literal["cut", "exponential", "inverse"] | None = Field(
        default=None, description="gba: what becomes of later ones: dropped (cut), or counted less and less."
    )
    divisor: Literal["all", "kept"] | None = Field(
        default=None, description="gba: whether dropped examples shrink the step (all) or not (kept)."
    )
    bound: Count | None = Field(
        default=None, ge=0, description="bounded_staleness: batches a worker may be ahead of the slowest."
    )
    backups: Count | None = Field(
        default=None, ge=1, description="backup_workers: how many of the last gradients are not waited for."
    )
    gradients_per_step: Count | None = Field(
        default=None, ge=1, description="buffered_async: gradients of a step; a global batch if not set."
    )

    exchange: Exchange | None = Field(
        default=None,
        description="easgd, bmuf, model_averaging: background, or in the training loop: {every: 5} batches of each "
        "worker, {every: 2s}. k_step_adam: {every: 10}.",
    )
    merge: Literal["elastic", "delta", "overwrite"] | None = Field(
        default=None,
        description="How what comes back enters a replica: drawn to it, moved by the difference, or replaced.",
    )
    elasticity: Number | None = Field(
        default=None,
        ge=0,
        le=1,
        description="How far an exchange draws a replica (and easgd's centre) along.",
    )
    order: Literal["sequential", "simultaneous"] | None = Field(
        default=None, description="easgd: a replica is drawn to the centre after or before that was moved."
    )
    pause: Seconds | None = Field(default=None, description="Between two exchanges in the background.")
    momentum: Number | None = Field(
        default=None, ge=0, lt=1, description="bmuf: share of the global step before that is kept."
    )
    outer_rate: Number | None = Field(
        default=None, gt=0, description="bmuf: of what the mean has moved, how much is taken."
    )
    nesterov: bool | None = Field(
        default=None, description="bmuf: replicas are drawn to where momentum leads."
    )
    mode: Literal["frozen_v", "params", "params_m_v"] | None = Field(
        default=None,
        description="k_step_adam: what a merge averages: weights and Adam's denominator, weights, or all.",
    )
    warmup_steps: Count | None = Field(
        default=None,
        ge=0,
        description="k_step_adam: batches that are merged one by one at first; max(20, k).",
    )
    workers_per_replica: Count | None = Field(
        default=None,
        ge=1,
        description="How many workers step the same dense replica, without locks (Hogwild).",
    )

    margin: Number | None = Field(
        default=None, gt=0, description="auto: the predicted gain that makes it change: 0.2 is 20 %."
    )
    patience: Count | None = Field(
        default=None,
        ge=1,
        description="auto: steps for which a gain of margin must hold; a larger one, fewer.",
    )
    window: Count | None = Field(default=None, ge=2, description="auto: batches of each worker it looks at.")

    @model_validator(mode="wrap")
    @classmethod
    def _own_settings(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Those of `module:Class` pass by the fields here, which might mean something else by the same name."""
        if not isinstance(given, dict):
            return read(given)
        name, own = given.get(cls.main_key), dict[str, Any]()
        if isinstance(name, str) and ":" in name:
            own = {key: plain(value) for key, value in given.items() if key not in cls.about_itself}
            given = {key: value for key, value in given.items() if key in cls.about_itself}
        section = read(given)
        assert section.model_extra is not None
        if section.model_extra:
            raise ValidationError.from_exception_data(cls.__name__, _unknown(section.model_extra))
        section.model_extra.update({key: value for key, value in own.items() if value is not None})
        return section

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        name, known = super().__get_pydantic_json_schema__(core, handler)["anyOf"]
        about = {key: known["properties"][key] for key in cls.about_itself}
        del known["additionalProperties"]
        place = {**about[cls.main_key], "anyOf": [{"type": "string", "pattern": _PLACE}]}
        required = sorted({cls.main_key, *known.get("required", ())})
        own = {**known, "properties": {**about, cls.main_key: place}, "required": required}
        return {"anyOf": [name, own, {**known, "additionalProperties": False}]}

    def settings(self) -> dict[str, Any]:
        """What the user set, as keyword arguments for the strategy."""
        names = StrategySettings.model_fields
        known = {key: value for key in names if (value := getattr(self, key)) is not None}
        return {**known, **(self.model_extra or {})}


def _unknown(keys: dict[str, Any]) -> list[InitErrorDetails]:
    return [InitErrorDetails(type="extra_forbidden", loc=(key,), input=value) for key, value in keys.items()]


class PlannedSwitchSection(StrategySettings):
    main_key: ClassVar[str] = "to"
    about_itself: ClassVar[tuple[str, ...]] = ("to", "at")

    to: StrategyName = Field(description="The strategy to change to.")
    at: Point = Field(description="When: after examples (500k), a share (50%), a time (10min) or at `day 3`.")


class StrategySection(StrategySettings):
    about_itself: ClassVar[tuple[str, ...]] = ("name", "switch")

    name: StrategyName = Field(
        default="sync",
        description="How workers synchronise; one of your own by its place, `module:Class`, with its own settings.",
    )
    switch: tuple[PlannedSwitchSection, ...] = Field(
        default=(), description="Changes on the way, such as [{at: 50%, to: gba}]."
    )
