"""Integer and bool arithmetic, where it is most often wrong: at the ends of the types."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.tile.build import binary, cast, fma, unary, where
from hal.tile.numeric import NUMPY, bounds
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import agree, computed, pairs
from hal_conformance.rig import Rig

kernels_integers = Cases("E", Level.CORE)

INTEGERS = tuple(d for d in DType if d.is_int)
BOOL = DType.BOOL


def ends(dtype: DType) -> NDArray[Any]:
    """Numbers near zero, near both ends and in between."""
    low, high = bounds(dtype)
    near = [low, low + 1, low + 2, high - 1, high, high // 3, low // 3, 0, 1, 2, 3, 7]
    signed = [-1, -2, -3, -7] if dtype.kind == "i" else []
    return np.array([*near, *signed], NUMPY[dtype])


@kernels_integers.case("integer-wrap", "launch.exact", dtype=INTEGERS)
def _(rig: Rig, dtype: DType) -> None:
    def body(a: Any, b: Any) -> list[Any]:
        two = [binary(op, a, b) for op in ("add", "sub", "mul")]
        return [*two, fma(a, b, a), unary("neg", a), unary("abs", a)]

    agree(rig, body, pairs(ends(dtype)), [dtype] * 6, "a+b, a-b, a*b, a*b+a, -a, |a|")


@kernels_integers.case("integer-division", "launch.exact", dtype=INTEGERS)
def _(rig: Rig, dtype: DType) -> None:
    """Towards zero, 0 by zero, and the lowest number by -1 wraps."""

    def body(a: Any, b: Any) -> list[Any]:
        return [binary("div", a, b), binary("rem", a, b)]

    a, b = pairs(ends(dtype))
    agree(rig, body, (a, b), [dtype] * 2, "a / b and a % b")
    quotient, rest = computed(rig, body, (a, b), [dtype] * 2)
    for x, y, q, r in zip(a.tolist(), b.tolist(), quotient.tolist(), rest.tolist(), strict=True):
        if y == 0:
            expect.equal((q, r), (0, 0), f"{x} divided by zero")
        else:
            whole = (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)
            wraps = -(whole > bounds(dtype)[1]) * 2**dtype.bits
            expect.equal((q, r), (whole + wraps, x - whole * y), f"{x} divided by {y}")


@kernels_integers.case("integer-shift", "launch.exact", dtype=INTEGERS)
def _(rig: Rig, dtype: DType) -> None:
    """By the width or more, and by negative amounts, there is nothing left but the sign."""
    bits = dtype.bits
    amounts = [0, 1, bits // 2, bits - 1, bits, bits + 1, bounds(dtype)[1]]
    amounts += [-1, -bits, bounds(dtype)[0]] if dtype.kind == "i" else []
    a, b = np.meshgrid(ends(dtype), np.array(amounts, NUMPY[dtype]))

    def body(a: Any, b: Any) -> list[Any]:
        return [binary("shl", a, b), binary("shr", a, b)]

    agree(rig, body, (a.ravel(), b.ravel()), [dtype] * 2, "a << b and a >> b")


@kernels_integers.case("integer-bits", "launch.exact", dtype=INTEGERS)
def _(rig: Rig, dtype: DType) -> None:
    def body(a: Any, b: Any) -> list[Any]:
        two = [binary(op, a, b) for op in ("and", "or", "xor", "min", "max")]
        return [*two, unary("not", a)]

    agree(rig, body, pairs(ends(dtype)), [dtype] * 6, "and, or, xor, min, max, not")


@kernels_integers.case("integer-compare", "launch.exact", dtype=INTEGERS)
def _(rig: Rig, dtype: DType) -> None:
    def body(a: Any, b: Any) -> list[Any]:
        tests = [binary(op, a, b) for op in ("eq", "ne", "lt", "le")]
        return [*(cast(t, DType.U8) for t in tests), where(tests[2], a, b)]

    outputs = [*[DType.U8] * 4, dtype]
    agree(rig, body, pairs(ends(dtype)), outputs, "==, !=, <, <= and a choice by <")


@kernels_integers.case("bool-logic", "launch.exact")
def _(rig: Rig) -> None:
    def body(a: Any, b: Any) -> list[Any]:
        ops = ("and", "or", "xor", "min", "max", "eq", "ne", "lt", "le")
        return [*(binary(op, a, b) for op in ops), unary("not", a), where(a, b, unary("not", b))]

    agree(rig, body, pairs(np.array([False, True])), [BOOL] * 11, "the operations of bool")
