"""YAML text to plain values that remember their line, and back.

PyYAML reads YAML 1.1: `1e-3` is text there, `NO` and `on` are booleans, `12:30` is 750 and 2026-11-08 a date.
Here scalars resolve as in YAML 1.2, slightly more strictly: true/false, null and ~, decimal numbers; all else is
text, and keys always are. Numbers remember how they were written. Duplicate keys and tags are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

from gearshift.errors import UserError
from gearshift.settings.units import WrittenFloat, WrittenInt

Path = tuple[str | int, ...]

_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULL = ("null", "~", "")


@dataclass(frozen=True)
class Document:
    name: str  # for errors
    values: dict[str, Any]
    lines: dict[Path, int]  # of each key, list item and the whole, counted from 1


@dataclass(frozen=True, eq=False)
class Places:
    """Where each value of a config was written. All compare equal: places are not part of a config's content."""

    document: Document | None = None
    overridden: Mapping[Path, str] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places)

    __hash__ = None  # type: ignore[assignment]

    def of(self, path: Path) -> str:
        """The override or `file:line` of the nearest value that was written at or above `path`."""
        prefixes = [path[:end] for end in range(len(path), 0, -1)]
        for prefix in prefixes:
            if prefix in self.overridden:
                return self.overridden[prefix]
        if self.document is None:
            return ""
        line = next(
            (self.document.lines[prefix] for prefix in prefixes if prefix in self.document.lines), None
        )
        return self.document.name if line is None else f"{self.document.name}:{line}"

    def line(self, path: Path) -> int:
        lines = self.document.lines if self.document is not None else {}
        return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 0)


def dotted(path: Path) -> str:
    """`features[2].type`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def resolve(text: str) -> Any:
    """The value of a plain scalar."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    number: WrittenInt | WrittenFloat
    if _INT.fullmatch(text) and len(text) < 400:  # Python refuses to read much longer integers
        number = WrittenInt(text)
    elif _FLOAT.fullmatch(text):
        number = WrittenFloat(text)
    else:
        return text
    number.text = text
    return number


class _Loader(yaml.SafeLoader):
    """Resolves nothing by itself: `_Reader` calls `resolve` for scalars that are not quoted."""


class _Dumper(yaml.SafeDumper):
    """Quotes exactly the text that `resolve` would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dump_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # Line breaks and control characters (separators may be such) are escaped in double quotes only.
    plain = text.isprintable() and isinstance(resolve(text), str)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


def _dump_float(dumper: _Dumper, number: float) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", repr(number))


def _dump_plain(dumper: _Dumper, value: int | bool | None) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", "null" if value is None else str(value).lower())


_Loader.yaml_implicit_resolvers = {}
_Dumper.yaml_implicit_resolvers = {}
_Dumper.add_representer(str, _dump_text)
_Dumper.add_representer(float, _dump_float)
for _type in (int, bool, type(None)):
    _Dumper.add_representer(_type, _dump_plain)


def dump(values: Any) -> str:
    return yaml.dump(
        values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None
    )


def dump_flow(value: Any) -> str:
    """On one line: `{name: price, type: numeric}`."""
    text = yaml.dump(
        [value], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31, default_flow_style=True
    )
    return text.strip()[1:-1]


def parse(text: str, name: str) -> Document:
    """Parses a whole file; `name` comes before the line in errors."""
    lines: dict[Path, int] = {}
    values = _read(text, name, lines)
    if values is None:
        raise UserError(f"{name}: the file is empty; start from `gearshift init FILE`, or see docs/config.md")
    if not isinstance(values, dict):
        raise UserError(f"{name}:1: expected `key: value` lines at the top, such as `data:` and `features:`")
    return Document(name, values, lines)


def parse_flow(text: str, name: str) -> Any:
    """Parses one value of an override: `[a, b]`, `{skip: 10}`, quoted text."""
    return _read(text, name, None)


def _read(text: str, name: str, lines: dict[Path, int] | None) -> Any:
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise UserError(f"{_at(name, error, lines)}: not valid YAML: {_problem(error)}") from error
    except yaml.YAMLError as error:  # characters that are not allowed in YAML
        raise UserError(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from error
    return None if node is None else _Reader(name, lines).value(node, ())


def _at(name: str, error: yaml.MarkedYAMLError, lines: dict[Path, int] | None) -> str:
    mark = error.problem_mark or error.context_mark
    return name if mark is None or lines is None else f"{name}:{mark.line + 1}"


def _problem(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or error.context or "cannot be read"
    if "\\t" in problem:
        return "a tab where YAML allows only spaces; indent with spaces"
    if "mapping values are not allowed" in problem:
        return "a second `:` on the line, or wrong indentation; quote text that has `: ` in it"
    if error.problem_mark is not None and "but found" in problem:
        return f"{problem}; is a bracket, quote or `:` missing here or just before?"
    return problem


class _Reader:
    def __init__(self, name: str, lines: dict[Path, int] | None) -> None:
        self.name, self.lines = name, lines
        self.open: list[yaml.Node] = []  # nodes being read, to detect cycles

    def value(self, node: yaml.Node, path: Path) -> Any:
        if self.lines is not None:
            self.lines.setdefault(path, node.start_mark.line + 1)
        if node in self.open:
            raise self.error(node, "an alias (*name) that contains itself; write the value out")
        if node.tag not in _DEFAULT_TAGS:
            raise self.error(node, f"the tag {node.tag!r} is not supported; write the plain value")
        self.open.append(node)
        value = self._value(node, path)
        self.open.pop()
        return value

    def _value(self, node: yaml.Node, path: Path) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return resolve(node.value) if node.style is None else node.value
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        return self._mapping(cast(yaml.MappingNode, node), path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.error(
                    key_node, "a key must be plain text; is a `key: ` missing before the bracket?"
                )
            key = key_node.value
            if key in values:
                first = "" if self.lines is None else f" (first in line {self.lines[(*path, key)]})"
                raise self.error(key_node, f"key `{key}` appears twice{first}; remove one")
            if self.lines is not None:
                self.lines[(*path, key)] = key_node.start_mark.line + 1
            values[key] = self.value(value_node, (*path, key))
        return values

    def error(self, node: yaml.Node, sentence: str) -> UserError:
        place = self.name if self.lines is None else f"{self.name}:{node.start_mark.line + 1}"
        return UserError(f"{place}: {sentence}")


_DEFAULT_TAGS = {"", "!", None} | {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}
