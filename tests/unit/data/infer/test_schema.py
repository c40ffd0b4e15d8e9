"""Files of many layouts: each is inferred correctly, and can be read with the inferred schema."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gearshift.data.dataset import read
from gearshift.data.infer.schema import InferredSchema, infer, infer_schema
from gearshift.data.readers.csv_format import CsvFormat
from gearshift.data.schema import Bag, Categorical, Label, Numeric, Schema, Sequence, Vector
from gearshift.errors import DataWarning, UserError

EXAMPLES = 600
random.seed(7)
ITEMS = [f"i{n}" for n in range(40)]


def write(path: Path, rows: list[str], newline: str = "\n", start: bytes = b"") -> Path:
    path.write_bytes(start + newline.join(rows).encode() + newline.encode())
    return path


def looked_at(path: Path, *, stated_only: bool = False) -> InferredSchema:
    """The inferred schema must read the whole file, even without the detected layout."""
    inferred = infer(path)
    if not stated_only:
        assert sum(len(b) for b in read(path, inferred.schema).fitted().batches(100)) == EXAMPLES
    again = read(path, inferred.schema, csv=inferred.csv).fitted()
    assert sum(len(b) for b in again.batches(100)) == EXAMPLES
    return inferred


def features(inferred: InferredSchema) -> dict[str, type]:
    return {f.name: type(f) for f in inferred.schema.features}


def why(inferred: InferredSchema, column: str) -> str:
    return next(f"{g.guess}: {g.why}" for g in inferred.guesses if g.column == column)


def each(line: Callable[[int], str]) -> list[str]:
    return [line(i) for i in range(EXAMPLES)]


def test_the_shop_log_of_the_manual(tmp_path: Path) -> None:
    def line(i: int) -> str:
        recent = "|".join(random.choices(ITEMS, k=random.randint(0, 8)))
        tags = "|".join(random.sample(["new", "red", "sale", "xl", "wool"], random.randint(1, 4)))
        price = "" if i % 50 == 0 else f"{random.lognormvariate(3, 1.5):.2f}"
        country = random.choice(["DE", "FR", "SE", "NO"])
        ids = f"{1000 + random.randrange(90) * 7},{random.choice(ITEMS)}"
        start = f"{int(i % 13 == 0)},{1_761_955_200 + i * 700},{ids}"
        return f"{start},{country},{price},{20 + i % 50},{tags},{recent},r{i},1.5"

    header = "click,ts,user_id,item_id,country,price,age,tags,recent_items,request_id,weight"
    inferred = looked_at(write(tmp_path / "clicks.csv", [header, *each(line)]))
    schema = inferred.schema
    assert schema.labels == (Label("click"),)
    assert (schema.time, schema.group, schema.weight) == ("ts", "user_id", None)
    assert features(inferred) == {
        "user_id": Categorical,
        "item_id": Categorical,
        "country": Categorical,
        "price": Numeric,
        "age": Numeric,
        "tags": Bag,
        "recent_items": Sequence,
    }
    assert next(f for f in schema.features if f.name == "recent_items").share_embedding == "item_id"  # type: ignore[union-attr]
    assert why(inferred, "click") == "label: 0/1, 7.8 % ones"
    assert why(inferred, "ts").endswith("ascending: 2025-11-01..05 UTC")
    assert why(inferred, "request_id") == "ignored: one value per example"
    assert why(inferred, "price").startswith("numeric, log1p: skew")
    assert why(inferred, "user_id").startswith("categorical: 90 distinct, integers but not a quantity")
    assert why(inferred, "weight") == "ignored: always '1.5'"


def test_no_header_label_last(tmp_path: Path) -> None:
    rows = each(
        lambda i: f"{random.choice('abcd')},{random.random():.4f},{random.randrange(9)},{int(i % 3 == 0)}"
    )
    inferred = looked_at(write(tmp_path / "plain.csv", rows))
    assert inferred.schema.labels == (Label("c4"),)
    assert features(inferred) == {"c1": Categorical, "c2": Numeric, "c3": Categorical}
    assert inferred.csv.columns == ("c1", "c2", "c3", "c4")


def test_semicolons_decimal_commas_and_yes_no(tmp_path: Path) -> None:
    rows = each(
        lambda i: f"{random.choice(['Köln', 'Bonn'])};{i % 97},{i % 10};{['nein', 'yes'][i % 5 == 0]}"
    )
    inferred = looked_at(write(tmp_path / "de.csv", ["Stadt;Preis;clicked", *rows]))
    assert inferred.csv.delimiter == ";"
    assert inferred.csv.decimal == ","
    assert inferred.schema.labels == (Label("clicked", positive="yes"),)
    assert features(inferred) == {"Stadt": Categorical, "Preis": Numeric}
    batch = read(tmp_path / "de.csv", Schema((Numeric("Preis"),), inferred.schema.labels)).read(0, 3)
    assert batch.numeric_BN[:, 0].tolist() == pytest.approx([0.0, 1.1, 2.2])


def test_tabs_with_bom_and_crlf(tmp_path: Path) -> None:
    rows = each(lambda i: f"{int(i % 4 == 0)}\tu{i % 30}\t2026-11-0{1 + i // 100} 10:00:00")
    path = write(tmp_path / "log.tsv", ["is_click\tuser\twhen", *rows], "\r\n", b"\xef\xbb\xbf")
    inferred = looked_at(path)
    assert inferred.schema.labels == (Label("is_click"),)
    assert inferred.schema.time == "when"
    assert inferred.schema.group == "user"


@pytest.mark.parametrize(
    ("name", "form"),
    [("Datum", "%d.%m.%Y %H:%M"), ("Datum", "%d.%m.%Y"), ("EVENT_HOUR", "%y%m%d%H"), ("x", "%y%m%d%H")],
)
def test_times_as_they_are_written_elsewhere(tmp_path: Path, name: str, form: str) -> None:
    start = datetime(2026, 11, 1)
    rows = each(lambda i: f"{(start + timedelta(minutes=10 * i)).strftime(form)},{i % 7},{i % 2}")
    inferred = looked_at(write(tmp_path / "time.csv", [f"{name},place,click", *rows]))
    assert inferred.schema.time == name
    assert why(inferred, name).endswith("ascending: 2026-11-01..05 UTC")


@pytest.mark.parametrize("form", ["%m/%d/%Y", "%d/%m/%y %H:%M", "%d-%b-%Y", "%b %d, %Y", "%a, %d %b %Y"])
def test_dates_that_are_not_read_are_said_to_be_dates(tmp_path: Path, form: str) -> None:
    start = datetime(2026, 11, 1)
    rows = each(lambda i: f'"{(start + timedelta(minutes=10 * i)).strftime(form)}",{i % 7},{i % 2}')
    inferred = looked_at(write(tmp_path / "date.csv", ["day,place,click", *rows]))
    assert "looks like a date in an unsupported format" in why(inferred, "day")


def test_quoted_values_with_separators_and_newlines(tmp_path: Path) -> None:
    names = ["Ann, B.", 'Bob ""Jr"" X', "two\nlines"]
    rows = each(lambda i: f'"{random.choice(names)}","{i % 7}","{int(i % 6 == 0)}"')
    inferred = looked_at(write(tmp_path / "q.csv", ['"name","n_items","y"', *rows]))
    assert inferred.schema.labels == (Label("y"),)
    assert features(inferred) == {"name": Categorical, "n_items": Numeric}
    assert inferred.sample == "600 examples, header found, delimiter ','"


def test_spaces_after_commas_and_words_as_labels(tmp_path: Path) -> None:
    jobs, incomes = ["Private", "Public sector"], ["- 50000.", "50000+."]
    rows = each(lambda i: f"{20 + i % 60}, {random.choice(jobs)}, ?, {incomes[i % 9 == 0]}")
    inferred = looked_at(write(tmp_path / "census.csv", rows))
    assert inferred.csv.trim is True
    assert inferred.schema.labels == (Label("c4", positive="50000+."),)
    assert features(inferred) == {"c1": Numeric, "c2": Categorical}
    assert why(inferred, "c3") == "ignored: always '?'"


def test_single_quotes_around_commas(tmp_path: Path) -> None:
    rows = each(lambda i: f"'OFFER, {i % 9}', {i % 7}, {'Y' if i % 5 == 0 else 'N'}")
    inferred = looked_at(write(tmp_path / "telco.txt", ["OFFER, CELL, CLICK_FLAG", *rows]))
    assert (inferred.csv.delimiter, inferred.csv.quote, inferred.csv.trim) == (",", "'", True)
    assert features(inferred) == {"OFFER": Categorical, "CELL": Categorical}


def test_a_file_whose_lines_do_not_fit_its_header(tmp_path: Path) -> None:
    path = write(tmp_path / "wide.csv", ["click,price,city", *each(lambda i: f"{i % 2},{i},5,Bonn")])
    with pytest.raises(UserError) as error:
        infer(path)
    assert str(error.value) == (
        f"{path}: no line has the header's 3 columns; line 2: 4 columns where the header has 3; "
        "see data.csv.quote and data.csv.delimiter"
    )


def test_the_index_column_that_pandas_writes(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"target": [i % 2 for i in range(EXAMPLES)], "color": random.choices("rgb", k=EXAMPLES)}
    )
    frame.to_csv(tmp_path / "p.csv")
    inferred = looked_at(tmp_path / "p.csv")
    assert inferred.schema.labels == (Label("target"),)
    assert why(inferred, "c1") == "ignored: a line number"
    assert features(inferred) == {"color": Categorical}


def test_pipes_as_delimiter_and_null_words(tmp_path: Path) -> None:
    def line(i: int) -> str:
        revenue = "NULL" if i % 9 == 0 else str(random.randrange(10**6))
        return f"{int(i % 8 == 0)}|{revenue}|{random.choice(['a', 'NULL'])}"

    rows = each(line)
    inferred = looked_at(write(tmp_path / "pipe.txt", ["label|revenue|kind", *rows]))
    assert inferred.csv.delimiter == "|"
    assert features(inferred) == {"revenue": Numeric, "kind": Categorical}


def test_words_that_mean_missing(tmp_path: Path) -> None:
    def line(i: int) -> str:
        tags = "NULL" if i % 4 == 0 else ";".join(random.sample(["red", "new", "xl"], 1 + i % 3))
        place, age = ("NA" if i % n == 0 else f"p{i % 13}" for n in (6, 9))
        return f"{int(i % 7 == 0)},{tags},{place},{age},{'?' if i % 5 == 0 else i * 3}"

    header = "click,tags,place,age,paid"
    inferred = looked_at(write(tmp_path / "null.csv", [header, *each(line)]))
    assert inferred.csv.null == ("", "NULL", "NA", "?")
    assert why(inferred, "tags") == "bag, separator ';': 1-3 parts, 3 distinct parts"
    assert why(inferred, "place") == "categorical: 13 distinct, 17 % missing"
    dataset = read(tmp_path / "null.csv", inferred.schema, csv=inferred.csv).fitted()
    assert dataset.read(0, 2).ragged[0].offsets.tolist() == [0, 0, 2]


def test_the_schema_alone_reads_null_words_as_missing(tmp_path: Path) -> None:
    rows = each(lambda i: f"{i % 2},{'NULL' if i % 4 == 0 else f'k{i % 7}'}")
    path = write(tmp_path / "null.csv", ["click,kind", *rows])
    schema = infer_schema(path)
    assert schema.null == ("", "NULL")
    empty = write(tmp_path / "empty.csv", ["click,kind", *(row.replace("NULL", "") for row in rows)])
    expected = read(empty, schema).read(0, EXAMPLES).ids_BF
    np.testing.assert_array_equal(read(path, schema).read(0, EXAMPLES).ids_BF, expected)
    saved = Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    np.testing.assert_array_equal(read(path, saved).read(0, EXAMPLES).ids_BF, expected)
    stated = read(path, schema, csv=CsvFormat(null=("k1",))).read(0, 5).ids_BF[:, 0]
    assert stated[1] == expected[0, 0] != stated[0]


def test_na_in_a_column_of_countries_is_namibia(tmp_path: Path) -> None:
    rows = each(lambda i: f"{i % 2},{random.choice(['DE', 'NA', 'US'])},{random.choice(['none', 'gold'])}")
    inferred = looked_at(write(tmp_path / "countries.csv", ["click,country,card", *rows]))
    assert inferred.csv.null == ("",)
    assert why(inferred, "country") == "categorical: 3 distinct"


def test_infinities_leave_a_column_numeric(tmp_path: Path) -> None:
    rows = each(lambda i: f"{i % 2},{'inf' if i % 100 == 7 else f'{random.random():.5f}'}")
    inferred = looked_at(write(tmp_path / "inf.csv", ["click,score", *rows]), stated_only=True)
    assert features(inferred) == {"score": Numeric}
    assert inferred.csv.null == ("", "inf")
    assert "1.0 % missing" in why(inferred, "score")
    table = pa.table({"click": [0, 1] * 50, "score": [float("inf"), *(i / 7 for i in range(99))]})
    assert "1 infinite: bad lines, see data.bad_lines" in why(infer(table), "score")


def test_amounts_with_a_currency_say_why_they_are_no_numbers(tmp_path: Path) -> None:
    def line(i: int) -> str:
        return f'{int(i % 11 == 0)},"${1000 + i * 3.37:,.2f}",{i % 4} EUR,"{i % 7 + 1},000.50",{i % 9}'

    inferred = looked_at(write(tmp_path / "cost.csv", ["click,cost,fee,deal,place", *each(line)]))
    assert why(inferred, "cost").startswith("ignored: an amount like '$")
    assert why(inferred, "fee").startswith("categorical: 4 distinct; an amount like '0 EUR' cannot be read")
    assert why(inferred, "deal") == "numeric, standardize: 1000.5..7000.5"
    assert inferred.csv.thousands == ","


def test_values_that_hardly_recur_are_left_out_but_not_ids(tmp_path: Path) -> None:
    def line(i: int) -> str:
        n = i // 2 if i < 20 else i
        history = "|".join(f"w{m}" for m in range(i % 4, i % 4 + 300, 60))
        return f"{int(i % 3 == 0)},p{n},u{n},w{n},{history}"

    header = "click,phrase,user_id,thing,thing_hist"
    inferred = looked_at(write(tmp_path / "rare.csv", [header, *each(line)]))
    assert why(inferred, "phrase") == "ignored: 590 distinct in 600 examples: few of them recur"
    assert features(inferred) == {"user_id": Categorical, "thing": Categorical, "thing_hist": Sequence}


def test_streets_are_no_bags_and_joined_floats_are_vectors(tmp_path: Path) -> None:
    def line(i: int) -> str:
        street = f"{random.choice(['Elm', 'Old Oak', 'High'])} {random.randrange(20)}"
        words = " ".join(random.sample(["red", "new", "xl", "wool", "sale", "men"], random.randint(1, 4)))
        floats = " ".join(f"{random.gauss(0, 1):.3f}" for _ in range(4))
        return f"{i % 2},{street},{words},{floats},{floats.replace(' ', '|')}"

    inferred = looked_at(write(tmp_path / "street.csv", ["click,street,words,emb,emb2", *each(line)]))
    assert features(inferred) == {"street": Categorical, "words": Bag, "emb": Vector, "emb2": Vector}
    assert why(inferred, "emb") == "vector of 4, separator ' ': equally many numbers in each value"


def test_an_all_null_column_and_bags_with_commas(tmp_path: Path) -> None:
    words = ["sport", "news", "tech", "food", "art"]

    def line(i: int) -> str:
        topics = ",".join(random.sample(words, random.randint(1, 4)))
        return f'{int(i % 3 == 0)},,"{topics}",{random.randrange(100, 999)}'

    inferred = looked_at(write(tmp_path / "bags.csv", ["clicked,empty,topics,shop_id", *each(line)]))
    assert why(inferred, "empty") == "ignored: no value in the sample"
    assert why(inferred, "topics").startswith("bag, separator ',': 1-4 parts, 5 distinct parts")
    assert features(inferred) == {"topics": Bag, "shop_id": Categorical}


def test_leading_zeros_are_names_and_minus_one_is_no_click(tmp_path: Path) -> None:
    rows = each(lambda i: f"{1 if i % 5 == 0 else -1},{i % 300:05d},{random.gauss(0, 1):.5f}")
    inferred = looked_at(write(tmp_path / "z.csv", ["y,plz,x", *rows]))
    assert features(inferred) == {"plz": Categorical, "x": Numeric}
    labels = read(tmp_path / "z.csv", inferred.schema).fitted().read(0, 6).labels_BT[:, 0]
    assert labels.tolist() == [1, 0, 0, 0, 0, 1]


def test_parquet_with_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "clicked": [i % 4 == 0 for i in range(EXAMPLES)],
            "at": pa.array([1_761_955_200 + i for i in range(EXAMPLES)], pa.timestamp("s")),
            "vector": pa.array([[0.5, 1.5]] * EXAMPLES, pa.list_(pa.float32())),
            "tags": [["a", "b"][: i % 3] for i in range(EXAMPLES)],
            "user_id": [i % 50 for i in range(EXAMPLES)],
            "place": [{"lat": 1.0, "lon": float(i)} for i in range(EXAMPLES)],
            "visits": [[{"shop": i % 7}] for i in range(EXAMPLES)],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    inferred = looked_at(tmp_path / "t.parquet")
    assert inferred.schema.labels == (Label("clicked"),)
    assert inferred.schema.time == "at"
    assert features(inferred) == {"vector": Vector, "tags": Bag, "user_id": Categorical}
    assert why(inferred, "place") == "ignored: holds structs, which no feature type supports"
    assert why(inferred, "visits") == "ignored: holds lists of structs, which no feature type supports"


def test_a_data_frame_works_like_its_file(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"y": [0, 1] * 50, "city": ["a", "b", "c", "d"] * 25, "x": [i / 3 for i in range(100)]}
    )
    frame.to_csv(tmp_path / "f.csv", index=False)
    assert infer_schema(frame) == infer_schema(tmp_path / "f.csv")


def test_no_label_and_a_label_of_many_values_are_the_users_to_name(tmp_path: Path) -> None:
    path = write(tmp_path / "n.csv", ["a,b", *each(lambda i: f"{i},{i * 2}")])
    with pytest.raises(UserError, match="no column looks like a label"):
        infer(path)
    with pytest.raises(UserError, match="label `a` has 600 values"):
        infer(path, label="a")
    with pytest.raises(UserError, match="has no column `clack`"):
        infer(path, label="clack")


def test_a_foreign_value_among_zeros_and_ones(tmp_path: Path) -> None:
    rows = each(lambda i: f'{"maybe" if i == 400 else i % 2},"two\nlines",{i % 7}')
    path = write(tmp_path / "maybe.csv", ["click,text,place", *rows])
    inferred = infer(path)
    assert inferred.schema.labels == (Label("click"),)
    assert why(inferred, "click").startswith("label: 0/1 except 'maybe' in line 802, ")
    assert inferred.warnings[0].startswith("click is 0/1 except 'maybe' in line 802: fix the data")
    path.write_text(path.read_text().replace("click", "col"))
    with pytest.raises(UserError, match=r"`col` is 0/1 except 'maybe' in line 802\. Name it: --label COLUMN"):
        infer(path)
    assert infer(path, label="col").schema.labels == (Label("col"),)
    table = pa.table(
        {"click": [None if i == 30 else i % 2 == 0 for i in range(EXAMPLES)], "n": range(EXAMPLES)}
    )
    assert infer(table).warnings[0].startswith("click is false/true except missing in example 31: ")


def test_a_label_that_never_changes_is_warned_of(tmp_path: Path) -> None:
    path = write(tmp_path / "zero.csv", ["click,place", *each(lambda i: f"0,{i % 7}")])
    assert infer(path).warnings == (
        "click is '0' in all 600 sampled examples: a model learns nothing from one label value",
    )
    assert (
        infer(write(tmp_path / "fine.csv", ["click,n", *each(lambda i: f"{i % 2},{i % 7}")])).warnings == ()
    )


def test_columns_that_give_the_label_away_are_left_out(tmp_path: Path) -> None:
    def line(i: int) -> str:
        click = int(i % 7 == 0)
        return f"u{i % 30},{1 - click},{'2026-11-01 10:00:00' if click else ''},{click}"

    inferred = looked_at(write(tmp_path / "leak.csv", ["user,nonclk,click_time,clk", *each(line)]))
    assert inferred.schema.labels == (Label("clk"),)
    assert features(inferred) == {"user": Categorical}
    assert "it would reveal the label" in why(inferred, "nonclk")
    assert "has a value exactly when the label is 1" in why(inferred, "click_time")


def test_printed_lists_and_names_in_camel_case(tmp_path: Path) -> None:
    def line(i: int) -> str:
        kinds = ", ".join(str(random.randrange(30)) for _ in range(random.randint(1, 4)))
        return f"{i % 90}\t{1_700_000_000_000 + i * 1000}\t[{kinds}]\t{random.choice(['true', 'false'])}"

    inferred = looked_at(write(tmp_path / "camel.tsv", ["userId\teventTime\tkinds\tisClick", *each(line)]))
    assert inferred.schema.labels == (Label("isClick"),)
    assert inferred.schema.time == "eventTime"
    assert features(inferred) == {"userId": Categorical, "kinds": Bag}
    assert why(inferred, "kinds") == "bag, separator ',': 1-4 parts, 30 distinct parts"


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    rows = each(lambda i: f"{['nein', 'Kauf für'][i % 5 == 0]};{i % 7}")
    path = tmp_path / "latin.csv"
    path.write_bytes("\n".join(["kauf;n", *rows]).encode("latin-1"))
    with (
        pytest.raises(UserError, match="label `kauf` holds text that is not UTF-8"),
        pytest.warns(DataWarning, match="line 2: byte 0xFC is not UTF-8"),
    ):
        infer(path)
    named = CsvFormat(encoding="latin-1")
    assert infer(path, csv=named).schema.labels == (Label("kauf", positive="Kauf für"),)
    path.write_bytes("\n".join(["Größe;y", *rows]).encode("latin-1"))
    with pytest.raises(UserError, match="line 1: the header is not UTF-8 text; name its encoding"):
        infer(path)
