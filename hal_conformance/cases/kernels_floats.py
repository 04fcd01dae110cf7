"""Float operations that round once or not at all, special values and denormals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.tile.build import Builder, add, binary, cast, const, mul, program_id, unary, where
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.cases.kernels_sizes import FEWEST, affordable
from hal_conformance.kernels import agree, computed, index_of, need, pairs
from hal_conformance.rig import Rig

kernels_floats = Cases("E", Level.CORE)

F16, F32, F64, BF16 = DType.F16, DType.F32, DType.F64, DType.BF16
FLOATS = (F64, F32, F16, BF16)
BITS: dict[DType, DType] = {F64: DType.U64, F32: DType.U32, F16: DType.U16, BF16: DType.U16}
WIDTH = 8
ROUNDING = ("floor", "ceil", "round", "neg", "abs")


def special(dtype: DType) -> NDArray[Any]:
    """Zeros, halves, whole numbers, large ones, infinities and NaN, of both signs; no denormals."""
    large = 2.0**11 if dtype is F16 else 2.0**25
    positive = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 7.75, 100.0, large, large + large / 128, np.inf]
    return np.array([*positive, *(-x for x in positive), np.nan]).astype(NUMPY[dtype])


def denormals(dtype: DType) -> NDArray[Any]:
    """The smallest numbers of a type, and the smallest normal one."""
    bits = {F64: 52, F32: 23, F16: 10, BF16: 7}[dtype]
    found = np.array([1, 2, 3, (1 << bits) - 1, 1 << bits, (1 << bits) + 1], NUMPY[BITS[dtype]])
    return found.view(NUMPY[dtype])


def each(*ops: str) -> Callable[..., list[Node]]:
    """Every one of the operations on the same operands."""
    return lambda *xs: [unary(op, *xs) if len(xs) == 1 else binary(op, *xs) for op in ops]


@kernels_floats.case("float-rounding", "launch.exact", dtype=FLOATS)
def _(rig: Rig, dtype: DType) -> None:
    values = np.linspace(-5, 5, 81).astype(NUMPY[dtype])
    inputs = [np.concatenate([values, special(dtype)])]
    agree(rig, each(*ROUNDING), inputs, [dtype] * 5, "floor, ceil, round, -x, |x|")


@kernels_floats.case("float-remainder", "launch.exact", dtype=FLOATS)
def _(rig: Rig, dtype: DType) -> None:
    agree(rig, each("rem"), pairs(special(dtype)), [dtype], "the remainder of special values")
    wide = NUMPY[F64 if dtype is F64 else F32]
    x, y = (rig.random.standard_normal((2, 256)) * [[1000], [3]]).astype(NUMPY[dtype])
    (got,) = computed(rig, each("rem"), (x, y), [dtype])
    wanted = np.fmod(x.astype(wide), y.astype(wide)).astype(NUMPY[dtype])
    expect.same(got, wanted, "the remainder of random values")


@kernels_floats.case("float-compare", "launch.exact", dtype=FLOATS)
def _(rig: Rig, dtype: DType) -> None:
    """NaN is not equal, not less, and different from everything."""

    def body(a: Node, b: Node) -> list[Node]:
        tests = [binary(op, a, b) for op in ("eq", "ne", "lt", "le")]
        return [*(cast(t, DType.U8) for t in tests), where(tests[3], a, b)]

    outputs = [*[DType.U8] * 4, dtype]
    agree(rig, body, pairs(special(dtype)), outputs, "==, !=, <, <= and a choice by <=")


@kernels_floats.case("float-minimum", "launch.exact", dtype=FLOATS)
def _(rig: Rig, dtype: DType) -> None:
    """NaN if an operand is NaN."""
    agree(rig, each("min", "max"), pairs(special(dtype)), [dtype] * 2, "min and max")


@kernels_floats.case("nan-propagates", "launch.exact", dtype=FLOATS)
def _(rig: Rig, dtype: DType) -> None:
    a, b = pairs(special(dtype))
    ops = ("add", "sub", "mul", "div", "rem", "min", "max")
    got = computed(rig, each(*ops), (a, b), [dtype] * len(ops))
    either = np.isnan(a.astype(np.float64)) | np.isnan(b.astype(np.float64))
    for op, result in zip(ops, got, strict=True):
        expect.that(np.isnan(result[either].astype(np.float64)).all(), f"{op} lost a NaN")


@kernels_floats.case("signed-zero", "launch.exact", dtype=FLOATS)
def _(rig: Rig, dtype: DType) -> None:
    """Zeros of both signs, also where the program's text has one of them."""
    zeros = np.array([0.0, -0.0, 1.0, -1.0]).astype(NUMPY[dtype])

    def body(a: Node, b: Node) -> list[Node]:
        zero = const(0.0, dtype, a.shape)
        known = [add(a, zero), binary("sub", zero, a)]
        return [*each("add", "sub", "mul")(a, b), unary("neg", a), unary("abs", a), *known]

    inputs = pairs(zeros)
    got = computed(rig, body, inputs, [dtype] * 7)
    wanted = computed(rig, body, inputs, [dtype] * 7, golden=True)
    for a, b in zip(got, wanted, strict=True):
        expect.same(a, b, "sums and products of zeros")
        expect.same(np.signbit(a), np.signbit(b), "their signs")


