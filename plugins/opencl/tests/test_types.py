"""Element types that a device lacks: f64 without doubles in the driver, f16 without halves."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest
from hal_plugin_opencl import describe, programs

import hal
from hal.core.dtypes import DType
from hal.core.errors import CompileError, Unsupported
from hal.tile.node import Node, Type
from plugins.opencl.tests.conftest import Bench, buffer, source
from stack import ops as build
from stack.compiler.program import GraphRequest
from stack.runtime import Engine, engine_of


@pytest.fixture
def single() -> Iterator[Engine]:
    """An engine on a device whose driver says that it has no doubles."""
    without = {"has_double": lambda device: False}
    with (
        patch.multiple(describe, **without),
        patch.multiple(programs, **without),
        engine_of(hal.open("opencl:0")) as engine,
    ):
        yield engine


def given(dtype: DType) -> Node:
    return build.input(0, Type((8,), dtype))


def test_a_graph_in_f64_names_the_device_and_what_it_has(single: Engine) -> None:
    """Also where nothing that the device is given or gives back is of that type."""
    assert DType.F64 not in single.device.info.dtypes
    double, float_ = given(DType.F64), given(DType.F32)
    inside = build.cast(build.sqrt(build.cast(float_, DType.F64)), DType.F32)
    for root, x in ((build.add(double, double), double), (inside, float_)):
        with pytest.raises(Unsupported, match=r"opencl:0 does not compute in f64.*\(f32, f16"):
            single.plan(GraphRequest((root,), (x,)))


def test_other_types_compute_there(single: Engine) -> None:
    values = np.linspace(-3, 3, 8)
    for dtype, kind in ((DType.F32, np.float32), (DType.F16, np.float16), (DType.I64, np.int64)):
        x = given(dtype)
        (out,) = single.plan(GraphRequest((build.mul(x, x),), (x,))).run(
            [single.put(values, dtype)]
        )
        host = values.astype(kind)
        np.testing.assert_array_equal(single.get(out), host * host)


def test_a_program_in_f64(single: Engine) -> None:
    bench = Bench(single.device)
    text = "__kernel void f(__global uchar *x_base, ulong x_offset) { }"
    with pytest.raises(CompileError, match=r"has no f64.*'x'"):
        bench.device.load(source(text, buffer("x", DType.F64)))


def test_text_with_halves_is_refused_with_its_line(bench: Bench) -> None:
    """Halves are computed with as f32 and stored as bits; only text of others may ask for them."""
    if "cl_khr_fp16" in bench.device.info.facts["extensions"]:
        pytest.skip("this device has halves")
    text = (
        "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"
        "__kernel void f(__global uchar *x_base, ulong x_offset) {\n"
        "  *(__global half *)x_base = (half)1.0f + (half)2.0f;\n}"
    )
    with pytest.raises(CompileError, match="half") as caught:
        bench.device.load(source(text, buffer("x", DType.F16, True)))
    assert caught.value.line
