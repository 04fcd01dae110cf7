"""Products by matrix units of vector registers, against the interpreter and numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from hal.core.description import DeviceInfo, MatrixUnit
from hal.core.dtypes import DType
from hal.core.values import Grid
from hal.tile.build import Builder, add, const, dot
from hal.tile.interpret import interpret
from hal.tile.kernel import Alloc, Kernel
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.templates.blocking import MatmulShape
from stack.compiler.text.llvm import render
from stack.compiler.units import PAYS, units
from stack.ir.interpret import interpret as interpret_graph
from tests.compiler.llvm import machine
from tests.compiler.lowered import SIMD, run_lowered
from tests.compiler.test_matmul import (
    matmul_kernel,
    memory_of,
    operand,
    small_integers,
    vector_device,
)

BF16, F32 = DType.BF16, DType.F32
WIDE = vector_device(vector_nbytes=64, registers=32)
DOTS = {
    "avx512bf16": MatrixUnit(
        1, 16, 2, BF16, F32, together=2, denormals=False, call="llvm.x86.avx512bf16.dpbf16ps.512"
    ),
    "avx512vnni": MatrixUnit(
        1, 16, 4, DType.U8, DType.I32, DType.I8, together=4, call="llvm.x86.avx512.vpdpbusd.512"
    ),
}
"""By the feature that a processor needs for them."""
NAMES = {"avx512bf16": "vdpbf16ps", "avx512vnni": "vpdpbusd"}


def having(*features: str) -> DeviceInfo:
    return replace(WIDE, matrix_units=tuple(DOTS[f] for f in features))


def has(feature: str) -> bool:
    return bool(machine.host_features().get(feature))


def test_units_that_do_not_pay_are_not_used() -> None:
    unit, rates = DOTS["avx512bf16"], dict(WIDE.dtypes) | {F32: 100.0}
    for rate, used in ((0.0, True), (100 * PAYS, True), (99 * PAYS, False)):
        info = replace(WIDE, dtypes=rates, matrix_units=(replace(unit, rate=rate),))
        assert units(info) == ((unit,) if used else ())
    assert not units(replace(WIDE, matrix_units=(replace(unit, call=""),)))


@pytest.mark.parametrize("layouts", ["kn", "kk", "mn", "mk"])
@pytest.mark.parametrize("size", [(1, 9, 7, 11), (2, 5, 6, 1)], ids=str)
def test_packed_in_groups_for_a_unit(size: tuple[int, int, int, int], layouts: str) -> None:
    """The template interpreted: elements are where the unit reads them, zeros where there are
    none."""
    tiny = vector_device(vector_nbytes=8, registers=10, caches=(256, 1024), scratch_nbytes=4096)
    a, b, c = packed(size, layouts, 2, lambda *call: interpret(*call, {}), tiny)
    np.testing.assert_allclose(c, a @ b, atol=1e-5)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("heads", [(3, 6), (2, 16)], ids=str)
def test_uneven_rows_in_groups(heads: tuple[int, int]) -> None:
    """The gradient of a projection behind an attention: of the operand by heads neither rows nor
    depth lie evenly."""
    number, width = heads
    unit = MatrixUnit(1, 8, 2, BF16, F32, together=2, call="dots")
    x = g.input(0, Type((2, number, 5, width), BF16))
    y = g.input(1, Type((10, 24), BF16))
    rows = g.reshape(g.permute(x, (0, 2, 1, 3)), (10, number * width))
    product = g.matmul(g.transpose(rows), y, F32)
    rng = np.random.default_rng(width)
    arrays = [rng.integers(-8, 9, n.shape).astype(NUMPY[BF16]) for n in (x, y)]
    info = replace(SIMD, matrix_units=(unit,))
    (found,), program = run_lowered([product], [x, y], arrays, info=info)
    (expected,) = interpret_graph([product], dict(zip((x, y), arrays, strict=True)))
    np.testing.assert_array_equal(found, expected)
    (call,) = program.calls
    rooms = {a.memory.name: a.memory.dtype for a in call.kernel.body if isinstance(a, Alloc)}
    assert rooms["packed_a"] is BF16


def test_operands_in_groups_without_a_unit() -> None:
    """What a processor without the instruction makes of the same kernel."""
    a, b, c = packed((1, 21, 35, 19), "mk", 2, machine.run, vector_device())
    np.testing.assert_allclose(c, a @ b, atol=1e-5)


def packed(
    size: tuple[int, int, int, int],
    layouts: str,
    together: int,
    runs: Callable[[Kernel, Grid, dict[str, np.ndarray]], None],
    info: DeviceInfo,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random operands as float64 and what the template gives for them."""
    batch, m, n, k = size
    rng = np.random.default_rng(sum(size))
    a, b = operand(rng, (batch, m, k), BF16), operand(rng, (batch, k, n), BF16)
    shape = MatmulShape(batch, m, n, k, *layouts, BF16, F32, together=together)
    kernel, grid = matmul_kernel(shape, info)
    c = np.full(batch * m * n, 77, np.float32)
    left, right = memory_of(a, layouts[0] == "k"), memory_of(b, layouts[1] == "n")
    runs(kernel, grid, {"a": left, "b": right, "c": c})
    return a.astype(np.float64), b.astype(np.float64), c.reshape(batch, m, n)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("layouts", ["kn", "kk", "mn", "mk"])
