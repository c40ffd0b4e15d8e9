"""The `strategy` section: how workers synchronise, and when that changes."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails

from gearshift.config.choices import RuleSettings, rules_of
from gearshift.settings.units import Text, plain
from gearshift.sync.automatic import Auto
from gearshift.sync.global_batch import GlobalBatch
from gearshift.sync.registry import STRATEGIES
from gearshift.training.timing import Point

_PLACE = "^.+:.+$"  # module:Class
StrategyName = Annotated[
    Text,
    WithJsonSchema({"anyOf": [{"enum": [*STRATEGIES, "auto"]}, {"type": "string", "pattern": _PLACE}]}),
]


# The order of the keys in the reference: those of gba first.
_KINDS: dict[str, type[Any]] = {GlobalBatch.name: GlobalBatch, **STRATEGIES, "auto": Auto}
_RULES = rules_of({name: (kind,) for name, kind in _KINDS.items()})


class StrategySettings(RuleSettings, rules=_RULES):
    """Settings that are not given are the strategy's own defaults.

    A custom strategy (`module:Class`) has the fields of its class: any key is accepted here, and `make_strategy`
    checks them.
    """

    model_config = ConfigDict(extra="allow")  # extra keys, which `_own_settings` checks
    about_itself: ClassVar[tuple[str, ...]]  # keys that are not settings of the strategy itself

    @model_validator(mode="wrap")
    @classmethod
    def _own_settings(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Settings of `module:Class` bypass the fields here, which might have the same name and another meaning."""
        if not isinstance(given, dict):
            return read(given)
        name, custom = given.get(cls.main_key), dict[str, Any]()
        if isinstance(name, str) and ":" in name:
            custom = {key: plain(value) for key, value in given.items() if key not in cls.about_itself}
            given = {key: value for key, value in given.items() if key in cls.about_itself}
        section = read(given)
        assert section.model_extra is not None
        if section.model_extra:
            raise ValidationError.from_exception_data(cls.__name__, _unknown(section.model_extra))
        section.model_extra.update({key: value for key, value in custom.items() if value is not None})
        return section

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        name, known = super().__get_pydantic_json_schema__(core, handler)["anyOf"]
        about = {key: known["properties"][key] for key in cls.about_itself}
        del known["additionalProperties"]
        place = {**about[cls.main_key], "anyOf": [{"type": "string", "pattern": _PLACE}]}
        required = sorted({cls.main_key, *known.get("required", ())})
        custom = {**known, "properties": {**about, cls.main_key: place}, "required": required}
        return {"anyOf": [name, custom, {**known, "additionalProperties": False}]}

    def settings(self) -> dict[str, Any]:
        """What the user set, as keyword arguments for the strategy."""
        known = {
            key: value for key in StrategySettings.model_fields if (value := getattr(self, key)) is not None
        }
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
        description="How workers synchronise. A custom strategy is named `module:Class` and has its own settings.",
    )
    switch: tuple[PlannedSwitchSection, ...] = Field(
        default=(), description="Planned switches, such as [{at: 50%, to: gba}]."
    )
