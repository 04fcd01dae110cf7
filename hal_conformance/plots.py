"""Small drawings for a report, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

COLOURS = {
    "pass": "#2e7d32",
    "unsupported": "#b0bec5",
    "xfail": "#f9a825",
    "xpass": "#ef6c00",
    "fail": "#c62828",
    "crash": "#6a1b9a",
    "hang": "#4e342e",
}
"""The colour of each outcome."""

_WIDE = 320


def bar(parts: Sequence[tuple[str, int]]) -> str:
    """Outcomes and their counts as one bar, each part as wide as its share."""
    total = sum(count for _, count in parts) or 1
    shapes, left = [], 0.0
    for outcome, count in parts:
        width = _WIDE * count / total
        title = f"<title>{count} {escape(outcome)}</title>"
        shapes.append(
            f'<rect x="{left:.1f}" width="{width:.1f}" height="12" fill="{COLOURS[outcome]}">'
            f"{title}</rect>"
        )
        left += width
    return f'<svg width="{_WIDE}" height="12" role="img">{"".join(shapes)}</svg>'


def against(ratio: float, low: float, high: float) -> str:
    """How much better a measured figure is than the declared one (1: equal), on a logarithmic
    scale from a quarter to four times, with the band from `low` to `high` that is allowed."""
    band = f'<rect x="{_place(low):.1f}" y="2" height="12" fill="#c8e6c9" '
    band += f'width="{_place(high) - _place(low):.1f}"/>'
    middle = f'<line x1="{_place(1):.1f}" x2="{_place(1):.1f}" y1="0" y2="16" stroke="#555"/>'
    colour = COLOURS["pass"] if low <= ratio <= high else COLOURS["fail"]
    dot = f'<circle cx="{_place(ratio):.1f}" cy="8" r="4" fill="{colour}"/>'
    title = f"<title>{ratio:.3g} times as good as declared</title>"
    return f'<svg width="{_WIDE}" height="16" role="img">{title}{band}{middle}{dot}</svg>'


def _place(ratio: float) -> float:
    """Where a ratio lies: 1/4 at the left edge, 4 at the right one, what is beyond at the edges."""
    return _WIDE * min(max((math.log2(ratio) + 2) / 4, 0.0), 1.0)
