"""Windows over several axes: their parameters, and what they give."""

from __future__ import annotations

from collections.abc import Sequence

from hal.tile.node import Node
from stack import ops as g
from stack.framework.errors import TensorError

Sizes = int | Sequence[int]


def each(value: Sizes, d: int, name: str) -> list[int]:
    """A number for each of d axes. Raises TensorError for another count."""
    if isinstance(value, int):
        return [value] * d
    numbers = list(value) * d if len(value) == 1 else list(value)
    if len(numbers) != d:
        raise TensorError(f"{name} is a number or {d} of them, got {list(value)}")
    return numbers


def windowed(
    x: Node, first: int, taps: Sequence[int], steps: Sequence[int], apart: Sequence[int]
) -> Node:
    """x with the axes from `first` on in windows: each becomes the number of a window and the
    places in it."""
    for i, facts in enumerate(zip(taps, steps, apart, strict=True)):
        x = g.window(x, first + 2 * i, *facts)
    return x
