"""Programs in OpenCL C: arguments, grids, work-groups, and texts that are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pyopencl as cl
import pytest
from hal_plugin_opencl import find
from hal_plugin_opencl.programs import Programs, _once
from pyopencl import invoker

from hal.core.dtypes import DType
from hal.core.errors import CompileError, InvalidCall
from plugins.opencl.tests.conftest import Bench, buffer, scalar, source

ADD = """
__kernel void f(__global uchar *x_base, ulong x_offset, __global uchar *y_base, ulong y_offset,
                float more) {
  __global float *x = (__global float *)(x_base + x_offset);
  __global float *y = (__global float *)(y_base + y_offset);
  size_t row = get_global_id(1) + get_global_size(1) * get_global_id(2);
  size_t i = get_global_id(0) + get_global_size(0) * row;
  y[i] = x[i] + more;
}
"""
ADD_PARAMS = (buffer("x", DType.F32), buffer("y", DType.F32, True), scalar("more", DType.F32))

SUM = """
__kernel void f(__global uchar *x_base, ulong x_offset, __global uchar *y_base, ulong y_offset) {
  __global int *x = (__global int *)(x_base + x_offset);
  __global int *y = (__global int *)(y_base + y_offset);
  __local int part[8];
  size_t i = get_local_id(0);
  part[i] = x[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (i == 0)
    for (int k = 0, sum = 0; k < 8; k++, y[get_group_id(0)] = sum) sum += part[k];
}
"""
SUM_PARAMS = (buffer("x", DType.I32), buffer("y", DType.I32, True))


def test_every_instance_runs_on_the_regions(bench: Bench) -> None:
    x = np.arange(64, dtype=np.float32)
    a, b = bench.put(x), bench.put(np.zeros(64, np.float32))
    args = a.region(16, 96), b.region(32, 96), 0.5
    bench.run(source(ADD, *ADD_PARAMS), *args, grid=(4, 3, 2))
    wanted = np.zeros(64, np.float32)
    wanted[8:32] = x[4:28] + 0.5
    np.testing.assert_array_equal(bench.get(b, np.float32), wanted)


SCALARS = {
    DType.F64: (1e300, "double", np.float64),
    DType.F32: (-0.0, "float", np.float32),
    DType.F16: (0.1, "ushort", np.float16),
    DType.BF16: (3.14, "ushort", ml_dtypes.bfloat16),
    DType.I64: (-(1 << 62), "long", np.int64),
    DType.I32: (-(1 << 30), "int", np.int32),
    DType.I16: (-30000, "short", np.int16),
    DType.I8: (-100, "char", np.int8),
    DType.U64: ((1 << 64) - 1, "ulong", np.uint64),
    DType.U32: ((1 << 32) - 1, "uint", np.uint32),
    DType.U16: (65535, "ushort", np.uint16),
    DType.U8: (200, "uchar", np.uint8),
    DType.BOOL: (True, "uchar", np.bool_),
}


def test_scalars_arrive_as_they_were_given(bench: Bench) -> None:
    """All types in one program, each stored into eight bytes of its own."""
    dtypes = [d for d in SCALARS if d in bench.device.info.dtypes]
    kinds = ", ".join(f"{SCALARS[d][1]} s{i}" for i, d in enumerate(dtypes))
    stores = "".join(
        f"*(__global {SCALARS[d][1]} *)(y_base + y_offset + {8 * i}) = s{i};\n"
        for i, d in enumerate(dtypes)
    )
    text = f"__kernel void f(__global uchar *y_base, ulong y_offset, {kinds}) {{\n{stores}}}"
    params = [scalar(f"s{i}", d) for i, d in enumerate(dtypes)]
    out = bench.put(np.zeros(8 * len(dtypes), np.uint8))
    bench.run(
        source(text, buffer("y", DType.U8, True), *params), out, *(SCALARS[d][0] for d in dtypes)
    )
    data = bench.get(out, np.uint8).tobytes()
    for i, d in enumerate(dtypes):
        value, _, kind = SCALARS[d]
        assert data[8 * i :][: d.nbytes] == np.array(value, kind).tobytes(), d


def test_work_groups_of_lanes_share_local_memory(bench: Bench) -> None:
    x = np.arange(24, dtype=np.int32)
    a, b = bench.put(x), bench.put(np.zeros(3, np.int32))
    bench.run(source(SUM, *SUM_PARAMS, lanes="8"), a, b, grid=(3, 1, 1))
    np.testing.assert_array_equal(bench.get(b, np.int32), x.reshape(3, 8).sum(1))


def test_a_build_error_has_its_line_and_the_log(bench: Bench) -> None:
    text = ADD.replace("+ more;", "+ no_such_name;")
    with pytest.raises(CompileError, match="no_such_name") as caught:
        bench.device.load(source(text, *ADD_PARAMS))
    assert caught.value.line == text[: text.index("no_such_name")].count("\n") + 1
    assert "no_such_name" in caught.value.log


def test_text_that_no_compiler_is_given(bench: Bench) -> None:
    for bad in ("\0", "\ud800", "é"):
        with pytest.raises(CompileError) as caught:
            bench.device.load(source(ADD + bad, *ADD_PARAMS))
        assert caught.value.line == ADD.count("\n") + 1


def test_a_missing_entry(bench: Bench) -> None:
    with pytest.raises(CompileError):
        bench.device.load(source(ADD, *ADD_PARAMS, entry="g"))
    with pytest.raises(CompileError, match="no kernel 'g'"):
        bench.device.load(source(ADD, *ADD_PARAMS, entry="g", lanes="8"))


def test_other_parameters_and_options(bench: Bench) -> None:
    x, y, more = ADD_PARAMS
    for params in ((x, y), (x, more, y), (x, y, scalar("more", DType.I32))):
        with pytest.raises((CompileError, InvalidCall)):
            bench.device.load(source(ADD, *params))
    with pytest.raises(InvalidCall, match="speed"):
        bench.device.load(source(ADD, *ADD_PARAMS, speed="1"))


def test_a_work_group_that_is_too_large(bench: Bench) -> None:
    with pytest.raises(CompileError, match="work-groups of 1000000"):
        bench.device.load(source(SUM, *SUM_PARAMS, lanes="1000000"))


def test_f64_on_a_device_without_it(bench: Bench) -> None:
    """A stand-in for such a device: it is asked before anything is built."""
    programs = Programs(None, SimpleNamespace(double_fp_config=0, name="Small"), "small", "")
    with pytest.raises(CompileError, match=r"Small has no f64.*more"):
        programs.load(source(ADD, *ADD_PARAMS[:2], scalar("more", DType.F64)))


def test_kernels_of_a_name_and_number_of_arguments_are_prepared_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By pyopencl, which asks a database and runs code for each; its own callers get the same."""
    asked: list[str] = []

    def make(name: str, *counts: Any, **more: Any) -> Any:
        asked.append(name)
        return prepared(name, *counts, **more)

    prepared = invoker.generate_enqueue_and_set_args
    monkeypatch.setattr(invoker, "generate_enqueue_and_set_args", _once(make))
    device = find.devices()[0]
    context = cl.Context([device])
    text = "kernel void f(global int *a, int b) { a[0] += b; } kernel void g(global int *a) {}"
    program = cl.Program(context, text).build()
    kernels = [cl.Kernel(program, name) for name in "fgffg"]
    assert asked == ["f", "g"]
    queue, numbers = cl.CommandQueue(context), np.array([1], np.int32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    memory = cl.Buffer(context, flags, hostbuf=numbers)
    for kernel, added in zip(kernels, (2, None, 3, 4, None), strict=True):
        kernel(queue, (1,), None, memory, *([] if added is None else [np.int32(added)]))
    cl.enqueue_copy(queue, numbers, memory)
    assert numbers[0] == 10
