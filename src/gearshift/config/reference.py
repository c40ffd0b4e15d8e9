"""docs/config.md and gearshift.schema.json, generated from the declarations of the settings.

python -m gearshift.config.reference      writes both; a test fails if they are out of date
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from gearshift.config.data import LabelColumn
from gearshift.config.document import dump_flow
from gearshift.config.features import ENTRY_TYPES
from gearshift.config.section import SectionType, is_section, keys_of, section_of
from gearshift.config.tree import SCHEMA_FILE, Config
from gearshift.settings.declaration import REQUIRED, Declaration
from gearshift.training.timing import Every, write_every

DOCS_FILE = SCHEMA_FILE.parents[2] / "docs" / "config.md"

_HEAD = """\
# The config, key by key

<!-- Generated from the declarations of the settings: python -m gearshift.config.reference -->

A config is a YAML file. `gearshift init FILE` writes one for your data; `gearshift inspect CONFIG` shows it
with all defaults. On the command line any key can be set: `gearshift train clicks.yaml train.epochs=2`. A key
that occurs only once may be used alone (`epochs=2`), list entries go by position or name (`features[2].dim=4`,
`features[country].dim=4`), and values may be lists and mappings (`data.bad_lines='{skip: 1000}'`).

Amounts: counts `4096`, `500k`, `2M`; shares `10%` or `0.1`; durations `30s`, `10min`, `2h`, `1d`; sizes
`500MB`, `16GiB`. Scalars follow YAML 1.2: `1e-3` is a number, `NO`, `on` and `12:30` are text. Paths are
relative to the folder that the command runs in.

Editors complete and check keys with the schema in the package: put
`# yaml-language-server: $schema=PATH` on the first line, where PATH is what
`python -c "import gearshift.config as c; print(c.SCHEMA_FILE)"` prints.
"""


class _WithWrittenDefaults(GenerateJsonSchema):
    """Shows the default of a section as a user would write it: 10min, not its parts."""

    def encode_default(self, dft: Any) -> Any:
        return _written(dft) if is_section(type(dft)) else super().encode_default(dft)


def _written(section: Any, **options: Any) -> Any:
    return TypeAdapter(type(section)).dump_python(section, mode="json", **options)


def json_schema() -> dict[str, Any]:
    schema = Config.model_json_schema(mode="validation", schema_generator=_WithWrittenDefaults)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Gearshift config"}


def json_schema_text() -> str:
    return json.dumps(json_schema(), indent=1) + "\n"


def markdown() -> str:
    parts = [_HEAD, *_sections(Config, ())]
    return "\n".join(parts)


def _sections(section: SectionType, path: tuple[str, ...]) -> Iterator[str]:
    name = ".".join(path)
    title = f"## {name}" if path else "## The sections"
    yield f"{title}\n\n" + _table(section)
    for key, declared in keys_of(section).items():
        inner = section_of(declared.annotation)
        if inner is not None:
            yield from _sections(inner, (*path, key))
        elif (*path, key) == ("features",):
            yield from _entries()
        elif (*path, key) == ("data", "label"):
            yield "## data.label, in full\n\n" + _table(LabelColumn)


def _entries() -> Iterator[str]:
    for kind, section in ENTRY_TYPES.items():
        yield f"## features: type {kind}\n\n{(section.__doc__ or '').strip()}\n\n" + _table(section)


def _table(section: SectionType) -> str:
    lines = ["| key | default | |", "|---|---|---|"]
    for key, declared in keys_of(section).items():
        text = f"{_choices(declared.annotation)}{declared.sentence}".replace("|", "\\|")
        lines.append(f"| `{key}` | {_default(declared)} | {text} |")
    return "\n".join(lines) + "\n"


def _choices(annotation: Any) -> str:
    names = [arg for arg in get_args(annotation) if isinstance(arg, str)]
    if not names:
        nested = (get_args(part) for part in get_args(annotation))
        names = [arg for args in nested for arg in args if isinstance(arg, str)]
    return f"{', '.join(f'`{name}`' for name in names)}. " if len(names) > 1 else ""


def _default(declared: Declaration) -> str:
    value = declared.default
    if value is REQUIRED:
        return "required"
    if value is None:
        return ""
    if is_section(type(value)):
        given = _written(value, exclude_none=True)
        return f"`{dump_flow(given)}`" if 0 < len(given) < 3 else "see below"
    if isinstance(value, Every):
        value = write_every(value)
    shown = list(value) if isinstance(value, tuple) else value
    return f"`{dump_flow(shown)}`"


def main() -> None:
    SCHEMA_FILE.write_text(json_schema_text())
    DOCS_FILE.parent.mkdir(exist_ok=True)
    DOCS_FILE.write_text(markdown())


if __name__ == "__main__":
    main()
