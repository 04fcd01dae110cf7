"""Kernels whose sizes are data, by the tile interpreter: for any sizes that meet their conditions
they compute what the graph means, and neither read nor write beyond their buffers."""

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.core.values import ParamKind
from hal.tile.interpret import interpret as interpret_kernel
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from hal.tile.size import Facts
from stack import ops as g
from stack.compiler.kernels import lower_graph
from stack.compiler.pairs import BLOCK
from stack.compiler.program import GraphRequest
from stack.compiler.targets import choose
from stack.ir.interpret import interpret
from tests.compiler.lowered import SIMD
from tests.draw import stream

F32, I64 = DType.F32, DType.I64
ROWS = 257
"""More than a kernel has on its grid, so that an instance has whole rows."""


def biased(n):
    x, y = g.input(0, Type((ROWS, n), F32)), g.input(1, Type((n,), F32))
    return (g.add(x, g.expand(g.reshape(y, (1, n)), (ROWS, n))),), (x, y)


def picked(n):
    x, at = g.input(0, Type((7, n), F32)), g.input(1, Type((ROWS,), I64))
    return (g.contiguous(g.gather(x, at, 0)),), (x, at)


def normed(n):
    x = g.input(0, Type((ROWS, n), F32))
    total = g.expand(g.reduce("sum", x, (1,)), (ROWS, n))
    return (g.sub(x, total),), (x,)


def turned(n):
    x = g.input(0, Type((n, ROWS), F32))
    return (g.contiguous(g.transpose(x)),), (x,)


def columns(n):
    x = g.input(0, Type((ROWS, n), F32))
    return (g.reduce("max", x, (0,)),), (x,)


def summed_down(n):
    """Down columns, in blocks of rows, with what follows from the sums."""
    x = g.input(0, Type((n, ROWS), F32))
    total, most = g.reduce("sum", g.mul(x, x), (0,)), g.reduce("max", x, (0,))
    return (g.sqrt(total), most), (x,)


def standardised(n):
    """Down columns in three passes: each of the last two needs what the one before has summed."""
    x = g.input(0, Type((n, ROWS), F32))
    apart = g.sub(x, g.expand(g.reduce("sum", x, (0,)), x.shape))
    total = g.sqrt(g.reduce("sum", g.mul(apart, apart), (0,)))
    return (g.div(apart, g.expand(total, x.shape)), total), (x,)


def summed_both(n):
    """Down as many columns as there are rows."""
    x = g.input(0, Type((n, n), F32))
    return (g.reduce("sum", x, (0,)),), (x,)


def windows(x, stride):
    """[channels * 9, rows of windows, columns of windows] of an image with edges."""
    x = g.pad(x, (0, 1, 1), (0, 1, 1))
    x = g.window(g.window(x, 2, 3, stride, 1), 1, 3, stride, 1)
    x = g.permute(x, (0, 2, 4, 1, 3))
    return g.reshape(x, (x.shape[0] * 9, x.shape[3], x.shape[4]))


def convolved(n, stride=1):
    x, w = g.input(0, Type((3, n, n), F32)), g.input(1, Type((5, 27), F32))
    seen = windows(x, stride)
    return (g.matmul(w, g.reshape(seen, (27, seen.shape[1] * seen.shape[2]))),), (x, w)


def convolved_by_two(n):
    return convolved(n, 2)


def convolved_down(n):
    """Neighbours of what the windows show are n elements apart."""
    x, w = g.input(0, Type((3, n, n), F32)), g.input(1, Type((5, 27), F32))
    seen = windows(g.permute(x, (0, 2, 1)), 1)
    return (g.matmul(w, g.reshape(seen, (27, n * n))),), (x, w)


def slope_of_weights(n):
    """Of two images: runs along the depth."""
    x, d = g.input(0, Type((2, n, n), F32)), g.input(1, Type((4, 2, n, n), F32))
    seen = g.permute(g.reshape(windows(x, 1), (2, 9, n, n)), (0, 2, 3, 1))
    columns = g.reshape(seen, (2 * n * n, 9))
    return (g.matmul(g.reshape(d, (4, 2 * n * n)), columns),), (x, d)


def added_windows(n):
    """The gradient of windows of three by twos, with an edge, of an even size."""
    d = g.input(0, Type((5, n, 3), F32))
    return (g.slice_axis(g.overlap_add(d, 1, 2 * n + 1, 2), 1, 1, 2 * n + 1),), (d,)


