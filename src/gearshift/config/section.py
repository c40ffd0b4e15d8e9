"""What every section of a config has in common, and lists that may be given as one value."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema

from gearshift.config.units import Count, Text


class Section(BaseModel):
    """A mapping in the file: frozen, unknown keys are errors, each field has its sentence."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)


class Named(Section):
    """A section that may be given by its main key alone: `strategy: sync` is `strategy: {name: sync}`."""

    main_key: ClassVar[str] = "name"

    @model_validator(mode="before")
    @classmethod
    def _from_main_key(cls, value: Any) -> Any:
        return {cls.main_key: value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        full = handler.resolve_ref_schema(handler(core))
        return {"anyOf": [full["properties"][cls.main_key], full]}


def _listed(value: Any) -> Any:
    """One value stands for a list of one."""
    return [value] if isinstance(value, str | int | float) else value


def _one_or_list(paths: tuple[str, ...]) -> str | list[str]:
    return paths[0] if len(paths) == 1 else list(paths)


def _one_or_many(kind: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": kind}, {"type": "array", "items": {"type": kind}}]})


_TEXTS = _one_or_many("string")
Paths = Annotated[tuple[Text, ...], BeforeValidator(_listed), PlainSerializer(_one_or_list), _TEXTS]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_listed), _TEXTS]
Counts = Annotated[
    tuple[Annotated[Count, Field(ge=1)], ...], BeforeValidator(_listed), _one_or_many("integer")
]
