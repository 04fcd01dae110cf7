"""Every elementwise operation and conversion on special values, in few kernels: a device's compiler
takes long for each."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.build import Builder, arange, binary, bitcast, cast, fma, reduce, scan, unary, where
from hal.tile.numeric import NUMPY, bounds, constant, quiet
from hal.tile.ops import ATOMICS, OPS, TRANSCENDENTAL, OpClass
from tests.compiler.c.agreement import agree
from tests.draw import sample

FREE = {*TRANSCENDENTAL, "pow"}
SPECIAL = (0.0, -0.0, 1.0, -1.5, 2.5, np.inf, -np.inf, np.nan, 1e-45, 6e-8, 1e-40, 65519.0, 65520.0)
LARGE = (1e30, -3e38, 2.0**31, -(2.0**31), 2.0**63, 2.0**64, -(2.0**63), 127.5, -128.5, 255.9, 3e-5)


def values(dtype: DType, count: int = 32) -> np.ndarray:
    """Special numbers of a type and, in a second half, ordinary ones."""
    rng = np.random.default_rng(count)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype.is_float:
        chosen = [*SPECIAL, *LARGE, *rng.normal(size=count)][:count]
    else:
        low, high = bounds(dtype)
        chosen = [0, 1, -1 if low else 7, 3, low, high, low + 1, dtype.bits - 1, dtype.bits]
        chosen += [int(x) for x in rng.integers(0, 100, count)]
    with quiet():
        return np.array([constant(x, dtype) for x in chosen[:count]], NUMPY[dtype])


def pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of values."""
    found = values(dtype)
    return np.repeat(found, 32), np.tile(found, 32)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("dtype", sample("exact in C", DType, 8))
def test_operations_are_exact(dtype: DType) -> None:
    b = Builder("exact")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype)
    out = b.buffer("out", dtype, writes=True)
    truth = b.buffer("truth", DType.BOOL, writes=True)
    p, q = (b.load(m, 0, (1024,), (1,)) for m in (x, y))
    results = [fma(p, q, p), where(binary("lt", p, q), p, q)] if dtype is not DType.BOOL else []
    flags = []
    for op in OPS.values():
        if op.takes(dtype) and op.name not in FREE:
            if op.group is OpClass.UNARY:
                results.append(unary(op.name, p))
            elif op.group is OpClass.BINARY:
                results.append(binary(op.name, p, q))
            elif op.group is OpClass.COMPARE:
                flags.append(binary(op.name, p, q))
    for target, tiles in ((out, results), (truth, flags)):
        for i, tile in enumerate(tiles):
            b.store(target, 1024 * i, tile, (1,))
    first, second = pairs(dtype)
    buffers = {
        "x": first,
        "y": second,
        "out": np.zeros(1024 * len(results), NUMPY[dtype]),
        "truth": np.zeros(1024 * len(flags), np.bool_),
    }
    agree(b.kernel(), (1,), buffers)


@pytest.mark.slow
@pytest.mark.turns
def test_conversions_are_exact() -> None:
    b = Builder("convert")
    buffers = {}
    for source in DType:
        x = b.load(b.buffer(f"x_{source.short}", source), 0, (64,), (1,))
        buffers[f"x_{source.short}"] = values(source, 64)
        for to in DType:
            name = f"{source.short}_to_{to.short}"
            b.store(b.buffer(name, to, writes=True), 0, cast(x, to), (1,))
            buffers[name] = np.zeros(64, NUMPY[to])
            if to.bits == source.bits and DType.BOOL not in (to, source):
                name = f"{source.short}_as_{to.short}"
                b.store(b.buffer(name, to, writes=True), 0, bitcast(x, to), (1,))
                buffers[name] = np.zeros(64, NUMPY[to])
    agree(b.kernel(), (1,), buffers)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.F16, DType.BF16])
def test_functions_are_close(dtype: DType) -> None:
    b = Builder("close")
    x = b.load(b.buffer("x", dtype), 0, (256,), (1,))
    out = b.buffer("out", dtype, writes=True)
    results = [unary(name, x) for name in TRANSCENDENTAL]
    results.append(binary("pow", unary("abs", x), binary("mul", x, 0.5)))
    for i, tile in enumerate(results):
        b.store(out, 256 * i, tile, (1,))
    given = np.concatenate([np.linspace(-9, 9, 250), [0, np.inf, -np.inf, np.nan, 30, -30]])
    buffers = {
        "x": given.astype(NUMPY[dtype]),
        "out": np.zeros(256 * len(results), NUMPY[dtype]),
    }
    agree(b.kernel(), (1,), buffers, ulp=16)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.BF16])
def test_sines_of_few_or_many_large_arguments(dtype: DType) -> None:
    b = Builder("sines")
    x, out = b.buffer("x", dtype), b.buffer("out", dtype, writes=True)
    tile, one = b.load(x, 0, (64,), (1,)), b.load(x, 65, (), ())
    b.store(out, 0, unary("sin", tile), (1,))
    b.store(out, 64, binary("add", unary("cos", tile), unary("sin", one)), (1,))
    near = np.linspace(-40000, 40000, 66)
    for given in (near, np.where(np.arange(66) % 7 == 2, 1e7, near), 1e5 + near):
        buffers = {"x": given.astype(NUMPY[dtype]), "out": np.zeros(128, NUMPY[dtype])}
        agree(b.kernel(), (1,), buffers, ulp=8, scale=1)


@pytest.mark.slow
@pytest.mark.turns
def test_atomics_on_equal_indices_of_many_instances() -> None:
    b = Builder("atomic")
    buffers = {}
    for dtype in (d for d in DType if d is not DType.BOOL):
        name = f"x_{dtype.short}"
        x = b.load(b.buffer(name, dtype), 0, (13,), (1,))
        buffers[name] = (np.arange(13) % 5 - 2 * dtype.is_float).astype(NUMPY[dtype])
        for kind in ATOMICS:
            name = f"{kind}_{dtype.short}"
            index = binary("rem", arange(13), 4) if kind != "exchange" else arange(13)
            target = b.buffer(name, dtype, reads=True, writes=True)
            b.atomic(kind, target, index, x, binary("lt", arange(13), 11))
            buffers[name] = np.ones(13, NUMPY[dtype])
    agree(b.kernel(), (6,), buffers)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I8, DType.BOOL])
def test_reductions_and_scans(dtype: DType) -> None:
    b = Builder("along")
    x = b.load(b.buffer("x", dtype), 0, (5, 9), (9, 1))
    out = b.buffer("out", dtype, writes=True)
    place = 0
    for kind in ("sum", "prod", "min", "max") if dtype is not DType.BOOL else ("min", "max"):
        for axis in (0, 1):
            b.store(out, place, reduce(kind, x, axis), (1,))
            b.store(out, place + 16, scan(kind, x, axis), (9, 1))
            place += 64
    data = (np.arange(45) % 4 - (dtype.is_float or dtype is DType.I8)).astype(NUMPY[dtype])
    agree(b.kernel(), (1,), {"x": data, "out": np.zeros(place, NUMPY[dtype])}, ulp=2, scale=1.0)
