"""Times without a telling name, times in folder names, and additional times."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from gearshift.cli.init import init
from gearshift.data.dataset import read
from gearshift.data.infer.schema import InferredSchema, infer
from gearshift.errors import UserError

DRAW = random.Random(1)
START = 1_760_000_000


def write(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def why(inferred: InferredSchema, column: str) -> str:
    return next(f"{guess.guess}: {guess.why}" for guess in inferred.guesses if guess.column == column)


@pytest.mark.parametrize("unit", [1, 1000, 1_000_000_000])
def test_an_epoch_column_of_a_file_without_header(tmp_path: Path, unit: int) -> None:
    rows = [f"{i % 2},u{i % 50},{unit * (START + DRAW.randrange(600_000))},{i % 7}" for i in range(2000)]
    inferred = infer(write(tmp_path / "log.csv", rows))
    assert inferred.schema.time == "c3"
    assert "2025-10-09..16 UTC" in why(inferred, "c3")


def test_large_ids_are_no_times() -> None:
    ids = [DRAW.randrange(1_000_000_000, 2_000_000_000) for _ in range(200)]
    codes = [1_500_000_000 + 1000 * DRAW.randrange(300) for _ in range(2000)]
    table = pa.table(
        {
            "c1": [i % 2 for i in range(2000)],
            "c2": [ids[i % 200] for i in range(2000)],
            "user_id": codes,
            "phone": codes,
        }
    )
    assert infer(table).schema.time is None


def test_days_in_folder_names_though_the_sample_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gearshift.data.infer.profile.SAMPLE_EXAMPLES", 100)
    for day in (1, 2, 3):
        rows = [f"{i % 2},u{DRAW.randrange(30)}" for i in range(200)]
        write(tmp_path / f"log/dt=2026-11-0{day}/part.csv", ["click,user", *rows])
    inferred = infer(str(tmp_path / "log"))
    assert inferred.schema.time == "dt"
    assert why(inferred, "dt") == "time: folder names: 2026-11-01..03 UTC"
    init(tmp_path / "log", tmp_path / "log.yaml", label=None, time=None, force=False)
    assert "split: {by: time, valid: 10%}" in (tmp_path / "log.yaml").read_text()


def test_a_second_time_is_no_category(tmp_path: Path) -> None:
    for day in (1, 2):
        rows = [f"{DRAW.randrange(2)},u{i % 30},{START + 100 * day + DRAW.randrange(90)}" for i in range(300)]
        write(tmp_path / f"log/dt=2026-11-0{day}/part.csv", ["click,user,ts", *rows])
    inferred = infer(str(tmp_path / "log"))
    assert inferred.schema.time == "ts"
    assert why(inferred, "dt").startswith("ignored: a second time; ts is the time of the example")
    assert [feature.name for feature in inferred.schema.features] == ["user"]


def test_user_is_the_group_rather_than_its_other_spelling() -> None:
    size = 600
    table = pa.table(
        {
            "click": [DRAW.randrange(2) for _ in range(size)],
            "User": [f"A{DRAW.randrange(9)}" for _ in range(size)],
            "user": [f"u{DRAW.randrange(99)}" for _ in range(size)],
        }
    )
    inferred = infer(table)
    assert inferred.schema.group == "user"
    assert inferred.warnings[0].startswith("user and User both look like the user: user is the group")
    other = infer(table.rename_columns(["click", "USER", "User"]))
    assert other.schema.group == "USER"
    assert "to use the other one, set data.group: User" in other.warnings[0]
    assert infer(table.rename_columns(["click", "name", "user"])).warnings == ()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            ["1.5", "2.5", "oops", *(str(i / 7) for i in range(97))],
            "numbers except 'oops' in line 4; to make the column numeric, correct this value",
        ),
        (
            ["a", "b", *(str(i) for i in range(98))],
            "numbers except 'a' in line 2 and 1 more word; to make the column numeric, correct these values",
        ),
        ([f"{i:04d}" for i in range(100)], "has a leading zero: identifiers, not amounts"),
        ([f"{i}.5 kg" for i in range(100)], "numbers with a unit, like '0.5 kg', cannot be read"),
        ([f"k{i}" for i in range(100)], None),
    ],
)
def test_why_a_column_of_numbers_is_no_number(tmp_path: Path, values: list[str], reason: str | None) -> None:
    rows = [f"{DRAW.randrange(2)},{values[i % 100]}" for i in range(1000)]
    inferred = infer(write(tmp_path / "log.csv", ["click,size", *rows]))
    assert why(inferred, "size").startswith("categorical: ")
    assert (reason is None and why(inferred, "size") == "categorical: 100 distinct") or str(reason) in why(
        inferred, "size"
    )


def amounts(form: str) -> list[str]:
    """Many different amounts, as people write them."""
    numbers = [DRAW.randrange(-900_000, 900_000) for _ in range(700)]
    match form:
        case "'" | "\u2019" | "\u202f" | "\u00a0":
            return [f"{n:,}".replace(",", form) for n in numbers]
        case "minus":
            return [f"{n / 100:.2f}".replace("-", "\u2212") for n in numbers]
        case "()":
            return [f"({-n / 100:.2f})" if n < 0 else f"{n / 100:.2f}" for n in numbers]
        case "behind":
            return [f"{-n / 100:.2f}-" if n < 0 else f"{n / 100:.2f}" for n in numbers]
        case "%":
            return [f"{abs(n) / 10_000:.2f}%" for n in numbers]
        case _:
            words = ["unknown", "n.d.", "missing"]
            return [DRAW.choice(words) if i % 4 == 0 else f"{n / 100:.2f}" for i, n in enumerate(numbers)]


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (
            "'",
            "has an apostrophe between thousands and cannot be read; to make the column numeric, write such values",
        ),
        ("\u2019", "has an apostrophe between thousands"),
        ("\u202f", "has a space between thousands and cannot be read"),
        ("\u00a0", "has a space between thousands and cannot be read"),
        ("minus", "has a dash instead of a minus and cannot be read"),
        ("()", "has parentheses instead of a minus and cannot be read"),
        ("behind", "has the minus after the number"),
        ("%", "cannot be read as a number; write "),
        ("words", "; if these mean missing, list them in data.csv.null to make the column numeric"),
    ],
)
@pytest.mark.parametrize("size", [700, 3000])
def test_amounts_that_are_not_read_are_told_with_the_fix(
    tmp_path: Path, form: str, reason: str, size: int
) -> None:
    values = amounts(form)
    rows = [f"{DRAW.randrange(2)};{values[i % 700]};u{i % 9}" for i in range(size)]
    inferred = infer(write(tmp_path / "log.csv", ["click;balance;user", *rows]))
    explanation = why(inferred, "balance")
    assert reason in explanation
    assert "write 1533.41" not in explanation


@pytest.mark.parametrize("slip", ["", "0000-00-00 00:00:00"])
def test_a_few_examples_without_a_time_do_not_cost_the_column(tmp_path: Path, slip: str) -> None:
    days = [slip if i == 5 else f"2026-11-{1 + i // 400:02d} {i % 24:02d}:00:00" for i in range(4000)]
    path = write(
        tmp_path / "log.csv", ["click,ts,user", *(f"{i % 2},{d},u{i % 9}" for i, d in enumerate(days))]
    )
    inferred = infer(path)
    assert inferred.schema.time == "ts"
    assert "2026-11-01..10 UTC; 1 without a time" in why(inferred, "ts")
    assert inferred.warnings[0].startswith(
        f"ts has no time in 1 of 4,000 sampled examples, first {repr(slip) if slip else 'nothing'} in line 7, which "
        "stops the training: fix the data, or allow some: data.bad_lines={skip: 1000}"
    )
    with pytest.raises(UserError, match=r"log.csv line 7: time `ts` is .*Fix the line, or allow some"):
        read(path, inferred.schema).read(0, 9)
    assert len(read(path, inferred.schema, bad_lines=1).read(0, 4000)) == 3999


@pytest.mark.parametrize(
    ("slip", "epoch"),
    [("9999-12-31 00:00:00", False), ("1970-01-01 00:00:00", False), ("0", True), ("253402214400", True)],
)
@pytest.mark.parametrize("count", [1, 20])
def test_a_few_odd_times_do_not_cost_the_column(tmp_path: Path, slip: str, epoch: bool, count: int) -> None:
    times = [str(START + 100 * i) if epoch else f"2026-11-{1 + i // 600:02d} 10:00:00" for i in range(6000)]
    for i in range(5, 5 + count):
        times[i] = slip
    path = write(
        tmp_path / "log.csv", ["click,ts,user", *(f"{i % 2},{d},u{i % 9}" for i, d in enumerate(times))]
    )
    inferred = infer(path)
    assert inferred.schema.time == "ts"
    assert f"UTC; {count} before 1990 or after 2100" in why(inferred, "ts")
    assert inferred.warnings[0].startswith(
        f"ts is before 1990 or after 2100 in {count} of 6,000 sampled examples, first {slip!r} in line 7: "
    )
    assert len(read(path, inferred.schema).read(0, 6000)) == 6000


def test_many_odd_times_are_said(tmp_path: Path) -> None:
    days = ["1970-01-01" if i % 9 == 8 else f"2026-11-{1 + i // 100:02d}" for i in range(900)]
    path = write(
        tmp_path / "log.csv", ["click,ts,user", *(f"{i % 2},{d},u{i % 9}" for i, d in enumerate(days))]
    )
    inferred = infer(path)
    assert inferred.schema.time is None
    assert inferred.warnings[0].startswith("ts is before 1990 or after 2100 in 100 of 900 sampled examples")
    assert "too many for the time of the example; if it is, set --time ts" in inferred.warnings[0]
    assert infer(path, time="ts").schema.time == "ts"


def test_a_time_that_too_many_examples_lack_is_named(tmp_path: Path) -> None:
    days = ["" if i % 9 == 8 else f"2026-11-{1 + i // 100:02d}" for i in range(900)]
    path = write(
        tmp_path / "log.csv", ["click,ts,user", *(f"{i % 2},{d},u{i % 9}" for i, d in enumerate(days))]
    )
    inferred = infer(path)
    assert inferred.schema.time is None
    assert "ts has no time in 100 of 900 sampled examples, first nothing in line 10" in inferred.warnings[0]
    assert "--time ts" in inferred.warnings[0]
    assert infer(path, time="ts").schema.time == "ts"
    with pytest.raises(UserError, match="time `user` is 'u0' in line 2; expected epoch seconds"):
        infer(path, time="user")


@pytest.mark.parametrize(
    ("name", "form", "what"),
    [
        (
            "ts",
            "{day:02d}/Nov/2026:{hour:02d}:00:00 +0000",
            "is a time in the format of web server logs: to split by time",
        ),
        ("date", "11/{day:02d}/2026", "is a date in an unsupported format: to split by time"),
        ("time", "{hour:02d}:30:00", "is a time of day without its date: to split by time"),
        ("timestamp", "1.79{day:02d}E+09", "is a number that has lost its last digits: to split by time"),
        ("date", "463{day:02d}.25", "is probably a spreadsheet day number: to split by time"),
        (
            "ts",
            "17935000{day:02d}.25",
            "is a number with a fraction; if it is in epoch seconds, set --time ts",
        ),
        ("created_at", "day {day}", "is not supported: to split by time, write ISO (2026-11-30 10:00)"),
        ("hour", "{hour}", None),
        ("day", "{day}", None),
        ("dwell_time", "{hour}.5", None),
    ],
)
def test_a_column_named_like_a_time_that_is_not_read_is_told(
    tmp_path: Path, name: str, form: str, what: str | None
) -> None:
    rows = [f"{DRAW.randrange(2)};{form.format(day=1 + i // 100, hour=i % 24)};u{i % 9}" for i in range(2000)]
    inferred = infer(write(tmp_path / "log.csv", [f"click;{name};user", *rows]))
    assert inferred.schema.time is None
    explanation = [
        warning for warning in inferred.warnings if warning.startswith(f"{name} is named like a time, but ")
    ]
    assert len(explanation) == (what is not None)
    assert what is None or what in explanation[0]


@pytest.mark.parametrize(("days", "warned"), [(12, True), (13, False)])
def test_dotted_dates_that_may_have_the_month_first_are_told(tmp_path: Path, days: int, warned: bool) -> None:
    rows = [f"{DRAW.randrange(2)};{1 + i % days:02d}.11.2026;u{i % 9}" for i in range(2000)]
    inferred = infer(write(tmp_path / "log.csv", ["click;date;user", *rows]))
    assert inferred.schema.time == "date"
    sentence = (
        "date is read as day.month.year, but no sampled value, such as '01.11.2026', has a day after the 12th"
    )
    assert any(warning.startswith(sentence) for warning in inferred.warnings) == warned


def test_a_time_of_day_beside_the_time_is_a_feature(tmp_path: Path) -> None:
    rows = [f"{DRAW.randrange(2)};2026-11-{1 + i // 100:02d};{i % 24:02d}:30:00" for i in range(2000)]
    assert infer(write(tmp_path / "log.csv", ["click;date;time", *rows])).warnings == ()
