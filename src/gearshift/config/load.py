"""Reads a file and overrides into a `Config`. Errors name the place, the problem and the nearest valid name.

`clicks.yaml:26: unknown key `epoch` in train. Did you mean `epochs`? (global_batch, epochs, seed, ...)`
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gearshift.config import checks, document, overrides
from gearshift.config.data import LabelColumn
from gearshift.config.document import Document, Path, Places
from gearshift.config.features import ENTRY_TYPES
from gearshift.config.section import SectionType, is_section, keys_of, section_of
from gearshift.config.strategies import PlannedSwitchSection
from gearshift.config.tree import Config
from gearshift.data.readers.formats import ENDINGS
from gearshift.data.schema import Schema
from gearshift.errors import UserError


def load_config(path: str | FilePath, overrides: Iterable[str] = ()) -> Config:
    """The config in a file, with `key=value` overrides applied."""
    read = document.parse(_read_text(FilePath(path)), str(path))
    config = _build(read.values, read, list(overrides))
    if (gap := checks.first_gap(config)) is not None:
        raise UserError(_placed(config.place(*gap.path), gap.sentence))
    if config.name is None:
        config = _named(config, FilePath(path).stem)
    return config


def config_from(values: Mapping[str, Any], overrides: Iterable[str] = ()) -> Config:
    """The same from plain values, for runs started from Python."""
    return _build(values, None, list(overrides))


def load_schema(path: str | FilePath) -> Schema:
    """The meaning of the columns alone: the `data` and `features` of a config."""
    read = document.parse(_read_text(FilePath(path)), str(path))
    config = _build(read.values, read, [])
    schema = config.schema()
    if schema is None:
        raise UserError(f"{path}: features is missing: name the columns that the model sees")
    return schema


def _named(config: Config, name: str) -> Config:
    named = config.model_copy(update={"name": name})
    named._places = config._places
    return named


def _read_text(path: FilePath) -> str:
    if path.is_dir():
        raise UserError(f"{path} is a folder; a config is a YAML file")
    if path.name.endswith(ENDINGS):
        raise UserError(f"{path} is data, not a config; write one for it: gearshift init {path}")
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        there = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        hint = checks.nearest(path.name, there) or (f" (here: {', '.join(there[:5])})" if there else "")
        raise UserError(f"no such config: {path}.{hint or ' Write one: gearshift init FILE'}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _build(values: Mapping[str, Any], read: Document | None, texts: Sequence[str]) -> Config:
    settings = [overrides.parse_override(text, Config) for text in texts]
    if any(s.path == ("cluster", "engine") and s.value != "ray" for s in settings):
        values = _without_ray(values)
    merged, paths = overrides.apply(values, settings, Config)
    places = Places(read, {path: setting.text for path, setting in zip(paths, settings, strict=True)})
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        raise UserError(_first_complaint(error, merged, places)) from error
    config._places = places
    return config


def _without_ray(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drops a file's settings for Ray if an override selects another engine."""
    cluster = values.get("cluster")
    if not isinstance(cluster, dict):
        return values
    return {**values, "cluster": {k: v for k, v in cluster.items() if k not in checks.RAY_ONLY}}


def _placed(place: str, sentence: str) -> str:
    return f"{place}: {sentence}" if place else sentence


def _first_complaint(error: ValidationError, values: Any, places: Places) -> str:
    complaints = [(_path(e, values), e) for e in error.errors(include_url=False)]
    path, first = min(complaints, key=lambda c: places.line(c[0]))
    return _placed(places.of(path), _sentence(first, path, values, is_named=path in places.overridden))


def _path(error: Any, values: Any) -> Path:
    """The path in the file, without the branches of a union, which pydantic includes although they are not keys."""
    if error["type"] == "misfit":
        return tuple(error["ctx"]["path"])
    here, path = values, []
    for i, part in enumerate(error["loc"]):
        last = i == len(error["loc"]) - 1
        inside = part in here if isinstance(here, dict) else isinstance(here, list) and isinstance(part, int)
        if not inside and not (last and error["type"] in ("missing", *_UNKNOWN_KEY)):
            continue
        path.append(part)
        here = here[part] if inside else None
    return (*path, "type") if error["type"].startswith("union_tag") else tuple(path)


def _at(values: Any, path: Path) -> Any:
    for part in path:
        values = values[part]
    return values


