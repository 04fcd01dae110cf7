"""Random kernels whose addresses are sums over instances and loops: what transfers are made for."""

from __future__ import annotations

from math import prod

from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile.build import Builder, add, binary, cast, const, mul, program_id, reduce
from hal.tile.kernel import Kernel
from hal.tile.node import Node

DTYPES = (DType.F32, DType.I8, DType.F16, DType.I64)
ELEMENTS = 4096
"""The most that a kernel loads from or stores to."""


@st.composite
def affine(draw: st.DrawFn) -> tuple[Kernel, int, DType]:
    """A kernel with the buffers a (read), b (read and updated) and c (written), the instances of
    its grid and its element type. Different instances and steps write different elements."""
    dtype = draw(st.sampled_from(DTYPES))
    sizes = draw(st.lists(st.integers(1, 6), min_size=0, max_size=2))
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 8, 16)), min_size=0, max_size=2)))
    instances = draw(st.integers(1, max(1, min(200, ELEMENTS // prod((*sizes, *shape, 1))))))
    own = Maker(draw, Builder("walk"), dtype, instances, sizes, shape)
    return own.kernel(), instances, dtype


class Maker:
    """Draws one kernel."""

    def __init__(self, draw, b, dtype, instances, sizes, shape) -> None:
        self.draw, self.b, self.dtype = draw, b, dtype
        self.instances, self.sizes, self.shape = instances, sizes, shape
        self.a = b.buffer("a", dtype)
        self.update = b.buffer("b", dtype, writes=True)
        self.c = b.buffer("c", dtype, reads=False, writes=True)
        split = [n for n in range(2, 9) if instances % n == 0]
        self.radix = draw(st.sampled_from([0, *split]))

    def kernel(self) -> Kernel:
        self.places = [self._distinct() for _ in range(2)]
        self._loops(0, [])
        return self.b.kernel()

    def _numbers(self) -> list[Node]:
        """The instance's number, or its digits."""
        if not self.radix:
            return [program_id(0)]
        return [binary(op, program_id(0), self.radix) for op in ("div", "rem")]

    def _extents(self) -> list[int]:
        outer = [self.instances // self.radix, self.radix] if self.radix else [self.instances]
        return [*outer, *self.sizes, *self.shape]

    def _distinct(self) -> list[int]:
        """Strides by which all elements of all instances and steps are apart."""
        extents = self._extents()
        strides, step = [0] * len(extents), self.draw(st.sampled_from((1, 1, 1, 2)))
        for axis in self.draw(st.permutations(range(len(extents)))):
            strides[axis] = step
            step *= extents[axis]
        return (
            strides
            if step <= 2 * ELEMENTS
            else [prod(extents[i + 1 :]) for i in range(len(extents))]
        )

    def _loops(self, depth: int, indices: list[Node]) -> None:
        if depth == len(self.sizes):
            self._body(indices)
            return
        start, step = self.draw(st.sampled_from(((0, 1), (2, 1), (0, 3), (1, 2))))
        stop = start + (self.sizes[depth] - 1) * step + 1

        def inside(i: Node) -> None:
            count = i if (start, step) == (0, 1) else binary("div", add(i, -start), step)
            self._loops(depth + 1, [*indices, count])

        self.b.loop(start, stop, step, inside)

    def _offset(self, strides: list[int], indices: list[Node]) -> Node:
        total = const(0, DType.I64)
        for i, stride in zip([*self._numbers(), *indices], strides, strict=False):
            total = add(total, mul(i, stride))
        return total

    def _body(self, indices: list[Node]) -> None:
        inner = len(self._numbers()) + len(indices)
        free = [self.draw(st.sampled_from((0, 1, 2, 3, 7, 64))) for _ in self._extents()]
        limits = [self.draw(st.sampled_from((None, None, s, s - 1))) for s in self.shape]
        x = self.b.load(self.a, self._offset(free, indices), self.shape, free[inner:], limits)
        update, written = self.places
        at = self._offset(update, indices)
        y = self.b.load(self.update, at, self.shape, update[inner:])
        value = binary("add", x, y)
        self.b.store(self.update, at, value, update[inner:])
        if self.shape and self.draw(st.booleans()):
            summed = reduce("max", value, 0)
            value = binary("max", value, cast(summed, self.dtype)) if not summed.shape else value
        here = [self.draw(st.sampled_from((None, None, s, s - 1))) for s in self.shape]
        self.b.store(self.c, self._offset(written, indices), value, written[inner:], here)
