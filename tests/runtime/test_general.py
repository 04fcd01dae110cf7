"""What is compiled once for many sizes and numbers, beside the interpreter."""

import math
import random
import sys
from collections import Counter

import numpy as np
import pytest

import hal
from hal.core.dtypes import DType
from hal.core.spec import hookimpl
from hal.core.values import OpenOptions
from hal.tile.node import Type
from stack import ops as g
from stack.compiler.program import CompiledGraph, GraphRequest
from stack.compiler.targets.table import MESH
from stack.ir.interpret import interpret
from stack.runtime import engine_of
from stack.runtime.families import Families
from stack.runtime.general import parts
from tests.draw import stream

F32 = DType.F32
EDGES = (2, 3, 7, 16, 17, 33, 64, 65, 130)
"""The smallest, odd ones, multiples of a vector's elements and one more, and several blocks."""


@pytest.fixture(scope="module")
def engine():
    with engine_of(hal.open("cpu:0", ())) as opened:
        yield opened


def leaf(slot, *shape, dtype=F32):
    return g.input(slot, Type(shape, dtype))


def bias(b):
    x, y = leaf(0, b, 40), leaf(1, 40)
    return GraphRequest((g.exp(g.add(x, g.broadcast(y, (b, 40)))),), (x, y))


def layer(b):
    x, w, y = leaf(0, b, 24), leaf(1, 24, 20), leaf(2, 20)
    out = g.add(g.matmul(x, w, F32), g.broadcast(y, (b, 20)))
    return GraphRequest((g.tanh(out),), (x, w, y))


def weight(b):
    x, d = leaf(0, b, 24), leaf(1, b, 20)
    return GraphRequest((g.matmul(g.permute(x, (1, 0)), d, F32), g.reduce("sum", d, (0,))), (x, d))


def wide(n):
    x, w = leaf(0, 9, 24), leaf(1, 24, n)
    return GraphRequest((g.matmul(x, w, F32),), (x, w))


def softmax(t):
    x = leaf(0, 5, t)
    most = g.broadcast(g.reshape(g.reduce("max", x, (1,)), (5, 1)), (5, t))
    e = g.exp(g.sub(x, most))
    total = g.broadcast(g.reshape(g.reduce("sum", e, (1,)), (5, 1)), (5, t))
    return GraphRequest((g.div(e, total),), (x,))


def scores(t):
    q, k = leaf(0, 2, t, 3, 8), leaf(1, 2, t, 3, 8)
    q, k = (g.permute(n, (0, 2, 1, 3)) for n in (q, k))
    s = g.matmul(q, g.permute(k, (0, 1, 3, 2)), F32)
    rows = g.broadcast(g.reshape(g.arange(t), (t, 1)), (t, t))
    columns = g.broadcast(g.reshape(g.arange(t), (1, t)), (t, t))
    kept = g.broadcast(g.reshape(g.le(columns, rows), (1, 1, t, t)), s.shape)
    masked = g.where(kept, s, g.full_like(s, -1))
    return GraphRequest((masked,), (leaf(0, 2, t, 3, 8), leaf(1, 2, t, 3, 8)))


def grown(t):
    cache, new = leaf(0, 3, t, 8), leaf(1, 3, 1, 8)
    return GraphRequest((g.concat((cache, new), 1),), (cache, new))


def heads(t):
    """Of attention's gradient: that the rows are batch times time is known by a condition alone."""
    x, y, z = leaf(0, 3, 2, t, t), leaf(1, 3, 2, t, 4), leaf(2, 3 * t, 8)
    part = g.reshape(g.permute(g.matmul(x, y, F32), (0, 2, 1, 3)), (3 * t, 8))
    return GraphRequest((g.concat((part, z), 1),), (x, y, z))


def cut(i):
    x = leaf(0, 300, 4)
    return GraphRequest((g.neg(g.slice(x, (i, 1), (i + 16, 3))),), (x,))


def edged(n):
    x = leaf(0, 4, 10)
    return GraphRequest((g.pad(x, (0, n), (n, 1), 7.0),), (x,))


def total(n):
    x = leaf(0, n, 6)
    return GraphRequest((g.reduce("sum", x, (0, 1)), g.reduce("max", x, (0,))), (x,))


def prefix(n):
    x = leaf(0, 3, n)
    return GraphRequest((g.scan("sum", x, 1),), (x,))


