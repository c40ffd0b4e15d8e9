"""The layout of text files as set by the user: plain settings, without a reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from gearshift.settings.declaration import setting
from gearshift.settings.units import STRING, Count, Text, Texts, Unit, parse_text


def _delimiter(value: Any) -> Any:
    value = {"\\t": "\t", "tab": "\t"}.get(value, value) if isinstance(value, str) else value
    if isinstance(value, str) and len(value.encode()) != 1:
        raise ValueError('expected one character, such as "," or "\\t"')
    return value


def _encoding(value: Any) -> Any:
    try:
        "a".encode(value)
    except (LookupError, TypeError):
        raise ValueError("expected an encoding of text, such as utf-8, latin-1, cp1252 or utf-16") from None
    return value


def _null_texts(value: Any) -> Any:
    return ["null" if v is None else parse_text(v) for v in value] if isinstance(value, list) else value


Delimiter = Annotated[str, Unit(_delimiter, STRING)]
Encoding = Annotated[str, Unit(_encoding, STRING)]
NullTexts = Annotated[tuple[str, ...], Unit(_null_texts, {"type": "array", "items": STRING})]


@dataclass(frozen=True)
class CsvFormat:
    """How a CSV file is parsed. Settings that are not set are detected from the start of the first file."""

    delimiter: Delimiter | None = setting(None, "The column separator, such as ; or tab.")
    header: bool | None = setting(None, "Whether the first line names the columns.")
    columns: Texts | None = setting(None, "The column names, where there is no header.")
    null: NullTexts = setting(("",), "Texts that mean a missing value.")
    quote: Text | None = setting(None, "The quote character; none: quotes are plain text.")
    trim: bool | None = setting(None, "Ignore spaces around values.")
    decimal: Literal[".", ","] | None = setting(None, "The decimal mark of numbers.")
    quoted_lines: Count | None = setting(
        None,
        "How many lines a quoted value may span; unset: 8, and values that look like two stray quotes are refused.",
        at_least=1,
    )
    encoding: Encoding | None = setting(
        None, "The encoding of text files, such as latin-1 or utf-16; unset: utf-8."
    )
    escape: Literal["backslash", "none"] | None = setting(
        None, "backslash: a quote after a backslash is literal, as MySQL and Spark write it."
    )
    thousands: Literal[",", ".", "none"] | None = setting(None, "The thousands separator, as in 1,234.5.")
