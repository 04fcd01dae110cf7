"""Simplification keeps every graph's meaning, does its rewrites, and leaves alone what it must."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from hal.core.dtypes import DType
from hal.tile.node import Type, toposort
from hal.tile.numeric import NUMPY, bounds
from stack import ops as g
from stack.ir.interpret import interpret
from stack.ir.simplify import simplify
from stack.ir.simplify_arithmetic import keeps_values
from stack.ir.verify import verify
from tests.ir.graphs import graphs


def f32(*shape, slot=0):
    return g.input(slot, Type(shape, DType.F32))


def i32(*shape, slot=0):
    return g.input(slot, Type(shape, DType.I32))


def like(x, value):
    return g.full_like(x, value)


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(graphs())
def test_simplified_graphs_mean_the_same(graph):
    outputs, inputs = graph
    simple = simplify(outputs)
    verify(simple)
    before, after = interpret(outputs, inputs), interpret(simple, inputs)
    for n, a, b in zip(outputs, before, after, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=repr(n))


@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(graphs())
def test_simplification_is_idempotent_and_never_adds_work(graph):
    simple = simplify(graph[0])
    assert simplify(simple) == simple
    assert len(list(toposort(simple))) <= 2 * len(list(toposort(graph[0])))


BF16, F32 = DType.BF16, DType.F32
X, Y, I, J = f32(2, 3), f32(2, 3, slot=1), i32(2, 3), i32(2, 3, slot=1)
COLUMN = f32(2, 1)
MASK = g.lt(X, Y)

REWRITES = {
    "x * 1": (g.mul(X, like(X, 1)), X),
    "1 * x": (g.mul(like(X, 1), X), X),
    "x / 1": (g.div(X, like(X, 1)), X),
    "x + -0.0": (g.add(X, like(X, -0.0)), X),
    "x - 0.0": (g.sub(X, like(X, 0.0)), X),
    "exp + 0.0": (g.add(g.exp(X), like(X, 0.0)), g.exp(X)),
    "i + 0": (g.add(I, like(I, 0)), I),
    "i * 0": (g.mul(I, like(I, 0)), like(I, 0)),
    "i - i": (g.sub(I, I), like(I, 0)),
    "i // 1": (g.floordiv(I, like(I, 1)), I),
    "i % 1": (g.mod(I, like(I, 1)), like(I, 0)),
    "x + -y": (g.add(X, g.neg(Y)), g.sub(X, Y)),
    "x - -y": (g.sub(X, g.neg(Y)), g.add(X, Y)),
    "x * -1": (g.mul(X, like(X, -1)), g.neg(X)),
    "--x": (g.neg(g.neg(X)), X),
    "||x||": (g.abs(g.abs(X)), g.abs(X)),
    "|-x|": (g.abs(g.neg(X)), g.abs(X)),
    "x / 4": (g.div(X, like(X, 4)), g.mul(X, like(X, 0.25))),
    "x ** 2": (g.pow(X, like(X, 2)), g.mul(X, X)),
    "x ** 0": (g.pow(X, like(X, 0)), like(X, 1)),
    "x ** -1": (g.pow(X, like(X, -1)), g.recip(X)),
    "max(x, x)": (g.maximum(X, X), X),
    "i == i": (g.eq(I, I), like(MASK, True)),
    "x < x": (g.lt(X, X), like(MASK, False)),
    "i & -1": (g.and_(I, like(I, -1)), I),
    "i | 0": (g.or_(I, like(I, 0)), I),
    "i ^ i": (g.xor(I, I), like(I, 0)),
    "i << 0": (g.shl(I, like(I, 0)), I),
    "not not m": (g.not_(g.not_(MASK)), MASK),
    "where true": (g.where(like(MASK, True), X, Y), X),
    "where false": (g.where(like(MASK, False), X, Y), Y),
    "where same": (g.where(MASK, X, X), X),
    "where not": (g.where(g.not_(MASK), X, Y), g.where(MASK, Y, X)),
    "where where": (g.where(MASK, g.where(MASK, X, Y), Y), g.where(MASK, X, Y)),
    "where m true false": (g.where(MASK, like(MASK, True), like(MASK, False)), MASK),
    "fold": (g.add(g.const(2, DType.F32), g.const(0.5, DType.F32)), g.const(2.5, DType.F32)),
    "fold compare": (g.lt(like(X, 1), like(X, 2)), like(MASK, True)),
    "fold cast": (g.cast(like(X, 2.75), DType.I32), like(I, 2)),
    "fold i8 wrap": (g.add(g.const(127, DType.I8), g.const(1, DType.I8)), g.const(-128, DType.I8)),
    "cast there and back": (g.cast(g.cast(X, DType.F64), DType.F32), X),
    "cast back behind views": (
        g.cast(
            g.transpose(g.reshape(g.cast(g.cast(X, DType.BF16), DType.F32), (3, 2))), DType.BF16
        ),
        g.transpose(g.reshape(g.cast(X, DType.BF16), (3, 2))),
    ),
    "cast bool chain": (
        g.cast(g.cast(MASK, DType.F32), DType.I32),
        g.cast(MASK, DType.I32),
    ),
    "cast narrow ints": (g.cast(g.cast(I, DType.I16), DType.U8), g.cast(I, DType.U8)),
    "bitcast chain": (g.bitcast(g.bitcast(X, DType.I32), DType.F32), X),
    "reshape chain": (g.reshape(g.reshape(X, (6,)), (3, 2)), g.reshape(X, (3, 2))),
    "reshape back": (g.reshape(g.reshape(X, (6,)), (2, 3)), X),
    "reshape full": (g.reshape(like(X, 2), (6,)), g.full((6,), 2, DType.F32)),
    "expand chain": (g.expand(g.expand(f32(1, 1), (2, 1)), (2, 3)), g.expand(f32(1, 1), (2, 3))),
    "permute back": (g.transpose(g.transpose(X)), X),
    "permute of ones": (g.permute(COLUMN, (1, 0)), g.reshape(COLUMN, (1, 2))),
    "permute full": (g.transpose(like(X, 2)), g.full((3, 2), 2, DType.F32)),
    "flip back": (g.flip(g.flip(X, 0), 0), X),
    "flip two": (g.flip(g.flip(X, 0), 1), g.flip(X, (0, 1))),
    "flip of one": (g.flip(COLUMN, (0, 1)), g.flip(COLUMN, 0)),
    "slice chain": (
        g.slice(g.slice(f32(9), (1,), (9,), (2,)), (1,), (4,), (2,)),
        g.slice(f32(9), (3,), (8,), (4,)),
    ),
    "slice of pad": (g.slice(g.pad(X, (1, 1), (1, 1)), (1, 2), (3, 4)), g.slice(X, (0, 1), (2, 3))),
    "slice of concat": (g.slice(g.concat([X, Y], 0), (2, 0), (4, 3)), Y),
    "slice of expand": (
        g.slice(g.expand(COLUMN, (2, 3)), (0, 1), (2, 3)),
        g.expand(COLUMN, (2, 2)),
    ),
    "pad chain": (g.pad(g.pad(X, (1, 0), (0, 0)), (0, 1), (0, 0)), g.pad(X, (1, 1), (0, 0))),
    "pad full": (g.pad(like(X, 2), (1, 0), (0, 0), 2), g.full((3, 3), 2, DType.F32)),
    "concat of slices": (g.concat([g.slice_axis(X, 1, 0, 1), g.slice_axis(X, 1, 1, 3)], 1), X),
    "concat of concats": (g.concat([g.concat([X, Y], 0), X], 0), g.concat([X, Y, X], 0)),
    "concat with nothing": (g.concat([X, f32(0, 3, slot=5)], 0), X),
    "reduce of one": (g.reduce("sum", COLUMN, 1), COLUMN),
    "reduce some of one": (g.reduce("max", COLUMN, (0, 1)), g.reduce("max", COLUMN, 0)),
    "sum of sums": (g.reduce("sum", g.reduce("sum", X, 0), 1), g.reduce("sum", X)),
    "sum of padding": (g.reduce("sum", g.pad(X, (1, 0), (1, 0)), 0), g.reduce("sum", X, 0)),
    "sum inside padding": (
        g.reduce("sum", g.pad(X, (1, 0), (1, 0)), 1),
        g.pad(g.reduce("sum", X, 1), (1, 0), (1, 0)),
    ),
    "sum of repeated": (
        g.reduce("sum", g.expand(COLUMN, (2, 3)), 1),
        g.mul(COLUMN, like(COLUMN, 3)),
    ),
    "max of repeated": (g.reduce("max", g.expand(COLUMN, (2, 3)), 1), COLUMN),
    "sum of constant": (g.reduce("sum", like(X, 2)), g.full((1, 1), 12, DType.F32)),
    "scan of one": (g.scan("sum", COLUMN, 1), COLUMN),
    "argmax of one": (g.argmax(COLUMN, 1), g.full((2, 1), 0, DType.I64)),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrite(name):
    before, after = REWRITES[name]
    assert simplify([before]) == (after,)


HALF = g.input(0, Type((2, 3), DType.BF16))
UNTOUCHED = {
    "x + 0.0 turns -0.0 into 0.0": g.add(X, like(X, 0.0)),
    "x - -0.0 does too": g.sub(X, like(X, -0.0)),
    "x * 0.0 may be NaN": g.mul(X, like(X, 0.0)),
    "x - x may be NaN": g.sub(X, X),
    "x == x is false for NaN": g.eq(X, X),
    "x / 3 rounds otherwise than x * (1/3)": g.div(X, like(X, 3)),
    "x / 0": g.div(X, like(X, 0)),
    "x ** 0.5 differs from sqrt at -inf": g.pow(X, like(X, 0.5)),
    "a cast to bf16 rounds": g.cast(g.cast(X, DType.BF16), DType.F32),
    "a float saturates, an int wraps": g.cast(g.cast(I, DType.F64), DType.I8),
    "i64 does not fit f32": g.cast(g.cast(g.cast(X, DType.I64), DType.F32), DType.I64),
    "a bf16 sum rounds": g.reduce("sum", g.reduce("sum", HALF, 0), 1),
    "bf16 cannot count to 257": g.reduce(
        "sum", g.expand(g.input(0, Type((1,), DType.BF16)), (257,)), 0
    ),
    "padding of another value": g.pad(g.pad(X, (1, 0), (0, 0), 1), (0, 1), (0, 0)),
    "a slice with padding in it": g.slice(g.pad(X, (1, 1), (1, 1)), (0, 0), (3, 3)),
    "a slice over two pieces": g.slice(g.concat([X, Y], 0), (1, 0), (3, 3)),
    "contiguous is a wish": g.contiguous(like(X, 1)),
    "products of repeated values": g.reduce("prod", g.expand(COLUMN, (2, 3)), 1),
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_what_would_change_the_meaning_stays(name):
    assert simplify([UNTOUCHED[name]]) == (UNTOUCHED[name],)


def probes(dtype):
    """The values of a type that fit another one last: the ends, a full mantissa, a fraction."""
    if dtype.is_float:
        info = ml_dtypes.finfo(NUMPY[dtype])
        return [float(info.max), 1 + float(info.eps), 0.5]
    return list(bounds(dtype))


@pytest.mark.parametrize("source", DType, ids=repr)
def test_keeps_values_is_true_of_exactly_the_casts_that_lose_nothing(source):
    values = np.array(probes(source), NUMPY[source])
    x = g.input(0, Type(values.shape, source))
    for into in DType:
        (result,) = interpret([g.cast(x, into)], {x: values})
        kept = [float(v) if into.is_float else int(v) for v in result.tolist()]
        assert keeps_values(source, into) == (kept == probes(source)), into
