"""The declaration of one setting: a dataclass field with its default, a description for the user and its bounds.

Bounds are checked when a config is read; a dataclass that is created in Python checks its own values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, get_type_hints

REQUIRED = MISSING
_KEY, _KEPT = "gearshift_key", "gearshift_kept"


class ComparedOnResume:
    """Base of the dataclasses whose `kept` settings a resumed run must share with the stopped one (run/resume.py)."""


class _Kept(Field[Any]):
    """A field that, when its class is defined, refuses `kept=True` unless a resume compares that class."""

    __slots__ = ()

    def __set_name__(self, owner: type, name: str) -> None:
        if not issubclass(owner, ComparedOnResume):
            raise TypeError(
                f"{owner.__name__}.{name}: kept=True has no effect here; derive the class from ComparedOnResume and "
                "add its value to run/resume.py"
            )


class Meaning:
    """The description and the bounds of a setting that several dataclasses share, each with its own default."""

    def __init__(
        self,
        sentence: str,
        *,
        at_least: float | None = None,
        above: float | None = None,
        at_most: float | None = None,
        below: float | None = None,
        shortest: float | None = None,
    ) -> None:
        # the names that pydantic reads
        bounds = {"ge": at_least, "gt": above, "le": at_most, "lt": below, "min_length": shortest}
        given = {name: bound for name, bound in bounds.items() if bound is not None}
        self.metadata: dict[str, Any] = {"description": sentence, **given}


def setting(
    default: Any, meaning: str | Meaning, *, key: str | None = None, kept: bool = False, **bounds: float
) -> Any:
    """A field of a dataclass that a config may set: `setting(3, "How many are kept.", at_least=1)`.

    `REQUIRED` as default: the user must give it. `key` is the name in a config, if it differs from the field's name: a
    section may have the settings of several dataclasses beside each other. `kept`: a resumed run must have the same
    value; the dataclass must be derived from `ComparedOnResume`.
    """
    known = Meaning(meaning, **bounds) if isinstance(meaning, str) else meaning
    about = {} if key is None else {_KEY: key}
    declared: Any = field(
        default=default, metadata={**known.metadata, **about, **({_KEPT: True} if kept else {})}
    )
    if kept:
        declared.__class__ = _Kept
    return declared


@dataclass(frozen=True)
class Declaration:
    """The declaration of one setting."""

    name: str
    annotation: Any  # the type with its unit
    default: Any  # REQUIRED if there is none
    sentence: str
    bounds: Mapping[str, float]
    key: str  # its name in a config
    kept: bool = False  # a resumed run must have the same value


def declarations(kind: type[Any]) -> dict[str, Declaration]:
    """The settings that a dataclass declares, in order. A dataclass without any is a plain value."""
    if not is_dataclass(kind):
        return {}
    declared = [f for f in fields(kind) if "description" in f.metadata]
    hints = get_type_hints(kind, include_extras=True) if declared else {}
    return {f.name: _declaration(f, hints[f.name]) for f in declared}


def values_of(section: Any, kind: type[Any]) -> dict[str, Any]:
    """Keyword arguments for `kind`: the settings it declares, with the values that the section has for them."""
    return {name: getattr(section, name) for name in declarations(kind)}


def kept_values(section: str, value: Any) -> dict[str, str]:
    """The settings of a dataclass that a resumed run must have in common with the stopped one, by their full key."""
    return {
        f"{section}.{one.key}": str(getattr(value, one.name))
        for one in declarations(type(value)).values()
        if one.kept
    }


def _declaration(field: Field[Any], annotation: Any) -> Declaration:
    bounds = {
        name: value for name, value in field.metadata.items() if name not in ("description", _KEY, _KEPT)
    }
    key, kept = field.metadata.get(_KEY, field.name), _KEPT in field.metadata
    return Declaration(
        field.name, annotation, field.default, field.metadata["description"], bounds, key, kept
    )