def picked(n):
    x, at = leaf(0, 30, 6), leaf(1, n, dtype=DType.I64)
    return GraphRequest((g.gather(x, at, 0),), (x, at))


def scattered(n):
    x, at, d = leaf(0, 30, 6), leaf(1, n, dtype=DType.I64), leaf(2, n, 6)
    return GraphRequest((g.scatter("sum", x, at, d, 0),), (x, at, d))


BUILDERS = (
    *(bias, layer, weight, wide, softmax, scores, grown, heads, cut, edged, total, prefix, picked),
    scattered,
)


def given(type, rng):
    if type.dtype is DType.I64:
        return rng.integers(0, 30, type.shape)
    return rng.standard_normal(type.shape).astype(np.float32)


def check(engine, request, rng):
    """Run a request and compare its values with the interpreter's."""
    values = [given(n.type, rng) for n in request.inputs]
    wanted = interpret(request.outputs, dict(zip(request.inputs, values, strict=True)))
    arrays = [engine.put(v, n.dtype) for v, n in zip(values, request.inputs, strict=True)]
    for array, want in zip(engine.plan(request).run(arrays), wanted, strict=True):
        np.testing.assert_allclose(engine.get(array), want, rtol=1e-4, atol=1e-4)


def test_pieces_have_a_place_that_sizes_tell_by_a_condition_alone():
    """(b, t, h, d) as rows of h * d, which is a size of its own."""

    def flat(b, h, t):
        x, y, z = leaf(0, b, h, t, t), leaf(1, b, h, t, 4), leaf(2, b * t, h * 4)
        part = g.permute(g.matmul(x, y, F32), (0, 2, 1, 3))
        return GraphRequest((g.concat((g.reshape(part, z.shape), z), 1),), (x, y, z))

    rng = np.random.default_rng(0)
    with engine_of(hal.open("cpu:0", ())) as engine:
        for sizes in ((4, 6, 28), (2, 2, 14), (3, 5, 21)):
            check(engine, flat(*sizes), rng)


def test_windows_that_are_added_up_are_data_by_their_number_alone():
    def added(windows, taps):
        x = leaf(0, windows, taps)
        return parts(GraphRequest((g.overlap_add(x, 0, windows + taps - 1),), (x,))).skeleton

    assert added(8, 3) == added(9, 3)
    assert added(8, 3) != added(8, 5)


def test_axes_that_come_as_one_are_told_by_their_factors():
    """As those of a flat input are, whose own size tells none of them. A loop that 30 steps could
    be split into is none of the others'."""

    def flat(n):
        x = leaf(0, 2 * n * 48)
        scaled = g.mul(g.reshape(x, (2, n, 3, 16)), g.full((2, n, 3, 16), 2.0, F32))
        parts = g.add(g.permute(scaled, (2, 1, 0, 3)), g.full((3, n, 2, 16), 1.0, F32))
        rows = g.reshape(g.permute(parts, (1, 2, 0, 3)), (2 * n, 48))
        across = g.contiguous(g.transpose(rows))
        return GraphRequest((parts, rows, across, g.reduce("sum", rows, (0,))), (x,))

    rng = np.random.default_rng(0)
    with engine_of(hal.open("cpu:0", ())) as engine:
        for n in (9, 30, 7, 20):
            check(engine, flat(n), rng)
        assert engine.families.compiled == {"specialised": 1, "general": 1}


@pytest.mark.slow
@pytest.mark.turns
def test_one_graph_serves_all_sizes(engine):
    seed = stream("general").randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    rng = np.random.default_rng(seed)
    for build in random.Random(seed).sample(BUILDERS, 6):
        for size in (5, 12):
            check(engine, build(size), rng)
        compiled = engine.families.compiled.copy()
        loaded = engine.programs.count
        for size in (*EDGES, int(rng.integers(130, 280))):
            check(engine, build(size), rng)
        assert engine.families.compiled == compiled, engine.families.notes[-1]
        assert engine.programs.count == loaded


class Prepared:
    """A wrapper that counts what a device prepares: launches that it binds, graphs that it
    records."""

    def __init__(self):
        self.count = Counter()

    def __call__(self, device):
        return self

    @hookimpl(wrapper=True)
    def bind(self, program, args):
        self.count["bound"] += 1
        return (yield)

    @hookimpl(wrapper=True)
    def record(self, commands):
        self.count["recorded"] += 1
        return (yield)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("build", [softmax, grown])