def taps(n):
    """Sums of windows, each of a row's own factor, of an image with edges."""
    x, w = g.input(0, Type((3, n, n), F32)), g.input(1, Type((3,), F32))
    scaled = g.mul(x, g.expand(g.reshape(w, (3, 1, 1)), x.shape))
    seen = g.reshape(windows(scaled, 1), (3, 9, n, n))
    return (g.reduce("sum", seen, (1,)),), (x, w)


def channels(n):
    """A product whose depth is a number of channels and the taps of each."""
    x, w = g.input(0, Type((n, 20, 20), F32)), g.input(1, Type((5, n * 9), F32))
    seen = g.reshape(windows(x, 1), (n * 9, 400))
    return (g.matmul(w, seen),), (x, w)


def moved_far(n):
    """Neighbours of the result are n squared elements apart."""
    x = g.input(0, Type((2, 40, n, n), F32))
    return (g.contiguous(g.permute(x, (0, 2, 3, 1))),), (x,)


SUMS = [columns, summed_down, standardised, summed_both]


PRODUCTS = [convolved, convolved_by_two, convolved_down, slope_of_weights]


MOVED = [added_windows, taps, channels, moved_far]


@pytest.mark.parametrize("graph", [biased, picked, normed, turned, *SUMS, *PRODUCTS, *MOVED])
def test_nothing_is_read_or_written_behind_an_axis(graph):
    draw = stream(f"sized {graph.__name__}")
    facts = Facts()
    hint, others = draw.choice((33, 40)), (33, 16, draw.randint(2, 24))
    if graph in (*PRODUCTS, *MOVED):  # a place's end may depend on whether a size is even
        hint = draw.randint(5, 11)
        others = hint + 6, hint - 2
    if graph in (summed_down, standardised):
        others = (*others, BLOCK + draw.randint(1, 40), 2 * BLOCK)
    outputs, inputs = graph(facts.symbol("n", hint, 2))
    request = GraphRequest(outputs, inputs, (), facts)
    program = lower_graph(request, SIMD, choose(SIMD).templates)
    rng = np.random.default_rng(draw.randrange(1 << 30))
    tried = 0
    for n in others:
        if not facts.holding()({"n": n}):
            continue
        tried += 1
        known, leaves = graph(n)
        given = [
            rng.integers(-1, 8, x.shape) if x.dtype is I64 else rng.standard_normal(x.shape)
            for x in leaves
        ]
        given = [a.astype(NUMPY[x.dtype]) for a, x in zip(given, leaves, strict=True)]
        wanted = interpret(known, dict(zip(leaves, given, strict=True)))
        memory = {("input", i): a.reshape(-1) for i, a in enumerate(given)}
        for i, w in enumerate(wanted):
            memory["output", i] = np.zeros(w.size, w.dtype)
        (temps,) = [facts.values(program.temps)({"n": n})]
        memory.update({("temp", i): np.zeros(t, np.uint8) for i, t in enumerate(temps)})
        for call in program.calls:
            buffers = [p for p in call.kernel.params if p.kind is ParamKind.BUFFER]
            names = [p.name for p in call.kernel.params if p.kind is not ParamKind.BUFFER]
            bound = {}
            for p, part in zip(buffers, call.buffers, strict=True):
                begin, nbytes = facts.values((part.offset_nbytes, part.nbytes))({"n": n})
                whole = memory[part.kind, part.index].view(np.uint8)
                bound[p.name] = whole[begin : begin + nbytes].view(NUMPY[p.dtype])
            sizes = facts.values(call.sizes)({"n": n})
            grid = facts.values(call.grid)({"n": n})
            interpret_kernel(call.kernel, grid, bound, dict(zip(names, sizes, strict=True)))
        for i, w in enumerate(wanted):
            np.testing.assert_allclose(memory["output", i].reshape(w.shape), w, 1e-4, 1e-4)
    assert tried > 1


def test_how_far_apart_neighbours_of_windows_lie_is_no_condition():
    facts = Facts()
    outputs, inputs = convolved_down(facts.symbol("n", 7, 2))
    lower_graph(GraphRequest(outputs, inputs, (), facts), SIMD, choose(SIMD).templates)
    assert all(facts.holding()({"n": n}) for n in range(2, 40))
