"""Tiles: shapes, reductions, scans and products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.tile.build import (
    Builder,
    add,
    arange,
    broadcast,
    cast,
    dot,
    mul,
    program_id,
    reduce,
    reshape,
    scan,
    transpose,
)
from hal.tile.kernel import Kernel
from hal.tile.node import Node
from hal.tile.numeric import NUMPY, bounds
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import counts, need
from hal_conformance.rig import Rig

kernels_tiles = Cases("E", Level.CORE)

F16, F32, F64, BF16 = DType.F16, DType.F32, DType.F64, DType.BF16
NARROW = tuple(d for d in DType if d.is_narrow)
I8, I32, I64 = DType.I8, DType.I32, DType.I64
EPSILON = {F64: 2.0**-52, F32: 2.0**-23, F16: 2.0**-10, BF16: 2.0**-7}
SHAPE = (6, 10)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))


def of_tile(dtype: DType, shape: tuple[int, ...], body: Callable[[Node], Node]) -> Kernel:
    """y = body(x) of one tile."""
    b = Builder("of_tile")
    x = b.load(b.buffer("x", dtype), 0, shape, _row_major(shape))
    value = body(x)
    y = b.buffer("y", value.dtype, reads=False, writes=True)
    b.store(y, 0, value, _row_major(value.shape))
    return b.kernel()


def made(rig: Rig, kernel: Kernel, x: NDArray[Any], dtype: DType, size: int) -> NDArray[Any]:
    """What the kernel makes of x."""
    need(rig, *(p.dtype for p in kernel.params))
    return rig.run(kernel, {"x": x.ravel(), "y": np.zeros(size, NUMPY[dtype])})["y"]


SHAPES: dict[str, tuple[Callable[[Node], Node], Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "reshape": (lambda x: reshape(x, (4, 15)), lambda x: x.reshape(4, 15)),
    "flat": (lambda x: reshape(x, (60,)), lambda x: x.reshape(60)),
    "cube": (lambda x: reshape(x, (3, 4, 5)), lambda x: x.reshape(3, 4, 5)),
    "transpose": (lambda x: transpose(x, (1, 0)), lambda x: x.T),
    "turned": (
        lambda x: transpose(reshape(x, (3, 4, 5)), (2, 0, 1)),
        lambda x: x.reshape(3, 4, 5).transpose(2, 0, 1),
    ),
    "flattened": (
        lambda x: reshape(transpose(reshape(x, (3, 4, 5)), (2, 0, 1)), (6, 10)),
        lambda x: x.reshape(3, 4, 5).transpose(2, 0, 1).reshape(6, 10),
    ),
    "square": (
        lambda x: broadcast(reshape(x, (60,)), (60, 60)),
        lambda x: np.broadcast_to(x.reshape(60), (60, 60)),
    ),
    "repeated": (
        lambda x: broadcast(reshape(x, (60, 1)), (60, 3)),
        lambda x: np.broadcast_to(x.reshape(60, 1), (60, 3)),
    ),
    "stacked": (lambda x: broadcast(x, (2, 6, 10)), lambda x: np.broadcast_to(x, (2, 6, 10))),
    "outer": (
        lambda x: mul(reshape(x, (15, 4, 1)), reshape(x, (15, 1, 4))),
        lambda x: x.reshape(15, 4, 1) * x.reshape(15, 1, 4),
    ),
}


@kernels_tiles.case("shape", "launch.exact", what=tuple(SHAPES), dtype=(I32, BF16))
def _(rig: Rig, what: str, dtype: DType) -> None:
    body, truth = SHAPES[what]
    x = rig.random.integers(-8, 8, SHAPE).astype(NUMPY[dtype])
    wanted = truth(x)
    got = made(rig, of_tile(dtype, SHAPE, body), x, dtype, wanted.size)
    expect.same(got.reshape(wanted.shape), wanted, what)


@kernels_tiles.case("arange", "launch.exact", dtype=(I64, I32, I8, F32, F16))
def _(rig: Rig, dtype: DType) -> None:
    need(rig, dtype)
    b = Builder("arange")
    y = b.buffer("y", dtype, reads=False, writes=True)
    b.store(y, mul(program_id(), 37), add(arange(37, dtype), 1), (1,))
    got = rig.run(b.kernel(), {"y": np.zeros(74, NUMPY[dtype])}, (2, 1, 1))["y"]
    expect.same(got, np.tile(np.arange(1, 38), 2).astype(NUMPY[dtype]), "1, 2, 3, ...")


KINDS: dict[str, Callable[..., Any]] = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
}
SCANS: dict[str, Callable[..., Any]] = {
    "sum": np.add.accumulate,
    "prod": np.multiply.accumulate,
    "min": np.minimum.accumulate,
    "max": np.maximum.accumulate,
}
COUNTED = (DType.U8, I8, DType.U32, I64)
COUNTED_MORE = (DType.U16, DType.I16, I32, DType.U64)


def whole_range(rig: Rig, dtype: DType, shape: tuple[int, ...]) -> NDArray[Any]:
    """Integers of the whole range, and its ends."""
    low, high = bounds(dtype)
    values = np.frombuffer(rig.noise(int(np.prod(shape)) * dtype.nbytes), NUMPY[dtype]).copy()
    values[rig.random.permutation(values.size)[:4]] = (low, high, 0, low + 1)
    return values.reshape(shape)


@kernels_tiles.case("reduce-range", "launch.exact", dtype=COUNTED_MORE)
def _(rig: Rig, dtype: DType) -> None:
    """Every reduction of integers of the whole range, in one kernel."""
    need(rig, dtype)
    b = Builder("all_kinds")
    tile = b.load(b.buffer("x", dtype), 0, SHAPE, _row_major(SHAPE))
    y = b.buffer("y", dtype, reads=False, writes=True)
    for i, kind in enumerate(KINDS):
        b.store(y, i * SHAPE[0], reduce(kind, tile, 1), (1,))
    x = whole_range(rig, dtype, SHAPE)
    got = rig.run(b.kernel(), {"x": x.ravel(), "y": np.zeros(4 * SHAPE[0], x.dtype)})["y"]
    for row, (kind, numpy) in zip(got.reshape(4, -1), KINDS.items(), strict=True):
        expect.same(row, numpy(x, axis=1, dtype=x.dtype), f"{kind} of {dtype.short}")


@kernels_tiles.case("reduce-exact", "launch.exact", kind=tuple(KINDS), dtype=COUNTED)
def _(rig: Rig, kind: str, dtype: DType) -> None:
    """Along either axis; integers of the whole range wrap in any order."""
    x = whole_range(rig, dtype, SHAPE)
    for axis in (0, 1):
        wanted = KINDS[kind](x, axis=axis, dtype=x.dtype)
        kernel = of_tile(dtype, SHAPE, partial(reduce, kind, axis=axis))
        got = made(rig, kernel, x, dtype, wanted.size)
        expect.same(got, wanted, f"{kind} along axis {axis}")


@kernels_tiles.case("reduce-float", "launch.exact", kind=tuple(KINDS), dtype=(F64, F32, F16, BF16))
def _(rig: Rig, kind: str, dtype: DType) -> None:
    """In any order, in float32 for narrow types, which are rounded at the end."""
    x = (rig.random.standard_normal((3, 50)) + 1).astype(NUMPY[dtype])
    exact = KINDS[kind](x.astype(np.float64), axis=1)
    got = made(rig, of_tile(dtype, (3, 50), lambda x: reduce(kind, x, 1)), x, dtype, 3)
    if kind in ("min", "max"):
        return expect.same(got, exact.astype(NUMPY[dtype]), kind)
    size = np.abs(x.astype(np.float64)).sum(1) if kind == "sum" else np.abs(exact)
    wide = EPSILON[F64 if dtype is F64 else F32] * 50 * size
    rounding = 0.0 if dtype in (F64, F32) else EPSILON[dtype] * np.abs(exact) + 2.0**-24
    return expect.near(got, exact, wide + rounding, f"{kind} of {dtype.short}")


@kernels_tiles.case("reduce-narrow-in-f32", "launch.exact", dtype=NARROW)
def _(rig: Rig, dtype: DType) -> None:
    """A sum whose parts would vanish if it were kept in the narrow type."""
    large = 2.0 ** (dtype.mantissa + 2)
    x = np.array([large, *[1.0] * 64]).astype(NUMPY[dtype])
    got = made(rig, of_tile(dtype, (65,), lambda x: reduce("sum", x, 0)), x, dtype, 1)
    expect.same(got, np.array([large + 64]).astype(NUMPY[dtype]), "a large number and 64 ones")


@kernels_tiles.case("reduce-nan", "launch.exact", kind=tuple(KINDS))
def _(rig: Rig, kind: str) -> None:
    x = np.ones((3, 20), np.float32)
    x[1, 13] = np.nan
    got = made(rig, of_tile(F32, (3, 20), lambda x: reduce(kind, x, 1)), x, F32, 3)
    expect.same(np.isnan(got), np.array([False, True, False]), f"rows whose {kind} is NaN")


@kernels_tiles.case("scan", "launch.exact", kind=tuple(SCANS), dtype=(*COUNTED, F32))
def _(rig: Rig, kind: str, dtype: DType) -> None:
    """Each prefix; floats small enough to be exact, integers of the whole range."""
    x = rig.random.integers(1, 3, SHAPE).astype(np.float32)
    if dtype is not F32:
        x = whole_range(rig, dtype, SHAPE)
    for axis in (0, 1):
        wanted = SCANS[kind](x, axis=axis, dtype=x.dtype)
        kernel = of_tile(dtype, SHAPE, partial(scan, kind, axis=axis))
        got = made(rig, kernel, x, dtype, x.size)
        expect.same(got.reshape(SHAPE), wanted, f"prefixes by {kind} along axis {axis}")


def product(
    inputs: DType, sums: DType, m: int, n: int, k: int, other: DType | None = None
) -> Kernel:
    """out = acc + x @ y of an (m, k) and a (k, n) tile."""
    b = Builder("dot")
    x, y, acc = b.buffer("x", inputs), b.buffer("y", other or inputs), b.buffer("acc", sums)
    out = b.buffer("out", sums, reads=False, writes=True)
    left, right = b.load(x, 0, (m, k), (k, 1)), b.load(y, 0, (k, n), (n, 1))
    b.store(out, 0, dot(left, right, b.load(acc, 0, (m, n), (n, 1))), (n, 1))
    return b.kernel()


PRODUCTS = ((F32, F32), (F64, F64), (F16, F32), (BF16, F32), (F16, F16), (BF16, BF16))
WHOLE = ((I8, I32), (I32, I32), (I64, I64), (DType.U8, DType.U32))
MIXED = ((DType.U8, I8, I32), (I8, DType.U8, I32))
SIZES = ((1, 1, 1), (4, 8, 16), (5, 7, 13))


@kernels_tiles.case("dot-whole", "launch.exact", types=WHOLE, sizes=SIZES)
def _(rig: Rig, types: tuple[DType, DType], sizes: tuple[int, int, int]) -> None:
    """Integers of the whole range, exactly; a sum that overflows wraps."""
    need(rig, *types)
    (m, n, k), (inputs, sums) = sizes, types
    a, b = (np.resize(whole_range(rig, inputs, (4, 64)), s) for s in ((m, k), (k, n)))
    acc = np.resize(whole_range(rig, sums, (4, 4)), (m, n))
    arrays = {"x": a, "y": b, "acc": acc, "out": np.zeros_like(acc)}
    got = rig.run(product(inputs, sums, m, n, k), {name: x.ravel() for name, x in arrays.items()})
    with np.errstate(over="ignore"):
        wanted = acc.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64)
    expect.same(got["out"].reshape(m, n), wanted.astype(NUMPY[sums]), "acc + a @ b")


@kernels_tiles.case("dot-mixed", "launch.exact", types=MIXED, sizes=((5, 7, 13), (3, 32, 8)))
def _(rig: Rig, types: tuple[DType, DType, DType], sizes: tuple[int, int, int]) -> None:
    """Integers of two types, exactly."""
    need(rig, *types)
    (m, n, k), (left, right, sums) = sizes, types
    a = np.resize(whole_range(rig, left, (4, 64)), (m, k))
    b = np.resize(whole_range(rig, right, (4, 64)), (k, n))
    arrays = {"x": a, "y": b, "acc": np.zeros((m, n), NUMPY[sums])}
    arrays["out"] = np.full_like(arrays["acc"], 7)
    kernel = product(left, sums, m, n, k, right)
    got = rig.run(kernel, {name: x.ravel() for name, x in arrays.items()})["out"]
    wanted = a.astype(np.int64) @ b.astype(np.int64)
    expect.same(got.reshape(m, n), wanted.astype(NUMPY[sums]), "a @ b")


@kernels_tiles.case("dot-denormals", "launch.exact", dtype=NARROW)
def _(rig: Rig, dtype: DType) -> None:
    """Denormals are kept, but where a matrix unit for these types says that it may take them for
    zero: then each product counts whole or not at all."""
    need(rig, dtype, F32)
    k, n = 2, 64
    tiny, large = 2.0 ** (1 - dtype.bias - dtype.mantissa), 2.0 ** (dtype.bias - 1)
    row = np.array([tiny, 1.0]).astype(NUMPY[dtype])
    columns = np.stack([np.full(n, large), np.full(n, 0.5)]).astype(NUMPY[dtype])
    arrays = {"x": row, "y": columns.ravel(), "acc": np.zeros(n, np.float32)}
    arrays["out"] = np.full(n, 7, np.float32)
    got = rig.run(product(dtype, F32, 1, n, k), arrays)["out"].astype(np.float64)
    kept = (row.astype(np.float64) @ columns.astype(np.float64)).astype(np.float32)
    lost = columns[1].astype(np.float32)
    may_lose = not rig.info.numeric.denormals or any(
        u.inputs is dtype and u.accumulate is F32 and not u.denormals for u in rig.info.matrix_units
    )
    right = (got == kept) | ((got == lost) & may_lose)
    expect.that(bool(right.all()), f"{dtype.short}: {got[~right][:4]} for {kept[~right][:4]}")


@kernels_tiles.case("dot", "launch.exact", types=PRODUCTS, sizes=SIZES)
def _(rig: Rig, types: tuple[DType, DType], sizes: tuple[int, int, int]) -> None:
    need(rig, *types)
    (m, n, k), (inputs, sums) = sizes, types
    a = rig.random.standard_normal((m, k)).astype(NUMPY[inputs])
    b = rig.random.standard_normal((k, n)).astype(NUMPY[inputs])
    acc = rig.random.standard_normal((m, n)).astype(NUMPY[sums])
    arrays = {"x": a, "y": b, "acc": acc, "out": np.zeros_like(acc)}
    got = rig.run(product(inputs, sums, m, n, k), {name: x.ravel() for name, x in arrays.items()})
    wide = [x.astype(np.float64) for x in (a, b, acc)]
    exact = wide[2] + wide[0] @ wide[1]
    size = np.abs(wide[2]) + np.abs(wide[0]) @ np.abs(wide[1])
    epsilon = EPSILON[F64 if sums is F64 else F32] * (k + 1)
    rounding = EPSILON[sums] * np.abs(exact) if sums in (F16, BF16) else 0.0
    tolerance = epsilon * size + rounding
    expect.near(got["out"].reshape(m, n), exact, tolerance, "acc + a @ b")


@kernels_tiles.case("dot-accumulates-in-f32", "launch.exact", dtype=NARROW)
def _(rig: Rig, dtype: DType) -> None:
    """A product whose sum would stop growing in the narrow type, as NumericProfile declares."""
    need(rig, dtype)
    if rig.info.numeric.accumulate[dtype] is dtype:
        raise expect.Unfit(f"the device adds {dtype.short} products in {dtype.short}")
    k, large = 64, 2.0 ** (dtype.mantissa + 2)
    arrays = {name: np.ones(k, NUMPY[dtype]) for name in ("x", "y")}
    arrays |= {"acc": np.array([large]).astype(NUMPY[dtype]), "out": np.zeros(1, NUMPY[dtype])}
    got = rig.run(product(dtype, dtype, 1, 1, k), arrays)["out"]
    expect.same(got, np.array([large + k]).astype(NUMPY[dtype]), "a large number and 64 ones")


@kernels_tiles.case("deterministic", "launch.deterministic", what=("sum", "product"))
def _(rig: Rig, what: str) -> None:
    """A hundred runs of a sum over many instances give the same bits, wherever its data lie."""
    if not rig.info.numeric.deterministic:
        raise expect.Unfit("the device does not declare that equal work gives equal bits")
    need(rig, F32)
    b = Builder(what)
    x, y = b.buffer("x", F32), b.buffer("y", F32, reads=False, writes=True)
    tile = b.load(x, mul(program_id(), 8), (8, 8), (8, 1))
    value = reduce("sum", reshape(tile, (64,)), 0) if what == "sum" else dot(tile, tile, tile)
    b.store(y, mul(program_id(), 64), broadcast(value, (8, 8)), (8, 1))
    values = rig.random.standard_normal(128).astype(np.float32)
    program, outs = rig.program(b.kernel()), [rig.buffer(4 * 64 * 8) for _ in range(4)]
    places = [rig.buffer(bytes(4 * i) + values.tobytes()).region(4 * i, 512) for i in (0, 1, 3, 7)]
    pairs = zip(places, outs, strict=True)
    launchables = [rig.device.bind(program, [place, out]) for place, out in pairs]
    first = b""
    for _ in range(25):
        for launchable in launchables:
            point = rig.device.launch(launchable, (8, 1, 1), rig.timeline(), ())
        for out in outs:
            found = rig.read(out, waits=[point])
            first = first or found
            expect.same_bytes(found, first, f"the {what} of another run")


@kernels_tiles.case("cast-in-reduction", "launch.exact")
def _(rig: Rig) -> None:
    x = rig.random.integers(-100, 100, 60).astype(np.int8)
    wide = counts(rig)
    kernel = of_tile(I8, (60,), lambda x: reduce("sum", cast(x, wide), 0))
    got = made(rig, kernel, x, wide, 1)
    exact = np.array([x.astype(np.int64).sum()])
    expect.same(got.astype(np.int64), exact, f"a sum of bytes in {wide.short}")
