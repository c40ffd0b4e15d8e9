"""Pictures of curves: readable by any SVG viewer, whatever the values."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gearshift.experiments.svg_plot import COLOURS, Point, curves, round_values

NAN = math.nan


def shapes(svg: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{tag}"))


def words(svg: str) -> list[str]:
    return [shape.text or "" for shape in shapes(svg, "text")]


def heights(svg: str) -> list[float]:
    """Of the marks on the curves; the picture's y grows downwards."""
    return [-float(mark.attrib["cy"]) for mark in shapes(svg, "circle")]


def test_a_curve_has_a_mark_per_point_and_a_bar_per_interval() -> None:
    adam = [Point(512, -0.002, -0.004, 0.0), Point(128, 0.0, 0.0, 0.0), Point(2048, -0.01, NAN, NAN)]
    svg = curves("a < b", "batch", "AUC", {"adam": adam}, limit=-0.001)
    assert {"a < b", "batch", "AUC", "adam", "128", "512", "2,048"} <= set(words(svg))
    first, second, third, *legend = heights(svg)
    assert len(legend) == 2 and first > second > third, "in the order of the batches"
    bars = [shape for shape in shapes(svg, "path") if "stroke-opacity" in shape.attrib]
    assert len(bars) == 2, "none where there is no interval"


def test_a_limit_lies_between_what_is_above_and_what_is_below() -> None:
    svg = curves("", "", "", {"a": [Point(1, 1.0, NAN, NAN), Point(2, -1.0, NAN, NAN)]}, limit=0.5)
    (limit,) = (s.attrib["d"] for s in shapes(svg, "path") if s.attrib.get("stroke-dasharray") == "2 4")
    above, below, *_ = heights(svg)
    assert below < -float(limit.split(",")[1].split()[0]) < above


def test_vr_x_is_x_dashed() -> None:
    one = [Point(1, 0.0, NAN, NAN), Point(2, 0.0, NAN, NAN)]
    svg = curves("", "", "", {"lamb": one, "adam": one, "vr_adam": one})
    drawn = [(s.attrib["stroke"], "stroke-dasharray" in s.attrib) for s in shapes(svg, "path")]
    lamb, adam = COLOURS[:2]
    assert [drawn.count(kind) for kind in ((lamb, False), (adam, False), (adam, True))] == [2, 2, 2]


@pytest.mark.parametrize("value", [0.0, 0.7, -1e-12, 1e9])
def test_one_point_is_a_picture_too(value: float) -> None:
    svg = curves("", "", "", {"adam": [Point(128, value, value, value)]})
    assert all(math.isfinite(height) for height in heights(svg))


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_and_reach_around_both_ends(low: float, apart: float) -> None:
    ticks = round_values(low, low + apart)
    slack = 1e-6 * (ticks[1] - ticks[0])
    assert 2 <= len(ticks) <= 8 and ticks[0] <= low + slack and ticks[-1] >= low + apart - slack
