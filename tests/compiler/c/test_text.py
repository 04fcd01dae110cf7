"""The text of one kernel, as written down."""

from __future__ import annotations

from collections.abc import Callable

from hal.core.dtypes import DType
from hal.tile.build import Builder, binary, cast, const, program_id, reduce, reshape, sub
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


def test_compilers_may_not_add_rounds_of_floats_at_once() -> None:
    """Intel's vectorizer did, and a sum of 331 numbers was another one."""

    def text(dtype: DType) -> str:
        b = Builder("rounds")
        x, y = b.buffer("x", dtype), b.buffer("y", dtype, reads=False, writes=True)
        n = b.scalar("n", DType.I64)
        zero = const(0, dtype, (1,))
        (total,) = b.loop(
            0, n, 1, lambda i, s: [binary("add", s, b.load(x, i, (1,), (1,)))], [zero]
        )
        b.store(y, 0, total, (1,))
        return render_opencl(b.kernel(), SIMD).text

    in_order = "#pragma clang loop vectorize(disable)\n    for (long "
    assert in_order in text(DType.F32)
    assert in_order not in text(DType.I32)
