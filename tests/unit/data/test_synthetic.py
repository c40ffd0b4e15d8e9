"""The synthetic click log: same bits everywhere, the promised distributions, files with the ids' text."""

import hashlib
import threading

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import xxhash

from gearshift import _core
from gearshift.data.batch import Batch
from gearshift.data.synthetic import NUMERICS, ClickLog
from gearshift.errors import UserError

FIELDS = list(_core.CLICK_FIELDS)


def checksum(batch: Batch) -> str:
    digest = hashlib.sha256()
    for array in (batch.labels_BT, batch.numeric_BN, batch.ids_BF, batch.times_B):
        digest.update(np.ascontiguousarray(array).tobytes())
    for ragged in batch.ragged:
        digest.update(ragged.ids.tobytes() + ragged.offsets.tobytes())
    return digest.hexdigest()[:16]


def column(batch: Batch, name: str) -> np.ndarray:
    return batch.ids_BF[:, FIELDS.index(name)]


@pytest.fixture(scope="module")
def plain() -> ClickLog:
    return ClickLog(100_000, seed=3)


@pytest.fixture(scope="module")
def week() -> ClickLog:
    return ClickLog(200_000, days=7, seed=5)


@pytest.fixture(scope="module")
def histories() -> ClickLog:
    return ClickLog(100_000, days=2, seed=4, sequences=True)


