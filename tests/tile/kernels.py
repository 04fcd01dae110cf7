"""Hypothesis strategies for kernels that keep every rule, and for values of each element type."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile import build
from hal.tile.build import Builder
from hal.tile.kernel import Kernel, Memory
from hal.tile.node import Node, Type, node
from hal.tile.numeric import NUMPY, bounds, constant, quiet
from hal.tile.ops import COMBINE, OPS, OpClass

SHAPES = ((), (1,), (4,), (2, 4), (4, 2), (2, 3, 4))
I64 = DType.I64


def numbers(dtype: DType) -> st.SearchStrategy[float]:
    """Numbers that a constant of the type can hold, special ones included."""
    if dtype is DType.BOOL:
        return st.booleans()
    if dtype.is_float:
        special = st.sampled_from(
            [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 1e-45, 1e30]
        )
        return st.floats(width=64) | special | st.floats(-8, 8)
    low, high = bounds(dtype)
    return st.sampled_from([0, 1, 3, low, high]) | st.integers(low, high)


def arrays(dtype: DType, size: int) -> st.SearchStrategy[np.ndarray]:
    """One-dimensional arrays of the type's numpy type."""

    def make(xs: list[float]) -> np.ndarray:
        with quiet():
            return np.array([constant(x, dtype) for x in xs], NUMPY[dtype])

    return st.lists(numbers(dtype), min_size=size, max_size=size).map(make)


