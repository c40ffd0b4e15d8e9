"""`key=value` overrides from the command line, applied to the values of a file.

A key is dotted, with list positions or feature names in brackets: `train.epochs=2`, `features[2].dim=4`,
`features[country].dim=4`. A last part that names exactly one setting may be used alone: `workers=8`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gearshift.config.checks import nearest
from gearshift.config.document import Path, dotted, parse_flow, resolve
from gearshift.config.section import SectionType, keys_of, section_of
from gearshift.errors import UserError

_KEY = re.compile(r"[A-Za-z_][\w-]*(?:\[[^\]]+\])*(?:\.[A-Za-z_][\w-]*(?:\[[^\]]+\])*)*")
_CLOSING = {"[": "]", "{": "}", '"': '"', "'": "'"}


@dataclass(frozen=True)
class Override:
    text: str  # as it was typed
    path: Path
    value: Any


def parse_override(text: str, root: SectionType) -> Override:
    key, equals, written = text.partition("=")
    key = key.strip()
    if not equals or not _KEY.fullmatch(key):
        raise UserError(f"`{text}` is not a setting: write key=value, such as train.epochs=2 or workers=1")
    path = _full_path(text, _split(key), root)
    if not written.strip():  # perhaps an empty variable of the shell
        raise UserError(f"{text}: no value; write {key}=null for the default")
    return Override(text, path, parse_value(written, text))


def parse_value(written: str, text: str = "") -> Any:
    """Brackets, braces and quotes are read as YAML, all else is one scalar: `*` and `|` need no quotes."""
    stripped = written.strip()
    closing = _CLOSING.get(stripped[:1])
    if closing is not None and len(stripped) > 1 and stripped.endswith(closing):
        return parse_flow(stripped, text or stripped)
    return resolve(stripped)


def apply(
    values: Mapping[str, Any], overrides: Iterable[Override], root: SectionType
) -> tuple[dict[str, Any], list[Path]]:
    """The changed values, and the path that each override set, with names of entries as positions."""
    changed = copy.deepcopy(dict(values))
    return changed, [_set(changed, override, root) for override in overrides]


def _split(key: str) -> Path:
    parts: list[str | int] = []
    for name, index in re.findall(r"([A-Za-z_][\w-]*)|\[([^\]]+)\]", key):
        parts.append(name or (int(index) if re.fullmatch(r"-?\d+", index) else index))
    return tuple(parts)


def _full_path(text: str, path: Path, root: SectionType) -> Path:
    """The full path of a short form that names exactly one setting."""
    settings = list(settings_of(root))
    if path[0] in keys_of(root):
        return path
    names = tuple(part for part in path if isinstance(part, str))
    fits = [s for s in settings if s[-1] == names[0]]
    shallow = [s for s in fits if len(s) == min(map(len, fits))]
    if len(shallow) == 1:
        return (*shallow[0], *path[1:])
    if shallow:
        choices = ", ".join(".".join(s) for s in shallow)
        raise UserError(f"{text}: `{path[0]}` could be several settings; write one of {choices}")
    known = [s[-1] for s in sorted(settings, key=len)]  # of equally near ones, the outermost
    raise UserError(
        f"{text}: unknown key `{path[0]}`.{nearest(str(path[0]), known)} (docs/config.md lists all keys)"
    )


def settings_of(section: SectionType, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all settings and sections below this one, without those of list entries."""
    for name, declared in keys_of(section).items():
        yield (*path, name)
        inner = section_of(declared.annotation)
        if inner is not None:
            yield from settings_of(inner, (*path, name))


def _set(values: dict[str, Any], override: Override, root: SectionType) -> Path:
    here: Any = values
    section: SectionType | None = root
    path: Path = ()
    for depth, part in enumerate(override.path):
        last = depth == len(override.path) - 1
        if isinstance(here, list):
            part = _position(here, part, override, depth)
        elif not isinstance(part, str):
            raise UserError(f"{override.text}: {dotted(override.path[:depth])} is not a list in the file")
        path = (*path, part)
        if last:
            here[part] = override.value
            break
        inner = keys_of(section).get(part) if section is not None and isinstance(part, str) else None
        section = section_of(inner.annotation) if inner is not None else None
        here = _enter(here, part, section, override, depth)
    return path


def _enter(here: Any, part: str | int, section: Any, override: Override, depth: int) -> Any:
    """The mapping or list at `part`; creates a missing section, and expands a short form (`model: fm`)."""
    value = here.get(part) if isinstance(here, dict) else here[part]
    if isinstance(value, str) and getattr(section, "main_key", None):
        value = {section.main_key: value}
    elif value is None and not isinstance(override.path[depth + 1], int):
        value = {}
    if not isinstance(value, dict | list):
        what = "is not in the file" if value is None else f"is `{value}` in the file"
        raise UserError(f"{override.text}: {dotted(override.path[: depth + 1])} {what}; set it as a whole")
    here[part] = value
    return value


def _position(items: list[Any], part: str | int, override: Override, depth: int) -> int:
    name = dotted(override.path[:depth])
    if isinstance(part, int):
        if not -len(items) <= part < len(items):
            raise UserError(f"{override.text}: {name} has {len(items)} entries, [0] to [{len(items) - 1}]")
        return part % len(items)
    names = [str(item.get("name")) for item in items if isinstance(item, dict)]
    if part not in names:
        raise UserError(
            f"{override.text}: no entry of {name} is named `{part}`.{nearest(part, names)} ({', '.join(names)})"
        )
    return next(i for i, item in enumerate(items) if isinstance(item, dict) and item.get("name") == part)
