"""A graph that grows by random steps and whose values are known exactly.

Values are small whole numbers, so that sums and products are exact in every element type and in any
order. Functions that are only nearly exact mark what depends on them as *rough*: it is compared
within a tolerance, and no comparison, rounding or index is made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile.node import Node, Type, rebuild, toposort
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.ops import OPS

SMOOTH = ("exp", "log", "sin", "cos", "tanh", "erf", "sqrt", "rsqrt", "recip")
ROUGH = frozenset((*SMOOTH, "div", "pow"))
SIZES = (1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 12, 16, 17)
MOST_ELEMENTS = 600
LARGEST = 64
DTYPES = (DType.F32,) * 6 + (DType.I64, DType.I32) * 2 + tuple(DType)


class Growing:
    """A graph that grows by random steps; the value of every node is known."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self._draw = draw
        self.rng = np.random.default_rng(self.number(0, 999))
        self.values: dict[Node, np.ndarray] = {}
        self.inputs: list[Node] = []
        self.nodes: list[Node] = []

    def twin(self, outputs: Sequence[Node]) -> list[Node]:
        """The same computation of other inputs; nothing where values would be too large."""
        other: dict[Node, Node] = {}
        for n in toposort(outputs):
            if n.op == "input":
                other[n] = self.source(n.dtype, n.shape)
                self.values[other[n]] = np.flip(self.values[n])
            else:
                other[n] = rebuild(n, tuple(other[s] for s in n.srcs))
        made = [other[n] for n in outputs]
        small = all(
            np.all(np.abs(self.value(n).astype(np.float64)) <= LARGEST) for n in other.values()
        )
        return made if small else []

    # what is drawn

    def number(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.number(0, len(options) - 1)]

    def coin(self, one_in: int = 2) -> bool:
        return self.number(1, one_in) == one_in

    def shape(self) -> tuple[int, ...]:
        sizes = [self.choice(SIZES) for _ in range(self.number(0, 4))]
        if sizes and self.coin(40):
            sizes[0] = 0
        while prod(sizes) > MOST_ELEMENTS:
            sizes.pop()
        return tuple(sizes)

    def pick(self, exact: bool = False, op: str | None = None) -> Node:
        """A node, more often a late one; one whose element type `op` takes."""
        fits = [
            n
            for n in self.nodes
            if not (exact and self.rough(n)) and (op is None or n.dtype in OPS[op].dtypes)
        ]
        late = fits[-4:] if self.coin() else fits
        if late:
            return self.choice(late)
        return self.source(next(t for t in DTYPES if op is None or t in OPS[op].dtypes))

    # what is known of a node

    def value(self, root: Node) -> np.ndarray:
        for n in toposort([root]):
            if n not in self.values:
                operands = tuple(self.values[s] for s in n.srcs)
                self.values[n] = np.asarray(OPS[n.op].reference(n, operands))
        return self.values[root]

    def rough(self, n: Node) -> bool:
        return any(m.op in ROUGH for m in toposort([n]))

    # what is added

    def source(self, dtype: DType, shape: tuple[int, ...] | None = None) -> Node:
        """A new input."""
        n = g.input(len(self.inputs), Type(self.shape() if shape is None else shape, dtype))
        whole = self.rng.integers(
            0 if dtype.kind in "ub" else -4, 2 if dtype.kind == "b" else 5, n.shape
        )
        self.values[n] = np.asarray(whole).astype(NUMPY[dtype])
        self.inputs.append(n)
        self.nodes.append(n)
        return n

    def add(self, n: Node) -> Node:
        """Keep a node; large values are cut off first."""
        if n.type.size > MOST_ELEMENTS:
            return n
        if n.dtype is not DType.BOOL and np.any(np.abs(self.value(n).astype(np.float64)) > LARGEST):
            n = g.minimum(n, g.full_like(n, LARGEST))
            n = n if n.dtype.kind == "u" else g.maximum(n, g.full_like(n, -LARGEST))
        assert not np.any(np.isnan(self.value(n).astype(np.float64))), n
        if n not in self.nodes:
            self.nodes.append(n)
        return n

    def fitted(self, x: Node, type: Type) -> Node:
        """x moved and converted until it has this type."""
        if x.type.size == type.size and self.coin():
            x = g.reshape(x, type.shape)
        if len(x.shape) > len(type.shape):
            x = self._flatter(x, len(type.shape))
        x = g.reshape(x, (1,) * (len(type.shape) - len(x.shape)) + x.shape)
        for axis, size in enumerate(type.shape):
            x = self._resized(x, axis, size)
        return self.cast(x, type.dtype)

    def _flatter(self, x: Node, rank: int) -> Node:
        """x with its first axes as one; its first element where no axis may be left."""
        if rank:
            cut = len(x.shape) - rank + 1
            return g.reshape(x, (prod(x.shape[:cut]), *x.shape[cut:]))
        if not x.type.size:
            return g.const(1, x.dtype)
        return g.reshape(g.slice(x, (0,) * len(x.shape), (1,) * len(x.shape)), ())

    def _resized(self, x: Node, axis: int, size: int) -> Node:
        old, shape = x.shape[axis], (*x.shape[:axis], size, *x.shape[axis + 1 :])
        if old == 1:
            return g.expand(x, shape)
        if old > size:
            start = self.number(0, old - size)
            return g.slice_axis(x, axis, start, start + size)
        lo = self.number(0, size - old)
        line = [lo if i == axis else 0 for i in range(len(shape))]
        rest = [size - old - lo if i == axis else 0 for i in range(len(shape))]
        return g.pad(x, line, rest, self.choice((0, 0, 1)))

    def cast(self, x: Node, dtype: DType) -> Node:
        """x as another element type; a rough number that becomes whole is rounded to tens first."""
        if dtype is not x.dtype and self.rough(x) and not dtype.is_float:
            return g.full(x.shape, 1, dtype)
        if dtype.kind == "u" and x.dtype.kind != "u":
            x = x if x.dtype is DType.BOOL else g.abs(x)
        return g.cast(x, dtype)

    def peer(self, x: Node, exact: bool = False) -> Node:
        """Another node or a constant, of x's type."""
        if self.coin(6):
            return g.full(
                x.shape, self.choice((0, 1, 2)) if x.dtype is not DType.BOOL else 1, x.dtype
            )
        return self.fitted(self.pick(exact), x.type)

    def index(self, shape: tuple[int, ...], size: int) -> Node:
        """Positions along an axis, some of them outside of it."""
        dtype = self.choice((DType.I32, DType.I64))
        if self.coin():
            n = self.source(dtype, shape)
            self.values[n] = np.asarray(self.rng.integers(-1, size + 1, shape)).astype(NUMPY[dtype])
            return n
        return self.fitted(self.pick(exact=True), Type(shape, dtype))