def test_code_for_a_unit(layouts: str) -> None:
    """Accumulators stay in registers: as many instructions as products of a step, none of them with
    more than one operand in memory; and right results where the processor has it."""
    batch, m, n, k = 1, 70, 96, 301
    shape = MatmulShape(batch, m, n, k, *layouts, BF16, F32, together=2)
    info = having("avx512bf16")
    kernel, _ = matmul_kernel(shape, info)
    text = machine.assembly(render(kernel, info), "avx512bf16")
    assert text.count("vdpbf16ps") >= 28
    assert "vfmadd" not in text
    if has("avx512bf16"):
        runs = partial(machine.run, device=info)
        left, right, found = packed((batch, m, n, k), layouts, 2, runs, info)
        np.testing.assert_allclose(found, left @ right, atol=1e-4)


def one_dot(left: DType, right: DType, sums: DType, changed: bool) -> Kernel:
    """out = x @ y of (3, 8) and (8, 32) tiles, the operands as they lie or computed."""
    b = Builder("one")
    x, y = b.buffer("x", left), b.buffer("y", right)
    out = b.buffer("out", sums, reads=False, writes=True)
    tile, other = b.load(x, 0, (3, 8), (8, 1)), b.load(y, 0, (8, 32), (32, 1))
    if changed:
        tile, other = add(tile, 1), add(other, 1)
    total = b.load(b.buffer("c", sums), 0, (3, 32), (32, 1))
    b.store(out, 0, dot(tile, other, total), (32, 1))
    return b.kernel()


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("feature", DOTS)
def test_operands_as_they_come(feature: str, changed: bool) -> None:
    unit = DOTS[feature]
    info = having(feature)
    kernel = one_dot(unit.inputs, unit.right_inputs, unit.accumulate, changed)
    assert NAMES[feature] in machine.assembly(render(kernel, info), feature)
    if not has(feature):
        return
    rng = np.random.default_rng(4)
    x = small_integers(rng, (3, 8), unit.inputs)
    y = small_integers(rng, (8, 32), unit.right_inputs)
    buffers = {
        "x": x.ravel(),
        "y": y.ravel(),
        "c": np.arange(96).astype(NUMPY[unit.accumulate]),
        "out": np.zeros(96, NUMPY[unit.accumulate]),
    }
    expected = {name: value.copy() for name, value in buffers.items()}
    machine.run(kernel, (1, 1, 1), buffers, device=info)
    interpret(kernel, (1, 1, 1), expected, {})
    np.testing.assert_array_equal(buffers["out"], expected["out"])


def test_pairs_of_16_bit_integers_are_one_instruction() -> None:
    """No description names it: compilers find it in the sum of neighbouring products."""
    plain = vector_device()
    kernel = one_dot(DType.I16, DType.I16, DType.I32, changed=False)
    text = machine.assembly(render(kernel, plain), "avx2")
    assert text.count("vpmaddwd") + text.count("vpdpwssd") == 3 * 4 * 4
    assert "vpmulld" not in text


LARGE = [(40, 24, 19), (17, 35, 8), (1, 130, 16)]
"""Rows, columns and depth of products that loops over register tiles compute."""


@pytest.mark.parametrize("sizes", LARGE, ids=str)
@pytest.mark.parametrize("types", [(F32, F32), (BF16, F32), (DType.I8, DType.I32)], ids=str)
def test_products_larger_than_the_registers(
    sizes: tuple[int, int, int], types: tuple[DType, DType]
) -> None:
    (m, n, k), (inputs, sums) = sizes, types
    b = Builder("large")
    x, y, c = b.buffer("x", inputs), b.buffer("y", inputs), b.buffer("c", sums)
    out = b.buffer("out", sums, reads=False, writes=True)
    tile, other = b.load(x, 0, (m, k), (k, 1)), b.load(y, 0, (k, n), (n, 1))
    b.store(out, 0, dot(tile, other, b.load(c, 0, (m, n), (n, 1))), (n, 1))
    rng = np.random.default_rng(5)
    a, d = (small_integers(rng, s, inputs) for s in ((m, k), (k, n)))
    buffers = {"x": a.ravel(), "y": d.ravel(), "c": np.arange(m * n).astype(NUMPY[sums])}
    buffers["out"] = np.zeros(m * n, NUMPY[sums])
    device = having("avx512bf16") if inputs is BF16 and has("avx512bf16") else vector_device()
    machine.run(b.kernel(), (1, 1, 1), buffers, device=device)
    wanted = np.arange(m * n).reshape(m, n) + a.astype(np.float64) @ d.astype(np.float64)
    np.testing.assert_array_equal(buffers["out"].reshape(m, n), wanted.astype(NUMPY[sums]))


def test_a_large_product_is_short_text() -> None:
    """One of 64 x 64 x 32 took 1,427 KiB of text and LLVM ten seconds."""
    b = Builder("large")
    x, y = b.buffer("x", F32), b.buffer("y", F32)
    out = b.buffer("out", F32, reads=False, writes=True)
    zero = const(0, F32, (64, 64))
    tile, other = b.load(x, 0, (64, 32), (32, 1)), b.load(y, 0, (32, 64), (64, 1))
    b.store(out, 0, dot(tile, other, zero), (64, 1))
    assert len(render(b.kernel(), WIDE).text) < 250_000