def _sentence(error: Any, path: Path, values: Any, *, is_named: bool = False) -> str:
    """`is_named`: the place is an override that shows the setting and its value already."""
    kind, ctx, name = error["type"], error.get("ctx", {}), document.dotted(path)
    if kind == "misfit":
        return str(ctx["sentence"])
    if kind == "missing":
        return f"{name} is missing{_meaning(path, values)}"
    if kind in _UNKNOWN_KEY:
        return _unknown_key(path, values)
    if kind == "literal_error":
        return _unknown_value(_at(values, path), name, _choices(ctx["expected"]))
    if kind == "union_tag_invalid":
        return _unknown_value(_at(values, path), name, _choices(ctx["expected_tags"]))
    if kind == "union_tag_not_found":
        return f"{name} is missing (numeric, categorical, bag, sequence, vector)"
    given = error["input"]
    problem = str(ctx["error"]) if kind == "value_error" else _expected(kind, ctx, error["msg"])
    if kind in _NOT_A_SECTION:
        problem = f"expected settings below it, such as {_settings_below(path, values, given)}"
    if is_named:
        return problem
    if kind == "value_error" and (isinstance(given, dict) or is_section(type(given))):
        return f"{name}: {problem}"
    return f"{name} is `{_shown(given)}`; {problem}"


def _settings_below(path: Path, values: Any, given: Any) -> str:
    """`{after: 30d}`: the first setting of the section that takes the given value."""
    section = _section(path, values)
    for key, declared in keys_of(section).items() if section else ():
        with suppress(ValidationError):
            TypeAdapter(declared.annotation).validate_python(given)
            return f"{{{key}: {_shown(given)}}}"
    return "{key: value}"


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


_NOT_A_SECTION = ("model_type", "dataclass_type")
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")  # of a Section, of a dataclass
_EXPECTED = {
    "string_type": "expected text",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "tuple_type": "expected a list, such as [a, b]",
    "model_attributes_type": "expected settings below it, such as {name: price, type: numeric}",
    "string_too_short": "expected at least one character",
}
_BOUNDS = {
    "greater_than": ("gt", "it must be more than"),
    "greater_than_equal": ("ge", "it must be at least"),
    "less_than": ("lt", "it must be less than"),
    "less_than_equal": ("le", "it must be at most"),
}


def _expected(kind: str, ctx: Mapping[str, Any], message: str) -> str:
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{words} {ctx[key]:g}"
    return _EXPECTED.get(kind, message)


def _choices(expected: str) -> list[str]:
    """pydantic gives the choices as text: "'a', 'b' or 'c'"."""
    return [part.strip(" '") for part in expected.replace(" or ", ", ").split(",")]


def _unknown_value(value: Any, name: str, known: Sequence[str]) -> str:
    return (
        f"unknown value `{_shown(value)}` for {name}.{checks.nearest(str(value), known)} ({', '.join(known)})"
    )


def _unknown_key(path: Path, values: Any) -> str:
    key, where = str(path[-1]), document.dotted(path[:-1])
    known = _known_keys(path[:-1], values)
    inside = f" in {where}" if where else ""
    if elsewhere := _elsewhere(path):
        return f"unknown key `{key}`{inside}. It belongs in another section: {' or '.join(elsewhere)}"
    return f"unknown key `{key}`{inside}.{checks.nearest(key, known)} ({', '.join(known)})"


def _elsewhere(path: Path) -> list[str]:
    """Settings of this name in other sections, only the outermost. Entries of lists do not count."""
    if any(isinstance(part, int) for part in path):
        return []
    named = [setting for setting in overrides.settings_of(Config) if setting[-1] == path[-1]]
    outermost = min(map(len, named), default=0)
    return [document.dotted(setting) for setting in named if len(setting) == outermost]


def _known_keys(path: Path, values: Any) -> list[str]:
    section = _section(path, values)
    return [] if section is None else list(keys_of(section))


def _section(path: Path, values: Any) -> SectionType | None:
    section: SectionType | None = Config
    for i, part in enumerate(path):
        if section is None:
            return None
        if isinstance(part, int):
            in_switch = path[:i] == ("strategy", "switch")
            section = PlannedSwitchSection if in_switch else _entry_section(_at(values, path[: i + 1]))
        elif part in (keys := keys_of(section)) and not isinstance(_at(values, path[: i + 1]), list):
            section = section_of(keys[part].annotation)
            section = LabelColumn if path[: i + 1] == ("data", "label") else section
    return section


def _entry_section(entry: Any) -> SectionType | None:
    """The class of a list entry: that of a feature, by its type, or a label."""
    kind = entry.get("type") if isinstance(entry, dict) else None
    return ENTRY_TYPES.get(kind, LabelColumn) if isinstance(kind, str) else LabelColumn


def _meaning(path: Path, values: Any) -> str:
    section = _section(path[:-1], values)
    described = keys_of(section)[str(path[-1])].sentence if section else ""
    return f": {described}" if described else ""
