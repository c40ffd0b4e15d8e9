"""Amounts as people write them: 10min, 16GiB, 10%, 2M; and text that may look like a number.

Each parser takes what YAML or an override gave and returns a plain value, or raises a ValueError that ends
the sentence "train.epochs is `x`; ...". Each writer gives back what its parser reads.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from gearshift.training.timing import Every, When

_AMOUNT = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z%]*)\s*")
_SECONDS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_THOUSANDS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}


class Written:
    """A number that remembers how it was written, so that a text field gets the user's words: 007, 1.50."""

    text: str


class WrittenInt(int, Written):
    pass


class WrittenFloat(float, Written):
    pass


def plain(value: Any) -> Any:
    """A value without the memory of how its numbers were written."""
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, Written):
        return int(value) if isinstance(value, int) else float(value)  # type: ignore[arg-type]
    return value


def _amount(value: Any) -> tuple[float, str] | None:
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
    amount = _amount(value)
    if amount is None or amount[1] not in _THOUSANDS:
        raise ValueError("expected a whole number, such as 4096, 500k or 2M")
    number = amount[0] * _THOUSANDS[amount[1]]
    if number != round(number):
        raise ValueError("expected a whole number")
    return round(number)


def parse_number(value: Any) -> float:
    amount = _amount(value)
    if amount is None or amount[1]:
        raise ValueError("expected a number, such as 0.05 or 1e-3")
    return float(amount[0])


def parse_share(value: Any) -> float:
    amount = _amount(value)
    if amount is None or amount[1] not in ("", "%"):
        raise ValueError("expected a share, such as 10% or 0.1")
    share = amount[0] / 100 if amount[1] else amount[0]
    if not 0 <= share <= 1:
        raise ValueError("a share lies between 0 and 1 (0% and 100%)")
    return share


def parse_seconds(value: Any) -> float:
    amount = _amount(value)
    if amount is None or amount[1] not in _SECONDS or amount[0] <= 0:
        raise ValueError("expected a duration, such as 30s, 10min, 2h or 1d")
    return amount[0] * _SECONDS[amount[1]]


def _seconds_or_number(value: Any) -> float:
    return float(value) if isinstance(value, float) else parse_seconds(value)


def parse_bytes(value: Any) -> int:
    amount = _amount(value)
    if amount is None or amount[0] <= 0 or (amount[1] and amount[1] not in _BYTES):
        raise ValueError("expected a size, such as 500MB or 16GiB")
    return round(amount[0] * _BYTES.get(amount[1], 1))


def write_bytes(size: int) -> str | int:
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return size


def write_seconds(seconds: float) -> str:
    for unit in ("d", "h", "min"):
        if seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds!r}s"


def write_every(every: Every | None) -> str | int:
    if every is None:
        return "none"
    if every.share is not None:
        return f"{every.share * 100:.12g}%"
    return every.steps if every.steps is not None else write_seconds(every.seconds or 0.0)


def parse_every(value: Any) -> Every:
    if isinstance(value, Every):
        return value
    unit = (_amount(value) or (0.0, "?"))[1]
    if unit == "%":
        share = parse_share(value)
        if share == 0:
            raise ValueError("expected more than 0%, or none")
        return Every(share=share)
    if unit in _SECONDS:
        return Every(seconds=parse_seconds(value))
    if unit not in _THOUSANDS or parse_count(value) < 1:
        raise ValueError(
            "expected a number of steps (500), a duration (10min), a share of the run (10%) or none"
        )
    return Every(steps=parse_count(value))


def parse_when(value: Any) -> When:
    """A point of a run: 500k (examples), 50%, 10min of training, or `day 3` of the log."""
    if isinstance(value, When):
        return value
    text = str(value).strip()
    if match := re.fullmatch(r"day\s+(\d+)", text):
        if int(match[1]) < 1:
            raise ValueError("the first day of the log is day 1")
        return When(day=int(match[1]))
    unit = (_amount(value) or (0.0, "?"))[1]
    if unit == "%":
        return When(share=parse_share(value))
    if unit in _SECONDS:
        return When(seconds=parse_seconds(value))
    if unit not in _THOUSANDS or parse_count(value) < 1:
        raise ValueError(
            "expected a number of examples (500k), a share (50%), a duration (10min) or a day (day 3)"
        )
    return When(examples=parse_count(value))


def write_when(when: When) -> str | int:
    if when.day is not None:
        return f"day {when.day}"
    if when.share is not None:
        return f"{when.share * 100:.12g}%"
    return when.examples if when.examples is not None else write_seconds(when.seconds or 0.0)


def parse_cut(value: Any) -> float | str:
    """What a split keeps back: a share (10%), a duration at the end (1d), or where it starts (2026-11-08)."""
    text = parse_text(value)
    if isinstance(text, str) and re.fullmatch(
        r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?(Z|[+-]\d\d:\d\d)?", text
    ):
        return text
    amount = _amount(value)
    if amount is not None and amount[1] in _SECONDS and amount[0] > 0:
        return str(text)
    if amount is None or amount[1] not in ("", "%"):
        raise ValueError("expected a share (10%), a duration (1d) or a date (2026-11-08)")
    share = parse_share(value)
    if not 0 < share < 1:
        raise ValueError("a share to keep back lies between 0% and 100%")
    return share


def _none_or(parse: Any) -> Any:
    return lambda value: None if value is None or value == "none" else parse(value)


def _either(*schemas: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(schemas)})


_STRING: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "number"}
_INTEGER: dict[str, Any] = {"type": "integer"}
_NULL: dict[str, Any] = {"type": "null"}
_PERCENT: dict[str, Any] = {"type": "string", "pattern": r"^\s*[0-9.]+\s*%$"}

Text = Annotated[str, BeforeValidator(parse_text), _either(_STRING, _NUMBER, {"type": "boolean"})]
Count = Annotated[int, BeforeValidator(parse_count), _either(_INTEGER, _STRING)]
Number = Annotated[float, BeforeValidator(parse_number), WithJsonSchema(_NUMBER)]
Share = Annotated[float, BeforeValidator(parse_share), _either(_NUMBER, _PERCENT)]
Size = Annotated[int, BeforeValidator(parse_bytes), PlainSerializer(write_bytes), _either(_INTEGER, _STRING)]
Cut = Annotated[float | str, BeforeValidator(parse_cut), _either(_NUMBER, _STRING)]
MaybeEvery = Annotated[
    Every | None,
    BeforeValidator(_none_or(parse_every)),
    PlainSerializer(write_every),
    _either(_INTEGER, _STRING, _NULL),
]
Point = Annotated[When, BeforeValidator(parse_when), PlainSerializer(write_when), _either(_INTEGER, _STRING)]
Seconds = Annotated[
    float, BeforeValidator(_seconds_or_number), PlainSerializer(write_seconds), _either(_NUMBER, _STRING)
]
