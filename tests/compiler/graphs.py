"""Random graphs of every operation, in requests of every kind."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.ops import OPS
from tests.compiler.growing import DTYPES, SIZES, SMOOTH, Growing


def unary(d: Growing) -> Node:
    op = d.choice(("neg", "abs", "not", "floor", "ceil", "round"))
    rounds = op in ("floor", "ceil", "round")
    return OPS[op](d.pick(exact=rounds, op=op))


def rough(d: Growing) -> Node:
    op = d.choice((*SMOOTH, "div", "pow"))
    x = d.pick(op=op)
    if op in ("div", "pow"):
        below = g.add(g.abs(d.peer(x)), g.full_like(x, 1))
        return g.div(x, below) if op == "div" else g.pow(below, g.full_like(x, -1))
    if op in ("log", "sqrt", "rsqrt", "recip"):
        x = g.add(g.abs(x), g.full_like(x, 1))
    return OPS[op](g.minimum(x, g.full_like(x, 2)) if op == "exp" else x)


def binary(d: Growing) -> Node:
    op = d.choice(("add", "add", "sub", "mul", "mul", "min", "max", "and", "or", "xor"))
    x = d.pick(op=op)
    return OPS[op](*((x, d.peer(x)) if d.coin() else (d.peer(x), x)))


def division(d: Growing) -> Node:
    op = d.choice(("floordiv", "mod"))
    x = d.pick(exact=True, op=op)
    return OPS[op](x, g.maximum(d.peer(x, exact=True), g.full_like(x, 1)))


def shift(d: Growing) -> Node:
    x = d.pick(op="shl")
    return OPS[d.choice(("shl", "shr"))](x, g.full_like(x, d.number(0, 3)))


def where(d: Growing) -> Node:
    x = d.pick(exact=True, op="lt")
    test = OPS[d.choice(("eq", "ne", "lt", "le"))](x, d.peer(x, exact=True))
    y = d.fitted(d.pick(), x.type.with_dtype(d.choice(DTYPES)))
    return d.choice((test, g.where(test, y, d.peer(y))))


def cast(d: Growing) -> Node:
    return d.cast(d.pick(), d.choice(DTYPES))


def bitcast(d: Growing) -> Node:
    x = d.pick(exact=True, op="lt")
    dtype = next(i for i in DType if i.kind == "i" and i.bits == x.dtype.bits)
    bits = g.bitcast(g.where(g.eq(x, g.full_like(x, 0)), g.full_like(x, 0), x), dtype)
    return d.choice((bits, g.bitcast(bits, x.dtype)))


def leaf(d: Growing) -> Node:
    shape = d.shape()
    dtype = d.choice(sorted(OPS["arange"].dtypes, key=str))
    size = min(prod(shape), 60)
    return d.fitted(g.arange(size, dtype), Type(shape, dtype))


def philox(d: Growing) -> Node:
    x = d.fitted(d.pick(exact=True), Type(d.shape(), DType.U64))
    return g.mod(g.philox(x, d.peer(x, exact=True)), g.full(x.shape, 7, DType.U32))


def reshape(d: Growing) -> Node:
    """Neighbouring axes made one, and axes cut in two."""
    x = d.pick()
    shape = [n for n in x.shape if n != 1]
    if len(shape) > 1 and d.coin():
        at = d.number(0, len(shape) - 2)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    for at in range(len(shape) - 1, -1, -1):
        parts = [k for k in (2, 3, 4, 5) if shape[at] and shape[at] % k == 0]
        if parts and d.coin():
            part = d.choice(parts)
            shape[at : at + 1] = [part, shape[at] // part]
    return g.reshape(x, [1, *shape] if d.coin(4) else shape)


def permute(d: Growing) -> Node:
    x = d.pick()
    return g.permute(x, sorted(range(len(x.shape)), key=lambda _: d.number(0, 9)))


def expand(d: Growing) -> Node:
    x = d.pick()
    return g.expand(x, tuple(d.choice(SIZES[:8]) if n == 1 else n for n in x.shape))


def slice_(d: Growing) -> Node:
    x = d.pick()
    start = [d.number(0, n // 2) for n in x.shape]
    stop = [n if d.coin() else d.number(lo, n) for lo, n in zip(start, x.shape, strict=True)]
    return g.slice(x, start, stop, [d.choice((1, 1, 2, 3)) for _ in x.shape])


def flip(d: Growing) -> Node:
    x = d.pick()
    return g.flip(x, [i for i in range(len(x.shape)) if d.coin()])


def pad(d: Growing) -> Node:
    x = d.pick()
    lo, hi = ([d.choice((0, 0, 1, 2)) for _ in x.shape] for _ in range(2))
    return g.pad(x, lo, hi, d.choice((0, 0, 1)))


def split_gradient(d: Growing) -> Node:
    """Zero-padded pieces of an axis, added up."""
    x = d.pick(op="add")
    if not x.shape:
        return x
    axis, count = d.number(0, len(x.shape) - 1), d.number(2, 3)
    parts = [x, *(d.peer(x) for _ in range(count - 1))]
    unit = [x.shape[axis] if i == axis else 0 for i in range(len(x.shape))]
    padded = [
        g.pad(p, [u * i for u in unit], [u * (count - 1 - i) for u in unit])
        for i, p in enumerate(parts)
    ]
    total = padded[0]
    for p in padded[1:]:
        total = g.add(total, p)
    return total


def window(d: Growing) -> Node:
    x = d.pick()
    axes = [a for a, n in enumerate(x.shape) if n > 1]
    if not axes:
        return x
    axis = d.choice(axes)
    size = d.number(1, min(3, x.shape[axis]))
    dilation = d.number(1, max(1, (x.shape[axis] - 1) // max(1, size - 1)))
    if (size - 1) * dilation >= x.shape[axis]:
        dilation = 1
    return g.window(x, axis, size, d.number(1, 2), dilation)


def concat(d: Growing) -> Node:
    x = d.pick()
    if not x.shape:
        return x
    axis = d.number(0, len(x.shape) - 1)
    parts = [x]
    for _ in range(d.number(1, 3)):
        size = x.shape[axis] if d.coin() else d.choice((0, 1, 2, 3))
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        parts.append(d.fitted(d.pick(), Type(shape, x.dtype)))
    return g.concat(parts[::-1] if d.coin() else parts, axis)


def contiguous(d: Growing) -> Node:
    return g.contiguous(d.pick())


def reduce(d: Growing) -> Node:
    kind = d.choice(("sum", "sum", "max", "min", "prod"))
    x = d.pick(op="add" if kind in ("sum", "prod") else "eq")
    if kind == "prod" and x.type.size:
        x = g.minimum(x, g.full_like(x, 1))
        x = x if x.dtype.kind == "u" else g.maximum(x, g.full_like(x, -1))
    if kind in ("min", "max") and 0 in x.shape:
        return x
    return g.reduce(kind, x, tuple(i for i in range(len(x.shape)) if d.coin()))


def normal(d: Growing) -> Node:
    """Something of every element and of reductions of its row."""
    x = d.pick(op="add")
    if 0 in x.shape:
        return x
    x = d.add(g.add(x, d.peer(x))) if d.coin() else x
    axes = tuple(i for i in range(len(x.shape)) if d.coin())
    for _ in range(d.number(1, 2)):
        row = g.reduce(d.choice(("sum", "max", "min")), x, axes)
        x = d.add(g.sub(x, g.expand(d.add(row), x.shape)))
    return x


def heads(d: Growing) -> Node:
    """A product of views that split and permute axes."""
    batch, time, count, width = (d.choice((1, 2, 2, 3)) for _ in range(4))
    shape = (batch, time, count, width)
    x = d.fitted(d.pick(), Type(shape, d.choice((DType.F32, DType.F32, DType.BF16))))
    y = d.fitted(d.pick(), x.type)
    scores = d.add(g.matmul(g.permute(x, (0, 2, 1, 3)), g.permute(y, (0, 2, 3, 1))))
    if d.coin():
        return scores
    mixed = d.add(g.matmul(scores, g.permute(y, (0, 2, 1, 3))))
    return g.reshape(g.permute(mixed, (0, 2, 1, 3)), (batch * time, count * width))


def position(d: Growing) -> Node:
    x = d.pick(exact=True, op="lt")
    if 0 in x.shape or not x.shape:
        return x
    return d.choice((g.argmax, g.argmin))(x, d.number(0, len(x.shape) - 1))


def scan(d: Growing) -> Node:
    x = d.pick(op="add")
    if not x.shape:
        return x
    return g.scan(d.choice(("sum", "max", "min")), x, d.number(0, len(x.shape) - 1))


def matmul(d: Growing) -> Node:
    x = d.pick(op="matmul")
    while len(x.shape) < 2:
        x = g.reshape(x, (1, *x.shape) if d.coin() else (*x.shape, 1))
    shape = (*x.shape[:-2], x.shape[-1], d.choice(SIZES))
    y = d.fitted(d.pick(), Type(shape, x.dtype))
    if d.coin():
        y = g.transpose(d.fitted(d.pick(), Type((*shape[:-2], shape[-1], shape[-2]), x.dtype)))
    wide = DType.F32 if x.dtype in (DType.F16, DType.BF16) and d.coin() else None
    return g.matmul(x, y, wide)


def gather(d: Growing) -> Node:
    x = d.pick()
    if not x.shape:
        return x
    axis = d.number(0, len(x.shape) - 1)
    where_to = d.index(tuple(d.choice(SIZES[:6]) for _ in range(d.number(0, 2))), x.shape[axis])
    return g.gather(x, where_to, axis)


def scatter_add(d: Growing) -> Node:
    x = d.pick(op="scatter")
    if not x.shape or x.dtype is DType.BOOL:  # of which there is no sum
        return x
    axis = d.number(0, len(x.shape) - 1)
    shape = tuple(d.choice(SIZES[:6]) for _ in range(d.number(0, 2)))
    into = g.full_like(x, 0) if d.coin() else x
    result = Type(x.shape[:axis] + shape + x.shape[axis + 1 :], x.dtype)
    return g.scatter("sum", into, d.index(shape, x.shape[axis]), d.fitted(d.pick(), result), axis)


def like(d: Growing, type: Type) -> Node:
    """Something of a type, perhaps in pieces."""
    if not type.shape or d.coin():
        return d.fitted(d.pick(), type)
    axis = d.number(0, len(type.shape) - 1)
    cut = d.number(0, type.shape[axis])
    sizes = (cut, type.shape[axis] - cut)
    shapes = [(*type.shape[:axis], n, *type.shape[axis + 1 :]) for n in sizes]
    return g.concat([d.fitted(d.pick(), type.with_shape(shape)) for shape in shapes], axis)


STEPS: tuple[Callable[[Growing], Node], ...] = (
    *(unary, rough, binary, binary, binary, division, shift, where, cast, bitcast, leaf, philox),
    *(reshape, permute, permute, expand, slice_, flip, pad, window, split_gradient, concat, concat),
    *(
        contiguous,
        reduce,
        reduce,
        normal,
        normal,
        position,
        scan,
        matmul,
        matmul,
        gather,
        scatter_add,
    ),
)


@st.composite
def requests(draw: Callable[[Any], Any], steps: int = 10) -> tuple[GraphRequest, Growing]:
    """A request, and the graph with the values of its inputs and outputs."""
    d = Growing(draw)
    for _ in range(d.number(1, 3)):
        d.source(d.choice(DTYPES))
    for _ in range(d.number(1, steps)):
        d.add(d.choice(STEPS)(d))
    outputs, updates = [], []
    for i in range(len(d.inputs)):
        if d.coin(3):
            updates.append((len(outputs), i))
            outputs.append(like(d, d.inputs[i].type))
    outputs += [d.nodes[-1], *(d.pick() for _ in range(d.number(0, 3)))]
    if d.coin(3):
        outputs += d.twin(outputs)
    for n in outputs:
        d.value(n)
    return GraphRequest(tuple(outputs), tuple(d.inputs), tuple(updates)), d
