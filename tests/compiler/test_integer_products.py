"""Products of integers that few bits hold, widened to 32 bits, are equal to numpy's."""

import functools
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

import hal
from hal.core.description import MatrixUnit
from hal.core.dtypes import DType
from hal.tile.interpret import interpret
from hal.tile.kernel import Alloc
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.compiler.templates.blocking import MatmulShape
from stack.runtime import engine_of
from tests.compiler.lowered import SIMD, run_lowered
from tests.compiler.test_matmul import matmul_kernel, memory_of, vector_device
from tests.draw import sample

I8, U8, I16, I32 = DType.I8, DType.U8, DType.I16, DType.I32
PAIRS = [(I8, I8), (U8, I8), (I8, U8), (U8, U8), (I16, I8), (I16, I16)]


def full_range(rng, shape, dtype):
    """Any numbers of the type; its least one in many places, where sums of pairs are greatest."""
    least, most = np.iinfo(NUMPY[dtype]).min, np.iinfo(NUMPY[dtype]).max
    drawn = rng.integers(least, most, shape, NUMPY[dtype], endpoint=True)
    return np.where(rng.random(shape) < 0.3, least, drawn).astype(NUMPY[dtype])


CASES = [("cpu:0", types, turned) for types in PAIRS for turned in (False, True)]
CASES += [("opencl:0", (U8, I8), False), ("sunway:0", (U8, I8), False)]
"""Devices, operands' types, and whether the right one is turned: one product for devices none of
whose units take integers."""


SIZES = (1, 1, 1), (3, 2, 17), (21, 301, 35)


@pytest.fixture(scope="module")
def engine_named():
    """Engines, each opened once."""
    with ExitStack() as stack:
        yield functools.cache(lambda name: stack.enter_context(engine_of(hal.open(name))))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    ("device", "types", "turned"),
    [
        pytest.param(*c, marks=pytest.mark.device(c[0]), id=str(c))
        for c in sample("integers", CASES, 6)
    ],
)
def test_products_of_widened_operands(engine_named, device, types, turned):
    engine = engine_named(device)
    rng = np.random.default_rng(7)
    for m, k, n in SIZES if device == "cpu:0" else SIZES[-1:]:
        x, y = (
            full_range(rng, (m, k), types[0]),
            full_range(rng, (n, k) if turned else (k, n), types[1]),
        )
        nodes = [
            g.input(i, Type(a.shape, d)) for i, (a, d) in enumerate(zip((x, y), types, strict=True))
        ]
        a, b = (g.cast(one, I32) for one in nodes)
        product = g.matmul(a, g.transpose(b) if turned else b)
        plan = engine.plan(GraphRequest((product,), tuple(nodes)))
        (found,) = plan.run([engine.put(v, d) for v, d in zip((x, y), types, strict=True)])
        wide = (v.astype(np.int32) for v in (x, y.T if turned else y))
        np.testing.assert_array_equal(engine.get(found), np.matmul(*wide))


@pytest.mark.parametrize("layouts", ["kn", "mk"])
def test_operands_of_two_types_are_packed_in_their_own(layouts):
    """As the unit takes them that multiplies unsigned bytes by signed ones."""
    batch, m, n, k = 1, 9, 7, 11
    tiny = vector_device(vector_nbytes=16, registers=10, caches=(256, 1024), scratch_nbytes=4096)
    shape = MatmulShape(batch, m, n, k, *layouts, U8, I32, together=4, right=I8)
    rng = np.random.default_rng(8)
    a, b = full_range(rng, (batch, m, k), U8), full_range(rng, (batch, k, n), I8)
    kernel, grid = matmul_kernel(shape, tiny)
    c = np.full(batch * m * n, 77, np.int32)
    left, right = memory_of(a, layouts[0] == "k"), memory_of(b, layouts[1] == "n")
    interpret(kernel, grid, {"a": left, "b": right, "c": c}, {})
    np.testing.assert_array_equal(c.reshape(m, n), a[0].astype(np.int32) @ b[0].astype(np.int32))


@pytest.mark.parametrize("layouts", ["kn", "mn", "mk"])
@pytest.mark.parametrize("size", [(9, 11, 7), (70, 300, 65)], ids=str)
def test_signed_bytes_on_a_unit_that_takes_none_on_the_left(size, layouts):
    """They are packed from the least one on, and of what sums are more by nothing is left: exact,
    in several blocks of the depth, too."""
    m, k, n = size
    rng = np.random.default_rng(k)
    x = full_range(rng, (m, k) if layouts[0] == "k" else (k, m), I8)
    y = full_range(rng, (k, n) if layouts[1] == "n" else (n, k), I8)
    inputs = [g.input(i, Type(a.shape, I8)) for i, a in enumerate((x, y))]
    a, b = (g.cast(one, I32) for one in inputs)
    a, b = a if layouts[0] == "k" else g.transpose(a), b if layouts[1] == "n" else g.transpose(b)
    unit = MatrixUnit(1, 8, 4, U8, I32, I8, together=4, call="dots")
    (found,), program = run_lowered(
        [g.matmul(a, b)], inputs, [x, y], info=replace(SIMD, matrix_units=(unit,))
    )
    wide = [v.astype(np.int32) for v in (x, y)]
    left, right = wide[0] if layouts[0] == "k" else wide[0].T, wide[1]
    np.testing.assert_array_equal(found, left @ (right if layouts[1] == "n" else right.T))
    (call,) = program.calls
    rooms = {s.memory.name: s.memory.dtype for s in call.kernel.body if isinstance(s, Alloc)}
    assert (rooms["packed_a"], rooms["packed_b"]) == (U8, I8)
