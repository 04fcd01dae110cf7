"""Text and kernels are the same thing; errors say where."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings

from hal.core.dtypes import DType
from hal.tile import build
from hal.tile.build import Builder
from hal.tile.errors import TileTextError
from hal.tile.kernel import If, Kernel, Store
from hal.tile.text import canonical, parse_kernel, print_kernel
from hal.tile.verify import verify
from tests.tile.kernels import kernels

F32, I64 = DType.F32, DType.I64


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernels())
def test_round_trip(kernel: Kernel) -> None:
    verify(kernel)
    text = print_kernel(kernel)
    parsed = parse_kernel(text)
    assert parsed == canonical(kernel)
    verify(parsed)
    assert print_kernel(parsed) == text


def test_canonical_is_idempotent_and_numbers_from_one() -> None:
    b = Builder("k")
    x = b.buffer("x", F32, writes=True)
    b.var(build.Type((), F32))
    b.store(x, 0, b.load(x, 1))
    kernel = canonical(b.kernel())
    assert kernel == canonical(kernel)
    assert kernel.body[0].result["id"] == 1


@pytest.mark.parametrize("dtype", list(DType))
def test_constants_survive(dtype: DType) -> None:
    values = [0.0, -0.0, 1e-45, 1.7e308, math.inf, -math.inf, math.nan, 0.1, 1e16]
    values = values if dtype.is_float else [True, False] if dtype is DType.BOOL else [0, 1, 100]
    b = Builder("k")
    x = b.buffer("x", dtype, writes=True)
    for value in values:
        b.store(x, 0, build.const(value, dtype))
    assert parse_kernel(print_kernel(b.kernel())) == b.kernel()


def _matmul() -> Kernel:
    b = Builder("matmul")
    x, y, z = (b.buffer(n, F32, writes=n == "z") for n in "xyz")
    k = b.scalar("k", I64)
    row = build.mul(build.program_id(), 4)

    def step(i, acc):
        a = b.load(x, build.add(build.mul(row, k), i), (4, 8), (k, 1), (None, build.sub(k, i)))
        c = b.load(y, build.mul(i, 16), (8, 16), (16, 1), (build.sub(k, i), None))
        return [build.dot(a, c, acc)]

    (acc,) = b.loop(0, k, 8, step, [build.const(0.0, F32, (4, 16))])
    b.store(z, build.mul(row, 16), acc, (16, 1))
    return b.kernel()


def _everything() -> Kernel:
    b = Builder("everything")
    x, h = b.buffer("x", DType.BF16), b.buffer("h", DType.I32, writes=True)
    n = b.scalar("n", I64)
    s = b.alloc("s", DType.BF16, 32)
    b.copy(b.access(s, 0, (1,)), b.access(x, n, (2,), (n,)), (32,), channel=1)
    b.wait(1)
    b.barrier()
    t = build.cast(b.load(s, 0, (32,), (1,), other=None), F32)
    i = build.cast(build.unary("floor", build.binary("max", t, 0.0)), DType.I32)
    positive = build.binary("lt", 0, n)
    with b.when(positive):
        b.atomic("add", h, i, build.const(1, DType.I32, (32,)), build.binary("lt", i, 9))
        g = b.gather(h, i, build.binary("lt", i, 9), build.const(-1, DType.I32))
        b.scatter(h, i, build.reshape(build.transpose(build.reshape(g, (4, 8)), (1, 0)), (32,)))
    total = build.reduce("sum", build.scan("max", t, 0), 0)
    value = build.where(build.binary("eq", total, math.inf), 1.0, build.fma(total, total, -0.0))
    b.store(h, 0, build.bitcast(value, DType.I32))
    kernel = b.kernel()
    store = Store(kernel.body[-1].target, build.const(7, DType.I32))
    return Kernel(kernel.name, kernel.params, (*kernel.body, If(positive, (), (store,))))


@pytest.mark.parametrize("make", [_matmul, _everything])
def test_golden(make, golden) -> None:
    kernel = make()
    verify(kernel)
    golden(f"tile/{kernel.name}.tile", print_kernel(kernel))
    assert parse_kernel(print_kernel(kernel)) == canonical(kernel)


HEAD = "hal-tile/1\nkernel k(x: buffer f32 reads writes, n: scalar i64) {\n"


@pytest.mark.parametrize(
    ("text", "line", "column", "expected"),
    [
        ("", 1, 1, "'hal-tile/1', found the end of the text"),
        ("hal-tile/2\n", 1, 1, "'hal-tile/1', found 'hal-tile/2'"),
        ("hal-tile/1\nkernel (", 2, 8, "the kernel's name, found '('"),
        ("hal-tile/1\nkernel k(x: f32", 2, 13, "'buffer' or 'scalar'"),
        ("hal-tile/1\nkernel k(x: buffer f33", 2, 20, "an element type (f64"),
        (HEAD + "  %1 = frobnicate %2 : f32\n}\n", 3, 8, "an operation (load"),
        (HEAD + "  %1 = neg %2 : f32\n}\n", 3, 12, "a value that is defined before"),
        (HEAD + "  %1 = neg $m : f32\n}\n", 3, 12, "a value that is defined before"),
        (HEAD + "  %1 = neg 1.0:f32\n}\n", 3, 19, "':', found the end of the line"),
        (HEAD + "  %1 = neg 1.5 : f32\n}\n", 3, 12, "a number with its type"),
        (HEAD + "  %1 = neg 1.5:i32 : i32\n}\n", 3, 12, "a number with its type"),
        (HEAD + "  %1 = program_id : i64\n}\n", 3, 19, "'axis'"),
        (HEAD + "  %1 = neg 1 : i64 %2\n}\n", 3, 20, "the end of the line"),
        (HEAD + "  frob\n}\n", 3, 3, "a statement (%n = ..., store"),
        (HEAD + "  store 1.0:f32 to z[0]\n}\n", 3, 20, "a memory that is declared"),
        (HEAD + "  store 1.0:f32 y x[0]\n}\n", 3, 17, "'to'"),
        (HEAD + "  store 1.0:f32 to x[0]\n", 4, 1, "a statement"),
        (HEAD + "  %1 = neg 1 : i64\n  %1 = neg 2 : i64\n}\n", 4, 3, "not defined yet"),
        (HEAD + "  for %1 in range(0, 4) {\n  }\n}\n", 3, 25, "start, stop and step"),
        (HEAD + "  for %1 in range(0, 4, 1) {\n  }\n  store %1 to x[0]\n}\n", 5, 9, "visible here"),
        (HEAD + "  for %1 in range(0, 4, 1) carry(%2 = 1) {\n  }\n}\n", 4, 3, "'next'"),
        (HEAD + "  if true {\n  next 1\n  }\n}\n", 4, 3, "'}'"),
        (HEAD + "}\n}\n", 4, 1, "the end of the text"),
        (HEAD + "  alloc s : f32[1.5]\n}\n", 3, 17, "an integer"),
        (HEAD + "  @\n}\n", 3, 3, "a statement"),
    ],
)
def test_errors_say_where_and_what(text: str, line: int, column: int, expected: str) -> None:
    with pytest.raises(TileTextError) as e:
        parse_kernel(text)
    assert expected in str(e.value)
    assert (e.value.line, e.value.column) == (line, column)


def test_comments_and_empty_lines_do_not_matter() -> None:
    text = HEAD + "\n  # a comment\n  store 1.0:f32 to x[$n] # here\n\n}\n\n"
    assert "store 1.0:f32 to x[$n]\n" in print_kernel(parse_kernel("\n" + text))
