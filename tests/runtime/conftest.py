"""Engines on a real device and on one of bytearrays, and programs for both, written by hand."""

import hal_plugin_bytes.plugin
import numpy as np
import pytest
from hal_plugin_bytes.device import PYTHON, BytesDevice

import hal
from hal.core.device import Device
from hal.core.values import LLVM_IR, KernelSource, Param, ParamKind
from hal.tile.node import Type
from stack.compiler.program import BufferRef, CompiledGraph, CopyCall, KernelCall
from stack.runtime.engine import Engine

F32 = hal.DType.F32

LLVM = """
define void @{name}(ptr %args, ptr %grid, i64 %begin, i64 %end) {{
entry:
  %a = load ptr, ptr %args
  %slot1 = getelementptr i64, ptr %args, i64 1
  %b = load {second}, ptr %slot1
  %slot2 = getelementptr i64, ptr %args, i64 2
  %c = load ptr, ptr %slot2
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %exit
body:
  %pa = getelementptr float, ptr %a, i64 %i
  %x = load float, ptr %pa
{read}
  %z = {op} float %x, %y
  %pc = getelementptr float, ptr %c, i64 %i
  store float %z, ptr %pc
  %next = add i64 %i, 1
  br label %head
exit:
  ret void
}}
"""
READ_B = "  %pb = getelementptr float, ptr %b, i64 %i\n  %y = load float, ptr %pb"
PYTHON_TEXT = """
import numpy
def {name}(grid, a, b, c):
    x = numpy.frombuffer(a, "f4")
    y = numpy.float32(b) if isinstance(b, float) else numpy.frombuffer(b, "f4")
    numpy.frombuffer(c, "f4")[:] = x {op} y
"""
OPS = {"fadd": "+", "fmul": "*"}


def source(device, op, second=ParamKind.BUFFER):
    """c = a `op` b over float32 elements, one a CPU instance; b may be a number."""
    name = f"{op}_{second.value}"
    params = (
        Param("a", ParamKind.BUFFER, F32),
        Param("b", second, F32),
        Param("c", ParamKind.BUFFER, F32, reads=False, writes=True),
    )
    if device.info.formats[0] == PYTHON:
        return KernelSource(PYTHON, PYTHON_TEXT.format(name=name, op=OPS[op]), name, params)
    buffer = second is ParamKind.BUFFER
    read = READ_B if buffer else "  %y = fadd float %b, 0.0"
    text = LLVM.format(name=name, op=op, read=read, second="ptr" if buffer else "float")
    return KernelSource(LLVM_IR, text, name, params)


class Calls:
    """Makes calls for float32 arrays of one length."""

    def __init__(self, device, n):
        self.device, self.n, self.type = device, n, Type((n,), F32)

    def ref(self, kind, index, first=0, count=None):
        count = self.n if count is None else count
        return BufferRef(kind, index, 4 * first, 4 * count)

    def grid(self, ref):
        return (min(ref.nbytes // 4, self.device.info.limits.grid[0]), 1, 1)

    def add(self, a, b, c):
        return KernelCall(source(self.device, "fadd"), self.grid(a), (a, b, c))

    def mul(self, a, b, c):
        return KernelCall(source(self.device, "fmul"), self.grid(a), (a, b, c))

    def scale(self, a, factor, c):
        program = source(self.device, "fmul", ParamKind.SCALAR)
        return KernelCall(program, self.grid(a), (a, factor, c))

    def copy(self, dst, src):
        return CopyCall(dst, src)

    def graph(self, inputs, outputs, calls, temps=0, updates=()):
        nbytes = (4 * self.n,) * temps
        types = self.type
        return CompiledGraph((types,) * inputs, (types,) * outputs, updates, nbytes, tuple(calls))


def no_compiler(request):
    raise AssertionError("these tests bring compiled graphs")


def open_device(name):
    if name == "cpu":
        return hal.open("cpu:0")
    if name == "bytes":
        return hal.Registry(extra={"bytes": hal_plugin_bytes.plugin}).open("bytes:0")
    return Device(BytesDevice(features=()), "bytes:0")


@pytest.fixture(params=["cpu", "bytes", "bytes without graphs"])
def engine(request):
    with Engine(open_device(request.param), no_compiler, timeout_s=20) as engine:
        yield engine


@pytest.fixture
def cpu():
    with Engine(open_device("cpu"), no_compiler, timeout_s=20) as engine:
        yield engine


@pytest.fixture
def calls(engine):
    return Calls(engine.device, 100)


@pytest.fixture
def calls_for():
    return Calls


@pytest.fixture
def random_arrays():
    def make(engine, count, n=100):
        values = np.random.default_rng(0).normal(size=(count, n)).astype(np.float32)
        return values, [engine.put(v, F32) for v in values]

    return make
