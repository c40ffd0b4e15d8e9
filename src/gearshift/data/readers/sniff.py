"""Detects the layout of a text file from its start: format, delimiter, header, decimal comma.

The result depends only on the text, so `init`, `infer_schema` and `read` always agree. Anything set in `CsvFormat`
is used as given.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from gearshift.data.readers.csv_format import CsvFormat
from gearshift.data.readers.files import ByteStream, DataFile
from gearshift.data.readers.number_marks import NumberMarks, find_marks
from gearshift.data.readers.unsupported import refuse_foreign
from gearshift.errors import UserError

SAMPLE_BYTES = 1 << 20
SAMPLE_RECORDS = 400
HEADER_BYTES = 1 << 16
QUOTED_LINES = 8  # default
DELIMITERS = (
    "\x01",  # of Hive
    "\t",
    ";",
    "|",
    ",",
    " ",
)  # if two fit equally well, the one that is rarer inside values wins
NUMBER = re.compile(r"\s*[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?\s*")
LIBFM_LINE = re.compile(r"[-+]?\d+(\.\d+)?([ \t]+\d+:\S+)*\s*(#.*)?")
BACKSLASH = "\\"
ICONV = "iconv -f LATIN1 -t UTF-8"
AVAZU_START = ("id", "click", "hour", "C1", "banner_pos")
CRITEO_COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))


@dataclass(frozen=True)
class Sniffed:
    format: str  # csv | criteo | avazu | libfm
    delimiter: str
    header: bool
    columns: tuple[str, ...]  # the header's names, or c1, c2, ...
    trim: bool = False
    decimal: str = "."
    quote: str = '"'
    escape: str = ""
    header_line: str = ""  # the line that names the columns, unchanged
    thousands: str = ""
    remarks: tuple[str, ...] = ()  # warnings about ambiguous values


def sample_text(file: DataFile, limit: int = SAMPLE_BYTES) -> str:
    """The complete lines in the first bytes of a file."""
    with ByteStream(file) as stream:
        buffer = bytearray(limit)
        got = stream.read_into(memoryview(buffer))
        if got == 0 and stream.error is not None:
            raise UserError(stream.error.sentence(0, ()))
    data = bytes(buffer[:got])
    refuse_foreign(file, data)
    if got == limit and b"\n" in data:
        data = data[: data.rindex(b"\n") + 1]
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    if not text.strip():
        raise UserError(f"{file.path} is empty.")
    return text


def sniff(
    file: DataFile,
    csv_format: CsvFormat = CsvFormat(),
    expected: frozenset[str] = frozenset(),
    format: str = "auto",
) -> Sniffed:
    """Detect the layout. A first line that contains one of the `expected` column names is a header."""
    text = sample_text(file)
    if format == "auto" and _leaves_cutting_open(csv_format):
        known = _known_format(text, expected)
        if known is not None:
            return known
    quote = "" if csv_format.quote in ("none", "") else csv_format.quote
    if quote is None:
        quote = find_quote(text, csv_format.delimiter, expected)
    delimiter = csv_format.delimiter or find_delimiter(text, quote, expected)
    quoted_lines = csv_format.quoted_lines or QUOTED_LINES
    escape = {None: find_escape(text, delimiter, quote), "backslash": BACKSLASH}.get(csv_format.escape, "")
    records = read_records(text, delimiter, quote, quoted_lines=quoted_lines, escape=escape)
    trim = csv_format.trim if csv_format.trim is not None else _has_padding(records)
    if trim:
        records = read_records(text, delimiter, quote, trim=True, quoted_lines=quoted_lines, escape=escape)
        records = [[value.strip(" ") for value in record] for record in records]
    header = csv_format.header
    if header is None:
        header = csv_format.columns is None and has_header(records, expected)
    columns = csv_format.columns or _names(records[0], header)
    if csv_format.columns is not None:
        _check_names("data.csv.columns", columns, "")
    elif header:
        line = 1 + text[: len(text) - len(text.lstrip())].count("\n")
        advice = ", or, if this line is not a header, set data.csv={header: false}"
        _check_names(f"{file.path} line {line:,}", columns, advice)
        _check_encoding(f"{file.path} line {line:,}", columns)
    body = records[1:] if header else records
    marks = find_marks(body, delimiter, csv_format.decimal, csv_format.thousands)
    remarks = _doubts(file, marks, columns, body) if csv_format.thousands is None else ()
    header_line = _first_line(text) if header else delimiter.join(csv_format.columns or ())
    return Sniffed(
        "csv",
        delimiter,
        header,
        tuple(columns),
        trim,
        marks.decimal,
        quote,
        escape,
        header_line,
        marks.thousands,
        remarks,
    )


def _first_line(text: str) -> str:
    """The header line, unless a name in it spans lines."""
    return next((line for line in text.splitlines() if line), "")


def _leaves_cutting_open(stated: CsvFormat) -> bool:
    return CsvFormat() == replace(
        stated, null=CsvFormat.null, quoted_lines=CsvFormat.quoted_lines, encoding=CsvFormat.encoding
    )


def _known_format(text: str, expected: frozenset[str]) -> Sniffed | None:
    lines = [line for line in text.splitlines()[:100] if line.strip()]
    if ":" in text and all(LIBFM_LINE.fullmatch(line) for line in lines):
        counts = {len(line.split("#")[0].split()) for line in text.splitlines() if line.strip()}
        names = tuple(f"f{i}" for i in range(1, max(counts))) if len(counts) == 1 else ("features",)
        return Sniffed("libfm", " ", False, ("label", *names), quote="")
    if tuple(lines[0].split(",")[:5]) == AVAZU_START:
        return Sniffed("avazu", ",", True, tuple(lines[0].strip().split(",")), header_line=lines[0].strip())
    cells = [line.split("\t") for line in lines]
    if all(_is_criteo(row) for row in cells) and (not expected or expected & set(CRITEO_COLUMNS)):
        return Sniffed("criteo", "\t", False, CRITEO_COLUMNS, quote="")
    return None


def _is_criteo(row: list[str]) -> bool:
    integers = all(re.fullmatch(r"-?\d*", v) for v in row[1:14])
    return (
        len(row) == 40
        and row[0] in "01"
        and integers
        and all(re.fullmatch(r"[0-9a-f]*", v.strip()) for v in row[14:])
    )


def read_records(
    text: str,
    delimiter: str,
    quote: str,
    *,
    trim: bool = False,
    limit: int = SAMPLE_RECORDS,
    quoted_lines: int = QUOTED_LINES,
    escape: str = "",
) -> list[list[str]]:
    """The first records of a text, without blank lines. A line whose quote does not close is split without quoting."""
    lines = list(islice(io.StringIO(text, newline=""), limit * (quoted_lines + 1)))
    records: list[list[str]] = []
    at = 0
    while at < len(lines) and len(records) < limit:
        record, used = _read_record(lines[at : at + quoted_lines + 1], delimiter, quote, trim, escape)
        if used > quoted_lines:
            record, used = _read_record(lines[at : at + 1], delimiter, "", trim)
        if record:
            records.append(record)
        at += used
    return records or [[""]]


def _read_record(
    lines: list[str], delimiter: str, quote: str, trim: bool, escape: str = ""
) -> tuple[list[str], int]:
    """(the first record, the number of lines it takes)."""
    reader = csv.reader(
        lines,
        delimiter=delimiter,
        quotechar=quote or None,
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
        escapechar=escape or None,
        skipinitialspace=trim,
    )
    try:
        return next(reader, []), max(reader.line_num, 1)
    except csv.Error:  # a value longer than the sample needs; the reader reports the line later
        return [], max(reader.line_num, 1)


def find_delimiter(text: str, quote: str = '"', expected: frozenset[str] = frozenset()) -> str:
    """The delimiter that gives the most expected names in the first line, then the most lines with equal column
    counts, then the most intact numbers (1,5;2,5)."""
    best, best_score = ",", (0, 0.0, 0.0, 0)
    for delimiter in DELIMITERS:
        records = read_records(text, delimiter, quote, trim=delimiter != " ")
        columns, hits = Counter(len(record) for record in records).most_common(1)[0]
        if columns < 2 or (delimiter == " " and best_score[1] >= 0.9):  # spaces also separate words
            continue
        named = len(expected & {value.strip() for value in records[0]})
        share = round(hits / len(records), 1) * (1.0 if len(records[0]) == columns else 0.8)
        values = [value for record in records for value in record]
        numbers = round(sum(map(is_number, values)) / len(values), 1)
        if (named, share, numbers, columns) > best_score:
            best, best_score = delimiter, (named, share, numbers, columns)
    return best


def find_quote(text: str, delimiter: str | None = None, expected: frozenset[str] = frozenset()) -> str:
    """A single quote if it makes more lines match the column count of the first line, or if it encloses all values
    of a column; otherwise a double quote."""
    if re.search(r"(^|[\t;|, ])'", text, re.MULTILINE) is None:
        return '"'

    def records(quote: str) -> list[list[str]]:
        cut_at = delimiter or find_delimiter(text, quote, expected)
        return read_records(text, cut_at, quote, trim=cut_at != " ")

    double, single = records('"'), records("'")
    fit_double, fit_single = (sum(len(r) == len(rs[0]) for r in rs) for rs in (double, single))
    encloses = fit_single == fit_double and len(single) == len(double) and _has_quoted_column(double[1:])
    return "'" if fit_single > fit_double or encloses else '"'


def find_escape(text: str, delimiter: str, quote: str) -> str:
    """A backslash if it precedes quotes inside quoted values, or makes more lines fit; otherwise ""."""
    if not quote or BACKSLASH + quote not in text:
        return ""
    cut, mark = re.escape(delimiter), re.escape(quote)
    inside = rf"(^|{cut}){mark}([^{mark}\n]*[^{mark}\n\\])?(\\\\)*\\{mark}[^{cut}{mark}\r\n]"
    if re.search(inside, text, re.MULTILINE):
        return BACKSLASH
    plain, escaped = (read_records(text, delimiter, quote, escape=escape) for escape in ("", BACKSLASH))
    fits = [sum(len(record) == len(records[0]) for record in records) for records in (plain, escaped)]
    return BACKSLASH if fits[1] > fits[0] else ""


def _has_quoted_column(records: list[list[str]]) -> bool:
    columns = zip(*records, strict=False)
    return any(all(re.fullmatch(r"'.*'\s*|\s*", v) for v in c) and any(map(str.strip, c)) for c in columns)


def is_number(text: str) -> bool:
    return NUMBER.fullmatch(text) is not None


def has_header(records: list[list[str]], expected: frozenset[str] = frozenset()) -> bool:
    first, rest = [value.strip() for value in records[0]], records[1:]
    if expected & {*first, *records[0]}:
        return True
    if any(map(is_number, first)) or not any(first):
        return False
    if first.count("") > 1:  # one empty name is the index column that pandas writes
        return False
    columns = [[row[i] for row in rest if i < len(row) and row[i]] for i in range(len(first))]
    numeric = [column for column in columns if column and sum(map(is_number, column)) > 0.9 * len(column)]
    if numeric:  # even if a name occurs twice, which is refused later
        return True
    if len(set(first)) < len(first):
        return False
    repeated = sum(first[i] in column for i, column in enumerate(columns))
    return repeated == 0 and all(re.fullmatch(r"([A-Za-z_][\w .:/()%#-]*)?", value) for value in first)


def header_names(file: DataFile, first: Sniffed) -> tuple[str, ...]:
    """The column names in the header of a file with a known layout. Reads only its first lines."""
    text = sample_text(file, HEADER_BYTES)
    return _names(read_records(text, first.delimiter, first.quote, trim=first.trim, limit=1)[0], True)


def _names(first: list[str], header: bool) -> tuple[str, ...]:
    """The names in the header, or c1, c2, ... if there is none.

    Spaces around a name are ignored, unless they are the only difference between two columns (`user` and `user `).
    """
    if not header:
        return tuple(f"c{i}" for i in range(1, len(first) + 1))
    stripped = Counter(value.strip() for value in first)
    names = (value.strip() if stripped[value.strip()] == 1 else value for value in first)
    return tuple(name or f"c{i}" for i, name in enumerate(names, 1))


def _check_names(where: str, names: tuple[str, ...], advice: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        at = [str(i) for i, name in enumerate(names, 1) if name == twice[0]]
        which = f"{', '.join(at[:-1])} and {at[-1]}"
        raise UserError(
            f"{where}: `{twice[0]}` is the name of columns {which}; give each column a unique name{advice}."
        )


def _check_encoding(where: str, names: tuple[str, ...]) -> None:
    """A header with replacement characters is unusable, because the config has to repeat the names."""
    if any("\ufffd" in name for name in names):
        raise UserError(
            f"{where}: the header is not UTF-8 text; name its encoding: data.csv={{encoding: latin-1}} "
            f"(gearshift init --encoding latin-1), or convert the file: {ICONV}"
        )


def _has_padding(records: list[list[str]]) -> bool:
    values = [value for record in records for value in record[1:] if value.strip()]
    return bool(values) and sum(value.startswith(" ") for value in values) > 0.5 * len(values)


def _doubts(
    file: DataFile, marks: NumberMarks, columns: Sequence[str], records: Sequence[Sequence[str]]
) -> tuple[str, ...]:
    """A warning if the numbers of a column are ambiguous."""
    if not marks.doubtful:
        return ()
    at = marks.doubtful[0]
    mark = marks.thousands or marks.decimal
    value = next(v.strip() for record in records for v in record[at : at + 1] if mark in v)
    name = {",": "comma", ".": "point"}[mark]
    others = [f"`{columns[i]}`" for i in marks.doubtful[1:]]
    more = f" (as in {', '.join(others)})" if others else ""
    start = f"{file.path}: column `{columns[at]}` has three digits after every {name}, as in {value}{more}: "
    if marks.thousands:
        number = value.replace(mark, "")
        how = f"data.csv={{decimal: '{mark}'}}"
        return (
            f"{start}read as {number}, with {name}s between thousands; if they are decimal {name}s: {how}",
        )
    how = f"data.csv={{thousands: '{mark}'}}"
    return (f"{start}read as a decimal {name}; if it separates thousands: {how}",)