@kernels_floats.case("denormals-kept", "launch.exact")
def _(rig: Rig) -> None:
    """float32 denormals are what NumericProfile says; a device that flushes says so."""
    need(rig, F32)
    if not rig.info.numeric.denormals:
        raise expect.Unfit("the device does not keep denormals of float32")
    tiny = denormals(F32)
    values = np.concatenate([tiny, -tiny])
    agree(rig, each("add", "sub", "min", "max"), pairs(values), [F32] * 4, "sums of denormals")
    halves = (values, np.full(values.size, 0.5, np.float32))
    agree(rig, each("mul", "div"), halves, [F32] * 2, "a half and the double of denormals")
    agree(rig, each("neg", "abs"), [values], [F32] * 2, "-x and |x| of denormals")
    agree(rig, lambda x: [cast(x, F64)], [values], [F64], "denormals as float64")


@kernels_floats.case("instances-round-alike", "launch.exact", numbers=("normal", "denormal"))
def _(rig: Rig, numbers: str) -> None:
    """Each of many instances rounds sums and products of float32 to nearest, and keeps denormals
    where the device says so: how a core rounds is a register of each thread that works."""
    need(rig, F32)
    rounds_once(rig)
    if numbers == "denormal" and not rig.info.numeric.denormals:
        raise expect.Unfit("the device does not keep denormals of float32")
    count = min(max(FEWEST, affordable(rig, 1 << 12, 0.2)), rig.info.limits.grid[0])
    b = Builder("alike")
    x, y = b.buffer("x", F32), b.buffer("y", F32)
    z, begin = b.buffer("z", F32, reads=False, writes=True), mul(program_id(), WIDTH)
    p, q = (b.load(given, begin, (WIDTH,), (1,)) for given in (x, y))
    b.store(z, mul(program_id(), 2 * WIDTH), add(p, q), (1,))
    b.store(z, add(mul(program_id(), 2 * WIDTH), WIDTH), mul(p, q), (1,))
    a, c = (rig.random.uniform(0.3, 3, (count, WIDTH)).astype(np.float32) for _ in range(2))
    if numbers == "denormal":
        a *= np.float32(2.0**-127)
    given = {"x": a.ravel(), "y": c.ravel(), "z": np.zeros(2 * a.size, np.float32)}
    got = rig.run(b.kernel(), given, (count, 1, 1))["z"].reshape(count, 2 * WIDTH)
    bad = np.flatnonzero((got != np.concatenate([a + c, a * c], axis=1)).any(axis=1))
    if bad.size:
        raise expect.Wrong(
            f"{bad.size} of {count} instances round {numbers} numbers otherwise than to nearest, "
            f"or flush them: the first is {bad[0]}, the last {bad[-1]}"
        )


def rounds_once(rig: Rig) -> None:
    """The device rounds sums and products of float32 to nearest; else the case says nothing."""
    ulp = rig.info.numeric.ulp
    if max(ulp.get(name, 1.0) for name in ("add", "mul")) > 0.5:
        raise expect.Unfit("the device does not round sums and products to nearest")


