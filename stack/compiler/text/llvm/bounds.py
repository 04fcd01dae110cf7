"""What is known about the values of index expressions without running them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hal.tile.node import Node

Range = tuple[float, float]
"""The least and the greatest value, infinite where nothing is known."""

UNKNOWN: Range = (-math.inf, math.inf)
_LIMIT = float(1 << 62)


def _corners(a: Range, b: Range) -> Range:
    products = [0.0 if 0.0 in (x, y) else x * y for x in a for y in b]
    return min(products), max(products)


def _quotient(a: Range, b: Range) -> Range:
    if a[0] < 0 or b[0] < 1:
        return UNKNOWN
    return 0.0, a[1] // b[0] if math.isfinite(a[1]) else a[1]


def _remainder(a: Range, b: Range) -> Range:
    """It has the sign of what is divided."""
    if a[0] < 0:
        return UNKNOWN
    return 0.0, min(a[1], b[1] - 1) if b[0] >= 1 else a[1]


_RULES: Mapping[str, Callable[[Range, Range], Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _corners,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "div": _quotient,
    "rem": _remainder,
}


def bounds(n: Node, known: Mapping[Node, Range]) -> Range:
    """The range of an i64 scalar; `known` gives that of loop indices."""
    if n.op == "const":
        return float(n["value"]), float(n["value"])
    if n.op in ("program_id", "num_programs"):
        return (0.0 if n.op == "program_id" else 1.0), math.inf
    rule = _RULES.get(n.op)
    if rule is None:
        return known.get(n, UNKNOWN)
    low, high = rule(bounds(n.srcs[0], known), bounds(n.srcs[1], known))
    return (low if abs(low) < _LIMIT else -math.inf), (high if abs(high) < _LIMIT else math.inf)


def loop_range(start: Range, stop: Range, step: Range) -> Range:
    """The values of a loop index inside the loop."""
    low, last = start[0], stop[1] - 1
    if start[0] == start[1] and step[0] == step[1] and math.isfinite(last):
        last = low + (last - low) // step[0] * step[0]
    return low, last
