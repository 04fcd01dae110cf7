"""The text of one kernel, as written down."""

from __future__ import annotations

from collections.abc import Callable

from hal.core.dtypes import DType
from hal.tile.build import Builder, binary, cast, program_id, reduce, reshape, sub
from stack.compiler.text.c import render_opencl
from tests.compiler.lowered import SIMD


def test_a_kernel_is_as_written_down(golden: Callable[[str, str], None]) -> None:
    b = Builder("shares")
    x, y = b.buffer("x", DType.BF16), b.buffer("y", DType.F32, writes=True)
    n = b.scalar("n", DType.I64)
    row = binary("mul", program_id(0), n)
    tile = cast(b.load(x, row, (1, 16), (0, 1), (None, n)), DType.F32)
    total = reshape(reduce("sum", tile, 1), (1, 1))
    b.store(y, row, binary("div", tile, total), (0, 1), (None, sub(n, 0)))
    source = render_opencl(b.kernel(), SIMD)
    assert (source.format, source.entry) == ("opencl-c/1", "shares_kernel")
    golden("compiler/shares.cl", source.text)
