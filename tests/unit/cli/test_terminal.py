import pytest

from gearshift.cli import terminal as t


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.77123, ".7712"),
        (1.004, "1.0040"),
        (-0.0023, "-.0023"),
        (0.0, ".0000"),
        (None, "-"),
        (float("nan"), "-"),
    ],
)
def test_measures_are_written_without_the_leading_zero(number: float | None, text: str) -> None:
    assert t.figure(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (57, "0:57"), (108, "1:48"), (7390, "2:03:10"), (-3, "0:00")]
)
def test_clock(seconds: float, text: str) -> None:
    assert t.clock(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (2_100_000_000, "2.1 GB"), (412e6, "412 MB"), (31e12, "31.0 TB")],
)
def test_size(size: float, text: str) -> None:
    assert t.size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "just now"), (250, "4 min ago"), (7300, "2 h ago"), (200_000, "2 days ago")]
)
def test_ago(seconds: float, text: str) -> None:
    assert t.ago(seconds) == text


def test_table() -> None:
    rows = [("all", "1,201,880"), ("DE", "310,225")]
    assert t.table(("country", "examples"), rows, right="lr") == (
        "country   examples\nall      1,201,880\nDE         310,225"
    )
