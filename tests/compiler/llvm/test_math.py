"""The stated errors of functions against f64, over all of f32; special values; narrow and wide
types."""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.build import Builder, add, binary, mul, program_id, unary
from hal.tile.evaluate import Instance, value_of
from hal.tile.kernel import Kernel
from hal.tile.node import Type, node, toposort
from hal.tile.numeric import NUMPY, quiet
from hal.tile.ops import TRANSCENDENTAL
from stack.compiler.text.llvm import render
from stack.compiler.text.math import ULP, scaled_exp
from tests.compiler.llvm.machine import assembly, host_features, info, run

WIDTH = 64
_FINITE = [0, 1, 0.5, 2, 3, 2.5, 1e-45, 3e38]
SPECIAL = np.array([*_FINITE, *(-x for x in _FINITE), -0.0, 16777217, np.inf, -np.inf, np.nan])
SPECIAL = SPECIAL.astype(np.float32)
REFERENCE: dict[str, Callable[..., np.ndarray]] = {
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "pow": np.power,
}
EXTREMES = {"tanh": 1.0, "erf": 1.0, "sin": 1.0, "cos": 1.0}


def computed(name: str, dtype: DType, *inputs: np.ndarray) -> np.ndarray:
    """The function of arrays whose size is a multiple of WIDTH."""
    b = Builder("function")
    start = mul(program_id(), WIDTH)
    y = b.buffer("y", dtype, writes=True)
    sources = [b.buffer(f"x{i}", dtype) for i in range(len(inputs))]
    tiles = [b.load(s, start, (WIDTH,), (1,)) for s in sources]
    b.store(y, start, unary(name, *tiles) if len(tiles) == 1 else binary(name, *tiles), (1,))
    out = np.zeros_like(inputs[0])
    buffers = {f"x{i}": x for i, x in enumerate(inputs)}
    run(b.kernel(), (out.size // WIDTH,), {"y": out, **buffers})
    return out


def padded(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.pad(x.ravel(), (0, -x.size % WIDTH)))


def every(step: int) -> np.ndarray:
    """Every `step`-th f32, by its bits, and the special ones."""
    bits = np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32)
    return padded(np.concatenate([SPECIAL, bits.view(np.float32)]))


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    """The largest error in units of the last place; values that are not finite must be equal."""
    with np.errstate(over="ignore", invalid="ignore"):
        want = exact.astype(got.dtype)
    finite = np.isfinite(want) & np.isfinite(got)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    unit = np.spacing(np.maximum(np.abs(want[finite]), np.finfo(got.dtype).tiny))
    return float(np.max(np.abs(got[finite] - exact[finite]) / unit, initial=0))


@pytest.mark.parametrize("name", TRANSCENDENTAL)
def test_error_over_all_of_f32(name: str) -> None:
    x = every(160001 if name == "erf" else 16001)
    got = computed(name, DType.F32, x)
    with np.errstate(all="ignore"):
        assert ulps(got, REFERENCE[name](x.astype(np.float64))) <= ULP[name]
    assert np.nanmax(np.abs(got)) <= EXTREMES.get(name, np.inf)


@pytest.mark.parametrize("name", TRANSCENDENTAL)
def test_error_where_functions_bend(name: str) -> None:
    x = padded(np.linspace(-12, 12, 60_000).astype(np.float32))
    got = computed(name, DType.F32, x)
    with np.errstate(all="ignore"):
        error = ulps(got, REFERENCE[name](x.astype(np.float64)))
    assert error <= ULP[name]
    assert error > ULP[name] / 3  # what is stated is not far from what was measured


X86_SCALE = "llvm.x86.avx512.mask.scalef.ps.512"
SCALING = replace(info(64), scale=X86_SCALE)


def test_exp_times_a_power_of_two() -> None:
    x = np.concatenate([every(16001), padded(np.linspace(-104, 89, 60_000).astype(np.float32))])
    root = scaled_exp(node("var", Type(x.shape, DType.F32), id=0))
    (var,) = (n for n in toposort((root,)) if n.op == "var")
    assert root.op == "scale"
    with quiet():
        given = Instance("k", (), (), {}, {}, {var: x})
        value, power = (value_of(given, n) for n in root.srcs)
        np.testing.assert_array_equal(power[~np.isnan(x)], np.rint(power[~np.isnan(x)]))
        whole = np.where(np.isnan(x), 0, power).astype(np.int32)
        assert ulps(np.ldexp(value, whole), np.exp(x.astype(np.float64))) <= 1.0


@pytest.mark.skipif(not host_features().get("avx512f"), reason="the processor has no AVX-512")
@pytest.mark.parametrize("width", [1, 5, 8, 32, 64, 72])
def test_exp_by_the_function_that_a_device_names(width: int) -> None:
    x = every(160001)
    x = np.ascontiguousarray(np.pad(x, (0, -x.size % width)))
    got = np.zeros_like(x)
    run(_exponentials(width), (x.size // width,), {"y": got, "x": x}, device=SCALING)
    with np.errstate(all="ignore"):
        assert ulps(got, np.exp(x.astype(np.float64))) <= 1.0
    whole = np.zeros_like(padded(x))
    run(_exponentials(WIDTH), (whole.size // WIDTH,), {"y": whole, "x": padded(x)}, device=SCALING)
    np.testing.assert_array_equal(got.view(np.int32), whole[: got.size].view(np.int32))


def test_the_function_that_a_device_names_is_an_instruction() -> None:
    if not re.match("x86_64|AMD64", platform.machine()):
        pytest.skip("for other processors there is no such function")
    kernel = _exponentials(WIDTH)
    assert assembly(render(kernel, SCALING), "avx512f").count("vscalefps") == WIDTH // 16
    assert X86_SCALE not in render(kernel, info(64)).text


def _exponentials(width: int) -> Kernel:
    b = Builder("function")
    start = mul(program_id(), width)
    source, y = b.buffer("x", DType.F32), b.buffer("y", DType.F32, writes=True)
    b.store(y, start, unary("exp", b.load(source, start, (width,), (1,))), (1,))
    return b.kernel()


def test_erf_and_one() -> None:
    x = np.concatenate([every(160001), padded(np.linspace(-6, 6, 60_000).astype(np.float32))])
    b = Builder("function")
    start = mul(program_id(), WIDTH)
    source, y = b.buffer("x", DType.F32), b.buffer("y", DType.F32, writes=True)
    b.store(y, start, add(1.0, unary("erf", b.load(source, start, (WIDTH,), (1,)))), (1,))
    got = np.zeros_like(x)
    run(b.kernel(), (x.size // WIDTH,), {"y": got, "x": x})
    with np.errstate(all="ignore"):
        want = 1 + REFERENCE["erf"](x.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    error = np.nanmax(np.abs(got - want))
    assert 1e-7 < error <= 2e-7
    assert np.nanmin(got) == 0
    assert np.nanmax(got) == 2


def test_powers() -> None:
    rng = np.random.default_rng(0)
    pairs = np.stack([a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL)])
    wild = rng.integers(0, 1 << 32, (2, 20_000), dtype=np.uint32).view(np.float32)
    tame = np.exp(rng.normal(size=(2, 20_000)) * 2).astype(np.float32)
    whole = np.stack([rng.normal(size=20_000) * 5, np.round(rng.normal(size=20_000) * 8)])
    both = np.concatenate([pairs, wild, tame, whole.astype(np.float32)], axis=1)
    x, y = padded(both[0]), padded(both[1])
    got = computed("pow", DType.F32, x, y)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
        assert ulps(got, want) <= ULP["pow"]
        wanted = want.astype(np.float32)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.signbit(got[finite]), np.signbit(wanted[finite]))


@pytest.mark.parametrize("name", [*TRANSCENDENTAL, "pow"])
def test_f64_is_the_library_function(name: str) -> None:
    rng = np.random.default_rng(1)
    x = padded(np.concatenate([SPECIAL, rng.normal(size=1000) * 4]).astype(np.float64))
    inputs = (np.abs(x), x) if name == "pow" else (x,)
    got = computed(name, DType.F64, *inputs)
    with np.errstate(all="ignore"):
        want = REFERENCE[name](*inputs)
    np.testing.assert_allclose(got, want, rtol=1e-14)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
@pytest.mark.parametrize("name", TRANSCENDENTAL)
def test_narrow_types_are_rounded_once_from_f32(name: str, dtype: DType) -> None:
    bits = np.arange(0, 1 << 16, 16 if name == "erf" else 1, dtype=np.uint16)
    x = bits.view(NUMPY[dtype])
    got = computed(name, dtype, x).astype(np.float64)
    with np.errstate(all="ignore"):
        want = REFERENCE[name](x.astype(np.float64)).astype(np.float32).astype(NUMPY[dtype])
    want = want.astype(np.float64)
    finite = np.isfinite(want) & np.isfinite(got)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    got, want = got[finite], want[finite]
    step = 2.0 ** (-10 if dtype is DType.F16 else -7)
    tiny = 2.0**-14 if dtype is DType.F16 else 2.0**-126
    assert np.all(np.abs(got - want) <= np.maximum(np.abs(want), tiny) * step)
    assert np.mean(got == want) > 0.995  # ties that an f32 ulp tips are rare
