# SPDX-License-Identifier: Apache-2.0
"""A dashboard as a picture: the panels that Grafana reads, with series of a Prometheus, as SVG. Pure."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

_COLUMN: Final = 50
_ROW: Final = 30
_COLUMNS: Final = 24
_GAP: Final = 6
_HEAD: Final = 46
_LEFT: Final = 70
"""For the words at the axis of a panel."""
_RIGHT: Final = 20
_LINES: Final = 4
_LETTER: Final = 0.6
"""Its width, as a part of its size: most are narrower."""
_SHOWN: Final = 6
"""Lines of a legend, rows of a table."""
_COLOURS: Final = ("#0b6e4f", "#c8553d", "#33658a", "#8a5a9e", "#b8860b", "#5c6b73")
_INK, _QUIET, _GRID = "#1f2933", "#7b8794", "#e4e7eb"
_UNITS: Final[Mapping[str, tuple[float, str]]] = {
    "percentunit": (100, " %"),
    "percent": (1, " %"),
    "s": (1, " s"),
    "reqps": (1, "/s"),
    "ops": (1, "/s"),
    "short": (1, ""),
}


@dataclass(frozen=True, slots=True)
class Series:
    """One line: labels, and values (seconds since the picture's beginning, value)."""

    legend: str
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


Panels = Sequence[tuple[Mapping[str, Any], Sequence[Series]]]
"""Each panel as Grafana reads it, with its series."""


def svg(title: str, panels: Panels, *, span_s: float) -> str:
    """The page; `span_s` is how much time it shows."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel, _ in panels)
    width, height = _COLUMN * _COLUMNS + _GAP, _HEAD + rows * _ROW + _GAP
    parts = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' font-family="sans-serif" font-size="12" fill="{_INK}"><title>{escape(title)}</title>',
        f'<rect width="{width}" height="{height}" fill="#f5f7fa"/>',
        _text(_GAP * 2, 30, title, size=20),
    ]
    for panel, series in panels:
        place = panel["gridPos"]
        x, y = place["x"] * _COLUMN + _GAP, _HEAD + place["y"] * _ROW
        parts.append(f'<g transform="translate({x} {y})">')
        parts += _panel(panel, series, place["w"] * _COLUMN - _GAP, place["h"] * _ROW - _GAP, span_s)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def shown(value: float, unit: str) -> str:
    """A value as a reader wants it: 7.8 GiB, 35 %, 0.2/s."""
    if unit == "bytes":
        power = min(4, max(0, int(math.log(abs(value), 1024)))) if abs(value) >= 1 else 0
        return f"{_short(value / 1024**power)} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
    factor, word = _UNITS[unit]
    return f"{_short(value * factor)}{word}"


def legend(pattern: str, labels: Mapping[str, str]) -> str:
    """`{{pod}} used`, filled as Grafana does."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), pattern).strip()


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _panel(
    panel: Mapping[str, Any], series: Sequence[Series], width: int, height: int, span_s: float
) -> Iterator[str]:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    yield f'<rect width="{width}" height="{height}" rx="3" fill="#fff" stroke="{_GRID}"/>'
    yield _text(10, 20, panel["title"], weight="bold")
    if not series:
        yield _text(width / 2, height / 2, "nothing to show", colour=_QUIET, anchor="middle")
    elif panel["type"] == "stat":
        yield from _values(series, unit, width, height)
    elif panel["type"] == "table":
        yield from _table(series, unit, width)
    else:
        yield from _curves(series, unit, width, height, span_s)


def _values(series: Sequence[Series], unit: str, width: int, height: int) -> Iterator[str]:
    step = width / len(series)
    size = 26 if len(series) < 3 else 17
    for number, each in enumerate(series):
        middle = step * (number + 0.5)
        value = shown(each.points[-1][1], unit)
        yield _text(middle, height / 2 + 18, value, size=size, anchor="middle", colour=_COLOURS[0])
        if each.legend:
            words = _cut(each.legend, step, size=10)
            yield _text(middle, height - 12, words, anchor="middle", size=10, colour=_QUIET)


def _table(series: Sequence[Series], unit: str, width: int) -> Iterator[str]:
    names = sorted({name for each in series for name in each.labels})
    step = (width - 20) / (len(names) + 1)
    rows = [
        [*(each.labels.get(name, "") for name in names), shown(each.points[-1][1], unit)] for each in series
    ]
    for line, row in enumerate([[*names, "value"], *rows[:_SHOWN]]):
        for column, cell in enumerate(row):
            colour = _INK if line else _QUIET
            yield _text(10 + column * step, 46 + line * 26, _cut(cell, step - 10, size=12), colour=colour)


def _curves(series: Sequence[Series], unit: str, width: int, height: int, span_s: float) -> Iterator[str]:
    lines = series[:_SHOWN]
    bottom = height - 30 - 16 * ((len(lines) + 1) // 2)
    step = _step(max(value for each in lines for _, value in each.points), unit)
    low = min(0.0, step * math.floor(min(value for each in lines for _, value in each.points) / step))

    def x(at: float) -> float:
        return round(_LEFT + at / span_s * (width - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        return round(bottom - (value - low) / (step * _LINES - low) * (bottom - 36), 1)

    for number in range(_LINES + 1):
        yield f'<path d="M{_LEFT} {y(number * step)}H{width - _RIGHT}" stroke="{_GRID}"/>'
        word = shown(number * step, unit)
        yield _text(_LEFT - 6, y(number * step) + 4, word, anchor="end", size=10, colour=_QUIET)
    for minute in range(int(span_s // 60) + 1):
        yield _text(x(minute * 60), bottom + 14, f"{minute} min", anchor="middle", size=10, colour=_QUIET)
    for number, each in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        line = " ".join(f"{x(at)},{y(value)}" for at, value in each.points)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        left, top = 10 + number % 2 * (width // 2), bottom + 24 + number // 2 * 16
        yield f'<rect x="{left}" y="{top}" width="10" height="10" fill="{colour}"/>'
        yield _text(left + 15, top + 9, _cut(each.legend or "value", width / 2 - 20, size=10), size=10)


def _step(most: float, unit: str) -> float:
    """Between two lines of the grid: a round number, four of which hold the highest value."""
    factor = 1.0 if unit == "bytes" else _UNITS[unit][0]
    wanted = max(most, 0.0) * factor / _LINES or 1 / _LINES
    if unit == "bytes":
        base, rounds = 2.0 ** math.floor(math.log2(wanted)), [1, 1.5, 2]
    else:
        base, rounds = 10.0 ** math.floor(math.log10(wanted)), [1, 2, 2.5, 5, 10]
    return next(each * base for each in rounds if each * base >= wanted * 0.999) / factor


def _cut(words: str, width: float, *, size: int) -> str:
    """What fits into so much room."""
    most = int(width / (size * _LETTER))
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _text(
    x: float, y: float, words: str, *, size: int = 12, anchor: str = "", weight: str = "", colour: str = ""
) -> str:
    more = {
        "font-size": "" if size == 12 else size,
        "text-anchor": anchor,
        "font-weight": weight,
        "fill": colour,
    }
    attributes = "".join(f' {name}="{value}"' for name, value in more.items() if value)
    return f'<text x="{x:g}" y="{y:g}"{attributes}>{escape(words)}</text>'