def test_a_further_size_binds_nothing(build):
    prepared, rng = Prepared(), np.random.default_rng(0)
    with engine_of(hal.open("cpu:0", (prepared, "races"))) as engine:
        for size in (5, 12, 250, 249):  # up to the largest, so that memory is laid out for it
            check(engine, build(size), rng)
        before = prepared.count["bound"]
        for size in (248, 3, 130, 131):
            check(engine, build(size), rng)
        assert prepared.count["bound"] == before
        before = prepared.count["recorded"]
        for size in (131, 3):
            check(engine, build(size), rng)
        assert prepared.count["recorded"] == before, "these sizes were seen"


def taken(at):
    return GraphRequest((g.exp(g.slice(leaf(0, 50), (at,), (at + 4,))),), (leaf(0, 50),))


def test_plans_share_what_their_sizes_do_not_change(engine):
    plans = [engine.plan(taken(at)) for at in (5, 12, 20, 31)]
    assert plans[2] is not plans[3]
    assert plans[2]._outline is plans[3]._outline
    for at in (5, 12, 20, 31):
        check(engine, taken(at), np.random.default_rng(at))


def scaled(*numbers):
    x = leaf(0, 50)
    y = x
    for n in numbers:
        y = g.mul(g.add(y, g.full_like(x, n)), g.full_like(x, n))
    return GraphRequest((y,), (x,))


def test_no_number_is_compiled_twice(engine):
    rng = np.random.default_rng(1)
    for number in (0.5, 0.25):
        check(engine, scaled(number, 3.0), rng)
    compiled = engine.families.compiled.copy()
    for number in (0.1, 1.0, 0.0, -0.0, 2.0, math.inf, 1e-45, *rng.standard_normal(20).tolist()):
        check(engine, scaled(float(np.float32(number)), 3.0), rng)
    assert engine.families.compiled == compiled
    (x,) = [np.linspace(-1, 1, 50, dtype=np.float32)]
    (got,) = engine.plan(scaled(math.nan, 3.0)).run([engine.put(x, F32)])
    assert np.isnan(engine.get(got)).all()
    assert engine.families.compiled == compiled


def test_numbers_are_rounded_as_constants_are(engine):
    x = np.linspace(-3, 3, 50, dtype=np.float32)
    with engine_of(hal.open("cpu:0", ())) as fresh:
        for number in (0.3, 0.7, 1 / 3):
            request = scaled(float(np.float32(number)))
            (a,) = engine.plan(request).run([engine.put(x, F32)])
            (b,) = fresh.plan(request).run([fresh.put(x, F32)])
            assert engine.get(a).tobytes() == fresh.get(b).tobytes()


def test_what_was_compiled_is_told(engine):
    def odd(n):
        x = leaf(0, n, 11)
        return GraphRequest((g.recip(x),), (x,))

    rng = np.random.default_rng(2)
    for size in (5, 9, 20):
        check(engine, odd(size), rng)
    first, second = list(engine.families.notes)[-2:]
    assert str(first).startswith("specialised recip: a graph that was not seen before")
    assert str(second).startswith("general recip: sizes 9 for 5")


@pytest.mark.slow
@pytest.mark.turns
def test_other_targets_have_sizes_as_data_too():
    """Groups of lanes or single ones, and a format that is no LLVM: two graphs of all in a run."""
    pytest.importorskip("pyopencl")
    seed = stream("general").randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    rng = np.random.default_rng(seed)
    options = OpenOptions(settings={"lanes": stream("lanes").choice(("64", "1"))})
    with engine_of(hal.open("opencl:0", (), options)) as opened:
        for build in random.Random(seed).sample(BUILDERS[:-1], 2):
            for size in (5, 12):
                check(opened, build(size), rng)
            compiled = opened.families.compiled.copy()
            for size in EDGES:
                check(opened, build(size), rng)
            assert opened.families.compiled == compiled, opened.families.notes[-1]


def test_where_sizes_are_no_data_each_is_compiled_and_counted(engine):
    families = Families(
        engine.device.info,
        lambda request: CompiledGraph((), (), (), (), ()),
        lambda info: MESH.templates.sizes,
    )
    for size in (4, 5, 6):
        assert families.instance(bias(size)).source is None
    assert families.compiled == {"specialised": 3, "fixed sizes": 2}
    held = [families.instance(scaled(number)) for number in (0.5, 0.25, 0.75)]
    assert held[1].source is held[2].source is not None
    assert families.compiled == {"specialised": 4, "fixed sizes": 2, "general": 1}
