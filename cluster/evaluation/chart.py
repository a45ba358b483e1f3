"""Charts as SVG text: bars, lines and dots, drawn with nothing but arithmetic.

Colours are CSS classes (`c0`, `c1`, ...) that the page defines for light and dark. Every chart has a
title and a description for those who do not see it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

#: Series that can be told apart by colour; further ones begin again with other dashes.
COLOURS = 8


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one candidate.

    Attributes:
        name: for the legend.
        values: one per group or place; None where there is none.
        colour: number of its colour.
    """

    name: str
    values: Sequence[float | None]
    colour: int


def bars(
    title: str, groups: Sequence[str], series: Sequence[Series], *, reference: float, unit: str = ""
) -> str:
    """Groups of upright bars with a line at a reference value.

    Args:
        title: of the chart.
        groups: names under the groups.
        series: one bar per group each.
        reference: value of the line; bars may lie below and above it.
        unit: written behind values.
    """
    known = [value for one in series for value in one.values if value is not None]
    top = _nice(max([reference, *known]) * 1.02)
    left, right, height = 44, 10, 190
    each = max(13, min(30, 560 // max(1, len(groups) * (len(series) + 1))))
    step = each * (len(series) + 1)
    width = left + right + step * len(groups)
    base = 20 + height
    parts = [_grid(left, width - right, 20, height, top, unit)]
    for at, group in enumerate(groups):
        begin = left + at * step + each / 2
        for number, one in enumerate(series):
            value = one.values[at]
            if value is None:
                continue
            x, tall = begin + number * each, height * value / top
            parts.append(
                f'<rect class="c{one.colour % COLOURS}" x="{x:.1f}" y="{base - tall:.1f}" '
                f'width="{each - 2}" height="{tall:.1f}"><title>{escape(group)}, {escape(one.name)}: '
                f"{value:.2f}{escape(unit)}</title></rect>"
            )
            parts.append(
                f'<text class="v" x="{x + (each - 2) / 2:.1f}" y="{base - tall - 3:.1f}" '
                f'text-anchor="middle">{value:.2f}</text>'
            )
        middle = begin + each * len(series) / 2
        parts.append(f'<text x="{middle:.1f}" y="{base + 15}" text-anchor="middle">{escape(group)}</text>')
    y = base - height * reference / top
    parts.append(f'<line class="ref" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
    told = "; ".join(
        f"{group}: " + ", ".join(f"{one.name} {one.values[at]:.2f}{unit}" for one in series if one.values[at])
        for at, group in enumerate(groups)
    )
    return _svg(title, told, width, base + 24, parts)


def lines(
    title: str, places: Sequence[str], series: Sequence[Series], *, top: float, axis: str, unit: str = ""
) -> str:
    """Lines over places, from 0 to `top`.

    Args:
        title: of the chart.
        places: names along the bottom.
        series: one line each.
        top: value at the upper edge.
        axis: what the places are.
        unit: written behind values.
    """
    left, right, height, width = 44, 16, 150, 300
    base = 20 + height
    gap = (width - left - right) / max(1, len(places) - 1)
    parts = [_grid(left, width - right, 20, height, top, unit)]
    for at, place in enumerate(places):
        x = left + at * gap
        parts.append(f'<text x="{x:.1f}" y="{base + 15}" text-anchor="middle">{escape(place)}</text>')
    middle = (left + width - right) / 2
    parts.append(f'<text x="{middle:.1f}" y="{base + 31}" text-anchor="middle">{escape(axis)}</text>')
    for one in series:
        points = [
            (left + at * gap, base - height * min(value, top) / top)
            for at, value in enumerate(one.values)
            if value is not None
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = ' stroke-dasharray="5 3"' if one.colour >= COLOURS else ""
        colour = one.colour % COLOURS
        parts.append(f'<polyline class="l l{colour}" points="{path}"{dashed}/>')
        parts += [
            f'<circle class="c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
            f"<title>{escape(one.name)}</title></circle>"
            for x, y in points
        ]
    told = "; ".join(
        f"{one.name}: " + ", ".join(f"{value:.2f}" for value in one.values if value is not None)
        for one in series
    )
    return _svg(title, told, width, base + 38, parts)


def dots(title: str, points: Sequence[tuple[float, float, str]], *, tolerance: float) -> str:
    """Predicted against measured, with a band around equality.

    Args:
        title: of the chart.
        points: (measured, predicted, name) each.
        tolerance: half the width of the band, as a share.
    """
    values = [value for measured, predicted, _ in points for value in (measured, predicted)]
    low = math.floor(min([1.0, *values]) * 10 - 1) / 10
    high = math.ceil(max([1.2, *values]) * 10 + 1) / 10
    left, size = 52, 280

    def place(value: float) -> float:
        return size * (value - low) / (high - low)

    def at(measured: float, predicted: float) -> str:
        return f"{left + place(measured):.1f},{20 + size - place(predicted):.1f}"

    corners = [
        at(low, low * (1 + tolerance)),
        at(high / (1 + tolerance), high),
        at(high, high),
        at(high, high * (1 - tolerance)),
        at(low / (1 - tolerance), low),
        at(low, low),
    ]
    parts = [f'<polygon class="band" points="{" ".join(corners)}"/>']
    tick = low
    while tick <= high + 1e-9:
        across, up = left + place(tick), 20 + size - place(tick)
        parts.append(f'<text x="{across:.1f}" y="{20 + size + 15}" text-anchor="middle">{tick:.1f}x</text>')
        parts.append(f'<text x="{left - 6}" y="{up + 4:.1f}" text-anchor="end">{tick:.1f}x</text>')
        tick += 0.1 if high - low <= 1.0 else 0.2 if high - low <= 2.0 else 0.5
    first, last = at(low, low).split(","), at(high, high).split(",")
    parts.append(f'<line class="ref" x1="{first[0]}" y1="{first[1]}" x2="{last[0]}" y2="{last[1]}"/>')
    for measured, predicted, name in points:
        x, y = at(measured, predicted).split(",")
        parts.append(
            f'<circle class="c0" cx="{x}" cy="{y}" r="4"><title>{escape(name)}: predicted {predicted:.2f}x, '
            f"measured {measured:.2f}x</title></circle>"
        )
    parts.append(f'<text x="{left + size / 2}" y="{20 + size + 32}" text-anchor="middle">measured</text>')
    parts.append(
        f'<text x="14" y="{20 + size / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {20 + size / 2})">predicted</text>'
    )
    told = "; ".join(f"{name}: predicted {p:.2f}x, measured {m:.2f}x" for m, p, name in points)
    return _svg(title, told, left + size + 20, 20 + size + 40, parts)


def _grid(left: float, right: float, top_y: float, height: float, top: float, unit: str) -> str:
    parts = []
    for part in range(5):
        value = top * part / 4
        y = top_y + height - height * part / 4
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}{escape(unit)}</text>'
        )
    return "".join(parts)


def _svg(title: str, description: str, width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg role="img" aria-label="{escape(title, quote=True)}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}"><title>{escape(title)}</title>'
        f"<desc>{escape(description)}</desc>{''.join(parts)}</svg>"
    )


def _nice(value: float) -> float:
    """The next round number that four equal parts of an axis can end at."""
    size = 10 ** math.floor(math.log10(value))
    for part in (1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0):
        if value <= part * size:
            return part * size
    return 10.0 * size


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
