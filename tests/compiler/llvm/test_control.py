"""Loops, branches, grids and whole-block versions against the interpreter; the shape of the
text."""

from __future__ import annotations

import re
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile.build import (
    Builder,
    add,
    arange,
    binary,
    cast,
    const,
    dot,
    mul,
    num_programs,
    program_id,
    reduce,
    reshape,
    sub,
    unary,
    where,
)
from hal.tile.kernel import If, Kernel
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from stack.compiler.text.llvm import render
from tests.compiler.llvm.agreement import agree
from tests.compiler.llvm.machine import info

F, I64 = DType.F32, DType.I64
few = settings(max_examples=10, deadline=None)


@pytest.mark.parametrize("grid", [(1, 1, 1), (5, 1, 1), (3, 4, 1), (2, 3, 4), (1, 1, 7), (0, 3, 1)])
def test_program_indices(grid: tuple[int, int, int]) -> None:
    b = Builder("grid")
    y = b.buffer("y", DType.I32, writes=True)
    x, yy, z = (program_id(i) for i in range(3))
    linear = add(x, mul(num_programs(0), add(yy, mul(num_programs(1), z))))
    b.store(y, linear, cast(add(add(mul(x, 100), mul(yy, 10)), z), DType.I32))
    agree(b.kernel(), grid, {"y": np.zeros(max(1, int(np.prod(grid))), np.int32)})


@few
@given(st.integers(-2, 40), st.integers(1, 7), st.integers(0, 50), st.booleans())
def test_loops_with_carried_tiles(stop, step, n, constant) -> None:
    b = Builder("loop")
    x, y = b.buffer("x", F), b.buffer("y", F, writes=True)
    limit = b.scalar("n", I64)

    def body(i: Node, total: Node, count: Node) -> tuple[Node, Node]:
        tile = b.load(x, i, (11,), (1,), (sub(limit, i),))
        return add(tile, total), add(count, 1)

    first = b.load(y, 0, (11,), (1,))
    end = stop if constant else b.scalar("stop", I64)
    total, count = b.loop(0, end, step, body, (first, const(0, I64)))
    b.store(y, 0, binary("mul", total, cast(count, F)), (1,))
    buffers = {"x": np.arange(64, dtype=np.float32), "y": np.ones(11, np.float32)}
    scalars = {"n": n} | ({} if constant else {"stop": stop})
    agree(b.kernel(), (1,), buffers, scalars)


@pytest.mark.parametrize("n", [3, 16, 37])
def test_nested_loops_with_tails_at_every_level(n: int) -> None:
    b = Builder("nested")
    x, y = b.buffer("x", F), b.buffer("y", F, writes=True)
    size = b.scalar("n", I64)

    def row(i: Node) -> None:
        rows = sub(size, i)

        def column(j: Node, low: Node) -> tuple[Node]:
            here = add(mul(i, size), j)
            tile = b.load(x, here, (4, 8), (size, 1), (rows, sub(size, j)))
            b.store(y, here, add(tile, 1.0), (size, 1), (rows, sub(size, j)))
            return (binary("max", low, reduce("max", tile, 1)),)

        (low,) = b.loop(0, size, 8, column, (const(-1.0, F, (4,)),))
        b.store(y, add(mul(size, size), i), low, (1,), (rows,))

    b.loop(0, size, 4, row)
    buffers = {"x": np.arange(n * n, dtype=np.float32), "y": np.zeros(n * n + n, np.float32)}
    agree(b.kernel(), (1,), buffers, {"n": n})


def test_limits_that_are_loaded_first() -> None:
    b = Builder("ragged")
    x, lengths, y = b.buffer("x", F), b.buffer("lengths", I64), b.buffer("y", F, writes=True)
    length = b.load(lengths, program_id())
    start = mul(program_id(), 12)
    tile = b.load(x, start, (12,), (1,), (length,), const(-1.0, F))
    b.store(y, start, tile, (1,))
    buffers = {"x": np.arange(36, dtype=np.float32), "y": np.zeros(36, np.float32)}
    agree(b.kernel(), (3,), buffers | {"lengths": np.array([0, 12, 5])})


