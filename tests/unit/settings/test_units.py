import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift.settings import units as q
from gearshift.training.timing import Every, parse_every, write_every


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("10min", 600), ("1.5 h", 5400), ("1d", 86400), ("2w", 1209600), ("5ms", 0.005)],
)
def test_durations(text: str, seconds: float) -> None:
    assert q.parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [("16GiB", 16 * 2**30), ("500 MB", 500_000_000), ("1.5kB", 1500), (1024, 1024), ("2TB", 2 * 10**12)],
)
def test_sizes(text: object, size: int) -> None:
    assert q.parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("25%", 0.25),
        (0.25, 0.25),
        ("0.5", 0.5),
        ("100%", 1.0),
        (1.0, 1.0),
        (1, 1),
        ("2GiB", 2 << 30),
        (4096, 4096),
    ],
)
def test_memory_is_bytes_or_a_share(text: object, memory: float) -> None:
    parsed = q.parse_memory(text)
    assert parsed == memory and isinstance(parsed, type(memory))
    assert q.parse_memory(q.write_memory(parsed)) == parsed
    assert isinstance(q.parse_memory(q.write_memory(parsed)), type(memory))


@pytest.mark.parametrize(
    ("text", "meant"),
    [("20M", "20MiB"), ("20mib", "20MiB"), ("1.5gb", "1.5GB"), ("2g", "2GiB"), ("4Gi", "4GiB")],
)
def test_a_size_whose_unit_is_nearly_right(text: str, meant: str) -> None:
    for parse in (q.parse_bytes, q.parse_memory):
        with pytest.raises(ValueError, match=rf"; did you mean {meant}\?$"):
            parse(text)
    with pytest.raises(ValueError, match=r"16GiB$"):
        q.parse_bytes("20 apples")


@pytest.mark.parametrize(
    ("size", "words"), [(1000, "1kB"), (20, "20 bytes"), (1 << 34, "16GiB"), (12_345_678, "12.3MB")]
)
def test_a_size_in_words(size: int, words: str) -> None:
    assert q.size_in_words(size) == words


@pytest.mark.parametrize("text", ["0%", "120%", "-1GiB", "25 percent", True, 0, "0.0", -0.5])
def test_memory_that_is_none(text: object) -> None:
    with pytest.raises(ValueError, match=r"a share of the machine's memory|a share lies between"):
        q.parse_memory(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("2M", 2_000_000), ("500k", 500_000), ("8_192", 8192), ("1,024", 1024), (1e6, 10**6), (2**62, 2**62)],
)
def test_counts(text: object, count: int) -> None:
    assert q.parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "share"), [("10%", 0.1), (0.25, 0.25), ("0.5", 0.5), ("100 %", 1.0), (0, 0.0)]
)
def test_shares(text: object, share: float) -> None:
    assert q.parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize(
    "parse", [q.parse_seconds, q.parse_bytes, q.parse_count, q.parse_share, q.parse_number]
)
@pytest.mark.parametrize(
    "value", [True, None, "", "x", "10 %%", [], {}, "nan", float("nan"), float("inf"), "1 2"]
)
def test_nonsense_is_refused_with_an_example(parse: object, value: object) -> None:
    with pytest.raises(ValueError, match=r"such as|lies between|whole number"):
        parse(value)  # type: ignore[operator]


@pytest.mark.parametrize("text", ["-10min", "0s", "10", "10 parsecs"])
def test_a_duration_has_a_unit_and_is_positive(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        q.parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "every"),
    [
        (500, Every(steps=500)),
        ("2k", Every(steps=2000)),
        ("10%", Every(share=0.1)),
        ("10min", Every(seconds=600)),
    ],
)
def test_how_often(text: object, every: Every) -> None:
    assert parse_every(text) == every


@pytest.mark.parametrize("text", [0, -5, "0%", 0.5, "sometimes", None])
def test_never_is_written_none(text: object) -> None:
    with pytest.raises(ValueError, match=r"expected"):
        parse_every(text)


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("10%", 0.1),
        (0.2, 0.2),
        ("1d", "1d"),
        ("2026-11-08", "2026-11-08"),
        ("2026-11-08T12:00", "2026-11-08T12:00"),
    ],
)
def test_what_a_split_keeps_back(text: object, cut: object) -> None:
    assert q.parse_cut(text) == cut


@settings(deadline=None)
@given(st.integers(1, 2**50))
def test_sizes_are_written_as_they_are_read(size: int) -> None:
    assert q.parse_bytes(q.write_bytes(size)) == size


@settings(deadline=None)
@given(
    st.one_of(
        st.integers(1, 10**9).map(lambda n: Every(steps=n)),
        st.integers(1, 10**7).map(lambda s: Every(seconds=float(s))),
        st.floats(0.001, 1e6).map(lambda s: Every(seconds=s)),
        st.integers(1, 1000).map(lambda p: Every(share=p / 1000)),
    )
)
def test_how_often_is_written_as_it_is_read(every: Every) -> None:
    again = parse_every(write_every(every))
    assert (again.steps, again.seconds) == (every.steps, every.seconds)
    assert again.share == pytest.approx(every.share)
