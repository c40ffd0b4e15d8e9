"""Sections that choose one of several rules by name: `{name: adam, lr: 0.001}`, or `adam` alone.

The keys of such a section are the settings of all its rules together, as their dataclasses declare them. A missing key
has the rule's default; checks.py refuses a key that the chosen rule does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import Field

from gearshift.config.document import dump_flow
from gearshift.config.section import Named
from gearshift.settings.declaration import REQUIRED, Declaration, declarations

Rules = Mapping[str, Mapping[str, Declaration]]  # the settings of each rule, by its name


def rules_of(kinds: Mapping[str, Iterable[type[Any]]]) -> Rules:
    """Creates the rules from the dataclasses that declare their settings."""
    return {
        name: {one.key: one for kind in declared for one in declarations(kind).values()}
        for name, declared in kinds.items()
    }


class RuleSettings(Named):
    """The settings of all rules together. A subclass gives the rules: `class Dense(ChoiceSection, rules=...)`."""

    rules: ClassVar[Rules]

    def __init_subclass__(cls, rules: Rules | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if rules is not None:
            cls.rules = rules
            if "name" in cls.__annotations__:
                cls.__annotations__["name"] = Literal[tuple(rules)]
            _declare(cls, rules)


class ChoiceSection(RuleSettings):
    """A rule by its name, and its settings."""

    name: str

    def settings(self) -> dict[str, Any]:
        """What the user set, as keyword arguments for the rule."""
        return self.model_dump(exclude_none=True, exclude={"name"})


def _declare(section: type[Named], rules: Rules) -> None:
    """Gives the section a key for each setting of the rules, before pydantic collects its fields."""
    for key in dict.fromkeys(key for known in rules.values() for key in known):
        uses = {name: known[key] for name, known in rules.items() if key in known}
        section.__annotations__[key] = _joined([one.annotation for one in uses.values()]) | None
        bounds: dict[str, Any] = dict(next(iter(uses.values())).bounds)
        setattr(section, key, Field(default=None, description=_sentence(uses, rules), **bounds))


def _joined(annotations: list[Any]) -> Any:
    """The type of a key: that of every rule, or all the choices where some rules have fewer."""
    kinds = [part for one in annotations for part in _without_none(one)]
    choices = dict.fromkeys(name for kind in kinds if get_origin(kind) is Literal for name in get_args(kind))
    return Literal[tuple(choices)] if choices else kinds[0]


def _without_none(annotation: Any) -> list[Any]:
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [part for part in parts if part is not NoneType]


def _sentence(uses: Mapping[str, Declaration], rules: Rules) -> str:
    """`adagrad, adam: added to the denominator. Not set: 1e-10 (adagrad), 1e-08 (adam).`"""
    meanings = _grouped({name: one.sentence for name, one in uses.items()})
    parts = []
    for sentence, names in meanings.items():
        who = "" if len(names) == len(rules) else f"{_names(names, rules)}: "
        parts.append(f"{who}{_inside(sentence) if who else sentence}")
    defaults = _grouped({name: _default(one) for name, one in uses.items() if _default(one)})
    if defaults:
        several = len(defaults) > 1 or sum(map(len, defaults.values())) < len(uses)
        shown = (
            f"{value} ({_names(names, rules)})" if several else value for value, names in defaults.items()
        )
        parts.append(f"Not set: {', '.join(shown)}.")
    return " ".join(parts)


def _grouped(values: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    return groups


def _names(names: Iterable[str], rules: Rules) -> str:
    """`adam, vr_*`: a whole family by its prefix; `all but lr` where that is shorter."""
    known, shown = list(names), list[str]()
    others = [name for name in rules if name not in known]
    if len(others) <= 2 < len(known):
        return f"all but {' and '.join(others)}"
    for name in known:
        family = [other for other in rules if other.split("_")[0] == name.split("_")[0]]
        whole = len(family) > 1 and set(family) <= set(known)
        shown.append(f"{name.split('_')[0]}_*" if whole else name)
    return ", ".join(dict.fromkeys(shown))


def _inside(sentence: str) -> str:
    """The sentence in the form used after a colon."""
    return sentence[0].lower() + sentence[1:] if sentence[1:2].islower() or sentence[1:2] == " " else sentence


def _default(one: Declaration) -> str:
    if one.default is REQUIRED or one.default is None or one.default is False:
        return ""
    return dump_flow(list(one.default) if isinstance(one.default, tuple) else one.default)