@pytest.mark.parametrize("flag", [False, True])
def test_branches_and_loads_before_them(flag: bool) -> None:
    b = Builder("branch")
    x, y = b.buffer("x", F), b.buffer("y", F, writes=True)
    condition = b.scalar("flag", DType.BOOL)
    old = b.load(y, 0, (9,), (1,))
    with b.when(condition):
        b.store(y, 0, b.load(x, 0, (9,), (1,)), (1,))
    b.store(y, 9, old, (1,))
    kernel = b.kernel()
    body = tuple(If(s.condition, s.then, s.then) if isinstance(s, If) else s for s in kernel.body)
    for k in (kernel, Kernel("both", kernel.params, body)):
        buffers = {"x": np.arange(9, dtype=np.float32), "y": np.full(18, 7, np.float32)}
        agree(k, (1,), buffers, {"flag": flag})


def test_an_inner_value_is_not_used_after_its_block() -> None:
    b = Builder("scopes")
    x, y = b.buffer("x", F), b.buffer("y", F, writes=True)
    tile = b.load(x, 0, (20,), (1,))
    shared = binary("mul", tile, tile)
    with b.when(b.scalar("flag", DType.BOOL)):
        b.store(y, 0, shared, (1,))
    b.loop(0, 2, 1, lambda i: b.store(y, add(20, mul(i, 20)), shared, (1,)))
    b.store(y, 60, shared, (1,))
    agree(
        b.kernel(),
        (1,),
        {"x": np.arange(20, dtype=np.float32), "y": np.zeros(80, np.float32)},
        {"flag": False},
    )


@pytest.mark.parametrize("dtype", [F, DType.BF16])
def test_a_masked_matrix_product(dtype: DType) -> None:
    m, k, n = 7, 10, 21
    b = Builder("matmul")
    x, w, y = b.buffer("x", dtype), b.buffer("w", dtype), b.buffer("y", F, writes=True)
    i, j = mul(program_id(0), 6), mul(program_id(1), 16)

    def step(kk: Node, acc: Node) -> tuple[Node]:
        left = b.load(x, add(mul(i, k), kk), (6, 4), (k, 1), (sub(m, i), sub(k, kk)))
        right = b.load(w, add(mul(kk, n), j), (4, 16), (n, 1), (sub(k, kk), sub(n, j)))
        return (dot(left, right, acc),)

    (acc,) = b.loop(0, k, 4, step, (const(0, F, (6, 16)),))
    b.store(y, add(mul(i, n), j), acc, (n, 1), (sub(m, i), sub(n, j)))
    rng = np.random.default_rng(0)
    buffers = {
        "x": rng.integers(-4, 5, m * k).astype(NUMPY[dtype]),
        "w": rng.integers(-4, 5, k * n).astype(NUMPY[dtype]),
        "y": np.zeros(m * n, np.float32),
    }
    agree(b.kernel(), (2, 2), buffers)


def micro_kernel(rows: int, columns: int) -> Kernel:
    b = Builder("micro")
    x, w = b.buffer("x", F), b.buffer("w", F)
    y = b.buffer("y", F, writes=True)

    def step(k: Node, acc: Node) -> tuple[Node]:
        left = b.load(x, mul(k, rows), (rows, 1), (1, 1))
        return (dot(left, b.load(w, mul(k, columns), (1, columns), (columns, 1)), acc),)

    (acc,) = b.loop(0, 256, 1, step, (const(0, F, (rows, columns)),))
    b.store(y, 0, acc, (columns, 1))
    return b.kernel()


