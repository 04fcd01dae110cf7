"""Every elementwise operation on every element type it takes, against the interpreter."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.build import (
    Builder,
    binary,
    bitcast,
    cast,
    const,
    fma,
    mul,
    program_id,
    sub,
    unary,
    where,
)
from hal.tile.kernel import Kernel
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from hal.tile.ops import OPS, TRANSCENDENTAL, OpClass
from tests.compiler.llvm.agreement import agree
from tests.draw import sample

EXACT = [op for op in OPS.values() if op.name not in TRANSCENDENTAL and op.name != "pow"]
SHAPES = [(1, 32), (5, 16), (8, 32), (13, 32), (40, 64)]
"""Widths of the block, bytes of a register."""


def values(dtype: DType, count: int, seed: int) -> np.ndarray:
    """Ordinary values with the troublesome ones among them."""
    rng = np.random.default_rng(seed)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype.is_float:
        special = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan])
        kind = NUMPY[dtype]
        info = ml_dtypes.finfo(kind)
        special = np.concatenate([special, [info.max, -info.max, info.smallest_subnormal]])
        x = np.where(
            rng.random(count) < 0.4, rng.choice(special, count), rng.normal(size=count) * 9
        )
        return x.astype(kind)
    low, high = np.iinfo(NUMPY[dtype]).min, np.iinfo(NUMPY[dtype]).max
    special = np.array([0, 1, 2, 3, 7, low, high, high - 1], NUMPY[dtype])
    whole = rng.integers(low, high, count, NUMPY[dtype], endpoint=True)
    return np.where(rng.random(count) < 0.5, rng.choice(special, count), whole)


def chunked(
    name: str, width: int, inputs: list[DType], outputs: dict[str, DType]
) -> tuple[Builder, list[Node], dict[str, object]]:
    """A builder with a block of each input loaded, up to the scalar n, and the outputs'
    memories."""
    b = Builder(name)
    sources = [b.buffer(f"x{i}", d) for i, d in enumerate(inputs)]
    targets = {key: b.buffer(key, d, reads=False, writes=True) for key, d in outputs.items()}
    start = mul(program_id(), width)
    limit = sub(b.scalar("n", DType.I64), start)
    loaded = [b.load(s, start, (width,), (1,), (limit,)) for s in sources]
    return b, loaded, {"targets": targets, "start": start, "limit": limit}


def check(
    results: dict[str, Node],
    built: tuple[Builder, list[Node], dict],
    inputs: list[np.ndarray],
    width: int,
    vector_nbytes: int,
) -> None:
    """Store every result and compare."""
    b, _, where_to = built
    for key, value in results.items():
        b.store(where_to["targets"][key], where_to["start"], value, (1,), (where_to["limit"],))
    n = len(inputs[0])
    buffers = {f"x{i}": a for i, a in enumerate(inputs)}
    buffers |= {key: np.zeros(n, NUMPY[v.dtype]) for key, v in results.items()}
    agree(b.kernel(), (-(-n // width),), buffers, {"n": n}, vector_nbytes=vector_nbytes)


def applied(name: str, operands: list[Node]) -> Node:
    op = OPS[name]
    if op.group is OpClass.UNARY:
        return unary(name, operands[0])
    return fma(*operands) if name == "fma" else binary(name, *operands[:2])


@pytest.mark.parametrize(
    ("dtype", "width", "vector_nbytes"),
    [(d, *shape) for d in DType for shape in sample(f"widths of {d.short}", SHAPES, 2)],
)
def test_operations_mean_what_the_interpreter_computes(
    dtype: DType, width: int, vector_nbytes: int
) -> None:
    groups = (OpClass.UNARY, OpClass.BINARY, OpClass.COMPARE, OpClass.TERNARY)
    ops = [op for op in EXACT if op.group in groups and op.takes(dtype)]
    kinds = {f"{op.name}_": DType.BOOL if op.group is OpClass.COMPARE else dtype for op in ops}
    built = chunked("ops", width, [dtype] * 3, kinds)
    results = {f"{op.name}_": applied(op.name, built[1]) for op in ops}
    count = 3 * width + max(1, width // 2)
    inputs = [values(dtype, count, seed) for seed in range(3)]
    check(results, built, inputs, width, vector_nbytes)


@pytest.mark.parametrize("dtype", list(DType))
def test_casts(dtype: DType) -> None:
    built = chunked("casts", 13, [dtype], {f"to_{d.short}": d for d in DType})
    results = {f"to_{d.short}": cast(built[1][0], d) for d in DType}
    check(results, built, [values(dtype, 70, 1)], 13, 32)


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BOOL])
def test_bitcasts(dtype: DType) -> None:
    others = [d for d in DType if d.bits == dtype.bits and d is not DType.BOOL]
    built = chunked("bitcasts", 12, [dtype], {f"to_{d.short}": d for d in others})
    results = {f"to_{d.short}": bitcast(built[1][0], d) for d in others}
    check(results, built, [values(dtype, 50, 2)], 12, 32)


@pytest.mark.parametrize("dtype", list(DType))
def test_where_and_constants(dtype: DType) -> None:
    built = chunked("select", 11, [dtype, dtype, DType.BOOL], {"picked": dtype, "constant": dtype})
    x, y, c = built[1]
    constant = where(c, const(3, dtype), x)
    check(
        {"picked": where(c, x, y), "constant": constant},
        built,
        [values(dtype, 40, 0), values(dtype, 40, 1), values(DType.BOOL, 40, 2)],
        11,
        32,
    )


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_float])
@pytest.mark.parametrize("name", ["min", "max"])
def test_extremes_of_constants_keep_nan(dtype: DType, name: str) -> None:
    built = chunked(name, 9, [dtype], {"left": dtype, "right": dtype, "nan": dtype})
    (x,) = built[1]
    results = {
        "left": binary(name, const(0.5, dtype, (9,)), x),
        "right": binary(name, x, 0.5),
        "nan": binary(name, x, float("nan")),
    }
    check(results, built, [values(dtype, 60, 3)], 9, 32)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_remainders_next_to_multiples(dtype: DType) -> None:
    """Of quotients up to the largest that are divided on vectors, and past it."""
    rng, kind, count = np.random.default_rng(9), NUMPY[dtype], 64 * 24
    y = (rng.standard_normal(count) * 3).astype(kind)
    most = np.repeat([4.0, 2.0**21, 2.0 ** (24 if dtype is DType.F32 else 53)], count // 3)
    x = (np.trunc(rng.random(count) * most) * y).astype(kind)
    beside = rng.integers(0, 3, count)
    x = np.where(beside == 0, x, np.nextafter(x, (beside == 1) * x * 2, dtype=kind))
    built = chunked("rests", 16, [dtype, dtype], {"rest": dtype})
    left, right = built[1]
    check({"rest": binary("rem", left, right)}, built, [x, y], 16, 32)


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_int])
def test_quotients_next_to_whole_ones(dtype: DType) -> None:
    """Integers of 64 bits also at the ends of what floats hold."""
    rng, kind, count = np.random.default_rng(11), NUMPY[dtype], 64 * 24
    high = int(min(np.iinfo(kind).max, 1 << 53))
    b = np.maximum(1, high ** rng.random(count)).astype(kind)
    a = (b * rng.integers(0, high // b, endpoint=True, dtype=kind)).astype(kind)
    a -= np.minimum(a, rng.integers(0, 2, count, kind))
    if dtype.kind == "i":
        a, b = (np.where(rng.random(count) < 0.5, x, -x).astype(kind) for x in (a, b))
    built = chunked("quotients", 16, [dtype, dtype], {"div": dtype, "rem": dtype})
    left, right = built[1]
    check({name: binary(name, left, right) for name in ("div", "rem")}, built, [a, b], 16, 32)


def test_scalar_expressions_and_parameters_of_every_type() -> None:
    b = Builder("scalars")
    outs = {d: b.buffer(f"o_{d.short}", d, writes=True) for d in DType}
    given = {d: b.scalar(f"s_{d.short}", d) for d in DType}
    for d, o in outs.items():
        b.store(o, program_id(), binary("max", given[d], given[d]))
    buffers = {f"o_{d.short}": np.zeros(3, NUMPY[d]) for d in DType}
    scalars = {f"s_{d.short}": 1 if d is DType.BOOL else 2.5 if d.is_float else 7 for d in DType}
    kernel: Kernel = b.kernel()
    agree(kernel, (3,), buffers, scalars)
