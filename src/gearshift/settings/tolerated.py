"""How many bad things a run puts up with, such as lines of a file or batches: `fail` (none), or `{skip: n}`.

Does not import pydantic, which calls the two methods below when it builds a config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gearshift.settings.declaration import setting
from gearshift.settings.units import Count


@dataclass(frozen=True)
class Tolerated:
    """How many bad lines or batches are skipped: `fail` (none), or `{skip: n}`."""

    main_key: ClassVar[str] = "skip"
    skip: Count = setting(0, "Skip at most this many, counted and listed.", at_least=0)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(_parsed, handler(source))

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"const": "fail"}, handler.resolve_ref_schema(handler(core))]}


def _parsed(value: Any) -> Any:
    if isinstance(value, str) and value != "fail":
        raise ValueError("expected fail or {skip: 1000}")
    return {"skip": 0} if value == "fail" else value
