"""Stores past the caches: which they are, when they are done, and what they write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.build import Builder, add, const, mul, program_id, reduce
from hal.tile.kernel import Kernel
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.compiler.text.c import render_opencl, streamed
from tests.compiler.c.agreement import agree
from tests.compiler.lowered import SIMD
from tests.compiler.lowered import lowered as lowered_to_kernels

WIDTH = 32
I64 = DType.I64


@pytest.fixture
def soon() -> Iterator[None]:
    """Whatever may go past the caches does."""
    with patch.multiple(streamed, least_nbytes=lambda info: 1, _RUN_NBYTES=1):
        yield


def rows(dtype: DType, columns: int, reads: bool = False, first: int = 0) -> Kernel:
    """y = x + x for an instance's row, by vectors that begin behind `first` elements."""
    b = Builder("rows")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, reads, True)
    row = mul(program_id(0), columns)

    def body(i: Node) -> None:
        tile = b.load(x, add(row, i), (WIDTH,), (1,))
        b.store(y, add(row, i), add(tile, tile), (1,))

    b.loop(first, columns, WIDTH, body)
    return b.kernel()


def lowered(root: Node, *inputs: Node) -> Kernel:
    (call,) = lowered_to_kernels(GraphRequest((root,), inputs), SIMD).calls
    return call.kernel


def twice(*shape: int) -> Kernel:
    x = g.input(0, Type(shape, DType.F32))
    return lowered(g.add(x, x), x)


# which


def test_what_a_launch_writes_decides() -> None:
    """By the grid where that alone tells; a launch that never writes so much has no such text."""
    least = streamed.least_nbytes(SIMD)
    for shape in ((1 << 24,), (4096, 4100), (10_000_019,)):
        (nbytes,) = streamed.found(twice(*shape), SIMD).values()
        instances = -(-least // nbytes)
        text = render_opencl(twice(*shape), SIMD).text
        assert f"get_global_size(0) >= {instances}L" in text
        assert "HAL_STREAM_float4" in text
        assert text.rstrip().endswith("HAL_STREAMED();\n}")
    for shape in ((1 << 20,), (100_003,), (1 << 13, 768)):
        assert "HAL_STREAM" not in render_opencl(twice(*shape), SIMD).text


def test_caches_that_hold_more() -> None:
    limits = replace(SIMD.limits, caches=(1 << 15, 1 << 20, 1 << 28))
    large = replace(SIMD, limits=limits)
    assert streamed.least_nbytes(large) == 1 << 29
    assert not streamed.found(twice(1 << 24), large)


def test_only_whole_rows_that_are_written_once(soon: None) -> None:
    f32 = DType.F32
    assert streamed.found(rows(f32, 64), SIMD)
    others = {
        "read by the kernel": rows(f32, 64, reads=True),
        "no vectors": rows(DType.BOOL, 64),
    }
    b = Builder("again")
    x, y = b.buffer("x", f32), b.buffer("y", f32, False, True)
    b.loop(0, 64, 1, lambda i: b.store(y, 0, b.load(x, i, (WIDTH,), (1,)), (1,)))
    others["written again"] = b.kernel()
    b = Builder("part")
    x, y = b.buffer("x", f32), b.buffer("y", f32, False, True)
    b.store(y, 0, b.load(x, 0, (WIDTH,), (1,)), (1,), (const(5, I64),))
    others["a part"] = b.kernel()
    b = Builder("column")
    x, y = b.buffer("x", f32), b.buffer("y", f32, False, True)
    b.store(y, 0, b.load(x, 0, (WIDTH,), (1,)), (2,))
    others["apart"] = b.kernel()
    b = Builder("sum")
    x, y = b.buffer("x", f32), b.buffer("y", f32, False, True)
    b.store(y, program_id(0), reduce("sum", b.load(x, 0, (WIDTH,), (1,)), 0))
    others["one element"] = b.kernel()
    for why, kernel in others.items():
        assert not streamed.found(kernel, SIMD), why


def test_a_loop_of_unknown_length(soon: None) -> None:
    b = Builder("unknown")
    x, y = b.buffer("x", DType.F32), b.buffer("y", DType.F32, False, True)
    n = b.scalar("n", I64)
    b.loop(0, n, WIDTH, lambda i: b.store(y, i, b.load(x, i, (WIDTH,), (1,)), (1,)))
    assert not streamed.found(b.kernel(), SIMD)


# what


@pytest.mark.parametrize(
    ("dtype", "columns", "first"),
    [
        (DType.F32, 96, 0),
        (DType.F32, 97, 1),  # some rows begin at a multiple of 16 bytes
        (DType.F64, 65, 1),
        (DType.I8, 72, 8),
        (DType.U16, 128, 64),
    ],
)
def test_rows_are_as_interpreted(soon: None, dtype: DType, columns: int, first: int) -> None:
    count, rng = 7 * columns, np.random.default_rng(columns)
    x = rng.integers(-50, 50, count).astype(NUMPY[dtype])
    kernel = rows(dtype, columns, first=first)
    assert "HAL_STREAM" in render_opencl(kernel, SIMD).text
    agree(kernel, (7,), {"x": x, "y": np.zeros_like(x)})


def test_chunks_of_several_rows_are_as_interpreted(soon: None) -> None:
    """With what is left of a row behind the vectors, and what instances read of another row."""
    x, y = g.input(0, Type((3, 9001), DType.F32)), g.input(1, Type((9001,), DType.F32))
    root = g.mul(g.add(x, g.broadcast(y, (3, 9001))), x)
    (call,) = lowered_to_kernels(GraphRequest((root,), (x, y)), SIMD).calls
    assert "HAL_STREAM" in render_opencl(call.kernel, SIMD).text
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=n).astype(np.float32) for n in (27003, 9001, 27003)]
    given = (arrays[part.index if part.kind == "input" else 2] for part in call.buffers)
    names = (p.name for p in call.kernel.params)
    agree(call.kernel, call.grid, dict(zip(names, given, strict=True)))
