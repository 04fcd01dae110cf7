"""Random cases for every operator: shapes and layouts by hypothesis, values by a seeded generator.

Shapes include scalars, axes of size 0 and 1, and axes longer than a vector register. Operands
arrive through movement operations, so that they are broadcast, strided, reversed and permuted views
of the inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.ops import INDEX, OPS
from stack.ops.operator import OpKind
from stack.ops.rules import KINDS
from tests.ops.values import awkward, smooth


@dataclass
class Maker:
    """Draws the parts of a case. `views` gives operands other layouts than their inputs', `gentle`
    keeps values where derivatives exist."""

    draw: Callable[[Any], Any]
    views: bool = True
    gentle: bool = False
    inputs: dict[Node, np.ndarray] = field(default_factory=dict)

    def __post_init__(self):
        self.rng = np.random.default_rng(self.draw(st.integers(0, 2**32 - 1)))

    def number(self, low, high):
        return self.draw(st.integers(low, high))

    def pick(self, choices):
        return self.draw(st.sampled_from(sorted(choices)))

    def shape(self, least=0, most=4, low=0):
        sizes = st.sampled_from([n for n in (1, 2, 3, 5, 0) if n >= low])
        shape = self.draw(st.lists(sizes, min_size=least, max_size=most))
        if 0 < len(shape) < 3 and self.number(0, 3) == 0:
            shape[-1] = 37
        return tuple(shape)

    def array(self, shape, dtype, special):
        return (awkward if special and not self.gentle else smooth)(self.rng, shape, dtype)

    def given(self, array, dtype):
        """An input of the graph that holds the array."""
        n = g.input(len(self.inputs), Type(array.shape, dtype))
        self.inputs[n] = np.ascontiguousarray(array).reshape(array.shape)
        return n

    def operand(self, shape, dtype, special=False):
        """An operand of that shape."""
        layout = self.pick(LAYOUTS) if self.views and shape else "plain"
        return LAYOUTS[layout](self, shape, dtype, special)

    def within(self, shape, dtype, low, high):
        """An operand with values in a range, without a view."""
        return self.given(smooth(self.rng, shape, dtype, low, high), dtype)


def _plain(m, shape, dtype, special):
    return m.given(m.array(shape, dtype, special), dtype)


def _permuted(m, shape, dtype, special):
    perm = m.draw(st.permutations(range(len(shape))))
    order = [perm.index(i) for i in range(len(shape))]
    return g.permute(_plain(m, tuple(shape[i] for i in order), dtype, special), perm)


def _strided(m, shape, dtype, special):
    step, start = m.number(1, 2), m.number(0, 1)
    grown = (start + shape[0] * step, *shape[1:])
    return g.slice_axis(_plain(m, grown, dtype, special), 0, start, grown[0], step)


def _flipped(m, shape, dtype, special):
    return g.flip(_plain(m, shape, dtype, special), m.number(0, len(shape) - 1))


def _broadcast(m, shape, dtype, special):
    small = tuple(1 if m.number(0, 1) else n for n in shape)
    return g.expand(_plain(m, small, dtype, special), shape)


LAYOUTS = {
    "plain": _plain,
    "permuted": _permuted,
    "strided": _strided,
    "flipped": _flipped,
    "broadcast": _broadcast,
}


def _elementwise(m, op, dtype):
    """Any operator on operands of one shape and type; gentle ones where it is smooth."""
    row, shape = OPS[op], m.shape()
    limits = row.smooth if m.gentle and row.smooth else [None] * row.arity
    return row(
        *(
            m.within(shape, dtype, *limit) if limit else m.operand(shape, dtype, special=True)
            for limit in limits
        )
    )


def _periodic(m, op, dtype):
    return OPS[op](m.operand(m.shape(), dtype))


def _zeta(m, op, dtype):
    return g.zeta(m.number(2, 5), m.within(m.shape(), dtype, 0.6, 4.0))


def _where(m, op, dtype):
    shape = m.shape()
    condition = m.operand(shape, DType.BOOL)
    return g.where(condition, m.operand(shape, dtype, True), m.operand(shape, dtype, True))


def _cast(m, op, dtype):
    into = m.pick([d for d in DType if d is not dtype and (d.is_float or not m.gentle)])
    return g.cast(m.operand(m.shape(), dtype, special=True), into)


def _bitcast(m, op, dtype):
    return g.bitcast(
        m.operand(m.shape(), dtype, special=True),
        m.pick([d for d in OPS[op].dtypes if d.bits == dtype.bits and d is not dtype]),
    )


def _input(m, op, dtype):
    return m.operand(m.shape(), dtype, special=True)


def _const(m, op, dtype):
    value = m.array((), dtype, True)
    return g.broadcast(g.const(value.item() if dtype.is_int else float(value), dtype), m.shape())


def _arange(m, op, dtype):
    return g.arange(m.number(0, 200), dtype)


def _reshape(m, op, dtype):
    shape = m.shape()
    order = m.draw(st.permutations(shape))
    grown = (*order, 1) if m.number(0, 1) else order
    flat = (int(np.prod(shape, dtype=np.int64)),)
    return g.reshape(m.operand(shape, dtype), flat if m.number(0, 1) else grown)


def _permute(m, op, dtype):
    shape = m.shape(1)
    return g.permute(m.operand(shape, dtype), m.draw(st.permutations(range(len(shape)))))


def _expand(m, op, dtype):
    shape = m.shape()
    return g.expand(m.operand(tuple(1 if m.number(0, 1) else n for n in shape), dtype), shape)


def _slice(m, op, dtype):
    x = m.operand(m.shape(1), dtype)
    start = [m.number(0, n) for n in x.shape]
    stop = [m.number(lo, n) for lo, n in zip(start, x.shape, strict=True)]
    return g.slice(x, start, stop, [m.number(1, 3) for _ in x.shape])


def _flip(m, op, dtype):
    x = m.operand(m.shape(1), dtype)
    return g.flip(x, m.draw(st.sets(st.integers(0, len(x.shape) - 1), min_size=1)))


def _pad(m, op, dtype):
    x = m.operand(m.shape(1, 3), dtype)
    lo, hi = ([m.number(0, 2) for _ in x.shape] for _ in range(2))
    return g.pad(x, lo, hi, m.pick((0, 1)))


def _windows(m):
    """The size, stride and dilation of windows, and the least axis that has one."""
    size, stride, dilation = m.number(1, 4), m.number(1, 3), m.number(1, 3)
    return size, stride, dilation, (size - 1) * dilation + 1


def _window(m, op, dtype):
    shape = m.shape(1, 3)
    axis, (size, stride, dilation, span) = m.number(0, len(shape) - 1), _windows(m)
    shape = (*shape[:axis], span + m.number(0, 5), *shape[axis + 1 :])
    return g.window(m.operand(shape, dtype), axis, size, stride, dilation)


def _overlap_add(m, op, dtype):
    shape = m.shape(1, 3)
    axis, (size, stride, dilation, span) = m.number(0, len(shape) - 1), _windows(m)
    length = span + m.number(0, 5)
    pair = ((length - span) // stride + 1, size)
    x = m.operand((*shape[:axis], *pair, *shape[axis + 1 :]), dtype)
    return g.overlap_add(x, axis, length, stride, dilation)


def _concat(m, op, dtype):
    shape = m.shape(1, 3)
    axis = m.number(0, len(shape) - 1)
    parts = [(*shape[:axis], m.number(0, 3), *shape[axis + 1 :]) for _ in range(m.number(1, 3))]
    return g.concat([m.operand(p, dtype) for p in parts], axis)


def _overwrite(m, op, dtype):
    shape = m.shape(1, 3, low=1)
    start = [m.number(0, n - 1) for n in shape]
    part = [m.number(1, n - lo) for n, lo in zip(shape, start, strict=True)]
    return g.overwrite(m.operand(shape, dtype), m.operand(tuple(part), dtype), start)


def _contiguous(m, op, dtype):
    return g.contiguous(m.operand(m.shape(), dtype))


def _reduce(m, op, dtype):
    kind = m.pick(("min", "max") if dtype is DType.BOOL else KINDS)
    extreme = kind in ("min", "max")
    x = m.operand(m.shape(low=int(m.gentle and extreme)), dtype, special=extreme)
    axes = m.draw(st.sets(st.sampled_from(range(len(x.shape))))) if x.shape else ()
    return g.reduce(kind, x, tuple(axes))


def _extreme(m, op, dtype):
    x = m.operand(m.shape(low=int(m.gentle)), dtype, special=True)
    axes = m.draw(st.sets(st.sampled_from(range(len(x.shape))))) if x.shape else ()
    return g.extreme(m.pick(("min", "max")), x, tuple(axes))


def _arg(m, op, dtype):
    x = m.operand(m.shape(1, low=1), dtype, special=True)
    return g.make(op, [x], axis=m.number(0, len(x.shape) - 1))


def _argsort(m, op, dtype):
    shape = m.shape(1, 3, low=1)
    if m.number(0, 3) == 0:
        shape = (*shape[:-1], m.number(60, 200))
    x = m.operand(shape, dtype, special=True)
    return g.argsort(x, m.number(0, len(x.shape) - 1), bool(m.number(0, 1)))


def _scan(m, op, dtype):
    kind = m.pick(KINDS)
    x = m.operand(m.shape(1), dtype, special=kind in ("min", "max"))
    return g.scan(kind, x, m.number(0, len(x.shape) - 1))


def _matmul(m, op, dtype):
    batch, rows, inner, columns = m.shape(0, 2), m.number(0, 4), m.number(0, 9), m.number(0, 4)
    a, b = m.operand((*batch, rows, inner), dtype), m.operand((*batch, inner, columns), dtype)
    return g.matmul(a, b, m.pick([dtype, dtype.computed_in]) if dtype.is_narrow else None)


def _grouped(m, op, dtype):
    rows, depth, width, groups = m.number(0, 40), m.number(0, 9), m.number(0, 4), m.number(0, 4)
    x, other = m.operand((rows, depth), dtype), m.operand((rows, width), dtype)
    found = m.given(m.rng.integers(-1, groups + 1, rows).astype(np.int64), DType.I64)
    group = g.cast(found, m.pick(INDEX))
    if op == "grouped_outer":
        return g.grouped_outer(x, other, group, groups)
    return g.grouped_matmul(x, m.operand((groups, depth, width), dtype), group)


def _indices(m, size, before):
    """Positions, some out of range, behind leading axes."""
    shape = (*before, *m.shape(0, 2))
    found = m.given(m.rng.integers(-2, size + 2, shape).astype(np.int64), DType.I64)
    return g.cast(found, m.pick(INDEX)), shape[len(before) :]


def _gather(m, op, dtype):
    x = m.operand(m.shape(1, 3), dtype)
    axis, batch = m.number(0, len(x.shape) - 1), bool(m.number(0, 1))
    index, _ = _indices(m, x.shape[axis], x.shape[:axis] if batch else ())
    return g.gather(x, index, axis, batch)


def _scatter(m, op, dtype):
    kind = m.pick(("set", "min", "max") if dtype is DType.BOOL else ("set", *KINDS))
    base = m.operand(m.shape(1, 3), dtype)
    axis, batch = m.number(0, len(base.shape) - 1), bool(m.number(0, 1))
    index, shape = _indices(m, base.shape[axis], base.shape[:axis] if batch else ())
    if kind == "set" and m.gentle:  # which of several updates gets a derivative is a choice
        index = g.add(g.mul(index, g.full_like(index, 0)), _apart(index, len(shape)))
    updates = m.operand((*base.shape[:axis], *shape, *base.shape[axis + 1 :]), dtype)
    return g.scatter(kind, base, index, updates, axis, batch)


def _apart(index, own):
    """Different positions."""
    shape = index.shape[len(index.shape) - own :]
    size = int(np.prod(shape, dtype=np.int64))
    return g.broadcast(g.reshape(g.arange(size, index.dtype), shape), index.shape)


def _loop(m, op, dtype):
    """Carries what a condition chooses of the rows, and gives both as they were."""
    shape, steps = m.shape(0, 2), m.number(1, 4)
    condition = m.operand(shape, DType.BOOL)
    c, h, x = (g.input(i, Type(shape, d)) for i, d in enumerate((DType.BOOL, dtype, dtype)))
    body = g.LoopBody((c, h, x), (g.where(c, x, h), g.concat((g.reshape(h, (1, *shape)),) * 2, 0)))
    first, rows = m.operand(shape, dtype, True), m.operand((steps, *shape), dtype, True)
    found, *_ = g.loop(body, steps, [condition], [first], [rows], reverse=bool(m.number(0, 1)))
    while found.op != op:
        (found,) = found.srcs
    return found


CASES: dict[str, Callable[[Maker, str, DType], Node]] = {
    **dict.fromkeys(("sin", "cos"), _periodic),
    **dict.fromkeys(("argmax", "argmin"), _arg),
    "zeta": _zeta,
    "where": _where,
    "cast": _cast,
    "bitcast": _bitcast,
    "input": _input,
    "const": _const,
    "arange": _arange,
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "flip": _flip,
    "pad": _pad,
    "window": _window,
    "overlap_add": _overlap_add,
    "concat": _concat,
    "overwrite": _overwrite,
    "contiguous": _contiguous,
    "reduce": _reduce,
    "extreme": _extreme,
    "argsort": _argsort,
    "scan": _scan,
    "matmul": _matmul,
    **dict.fromkeys(("grouped_matmul", "grouped_outer"), _grouped),
    "gather": _gather,
    "scatter": _scatter,
    "loop": _loop,
}
"""How to draw a case of an operator whose operands are not simply of one shape and type."""


def drawn(m, op, dtype):
    """A case of an operator on an element type."""
    return CASES.get(op, _elementwise)(m, op, dtype)


SAMPLED = [op for op, r in OPS.items() if op in CASES or r.kind is OpKind.ELEMENTWISE]
"""Every operator of which cases are drawn."""

EVERY = [(op, d) for op in SAMPLED for d in sorted(OPS[op].dtypes)]
"""Each of them with every element type that it claims."""


def names(pairs):
    """How operations with their element types are called in the list of tests."""
    return [f"{op}-{dtype.short}" for op, dtype in pairs]