@kernels_floats.case("chains-in-order", "launch.exact", dtype=(F64, F32))
def _(rig: Rig, dtype: DType) -> None:
    """A compiler that adds or multiplies in another order than the program gets other numbers: none
    here may be cancelled, gathered, made beforehand or taken from the other end."""
    rounds_once(rig)
    x, y, z = rig.random.standard_normal((3, 256)).astype(NUMPY[dtype])
    x *= NUMPY[dtype].type(2.0 ** (dtype.mantissa // 2))
    chains = (
        *(
            ("add", "sub", "xyx"),
            ("add", "sub", "xyy"),
            ("sub", "add", "xyy"),
            ("sub", "sub", "xyx"),
        ),
        *(
            ("add", "add", "xyz"),
            ("add", "add", "zyx"),
            ("add", "add", "yxy"),
            ("div", "mul", "xyy"),
        ),
        *(
            ("mul", "mul", "xyz"),
            ("mul", "mul", "zyx"),
            ("mul", "mul", "yxy"),
            ("mul", "div", "xyy"),
        ),
        *(("add", "add", "xkl"), ("mul", "mul", "xkl"), ("add", "sub", "ykk")),
    )

    def body(*inputs: Node) -> list[Node]:
        numbers = (const(k, dtype, inputs[0].shape) for k in (4099.3, 0.7))
        given = dict(zip("xyzkl", (*inputs, *numbers), strict=True))
        return [
            binary(then, binary(first, given[names[0]], given[names[1]]), given[names[2]])
            for first, then, names in chains
        ]

    outputs = [dtype] * len(chains)
    got = computed(rig, body, (x, y, z), outputs)
    wanted = computed(rig, body, (x, y, z), outputs, golden=True)
    for (first, then, names), mine, right in zip(chains, got, wanted, strict=True):
        what = f"({names[0]} {first} {names[1]}) {then} {names[2]}"
        expect.same(mine, right, f"{what}, one operation after the other")


@kernels_floats.case("sums-of-rounds-in-order", "launch.exact", width=(1, 8))
def _(rig: Rig, width: int) -> None:
    """A loop that adds a number in each round adds them in the order of its rounds."""
    need(rig, F32)
    rounds_once(rig)
    rounds = 331
    b = Builder("rounds")
    x, y = b.buffer("x", F32), b.buffer("y", F32, reads=False, writes=True)

    def body(i: Node, total: Node) -> list[Node]:
        return [add(total, b.load(x, mul(i, width), (width,), (1,)))]

    zero = const(0, F32, (width,))
    (total,) = b.loop(0, index_of(rig, b, "n"), 1, body, [zero])
    b.store(y, 0, total, (1,))
    size = 2.0 ** rig.random.integers(0, 12, (rounds, width))
    numbers = (rig.random.standard_normal((rounds, width)) * size).astype(np.float32)
    arrays = {"x": numbers.ravel(), "y": np.zeros(width, np.float32)}
    wanted = np.add.accumulate(numbers, axis=0)[-1]
    expect.same(
        rig.run(b.kernel(), {**arrays, "n": rounds})["y"],
        wanted,
        f"sums in the order of {rounds} rounds",
    )


@kernels_floats.case("denormals-narrow", "launch.exact", dtype=(F16, BF16))
def _(rig: Rig, dtype: DType) -> None:
    """Denormals of float16 are normal numbers of float32, in which they are computed."""
    if dtype is BF16 and not rig.info.numeric.denormals:
        raise expect.Unfit("the device does not keep denormals of float32")
    tiny = denormals(dtype)
    inputs = pairs(np.concatenate([tiny, -tiny]))
    agree(rig, each("add", "sub"), inputs, [dtype] * 2, "sums of denormals")


@kernels_floats.case("contraction", "launch.exact")
def _(rig: Rig) -> None:
    """a * b + c is rounded twice, or once where NumericProfile.fma says that it may be fused."""
    need(rig, F32)
    a, b = (rig.random.standard_normal((2, 512))).astype(np.float32)
    c = -(a * b)
    product = a.astype(np.float64) * b.astype(np.float64)
    once = (product + c.astype(np.float64)).astype(np.float32)
    (got,) = computed(
        rig, lambda a, b, c: [binary("add", binary("mul", a, b), c)], (a, b, c), [F32]
    )
    fused = (got == once) & rig.info.numeric.fma
    expect.same(np.where(fused, 0, got), np.zeros(512, np.float32), "a * b - (a * b)")
