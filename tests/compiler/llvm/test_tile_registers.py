"""Products by matrix units of tile registers: by one that is made up of vectors, so that every
processor has it, against numpy; by AMX, what code they become."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from hal.core.description import DeviceInfo, MatrixUnit
from hal.core.dtypes import DType
from hal.core.values import Grid, KernelSource
from hal.tile.build import Builder, add, const, dot
from hal.tile.interpret import interpret
from hal.tile.kernel import Kernel
from hal.tile.numeric import NUMPY
from stack.compiler.program import GraphRequest
from stack.compiler.templates.blocking import MatmulShape, choose_blocks
from stack.compiler.text.llvm import render
from stack.compiler.units import in_groups, out_of_groups, units_of
from stack.ir.interpret import interpret as meaning
from tests.compiler.llvm import machine
from tests.compiler.lowered import lowered, run_lowered
from tests.compiler.test_attention import TRAINED, Trained, with_gradients
from tests.compiler.test_matmul import (
    matmul_kernel,
    memory_of,
    small_integers,
    vector_device,
)

BF16, F32, I8, U8, I32 = DType.BF16, DType.F32, DType.I8, DType.U8, DType.I32
TILE = "<16 x i32>"


def made_up(inputs: DType, accumulate: DType, right: DType | None = None) -> MatrixUnit:
    """Registers of four rows of four words."""
    together = 32 // inputs.bits
    names = {x: f"tile_{x}" for x in ("clear", "load", "store")}
    call = f"tile_{inputs.short}_{(right or inputs).short}"
    shape = 4, 4, 4 * together
    return MatrixUnit(
        *(*shape, inputs, accumulate, right, together),
        call=call,
        register=TILE,
        registers=8,
        **names,
    )


UNITS = (made_up(BF16, F32), made_up(I8, I32), made_up(U8, I32, I8))
TINY = replace(
    vector_device(vector_nbytes=16, registers=16, caches=(1024, 4096), scratch_nbytes=1 << 14),
    matrix_units=UNITS,
)
"""Panels of a few tiles take several blocks of k."""
AMX = MatrixUnit(
    *(16, 16, 32, BF16, F32),
    together=2,
    denormals=False,
    call="llvm.x86.tdpbf16ps.internal",
    register="x86_amx",
    registers=8,
    clear="llvm.x86.tilezero.internal",
    load="llvm.x86.tileloadd64.internal",
    store="llvm.x86.tilestored64.internal",
)
SAPPHIRE = replace(
    vector_device(vector_nbytes=64, registers=32, caches=(48 << 10, 2 << 20)), matrix_units=(AMX,)
)


# the made-up unit as LLVM text


def definitions() -> str:
    """The functions of the made-up units."""
    parts = [
        f"define internal {TILE} @tile_clear(i16 %m, i16 %n) alwaysinline {{\n"
        f"ret {TILE} zeroinitializer\n}}",
        "\n".join(_load()),
        "\n".join(_store()),
        *("\n".join(_product(u)) for u in UNITS),
    ]
    return "\n".join(parts)


def _load() -> Iterator[str]:
    yield f"define internal {TILE} @tile_load(i16 %m, i16 %n, ptr %p, i64 %s) alwaysinline {{"
    for i in range(4):
        yield f"%o{i} = mul i64 %s, {i}"
        yield f"%p{i} = getelementptr i8, ptr %p, i64 %o{i}"
        yield f"%r{i} = load <4 x i32>, ptr %p{i}, align 1"
    yield from _together([f"%r{i}" for i in range(4)])
    yield "}"


def _together(rows: list[str]) -> Iterator[str]:
    wide = ", ".join(f"i32 {i}" for i in range(8))
    whole = ", ".join(f"i32 {i}" for i in range(16))
    for name, (a, b) in (("low", rows[:2]), ("high", rows[2:])):
        yield f"%{name} = shufflevector <4 x i32> {a}, <4 x i32> {b}, <8 x i32> <{wide}>"
    yield f"%all = shufflevector <8 x i32> %low, <8 x i32> %high, <16 x i32> <{whole}>"
    yield f"ret {TILE} %all"


def _row(tile: str, i: int, name: str) -> str:
    lanes = ", ".join(f"i32 {4 * i + j}" for j in range(4))
    return f"{name} = shufflevector {TILE} {tile}, {TILE} poison, <4 x i32> <{lanes}>"


def _store() -> Iterator[str]:
    yield (
        f"define internal void @tile_store(i16 %m, i16 %n, ptr %p, i64 %s, {TILE} %t) "
        "alwaysinline {"
    )
    for i in range(4):
        yield f"%o{i} = mul i64 %s, {i}"
        yield f"%p{i} = getelementptr i8, ptr %p, i64 %o{i}"
        yield _row("%t", i, f"%r{i}")
        yield f"store <4 x i32> %r{i}, ptr %p{i}, align 1"
    yield "ret void\n}"


def _product(u: MatrixUnit) -> Iterator[str]:
    """Sums of products of the neighbours in words, one row after the other."""
    fresh = (f"%x{i}" for i in count())
    tiles = ", ".join(f"{TILE} %{x}" for x in "cab")
    yield f"define internal {TILE} @{u.call}(i16 %m, i16 %n, i16 %k, {tiles}) alwaysinline {{"
    for i in range(4):
        yield _row("%b", i, f"%b{i}")
    bits, is_float = u.inputs.bits, u.inputs.is_float
    total = []
    for i in range(4):
        yield _row("%c", i, f"%c{i}")
        row = f"%c{i}"
        if is_float:
            yield f"%f{i} = bitcast <4 x i32> %c{i} to <4 x float>"
            row = f"%f{i}"
        for k in range(4):
            one = ", ".join([f"i32 {4 * i + k}"] * 4)
            left = next(fresh)
            yield f"{left} = shufflevector {TILE} %a, {TILE} poison, <4 x i32> <{one}>"
            for part in range(u.together):
                pair = []
                for word, dtype in ((left, u.inputs), (f"%b{k}", u.right_inputs)):
                    up, down, number = next(fresh), next(fresh), next(fresh)
                    yield f"{up} = shl <4 x i32> {word}, splat (i32 {32 - bits * (part + 1)})"
                    if is_float:
                        yield f"{down} = and <4 x i32> {up}, splat (i32 -65536)"
                        yield f"{number} = bitcast <4 x i32> {down} to <4 x float>"
                    else:
                        shift = "ashr" if dtype.kind == "i" else "lshr"
                        yield f"{down} = {shift} <4 x i32> {up}, splat (i32 {32 - bits})"
                        yield f"{number} = add <4 x i32> {down}, zeroinitializer"
                    pair.append(number)
                made, after = next(fresh), next(fresh)
                kind, by, plus = ("float", "fmul", "fadd") if is_float else ("i32", "mul", "add")
                yield f"{made} = {by} <4 x {kind}> {pair[0]}, {pair[1]}"
                yield f"{after} = {plus} <4 x {kind}> {row}, {made}"
                row = after
        if is_float:
            back = next(fresh)
            yield f"{back} = bitcast <4 x float> {row} to <4 x i32>"
            row = back
        total.append(row)
    yield from _together(total)
    yield "}"


def runs(kernel: Kernel, grid: Grid, buffers: dict[str, np.ndarray]) -> str:
    """Run a kernel with the made-up units; give its text."""
    source = render(kernel, TINY)
    lines = [x for x in source.text.splitlines() if not x.startswith("declare") or "tile_" not in x]
    whole = replace(source, text="\n".join([*lines, definitions(), ""]))
    sizes = (ctypes.c_int64 * 3)(*grid)
    slots = machine.arguments(whole, buffers, {})
    machine.entry(whole)(slots, sizes, 0, grid[0] * grid[1] * grid[2])
    return source.text


def multiplied(
    unit: MatrixUnit, size: tuple[int, int, int, int], layouts: str, run: Callable[..., object]
) -> tuple[np.ndarray, np.ndarray]:
    """What the template gives for numbers whose products and sums are exact, and what is right."""
    batch, m, n, k = size
    rng = np.random.default_rng(sum(size))
    a = small_integers(rng, (batch, m, k), unit.inputs)
    b = small_integers(rng, (batch, k, n), unit.right_inputs)
    shape = MatmulShape(
        *(*size, *layouts, unit.inputs, unit.accumulate),
        together=unit.together,
        right=unit.right,
        tile=unit,
    )
    kernel, grid = matmul_kernel(shape, TINY)
    kind = np.float32 if unit.accumulate is F32 else np.int32
    c = np.full(batch * m * n, 77, kind)
    left, right = memory_of(a, layouts[0] == "k"), memory_of(b, layouts[1] == "n")
    run(kernel, grid, {"a": left, "b": right, "c": c})
    return c.reshape(batch, m, n), (a.astype(np.float64) @ b.astype(np.float64)).astype(kind)


SIZES = [(1, 8, 8, 16), (1, 5, 7, 11), (1, 21, 35, 150), (3, 1, 1, 1)]


@pytest.mark.parametrize(
    ("unit", "size"), [*((UNITS[0], s) for s in SIZES), *((u, (2, 9, 4, 70)) for u in UNITS[1:])]
)
def test_products_in_tile_registers(unit: MatrixUnit, size: tuple[int, int, int, int]) -> None:
    for layouts in ("kn", "mk"):
        found, expected = multiplied(unit, size, layouts, runs)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("layouts", ["kk", "mn"])
def test_the_template_packs_for_tile_registers(layouts: str) -> None:
    """Interpreted, where no register is."""
    found, expected = multiplied(
        UNITS[0], (2, 9, 13, 50), layouts, lambda *call: interpret(*call, {})
    )
    np.testing.assert_array_equal(found, expected)


def test_sums_stay_in_registers_over_the_depth() -> None:
    """No sum is read or written between the first step of a loop and what follows the last."""
    texts = []
    multiplied(UNITS[0], (1, 8, 8, 64), "kn", lambda *call: texts.append(runs(*call)))
    (text,) = texts
    body = text[: text.rindex("tile_store(i16 4")]
    inner = body[body.rindex("\nbody") :]
    assert inner.count("call void @tile_store") <= 4
    loop = inner[: inner.index("br i1")]
    assert loop.count("@tile_bf16_bf16(") == 4
    assert loop.count("@tile_load(") == 4
    assert loop.count(f"phi {TILE}") == 4
    assert "store" not in loop


def one(loops: int, given: bool) -> Kernel:
    """out = (c +) x @ y, `loops` times, of operands as a unit reads them."""
    b = Builder("one")
    x, y = b.buffer("x", BF16), b.buffer("y", BF16)
    out = b.buffer("out", F32, reads=False, writes=True)
    first = const(0, F32, (8, 8))
    if given:
        first = b.load(b.buffer("c", F32), 0, (8, 8), (8, 1))

    def step(i, acc):
        left = b.load(x, 0, (8, 8), (8, 1))
        right = b.load(y, 0, (4, 16), (16, 1))
        return (dot(left, out_of_groups(right, 2), acc),)

    total = step(None, first)[0] if loops == 0 else b.loop(0, loops, 1, step, (first,))[0]
    b.store(out, 0, add(total, 1), (8, 1))
    return b.kernel()


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("loops", [0, 3])
def test_sums_from_and_to_vector_registers(loops: int, given: bool) -> None:
    rng = np.random.default_rng(5)
    buffers = {
        "x": small_integers(rng, (64,), BF16),
        "y": small_integers(rng, (64,), BF16),
        "out": np.zeros(64, np.float32),
    }
    if given:
        buffers["c"] = rng.integers(-9, 9, 64).astype(np.float32)
    kernel = one(loops, given)
    expected = {name: value.copy() for name, value in buffers.items()}
    interpret(kernel, (1, 1, 1), expected, {})
    assert "@tile_bf16_bf16(" in runs(kernel, (1, 1, 1), buffers)
    np.testing.assert_array_equal(buffers["out"], expected["out"])


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("case", [TRAINED[0], TRAINED[2]], ids=str)
def test_attention_in_tile_registers(case: Trained) -> None:
    """With what of a block is masked, and several blocks of keys; forward and backward."""
    outputs, inputs = with_gradients(replace(case, dtype=BF16))
    rng = np.random.default_rng(case.keys)
    arrays = [rng.standard_normal(n.shape).astype(NUMPY[n.dtype]) for n in inputs]
    texts = []

    def run(kernel: Kernel, grid: Grid, buffers: dict[str, np.ndarray], *_: object) -> None:
        texts.append(runs(kernel, grid, buffers))

    found, _ = run_lowered(outputs, inputs, arrays, info=TINY, run=run)
    expected = meaning(outputs, dict(zip(inputs, arrays, strict=True)))
    for mine, meant in zip(found, expected, strict=True):
        exact = np.asarray(meant).astype(np.float64)
        np.testing.assert_allclose(mine.astype(np.float64), exact, 0, 1e-2 * np.abs(exact).max())
    assert sum("@tile_bf16_bf16(" in text for text in texts) == 4  # each of two kernels ran twice


def test_groups_come_apart_and_are_found() -> None:
    b = Builder("groups")
    loaded = b.load(b.buffer("x", BF16), 0, (4, 16), (16, 1))
    operand_of = out_of_groups(loaded, 2)
    assert operand_of.shape == (8, 8)
    assert in_groups(operand_of, 2) is loaded
    assert in_groups(operand_of, 4) is None
    assert in_groups(loaded, 2) is None


def test_the_widest_unit_is_the_first() -> None:
    vectors = MatrixUnit(1, 16, 2, BF16, F32, together=2, call="dots")
    info: DeviceInfo = replace(SAPPHIRE, matrix_units=(vectors, AMX))
    assert units_of(BF16, BF16, F32, info) == (AMX, vectors)
    assert units_of(BF16, BF16, F32, replace(info, matrix_units=(vectors,))) == (vectors,)


def test_a_unit_whose_registers_hold_no_product_is_not_used() -> None:
    for registers, used in ((0, False), (2, False), (3, True)):
        unit = replace(AMX, registers=registers)
        info = replace(SAPPHIRE, matrix_units=(unit,))
        assert units_of(BF16, BF16, F32, info) == ((unit,) if used else ())


# AMX


@pytest.mark.parametrize(
    ("size", "tile"),
    [((512, 512, 512), (32, 32)), ((16, 512, 64), (16, 48)), ((512, 9, 64), (48, 16))],
)
def test_register_tiles_leave_room_for_operands(
    size: tuple[int, int, int], tile: tuple[int, int]
) -> None:
    shape = MatmulShape(1, *size, "k", "n", BF16, F32, together=2, tile=AMX)
    blocks = choose_blocks(shape, SAPPHIRE)
    assert (blocks.mr, blocks.nr) == tile
    assert blocks.unroll == 32
    assert blocks.kc % 32 == 0


def amx(size: tuple[int, int, int, int], layouts: str) -> KernelSource:
    shape = MatmulShape(*size, *layouts, BF16, F32, together=2, tile=AMX)
    return render(matmul_kernel(shape, SAPPHIRE)[0], SAPPHIRE)


@pytest.mark.parametrize("layouts", ["kn", "mk"])
def test_code_of_amx(layouts: str) -> None:
    """A step is four products and the four loads of their operands; no register is spilled."""
    text = machine.assembly(
        amx((1, 70, 96, 301), layouts), "amx-tile", "amx-bf16", "avx512f", "avx512bw", "avx512vl"
    )
    assert text.count("tdpbf16ps") == 4
    assert text.count("tileloadd") == 4
    assert text.count("tilestored") == 4
    assert text.count("tilezero") == 4
    assert text.count("ldtilecfg") >= 1


def test_code_of_attention_by_amx() -> None:
    """Sums of scores and of the result are in four registers each, over the depth and the keys."""
    outputs, inputs = with_gradients(Trained((1, 256, 64), 256, 64, causal=True, dtype=BF16))
    program = lowered(GraphRequest(tuple(outputs), tuple(inputs), ()), SAPPHIRE)
    (call,) = (c for c in program.calls if "attention_saved" in c.kernel.name)
    text = machine.assembly(
        *(render(call.kernel, SAPPHIRE), "amx-tile", "amx-bf16", "avx512f", "avx512bw", "avx512vl")
    )
    assert text.count("tdpbf16ps") == 2 * 4
    assert text.count("tileloadd") == 2 * 4 + 4
    assert text.count("tilestored") == 2 * 4
