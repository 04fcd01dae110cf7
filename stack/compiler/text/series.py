"""Building blocks of function expansions."""

from __future__ import annotations

from collections.abc import Sequence

from hal.tile.build import binary, const, fma, mul
from hal.tile.node import Node


def polynomial(x: Node, coefficients: Sequence[float]) -> Node:
    """sum(c[k] * x**k), by Horner's rule."""
    value = const(coefficients[-1], x.dtype, x.shape)
    for c in reversed(coefficients[:-1]):
        value = fma(value, x, c)
    return value


def polynomial_in_pairs(x: Node, coefficients: Sequence[float]) -> Node:
    """The same by Estrin's scheme, which joins neighbours, then pairs of these: some products more,
    and a chain that is shorter by half."""
    values: list[Node] = [full(x, c) for c in coefficients]
    while len(values) > 1:
        rest = values[-1:] if len(values) % 2 else []
        values = [fma(b, x, a) for a, b in zip(values[::2], values[1::2], strict=False)] + rest
        x = mul(x, x)
    return values[0]


def clamp(x: Node, low: float, high: float) -> Node:
    return binary("min", binary("max", x, low), high)


def full(x: Node, value: float) -> Node:
    return const(value, x.dtype, x.shape)