# Made once, compared for ever: a change here changes every result measured on this log, so it must be meant.
GOLDEN = {
    "plain": ["0fa1f0afdbcbbbd8", "7a483bd07b759949", "70530ed5883f0b49", "8def31c1b594a54e"],
    "week": ["49b76ff965ad5392", "67d03df4ece11df0", "efba0f4515ac0ae4"],
    "histories": ["b02b316ebcc05a71", "3850fc3991c3ac46", "95ee0d87e440e8c5"],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_blocks_have_the_bits_they_always_had(name: str, request: pytest.FixtureRequest) -> None:
    log = request.getfixturevalue(name)
    assert [checksum(log.block(i)) for i in range(len(GOLDEN[name]))] == GOLDEN[name]


def test_a_block_alone_equals_the_stream(histories: ClickLog) -> None:
    fresh = ClickLog(100_000, days=2, seed=4, sequences=True)
    alone = fresh.block(2)  # the first thing it is asked for
    whole = Batch.concat([histories.block(i) for i in range(histories.blocks())])
    start = 2 * ClickLog.block_size
    assert checksum(whole.slice(start, start + len(alone))) == checksum(alone)
    assert len(whole) == histories.count() == 100_000


@pytest.mark.parametrize("first, count", [(0, 1), (49_990, 20), (33_333, 777), (99_999, 1), (5, 0)])
def test_any_range_equals_the_stream(histories: ClickLog, first: int, count: int) -> None:
    whole = Batch.concat([histories.block(i) for i in range(histories.blocks())])
    assert checksum(histories.read(first, count)) == checksum(whole.slice(first, first + count))


def test_threads_get_the_same_bits(week: ClickLog) -> None:
    log = ClickLog(200_000, days=7, seed=5)
    sums: dict[int, str] = {}

    def work(i: int) -> None:
        sums[i] = checksum(log.block(i))

    threads = [threading.Thread(target=work, args=(i,)) for i in (6, 0, 3, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {i: checksum(week.block(i)) for i in (0, 1, 3, 6)}


def test_another_seed_is_another_log(plain: ClickLog) -> None:
    other = ClickLog(100_000, seed=2).block(0)
    block = plain.block(0)
    assert (other.ids_BF != block.ids_BF).any(axis=1).all()
    assert np.corrcoef(other.numeric_BN[:, 0], block.numeric_BN[:, 0])[0, 1] == pytest.approx(0, abs=0.03)


def test_blocks_do_not_repeat_each_other(plain: ClickLog) -> None:
    crosses = np.concatenate([column(plain.block(i), "occupation_ad") for i in (0, 1)])
    assert len(np.unique(crosses)) > 0.5 * len(crosses)


@pytest.mark.parametrize("rate", [0.02, 0.2, 0.7])
def test_clicks_come_at_the_rate_and_from_the_truth(rate: float) -> None:
    log = ClickLog(131_072, seed=7, click_rate=rate)
    clicks = np.concatenate([log.block(i).labels_BT[:, 0] for i in range(4)])
    truth = np.concatenate([log.truth(i) for i in range(4)])
    assert truth.mean() == pytest.approx(rate, rel=0.03)
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 1.0)):  # calibrated in the low, middle and high part
        part = (truth >= np.quantile(truth, low)) & (truth <= np.quantile(truth, high))
        error = np.sqrt((truth * (1 - truth))[part].sum()) / part.sum()
        assert clicks[part].mean() == pytest.approx(truth[part].mean(), abs=4.5 * error)


def test_every_day_has_the_click_rate(week: ClickLog) -> None:
    truth = np.concatenate([week.truth(i) for i in range(week.blocks())])
    days = np.array_split(truth, 7)
    assert [day.mean() for day in days] == pytest.approx([0.2] * 7, abs=0.006)


def test_the_teacher_is_as_good_as_specified(plain: ClickLog, histories: ClickLog) -> None:
    assert 0.80 <= plain.teacher_auc().value <= 0.815
    assert plain.teacher_auc().error < 0.002
    assert 0.785 <= histories.teacher_auc().value <= 0.803


def test_teacher_auc_is_that_of_the_clicks(plain: ClickLog) -> None:
    truth, clicks = plain.truth(0), plain.block(0).labels_BT[:, 0]
    rank = np.argsort(np.argsort(truth)) + 1.0
    positives = clicks.sum()
    auc = (rank[clicks == 1].sum() - positives * (positives + 1) / 2) / (
        positives * (len(clicks) - positives)
    )
    assert auc == pytest.approx(plain.teacher_auc().value, abs=0.01)


def test_ids_have_a_long_tail_and_a_heavy_head() -> None:
    log = ClickLog(300_000)
    ids = np.concatenate([log.block(i).ids_BF.ravel() for i in range(log.blocks())])
    _, counts = np.unique(ids, return_counts=True)
    assert 0.5 < (counts == 1).mean() < 0.8
    assert 0.55 < np.sort(counts)[-1000:].sum() / counts.sum() < 0.65


def test_ads_are_reborn_and_users_are_not(week: ClickLog) -> None:
    def share_known(name: str, day: int) -> float:  # of the first day's 100 most frequent values, still there
        def top(first: int) -> np.ndarray:
            values, counts = np.unique(column(week.read(first, 28_000), name), return_counts=True)
            return values[np.argsort(-counts)[:100]]

        return np.isin(top(0), column(week.read(day * 200_000 // 7 + 1, 28_000), name)).mean()

    assert 0.82 <= share_known("ad", 1) <= 0.98  # .91 expected
    assert 0.42 <= share_known("query", 6) <= 0.72  # .91 ** 6 = .57
    assert share_known("site", 6) == 1.0


def test_weights_turn_from_day_to_day() -> None:
    def similarity(drift: float, day: int) -> float:  # of the frequent sites' mean logits, to the first day's
        log = ClickLog(280_000, days=7, seed=6, drift=drift)

        def sites(day: int) -> tuple[np.ndarray, np.ndarray]:
            columns = log._columns(day * 40_000, 40_000, raw=True)
            return columns.ids_BF[:, FIELDS.index("site")], np.log(columns.truth_B / (1 - columns.truth_B))

        (first_sites, first), (later_sites, later) = sites(0), sites(day)
        top = np.argsort(-np.bincount(first_sites))[:30]
        means = [(first[first_sites == k].mean(), later[later_sites == k].mean()) for k in top]
        return float(np.corrcoef(np.array(means).T)[0, 1])

    assert similarity(0.0, 6) > 0.95
    assert similarity(2.0, 1) > 0.9
    assert similarity(2.0, 6) < 0.75


def test_without_drift_no_value_is_new() -> None:
    log = ClickLog(140_000, days=7, drift=0.0)
    raw = log._columns(120_000, 20_000, raw=True)
    assert raw.ids_BF[:, FIELDS.index("ad")].max() < 200_000


def test_numbers_miss_as_specified(plain: ClickLog) -> None:
    numeric = plain._columns(0, 100_000, raw=True).numeric_BN
    missing = np.isnan(numeric).mean(axis=0)
    assert missing == pytest.approx([0, 0.05, 0.2, 0, 0.1, 0.45, 0.02, 0.3, 0, 0.25, 0, 0.15, 0.4], abs=0.01)
    logs = np.log(numeric[:, 0])
    assert logs.mean() == pytest.approx(0, abs=0.1)
    assert logs.std() == pytest.approx(1, abs=0.1)


def test_ready_numbers_are_log1p_of_the_raw_ones(plain: ClickLog) -> None:
    raw = plain._columns(0, 10_000, raw=True).numeric_BN
    ready = plain.read(0, 10_000).numeric_BN
    assert np.allclose(ready, np.nan_to_num(np.log1p(raw)), rtol=1e-6, atol=0)


def test_histories_keep_their_bounds(histories: ClickLog) -> None:
    batch = histories.block(0)
    lengths = np.diff(batch.ragged[0].offsets)
    assert lengths.min() == 0
    assert lengths.max() == 20
    assert (lengths == 0).mean() == pytest.approx(0.08, abs=0.01)
    assert (lengths == 20).mean() == pytest.approx(0.92**20, abs=0.01)
    assert np.isin(batch.ragged[0].ids, column(batch, "ad_topic")).mean() > 0.99  # the same table


def test_a_match_in_the_history_makes_a_click_likelier(histories: ClickLog) -> None:
    raw = histories._columns(0, 32_768, raw=True)
    assert raw.history is not None
    some = np.flatnonzero(np.diff(raw.history.offsets))
    latest = raw.history.ids[raw.history.offsets[some + 1] - 1]  # oldest first: the last is the latest
    match = latest == raw.ids_BF[some, FIELDS.index("ad_topic")]
    assert 0.05 < match.mean() < 0.3
    assert raw.truth_B[some][match].mean() > raw.truth_B[some][~match].mean() + 0.1


def test_times_are_in_order_and_fill_the_days(week: ClickLog) -> None:
    times = np.concatenate([week.block(i).times_B for i in range(week.blocks())])
    assert (np.diff(times) >= 0).all()
    assert times[0] == 1793491200
    assert np.unique(times // 86400).tolist() == [1793491200 // 86400 + day for day in range(7)]


def test_schema_describes_the_block(histories: ClickLog) -> None:
    batch, schema = histories.block(0), histories.schema
    assert batch.ids_BF.shape == (ClickLog.block_size, len(schema.single_fields)) == (ClickLog.block_size, 26)
    assert batch.numeric_BN.shape[1] == schema.numeric_width == 13
    assert len(batch.ragged) == len(schema.ragged_fields) == 1
    assert np.array_equal(batch.groups_B, column(batch, "user"))


def xxh_id(table: str, text: str) -> int:
    return xxhash.xxh64_intdigest(text.encode(), seed=xxhash.xxh64_intdigest(table.encode())) >> 1


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.csv.zst"])
def test_csv_has_the_text_of_the_ids(tmp_path, name: str) -> None:
    log = ClickLog(40_000, days=3, seed=9, sequences=True)
    log.write_csv(tmp_path / name)
    texts = pyarrow.csv.ConvertOptions(
        column_types={column: pyarrow.string() for column in [*FIELDS, *NUMERICS, "history"]}
    )
    table = pyarrow.csv.read_csv(tmp_path / name, convert_options=texts)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert len(table) == 40_000
    batch = Batch.concat([log.block(0), log.block(1)])
    rows = [0, 1, 17_777, 32_768, 39_999]
    for row in rows:
        line = {column: table[column][row].as_py() for column in table.column_names}
        assert [xxh_id(field, line[field]) for field in FIELDS] == batch.ids_BF[row].tolist()
        assert [float(line[n] or 0) for n in NUMERICS] == pytest.approx(
            np.expm1(batch.numeric_BN[row]), abs=1e-5
        )
        items = batch.ragged[0].slice(row, row + 1).ids.tolist()
        assert [xxh_id("ad_topic", text) for text in line["history"].split("|") if text] == items
        assert (line["click"], line["time"]) == (batch.labels_BT[row, 0], batch.times_B[row])


def test_parquet_has_the_same_values(tmp_path) -> None:
    log = ClickLog(33_000, days=2, seed=9, sequences=True)
    log.write_csv(tmp_path / "log.csv")
    log.write_parquet(tmp_path / "log.parquet")
    text, binary = (
        pyarrow.csv.read_csv(tmp_path / "log.csv"),
        pyarrow.parquet.read_table(tmp_path / "log.parquet"),
    )
    assert text.column_names == binary.column_names
    for name in FIELDS:
        assert text[name].equals(binary[name])
    assert ["|".join(map(str, items)) for items in binary["history"][:100].to_pylist()] == [
        str(value) for value in text["history"][:100].to_pylist()
    ]
    assert binary["n6"].null_count == pytest.approx(0.45 * 33_000, rel=0.05)


def test_nothing_is_left_behind_when_writing_fails(tmp_path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        ClickLog(10).write_csv(tmp_path / "nowhere" / "log.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong, word",
    [
        ({"examples": 0}, "examples"),
        ({"examples": 5, "days": 6}, "days"),
        ({"days": 0}, "days"),
        ({"click_rate": 0.0}, "click_rate"),
        ({"drift": -1.0}, "drift"),
        ({"seed": -1}, "seed"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, float], word: str) -> None:
    with pytest.raises(UserError, match=word):
        ClickLog(**wrong)


def test_positions_outside_the_log_are_refused(plain: ClickLog) -> None:
    for i in (-1, plain.blocks()):
        with pytest.raises(IndexError):
            plain.block(i)
    with pytest.raises(IndexError):
        plain.read(99_999, 2)


def test_the_smallest_log_is_one_example() -> None:
    log = ClickLog(1)
    assert len(log.block(0)) == 1
    assert log.teacher_auc().value == pytest.approx(0.5)
