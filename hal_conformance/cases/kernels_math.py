"""Functions against float64, within the error that `NumericProfile.ulp` declares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.tile.build import binary, fma, unary
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from hal.tile.ops import TRANSCENDENTAL
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import computed, need, pairs
from hal_conformance.rig import Rig

kernels_math = Cases("E", Level.CORE)

F16, F32, F64, BF16 = DType.F16, DType.F32, DType.F64, DType.BF16
TINY = 2.0**-126
LARGEST = {F16: 65504.0, BF16: (2 - 2**-7) * 2.0**127, F32: (2 - 2**-23) * 2.0**127}
PRECISION = {F16: (11, -24), BF16: (8, -133), F32: (24, -149)}
"""Bits of the significand, and the exponent of the smallest denormal."""

Truth = Callable[..., NDArray[np.float64]]
ONE: Mapping[str, Truth] = {
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "recip": lambda x: 1 / x,
}
TWO: Mapping[str, Truth] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
}
_LARGE = [0.0, 1e-300, 1e-20, 0.5, 1.0, 19.0, 354.0, 356.0, 709.0, 710.0, 1e6, 1e300, np.inf]
LIKE = {"sub": "add", "recip": "div"}


def bound(rig: Rig, op: str) -> float:
    """The declared error in units of the last place."""
    ulp = rig.info.numeric.ulp
    return ulp["div"] + 2 * ulp["sqrt"] if op == "rsqrt" else ulp[LIKE.get(op, op)]


def unit(x: NDArray[Any], dtype: DType) -> NDArray[np.float64]:
    """One unit in the last place of x as a number of that type."""
    bits, least = PRECISION[dtype]
    _, exponent = np.frexp(np.minimum(np.abs(x.astype(np.float64)), LARGEST[dtype]))
    return np.asarray(np.ldexp(1.0, np.maximum(exponent - bits, least)))


def within(rig: Rig, op: str, dtype: DType, got: NDArray[Any], exact: NDArray[np.float64]) -> None:
    """The results have the declared error of float32, and one rounding to a narrower type."""
    with np.errstate(all="ignore"):
        found = got.astype(np.float64)
        tolerance = bound(rig, op) * unit(exact, F32)
        if dtype is not F32:
            tolerance += 0.5 * unit(np.maximum(np.abs(exact), np.abs(found)), dtype)
        if not rig.info.numeric.denormals:
            tolerance = np.where(np.abs(exact) < TINY, 2 * TINY, tolerance)
        # What may be rounded beyond the largest number may be infinite.
        beyond = np.isinf(found) & (np.abs(exact) + tolerance > LARGEST[dtype])
        wanted = np.where(beyond & (found * exact > 0), found, exact)
        expect.near(got, wanted, tolerance, f"{op} of {dtype.short}")


def _usable(rig: Rig, x: NDArray[Any]) -> NDArray[Any]:
    """Without denormals where the device does not keep them."""
    if rig.info.numeric.denormals:
        return x
    return np.where(np.abs(x.astype(np.float64)) < TINY, 0, x).astype(x.dtype)


def _samples(rig: Rig, count: int) -> NDArray[np.float32]:
    """Of every size, of the usual size, and special ones."""
    bits = rig.random.integers(0, 1 << 32, count // 2, np.uint32).view(np.float32)
    return _usable(rig, np.concatenate([bits, _usual(rig, count - count // 2), _specials()]))


def _usual(rig: Rig, count: int) -> NDArray[np.float32]:
    return (rig.random.standard_normal(count) * 4).astype(np.float32)


def _specials() -> NDArray[np.float32]:
    positive = [0, 1, 0.5, 2, 3, 2.5, 1e-45, 1.2e-38, 3e38, 16777217, 88.8, 104, np.pi, np.inf]
    return np.array([*positive, *(-x for x in positive), np.nan], np.float32)


def _exact(truth: Truth, *inputs: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        return np.asarray(truth(*(x.astype(np.float64) for x in inputs)))


@kernels_math.case("math-f32", "launch.exact", op=tuple(ONE))
def _(rig: Rig, op: str) -> None:
    x = _samples(rig, 20_000)
    (got,) = computed(rig, lambda x: [unary(op, x)], [x], [F32], width=64)
    within(rig, op, F32, got, _exact(ONE[op], x))


@kernels_math.case("math-f32", "launch.exact", op=tuple(TWO))
def _(rig: Rig, op: str) -> None:
    x, y = _samples(rig, 20_000), rig.random.permutation(_samples(rig, 20_000))
    special = pairs(_usable(rig, _specials()))
    inputs = [np.concatenate([x, special[0]]), np.concatenate([y, special[1]])]
    if op == "pow":
        inputs = [np.append(inputs[0], np.abs(x)), np.append(inputs[1], _usual(rig, y.size))]
    (got,) = computed(rig, lambda x, y: [binary(op, x, y)], inputs, [F32], width=64)
    within(rig, op, F32, got, _exact(TWO[op], *inputs))


@kernels_math.case("math-f32-fma", "launch.exact")
def _(rig: Rig) -> None:
    """Rounded once, also where the sum nearly cancels."""
    x, y = (rig.random.standard_normal((2, 10_000)) * 8).astype(np.float32)
    z = np.concatenate([-(x * y)[:5000], rig.random.standard_normal(5000).astype(np.float32)])
    (got,) = computed(rig, lambda x, y, z: [fma(x, y, z)], [x, y, z], [F32], width=64)
    within(rig, "fma", F32, got, _exact(lambda x, y, z: x * y + z, x, y, z))


@kernels_math.case("math-all", "launch.exact", dtype=(F16, BF16), op=(*TRANSCENDENTAL, "sqrt"))
def _(rig: Rig, dtype: DType, op: str) -> None:
    """All 65,536 numbers of a narrow type: computed in float32 and rounded once."""
    x = _usable(rig, np.arange(1 << 16, dtype=np.uint16).view(NUMPY[dtype]))
    (got,) = computed(rig, lambda x: [unary(op, x)], [x], [dtype], width=128)
    within(rig, op, dtype, got, _exact(ONE[op], x))


@kernels_math.case("math-narrow", "launch.exact", dtype=(F16, BF16), op=tuple(TWO))
def _(rig: Rig, dtype: DType, op: str) -> None:
    need(rig, dtype)
    bits = rig.random.integers(0, 1 << 16, (2, 2048)).astype(np.uint16)
    x, y = (_usable(rig, b.view(NUMPY[dtype])) for b in bits)
    (got,) = computed(rig, lambda x, y: [binary(op, x, y)], [x, y], [dtype])
    within(rig, op, dtype, got, _exact(TWO[op], x, y))


@kernels_math.case("math-f64", "launch.exact", op=(*ONE, *TWO))
def _(rig: Rig, op: str) -> None:
    """The profile is silent on float64; it is no worse than a few units of its last place, also
    for large, small and special numbers."""
    x, y = rig.random.standard_normal((2, 512)) * [[4], [2]]
    special = pairs(np.array(_LARGE + [-v for v in _LARGE]))
    x, y = np.append(x, special[0]), np.append(y, special[1])
    x = np.abs(x) if op == "pow" else x
    if op in ("sin", "cos"):  # beyond it a library may lose the angle
        x = np.where(np.abs(x) > 1e5, 1e5, x)
    functions: Mapping[str, Truth] = ONE if op in ONE else TWO
    inputs = [x] if op in ONE else [x, y]

    def body(*operands: Node) -> list[Node]:
        return [unary(op, *operands) if op in ONE else binary(op, *operands)]

    (got,) = computed(rig, body, inputs, [F64])
    exact = _exact(functions[op], *inputs)
    error = np.where(np.isfinite(exact), np.abs(exact) * 1e-14, 0) + 5e-324
    expect.near(got, exact, error, f"{op} of f64")
