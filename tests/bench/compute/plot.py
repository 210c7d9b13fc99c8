# SPDX-License-Identifier: Apache-2.0
"""Share over time as SVG, one line a tenant. Pure."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

_WIDTH: Final = 720
_HEIGHT: Final = 300
_LEFT: Final = 44
_TOP: Final = 16
_COLOURS: Final = ("#0b6e4f", "#c8553d", "#33658a", "#8a5a9e")


def svg(
    curves: Mapping[str, Sequence[tuple[float, float]]], marks: Sequence[tuple[float, str]], title: str
) -> str:
    """`curves`: seconds and percent by tenant; `marks`: what happened when."""
    seconds = max((at for curve in curves.values() for at, _ in curve), default=1.0)

    def x(at: float) -> float:
        return round(_LEFT + at / seconds * (_WIDTH - _LEFT - 10), 1)

    def y(percent: float) -> float:
        return round(_TOP + (1 - min(percent, 105) / 105) * (_HEIGHT - _TOP - 60), 1)

    parts = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' font-family="sans-serif" font-size="11"><title>{escape(title)}</title>'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
    ]
    for percent in range(0, 101, 20):
        parts.append(f'<path d="M{_LEFT} {y(percent)}H{_WIDTH - 10}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(percent) + 4}" text-anchor="end">{percent} %</text>')
    for at, text in marks:
        parts.append(f'<path d="M{x(at)} {_TOP}V{y(0)}" stroke="#999" stroke-dasharray="3 3"/>')
        parts.append(f'<text x="{x(at) + 3}" y="{y(0) + 14}">{escape(text)}</text>')
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        line = " ".join(f"{x(at)},{y(value)}" for at, value in curve)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        place = _LEFT + number * 150
        parts.append(f'<rect x="{place}" y="{_HEIGHT - 22}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{place + 17}" y="{_HEIGHT - 12}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])
