"""Amounts as users write them: 10min, 16GiB, 10%, 2M; text that may look like a number; lists of one element.

Each parser takes a value from YAML or an override and returns a plain value, or raises a ValueError that completes
the message "train.epochs is `x`; ...". Each writer is the inverse of its parser.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

_AMOUNT = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z%]*)\s*")
SECONDS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
THOUSANDS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}


class Written:
    """A number that remembers how it was written, so that a text field gets the original text: 007, 1.50."""

    text: str


class WrittenInt(int, Written):
    pass


class WrittenFloat(float, Written):
    pass


def plain(value: Any) -> Any:
    """A value with plain numbers, which do not remember how they were written."""
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, Written):
        return int(value) if isinstance(value, int) else float(value)  # type: ignore[arg-type]
    return value


def parse_amount(value: Any) -> tuple[float, str] | None:
    """The number and its unit, as written."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return (value, "") if math.isfinite(value) else None
    if not isinstance(value, str):
        return None
    match = _AMOUNT.fullmatch(value.replace("_", "").replace(",", ""))
    return (float(match[1]), match[2]) if match else None


def parse_text(value: Any) -> Any:
    if isinstance(value, Written):
        return value.text
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def parse_count(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    amount = parse_amount(value)
    if amount is None or amount[1] not in THOUSANDS:
        raise ValueError("expected a whole number, such as 4096, 500k or 2M")
    number = amount[0] * THOUSANDS[amount[1]]
    if number != round(number):
        raise ValueError("expected a whole number")
    return round(number)


def parse_number(value: Any) -> float:
    amount = parse_amount(value)
    if amount is None or amount[1]:
        raise ValueError("expected a number, such as 0.05 or 1e-3")
    return float(amount[0])


def parse_share(value: Any) -> float:
    amount = parse_amount(value)
    if amount is None or amount[1] not in ("", "%"):
        raise ValueError("expected a share, such as 10% or 0.1")
    share = amount[0] / 100 if amount[1] else amount[0]
    if not 0 <= share <= 1:
        raise ValueError("a share lies between 0 and 1 (0% and 100%)")
    return share


def parse_seconds(value: Any) -> float:
    amount = parse_amount(value)
    if amount is None or amount[1] not in SECONDS or amount[0] <= 0:
        raise ValueError("expected a duration, such as 30s, 10min, 2h or 1d")
    return amount[0] * SECONDS[amount[1]]


def _seconds_or_number(value: Any) -> float:
    """A number without a unit counts in seconds."""
    amount = parse_amount(value)
    if amount is not None and amount[0] == 0 and amount[1] in ("", *SECONDS):
        return 0.0  # fields that need a larger value reject it
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if is_number else parse_seconds(value)


def parse_folder(value: Any) -> Any:
    """A path; `~` is the home of the user. A number is probably the value of another setting."""
    if isinstance(value, bool | int | float):
        raise ValueError(f"expected a folder, such as /ssd/rows (./{parse_text(value)} if that is its name)")
    if isinstance(value, str) and not value.strip():
        raise ValueError("expected a folder, such as /ssd/rows")
    return str(Path(value).expanduser()) if isinstance(value, str) and value.startswith("~") else value


def parse_bytes(value: Any) -> int:
    amount = parse_amount(value)
    if amount is None or amount[0] <= 0 or (amount[1] and amount[1] not in _BYTES):
        raise ValueError(f"expected a size, such as 500MB or 16GiB{_meant_size(amount)}")
    return round(amount[0] * _BYTES.get(amount[1], 1))


def _meant_size(amount: tuple[float, str] | None) -> str:
    """`; did you mean 20MiB?` for 20M and 20mib."""
    if amount is None or amount[0] <= 0 or not amount[1]:
        return ""
    typed = amount[1].lower()
    exact = [unit for unit in _BYTES if unit.lower() == typed]
    near = [unit for unit in ("KiB", "MiB", "GiB", "TiB") if unit.lower().startswith(typed)]
    return "".join(f"; did you mean {amount[0]:g}{unit}?" for unit in (exact or near)[:1])


def write_bytes(size: int) -> str | int:
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return size


def size_in_words(size: int) -> str:
    """In the unit that a user would choose: 16GiB, 1.5kB, 20 bytes."""
    written = write_bytes(size)
    if isinstance(written, str):
        return written
    for unit in ("TB", "GB", "MB", "kB"):
        if size >= _BYTES[unit]:
            return f"{size / _BYTES[unit]:.3g}{unit}"
    return f"{size} bytes"


def parse_memory(value: Any) -> int | float:
    """Bytes; a float is a share of the machine's memory."""
    amount = parse_amount(value)
    is_share = isinstance(value, float) and value <= 1
    if (
        amount is not None
        and amount[0] > 0
        and (is_share or amount[1] == "%" or (not amount[1] and amount[0] < 1))
    ):
        if amount[0] > (100 if amount[1] else 1):
            raise ValueError("a share of the machine's memory is more than 0% and at most 100%")
        return float(parse_share(value))
    try:
        return parse_bytes(value)
    except ValueError:
        raise ValueError(
            "expected a size, such as 16GiB, or a share of the machine's memory, such as 25%"
            f"{_meant_size(amount)}"
        ) from None


def write_memory(memory: int | float) -> str | int:
    return f"{100 * memory:.10g}%" if isinstance(memory, float) else write_bytes(memory)


def write_seconds(seconds: float) -> str:
    for unit in ("d", "h", "min"):
        if seconds % SECONDS[unit] == 0:
            return f"{seconds / SECONDS[unit]:.0f}{unit}"
    return f"{seconds!r}s"


def parse_cut(value: Any) -> float | str:
    """What a split holds out: a share (10%), a duration at the end (1d), or its first day (2026-11-08)."""
    text = parse_text(value)
    if isinstance(text, str) and re.fullmatch(
        r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?(Z|[+-]\d\d:\d\d)?", text
    ):
        return text
    amount = parse_amount(value)
    if amount is not None and amount[1] in SECONDS and amount[0] > 0:
        return str(text)
    if amount is None or amount[1] not in ("", "%"):
        raise ValueError("expected a share (10%), a duration (1d) or a date (2026-11-08)")
    share = parse_share(value)
    if not 0 < share < 1:
        raise ValueError("a share to hold out lies between 0% and 100%")
    return share


@dataclass(frozen=True, eq=False)  # schemas are not hashable
class Unit:
    """Marks a type whose values are written in a special way: `Count = Annotated[int, Unit(parse_count, ...)]`.

    `parse` takes the user's text, `write` is its inverse, and `schema` is the JSON schema for editors.
    """

    parse: Callable[[Any], Any]
    schema: dict[str, Any]
    write: Callable[[Any], Any] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        written = self.write and core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_before_validator_function(
            self.parse, handler(source), serialization=written
        )

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return dict(self.schema)


def either(*schemas: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": list(schemas)}


def one_or_many(kind: str) -> dict[str, Any]:
    return either({"type": kind}, {"type": "array", "items": {"type": kind}})


def _listed(value: Any) -> Any:
    """A single value is read as a list of one element."""
    return [value] if isinstance(value, str | int | float) else value


def _one_or_list(paths: tuple[str, ...]) -> str | list[str]:
    return paths[0] if len(paths) == 1 else list(paths)


def _parse_path(value: Any) -> Any:
    text = parse_text(value)
    return parse_folder(text) if isinstance(text, str) and text.startswith("~") else text


def _parse_positive(value: Any) -> int:
    count = parse_count(value)
    if count < 1:
        raise ValueError("it must be at least 1")
    return count


STRING: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "number"}
INTEGER: dict[str, Any] = {"type": "integer"}
NULL: dict[str, Any] = {"type": "null"}
_PERCENT: dict[str, Any] = {"type": "string", "pattern": r"^\s*[0-9.]+\s*%$"}

_TEXT = either(STRING, NUMBER, {"type": "boolean"})

Text = Annotated[str, Unit(parse_text, _TEXT)]
Folder = Annotated[str | Path, Unit(parse_folder, STRING)]
Count = Annotated[int, Unit(parse_count, either(INTEGER, STRING))]
Number = Annotated[float, Unit(parse_number, NUMBER)]
Share = Annotated[float, Unit(parse_share, either(NUMBER, _PERCENT))]
Size = Annotated[int, Unit(parse_bytes, either(INTEGER, STRING), write_bytes)]
Memory = Annotated[int | float, Unit(parse_memory, either(INTEGER, STRING), write_memory)]
Seconds = Annotated[float, Unit(_seconds_or_number, either(NUMBER, STRING), write_seconds)]
Cut = Annotated[float | str, Unit(parse_cut, either(NUMBER, STRING))]
Texts = Annotated[tuple[Text, ...], Unit(_listed, one_or_many("string"))]
Paths = Annotated[
    tuple[Annotated[str, Unit(_parse_path, _TEXT)], ...], Unit(_listed, one_or_many("string"), _one_or_list)
]
Counts = Annotated[
    tuple[Annotated[int, Unit(_parse_positive, INTEGER)], ...], Unit(_listed, one_or_many("integer"))
]
