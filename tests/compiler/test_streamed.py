"""Stores past the caches: which they are, when they are done, and what they write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pytest

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.values import KernelSource
from hal.tile.build import Builder, add, const, mul, program_id, reduce
from hal.tile.kernel import Kernel, Store
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.compiler.text import streamed
from stack.compiler.text.c import render_opencl
from stack.compiler.text.llvm import render as render_llvm
from tests.compiler.c import agreement as c
from tests.compiler.llvm import agreement as llvm
from tests.compiler.lowered import SIMD
from tests.compiler.lowered import lowered as lowered_to_kernels

WIDTH = 32
I64 = DType.I64


@pytest.fixture
def soon() -> Iterator[None]:
    """Whatever may go past the caches does."""
    with patch.multiple(streamed, LEAST_NBYTES=1, _RUN_NBYTES=1):
        yield


@dataclass(frozen=True, slots=True)
class Format:
    """A format's writer, what marks such a store in its text, and what runs kernels in it."""

    write: Callable[[Kernel, DeviceInfo], KernelSource]
    mark: str
    agree: Callable[..., object]


FORMATS = {
    "opencl-c": Format(render_opencl, "HAL_STREAM", c.agree),
    "llvm-ir": Format(render_llvm, "!nontemporal", llvm.agree),
}


@pytest.fixture(params=FORMATS)
def written(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


def found(kernel: Kernel) -> Mapping[Store, int]:
    return streamed.found(kernel, lambda dtype: streamed.LEAST_VECTOR_NBYTES)


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
    """By the grid where that alone tells, as of programs for any number of whole chunks; a launch
    that never writes so much has no such text."""
    for shape in ((1 << 24,), (1 << 20,), (1 << 12, 768), (4096, 4100), (10_000_019,)):
        (nbytes,) = found(twice(*shape)).values()
        instances = -(-streamed.LEAST_NBYTES // nbytes)
        text = render_opencl(twice(*shape), SIMD).text
        assert f"grid0 >= {instances}L" in text
        assert "HAL_STREAM_float4" in text
        assert "    HAL_STREAMED();\n}\n\n__kernel" in text
        text = render_llvm(twice(*shape), SIMD).text
        assert re.search(rf"icmp sge i64 %\w+, {instances}\n", text)
        assert "fence seq_cst\nret void" in text
    for shape in ((100_003,), (1 << 12, 771)):
        for written in FORMATS.values():
            assert written.mark not in written.write(twice(*shape), SIMD).text


def test_only_whole_rows_that_are_written_once(soon: None) -> None:
    f32 = DType.F32
    assert found(rows(f32, 64))
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
    b = Builder("slanted")
    x, y = b.buffer("x", f32), b.buffer("y", f32, False, True)
    b.store(y, 0, b.load(x, 0, (4, WIDTH), (WIDTH, 1)), (WIDTH + 1, 1))
    others["rows that are not aligned alike"] = b.kernel()
    b = Builder("sum")
    x, y = b.buffer("x", f32), b.buffer("y", f32, False, True)
    b.store(y, program_id(0), reduce("sum", b.load(x, 0, (WIDTH,), (1,)), 0))
    others["one element"] = b.kernel()
    for why, kernel in others.items():
        assert not found(kernel), why


def test_stores_of_an_instance_count_together() -> None:
    """Rows that an instance writes one after the other make the run, and the launch."""
    b = Builder("pair")
    x, y = b.buffer("x", DType.F32), b.buffer("y", DType.F32, False, True)
    for k in range(2):
        row = add(mul(program_id(0), 512), 256 * k)

        def body(i: Node, row: Node = row) -> None:
            b.store(y, add(row, i), b.load(x, add(row, i), (WIDTH,), (1,)), (1,))

        b.loop(0, 256, WIDTH, body)
    assert list(found(b.kernel()).values()) == [2048, 2048]
    assert not found(rows(DType.F32, 256))


def test_what_lies_between_two_instances_counts() -> None:
    """Rows that are joined are of an array that is larger than each of the parts."""
    x = g.input(0, Type((4096, 1024), DType.BF16))
    kernel = lowered(g.concat([x, x], 1), x)
    assert list(found(kernel).values()) == [4096, 4096]


def test_a_loop_of_unknown_length(soon: None) -> None:
    b = Builder("unknown")
    x, y = b.buffer("x", DType.F32), b.buffer("y", DType.F32, False, True)
    n = b.scalar("n", I64)
    b.loop(0, n, WIDTH, lambda i: b.store(y, i, b.load(x, i, (WIDTH,), (1,)), (1,)))
    assert not found(b.kernel())


# what


@pytest.mark.parametrize(
    ("dtype", "columns", "first"),
    [
        (DType.F32, 96, 0),
        (DType.F32, 97, 1),  # some rows begin at a multiple of 16 bytes
        (DType.F64, 65, 1),
        (DType.I8, 72, 8),
        (DType.U16, 128, 64),
        (DType.F16, 128, 64),
    ],
)
def test_rows_are_as_interpreted(
    soon: None, written: Format, dtype: DType, columns: int, first: int
) -> None:
    count, rng = 16 * columns, np.random.default_rng(columns)
    x = rng.integers(-50, 50, count).astype(NUMPY[dtype])
    kernel = rows(dtype, columns, first=first)
    assert written.mark in written.write(kernel, SIMD).text
    written.agree(kernel, (16,), {"x": x, "y": np.zeros_like(x)})


def test_tiles_are_as_interpreted(soon: None, written: Format) -> None:
    """Where elements lie along one axis and are written along the other one."""
    b = Builder("turned")
    x, y = b.buffer("x", DType.F32), b.buffer("y", DType.F32, False, True)
    tile = b.load(x, mul(program_id(0), 8), (8, 8), (1, 80))
    b.store(y, mul(program_id(0), 64), tile, (8, 1))
    kernel = b.kernel()
    assert written.mark in written.write(kernel, SIMD).text
    data = np.random.default_rng(0).normal(size=640).astype(np.float32)
    written.agree(kernel, (10,), {"x": data, "y": np.zeros_like(data)})


def test_chunks_of_several_rows_are_as_interpreted(soon: None, written: Format) -> None:
    """With what is left of a row behind the vectors, and what instances read of another row."""
    x, y = g.input(0, Type((3, 9001), DType.F32)), g.input(1, Type((9001,), DType.F32))
    root = g.mul(g.add(x, g.broadcast(y, (3, 9001))), x)
    (call,) = lowered_to_kernels(GraphRequest((root,), (x, y)), SIMD).calls
    assert written.mark in written.write(call.kernel, SIMD).text
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=n).astype(np.float32) for n in (27003, 9001, 27003)]
    given = (arrays[part.index if part.kind == "input" else 2] for part in call.buffers)
    names = (p.name for p in call.kernel.params)
    written.agree(call.kernel, call.grid, dict(zip(names, given, strict=True)))