def assembly_for(cpu: str, rows: int, nbytes: int) -> str:
    """A product's register tile as that processor runs it."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    text = render(micro_kernel(rows, nbytes // 2), info(nbytes)).text
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        cpu=cpu, features="-prefer-256-bit", opt=3
    )
    module = llvm.parse_assembly(text, llvm.create_context())
    module.data_layout = str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))


@pytest.mark.parametrize(
    ("cpu", "nbytes", "rows", "register"),
    [("haswell", 32, 6, "ymm"), ("skylake-avx512", 64, 14, "zmm")],
)
def test_the_register_tile_of_a_product_stays_in_registers(cpu, nbytes, rows, register) -> None:
    assembly = assembly_for(cpu, rows, nbytes)
    assert "(%rsp" not in assembly
    sums = set(re.findall(rf"vfmadd\w+\s.*%({register}\d+)$", assembly, re.MULTILINE))
    assert len(sums) == 2 * rows


def test_registers_that_are_kept_in_memory_are_aligned() -> None:
    """Across two pages each would take ten times as long."""
    assembly = assembly_for("haswell", 10, 32)
    assert set(re.findall(r"(vmov\w+)\t.*\(%rsp\)", assembly)) == {"vmovaps"}


def test_text_is_the_same_for_the_same_kernel() -> None:
    assert render(micro_kernel(6, 16), info()).text == render(micro_kernel(6, 16), info()).text


def test_proven_limits_leave_no_mask() -> None:
    b = Builder("proven")
    x, y = b.buffer("x", F), b.buffer("y", F, writes=True)

    def body(i: Node) -> None:
        b.store(y, i, b.load(x, i, (16,), (1,), (sub(1024, i),)), (1,), (sub(1024, i),))

    b.loop(0, 1024, 16, body)
    assert "masked" not in render(b.kernel(), info()).text


def test_wide_expressions_of_many_operations() -> None:
    b = Builder("deep")
    x, y = b.buffer("x", F), b.buffer("y", F, writes=True)
    value = b.load(x, 0, (10,), (1,))
    for i in range(600):
        value = add(value, float(i % 3))
    ramp = cast(reshape(arange(10), (10,)), F)
    b.store(y, 0, where(binary("lt", ramp, 5.0), value, unary("neg", value)), (1,))
    agree(b.kernel(), (1,), {"x": np.zeros(10, np.float32), "y": np.zeros(10, np.float32)})


def _divided(b: Builder, at: Callable[[Node], Node]) -> Kernel:
    """y[i] = at(i) / 8 + at(i) rem 8, for i below n."""
    y, n = b.buffer("y", I64, writes=True), b.scalar("n", I64)

    def body(i: Node) -> None:
        x = at(i)
        b.store(y, i, add(binary("div", x, 8), mul(100, binary("rem", x, 8))))

    b.loop(0, n, 1, body)
    return b.kernel()


def test_indices_are_divided_as_what_is_not_negative() -> None:
    b = Builder("index")
    grid = b.scalar("blocks", I64)
    kernel = _divided(b, lambda i: add(mul(binary("rem", program_id(0), grid), 16), i))
    text = render(kernel, info()).text
    assert "udiv i64" in text
    assert not re.search(r"= sdiv|= srem i64 %v\d+, 8", text)
    agree(kernel, (1,), {"y": np.zeros(20, np.int64)}, {"blocks": 3, "n": 20})


def test_what_may_be_negative_is_divided_with_its_sign() -> None:
    b = Builder("signed")
    x = b.buffer("x", I64)
    kernel = _divided(b, lambda i: sub(b.load(x, i), i))
    assert "sdiv i64" in render(kernel, info()).text
    values = np.array([-20, -8, -7, -1, 0, 1, 7, 8, 9, 20, 3, 100, -100, 5, 6, 2], np.int64)
    agree(kernel, (1,), {"x": values, "y": np.zeros(16, np.int64)}, {"n": 16})


def test_quotients_and_masks_that_a_loop_repeats_are_found_before_it() -> None:
    """Of the number of the instance; agreement says that the masks are right."""
    b = Builder("repeated")
    x, y = b.buffer("x", F), b.buffer("y", F, reads=False, writes=True)
    here = binary("rem", program_id(0), 3)
    held = binary("lt", add(arange(8), here), 5)

    def step(i: Node) -> None:
        loaded = b.gather(x, add(arange(8), mul(i, 8)), held)
        b.store(y, mul(add(mul(program_id(0), 4), i), 8), loaded, (1,))

    b.loop(0, 4, 1, step)
    kernel = b.kernel()
    arrays = {"x": np.arange(32, dtype=np.float32), "y": np.zeros(160, np.float32)}
    agree(kernel, (5,), arrays)
    text = render(kernel, info()).text
    inside = text[text.rindex("= phi i64", 0, text.index("masked.load")) :]
    assert "urem" in text
    assert "urem" not in inside
    assert "icmp slt <8 x i32>" not in inside
