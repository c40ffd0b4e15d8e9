"""The common parts of all config sections, which are dataclasses with declared settings or `Section`s."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from gearshift.settings.declaration import REQUIRED, Declaration, declarations

Value = TypeVar("Value")
SectionType = type[Any]  # a dataclass with declared settings, or a Section


class Section(BaseModel):
    """A mapping in the file: frozen, unknown keys are errors, each field has a description.

    The same applies to dataclasses inside it: pydantic gives them this configuration.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)


class FlatSection(Section):
    """Includes the settings of other dataclasses as its keys: `class Rates(FlatSection, of=(RowPolicy,))`.

    They come after the keys that the section declares itself. A key that the section also declares takes precedence.
    """

    def __init_subclass__(cls, of: tuple[type[Any], ...] = (), **options: Any) -> None:
        super().__init_subclass__(**options)
        for declared in (one for kind in of for one in declarations(kind).values()):
            if declared.key in cls.__annotations__:
                continue
            known: dict[str, Any] = dict(declared.bounds)
            if declared.default is not REQUIRED:
                known["default"] = declared.default
            cls.__annotations__[declared.key] = declared.annotation
            setattr(cls, declared.key, Field(description=declared.sentence, **known))

    def value(self, kind: type[Value]) -> Value:
        """The dataclass, with the values that the user set."""
        return kind(**{name: getattr(self, declared.key) for name, declared in declarations(kind).items()})


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


def keys_of(section: SectionType) -> dict[str, Declaration]:
    """The settings of a section, by key, in the order of the reference."""
    if not issubclass(section, BaseModel):
        return declarations(section)
    return {key: _declared(key, field) for key, field in section.model_fields.items()}


def _declared(key: str, field: FieldInfo) -> Declaration:
    default = REQUIRED if field.is_required() else field.default
    return Declaration(key, field.annotation, default, field.description or "", {}, key)


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, BaseModel) or bool(declarations(kind)))


def section_of(annotation: Any) -> SectionType | None:
    """The section in an annotation such as `Data` or `Split | None`; None for plain values and lists."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    for candidate in (annotation, *get_args(annotation)):
        if is_section(candidate):
            return candidate  # type: ignore[no-any-return]
    return None
