"""Building blocks of function expansions."""

from __future__ import annotations

from collections.abc import Sequence

from hal.tile.build import binary, const, fma
from hal.tile.node import Node


def polynomial(x: Node, coefficients: Sequence[float]) -> Node:
    """sum(c[k] * x**k), by Horner's rule."""
    value = const(coefficients[-1], x.dtype, x.shape)
    for c in reversed(coefficients[:-1]):
        value = fma(value, x, c)
    return value


def clamp(x: Node, low: float, high: float) -> Node:
    return binary("min", binary("max", x, low), high)


def full(x: Node, value: float) -> Node:
    return const(value, x.dtype, x.shape)