class _Growth:
    """Grows one kernel: `values` are the expressions that the current block can use."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.b = Builder("grown")
        dtypes = draw(st.lists(st.sampled_from(list(DType)), min_size=1, max_size=3))
        self.memories = [
            self.b.buffer(f"m{i}", d, draw(st.booleans()) or i == 0, writes=True)
            for i, d in enumerate(dtypes)
        ]
        self.readable = {p.name for p in self.b.kernel().params if p.reads}
        self.values: list[Node] = [self.b.scalar("n", I64), self.b.scalar("a", draw(any_dtype))]
        self.values += [build.program_id(0), build.num_programs(2)]
        self.scratch = 0

    def pick(self, type: Type) -> Node:
        """A visible value of the type; a constant when there is none."""
        found = [v for v in self.values if v.type == type]
        if found and self.draw(st.booleans()):
            return self.draw(st.sampled_from(found))
        return build.const(self.draw(numbers(type.dtype)), type.dtype, type.shape)

    def index(self) -> Node:
        return self.pick(Type((), I64))

    def shape(self) -> tuple[int, ...]:
        return self.draw(st.sampled_from(SHAPES))

    def tile(self, kinds: str = "fiub") -> Node:
        dtype = self.draw(st.sampled_from([d for d in DType if d.kind in kinds]))
        return self.pick(Type(self.shape(), dtype))

    def memory(self, read: bool = False) -> Memory:
        options = [
            m for m in self.memories if not read or m.space != "global" or m.name in self.readable
        ]
        return self.draw(st.sampled_from(options))

    def expression(self) -> None:
        op = OPS[self.draw(st.sampled_from([o for o in OPS if o not in LEAVES]))]
        x = self.tile(op.kinds)
        self.values.append(self._apply(op.name, op.group, x))

    def _apply(self, name: str, group: OpClass, x: Node) -> Node:
        match group:
            case OpClass.LEAF:
                return build.arange(self.draw(st.sampled_from([1, 4])), self.tile("fiu").dtype)
            case OpClass.UNARY:
                return build.unary(name, x)
            case OpClass.BINARY | OpClass.COMPARE:
                return build.binary(name, x, self.pick(x.type))
            case OpClass.TERNARY:
                return build.fma(x, self.pick(x.type), self.pick(x.type))
            case OpClass.SELECT:
                return build.where(self.pick(x.type.with_dtype(DType.BOOL)), x, self.pick(x.type))
            case OpClass.CONVERT:
                return self._convert(name, x)
            case OpClass.SHAPE:
                return self._reshape(name, x)
            case OpClass.DOT:
                k = self.draw(st.sampled_from([1, 3]))
                a, b = (self.pick(Type(s, x.dtype)) for s in ((2, k), (k, 4)))
                return build.dot(a, b, self.pick(Type((2, 4), x.dtype)))
            case _:
                return self._along(name, x)

    def _convert(self, name: str, x: Node) -> Node:
        to = [
            d for d in DType if name == "cast" or (d.bits == x.dtype.bits and d is not DType.BOOL)
        ]
        make = build.cast if name == "cast" else build.bitcast
        return make(x, self.draw(st.sampled_from(to)))

    def _reshape(self, name: str, x: Node) -> Node:
        if name == "transpose":
            return build.transpose(x, tuple(self.draw(st.permutations(range(len(x.shape))))))
        if name == "broadcast":
            return build.broadcast(x, (2, *x.shape))
        return build.reshape(x, (x.type.size,))

    def _along(self, name: str, x: Node) -> Node:
        if not x.shape:
            x = build.broadcast(x, (4,))
        kinds = [k for k in COMBINE if x.dtype is not DType.BOOL or k in ("min", "max")]
        kind, axis = self.draw(st.sampled_from(kinds)), self.draw(st.integers(0, len(x.shape) - 1))
        return build.reduce(kind, x, axis) if name == "reduce" else build.scan(kind, x, axis)

    def statement(self, depth: int) -> None:
        options = [self.expression, self.expression, *self._simple()]
        if depth:
            options += [lambda: self.loop(depth - 1), lambda: self.when(depth - 1)]
        self.draw(st.sampled_from(options))()

    def _simple(self):
        return [
            self.load,
            self.store,
            self.gather,
            self.scatter,
            self.atomic,
            self.alloc,
            self.copy,
        ]

    def _block(self, rank: int):
        strides = [self.index() for _ in range(rank)]
        return strides, [self.index() if self.draw(st.booleans()) else None for _ in range(rank)]

    def _maybe(self, type: Type) -> Node | None:
        return self.pick(type) if self.draw(st.booleans()) else None

    def load(self) -> None:
        memory, shape = self.memory(read=True), self.shape()
        strides, limits = self._block(len(shape))
        other = self._maybe(Type((), memory.dtype))
        self.values.append(self.b.load(memory, self.index(), shape, strides, limits, other))

    def store(self) -> None:
        memory = self.memory()
        value = self.pick(Type(self.shape(), memory.dtype))
        self.b.store(memory, self.index(), value, *self._block(len(value.shape)))

    def _indices(self) -> tuple[Node, Node | None]:
        shape, dtype = self.shape(), self.draw(st.sampled_from([I64, DType.I32]))
        return self.pick(Type(shape, dtype)), self._maybe(Type(shape, DType.BOOL))

    def gather(self) -> None:
        memory, (indices, mask) = self.memory(read=True), self._indices()
        other = self._maybe(Type((), memory.dtype))
        self.values.append(self.b.gather(memory, indices, mask, other))

    def scatter(self) -> None:
        memory, (indices, mask) = self.memory(), self._indices()
        self.b.scatter(memory, indices, self.pick(Type(indices.shape, memory.dtype)), mask)

    def atomic(self) -> None:
        memory, (indices, mask) = self.memory(read=True), self._indices()
        kind = self.draw(st.sampled_from(["add", "min", "max", "exchange"]))
        if memory.dtype is not DType.BOOL:
            value = self.pick(Type(indices.shape, memory.dtype))
            self.b.atomic(kind, memory, indices, value, mask)

    def alloc(self) -> None:
        self.scratch += 1
        size = self.draw(st.integers(1, 64))
        self.memories.append(self.b.alloc(f"s{self.scratch}", self.draw(any_dtype), size))

    def copy(self) -> None:
        source, shape, channel = self.memory(read=True), self.shape(), self.draw(st.integers(0, 2))
        target = self.draw(st.sampled_from([m for m in self.memories if m.dtype is source.dtype]))
        a, b = (self.b.access(m, self.index(), *self._block(len(shape))) for m in (target, source))
        self.b.copy(a, b, shape, channel)
        self.b.barrier()
        self.b.wait(channel)

    def _inside(self, depth: int) -> None:
        for _ in range(self.draw(st.integers(0, 3))):
            self.statement(depth)

    def loop(self, depth: int) -> None:
        init = [self.tile() for _ in range(self.draw(st.integers(0, 2)))]
        outer = list(self.values), list(self.memories)

        def body(i: Node, *carried: Node) -> list[Node]:
            self.values += [i, *carried]
            self._inside(depth)
            return [self.pick(v.type) for v in init]

        results = self.b.loop(self.index(), self.index(), self.draw(st.integers(1, 9)), body, init)
        self.values, self.memories = outer
        self.values += results

    def when(self, depth: int) -> None:
        condition, outer = self.pick(Type((), DType.BOOL)), (list(self.values), list(self.memories))
        with self.b.when(condition):
            self._inside(depth)
        self.values, self.memories = outer


LEAVES = frozenset({"const", "var", "scalar", "program_id", "num_programs"})
any_dtype = st.sampled_from(list(DType))


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    """Kernels with nested blocks, every statement and every operation."""
    growth = _Growth(draw)
    for _ in range(draw(st.integers(1, 12))):
        growth.statement(2)
    growth.store()
    return growth.b.kernel()


def variable(type: Type, id: int) -> Node:
    """A variable, made by hand."""
    return node("var", type, id=id)
