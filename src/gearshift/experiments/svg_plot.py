"""Plots curves as plain SVG: values with intervals over a logarithmic axis, and a limit line.

It knows only shapes and numbers; the caller's labels carry the meaning. `document` and `text` serve other plots too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 420, 70, 210, 56, 60
APART = 3.0  # distance between neighbouring marks, so that none hides another


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float  # nan without an interval
    high: float


@dataclass(frozen=True)
class Axis:
    """Maps values to positions in the plot."""

    first: float
    last: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.first) / (self.last - self.first) if self.last != self.first else 0.5
        return self.begin + share * (self.end - self.begin)


def curves(
    title: str, across: str, up: str, lines: Mapping[str, Sequence[Point]], *, limit: float | None = None
) -> str:
    """A curve for each name. `vr_x` has the colour of `x` and is dashed. `limit` is drawn as a separate line."""
    points = [point for line in lines.values() for point in line]
    x = Axis(*_ends(math.log2(point.x) for point in points), LEFT + 30, WIDTH - RIGHT - 30)
    seen = [y for p in points for y in (p.y, p.low, p.high) if math.isfinite(y)]
    ticks = round_values(*_ends([*seen, *([] if limit is None else [limit])]))
    y = Axis(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = [text(LEFT, 24, title, size=15, anchor="start"), text(LEFT, 44, up, anchor="start")]
    for tick in ticks:
        parts.append(_rule(y(tick), "#ddd"))
        parts.append(text(LEFT - 6, y(tick) + 4, f"{tick:.6g}", anchor="end"))
    for at in sorted({point.x for point in points}):
        parts.append(text(x(math.log2(at)), HEIGHT - BOTTOM + 20, f"{at:,.0f}"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, across))
    if limit is not None:
        parts.append(_rule(y(limit), "#333", dashed=True))
    families = list(dict.fromkeys(name.removeprefix("vr_") for name in lines))
    for i, (name, line) in enumerate(lines.items()):
        colour = COLOURS[families.index(name.removeprefix("vr_")) % len(COLOURS)]
        aside = APART * (i - (len(lines) - 1) / 2)
        places = [(x(math.log2(p.x)) + aside, p) for p in sorted(line, key=lambda p: p.x)]
        parts += _curve([(at, y(p.y)) for at, p in places], colour, dashed=name.startswith("vr_"))
        parts += [_bar(at, y(p.low), y(p.high), colour) for at, p in places if math.isfinite(p.low)]
        legend = WIDTH - RIGHT + 14, TOP + 20 * i
        parts += _curve([(legend[0], legend[1]), (legend[0] + 26, legend[1])], colour, name.startswith("vr_"))
        parts.append(text(legend[0] + 34, legend[1] + 4, name, anchor="start"))
    return document(WIDTH, max(HEIGHT, TOP + 20 * len(lines)), parts)


def document(width: float, height: float, parts: Iterable[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="sans-serif">\n'
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>\n{body}\n</svg>\n'
    )


def text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'


def round_values(low: float, high: float) -> list[float]:
    """About six values, 1, 2 or 5 times a power of ten apart, that enclose both ends."""
    least = max((high - low) / 5, 1e-9 * max(abs(low), abs(high), 1.0))
    power = 10.0 ** math.floor(math.log10(least))
    apart = next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))
    first, last = math.floor(low / apart + 1e-9), math.ceil(high / apart - 1e-9)
    return [k * apart for k in range(first, max(last, first + 1) + 1)]


def _ends(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    return min(known), max(known)


def _rule(y: float, colour: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="2 4"' if dashed else ""
    return f'<path d="M{LEFT},{y:.1f} H{WIDTH - RIGHT}" stroke="{colour}"{dash}/>'


def _curve(places: Sequence[tuple[float, float]], colour: str, dashed: bool) -> list[str]:
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    path = " L".join(f"{x:.1f},{y:.1f}" for x, y in places)
    marks = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>' for x, y in places]
    return [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>', *marks]


def _bar(x: float, low: float, high: float, colour: str) -> str:
    return f'<path d="M{x:.1f},{low:.1f} V{high:.1f}" stroke="{colour}" stroke-opacity=".45"/>'
