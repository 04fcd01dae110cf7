from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hal_plugin_cpu.plugin import open_device
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall, StaleHandle
from hal.core.values import (
    LLVM_IR,
    AllocOptions,
    Buffer,
    KernelSource,
    OpenOptions,
    Param,
    ParamKind,
    Timeline,
)

ECHO = """
define void @echo(ptr %args, ptr %grid, i64 %begin, i64 %end) {
  %slot = getelementptr i64, ptr %args, i64 1
  %out = load ptr, ptr %args
  %bits = load i64, ptr %slot
  store i64 %bits, ptr %out
  ret void
}
"""


def test_grid_beyond_the_limit_is_refused(rig, texts):
    counts = rig.upload(np.zeros(8, np.int32))
    bound = rig.device.bind(rig.load(texts["count"], "count", "b"), (counts,))
    for axis, limit in enumerate(rig.device.describe().limits.grid):
        for size in (limit + 1, 2**40, -1):
            grid = tuple(size if i == axis else 1 for i in range(3))
            with pytest.raises(InvalidCall):
                rig.device.launch(bound, grid, rig.timeline, ())
    with pytest.raises(InvalidCall):
        rig.device.launch(bound, (1, 1), rig.timeline, ())


_NUMPY = {d: np.dtype(getattr(ml_dtypes, d.numpy, d.numpy)) for d in DType}


def _values(dtype):
    if dtype is DType.BOOL:
        return st.booleans()
    if dtype.is_narrow:  # every code, and numbers between two of them
        codes = np.arange(1 << dtype.bits, dtype=f"u{dtype.nbytes}").view(_NUMPY[dtype])
        return st.sampled_from(codes).map(float) | st.floats(
            -dtype.largest, dtype.largest, width=32
        )
    if dtype.is_float:
        return st.floats(width=dtype.bits)
    low = -(2 ** (dtype.bits - 1)) if dtype.kind == "i" else 0
    return st.integers(low, low + 2**dtype.bits - 1)


@settings(
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_scalars_arrive_bit_for_bit(echo, data):
    rig, programs, out = echo
    dtype = data.draw(st.sampled_from(list(DType)))
    value = data.draw(_values(dtype))
    rig.device.launch(rig.device.bind(programs[dtype], (out, value)), (1, 1, 1), rig.timeline, ())
    got = rig.download(out, np.uint64).tobytes()
    if dtype.is_narrow:  # the drawn values are exact in float32
        expected = np.array(value, np.float32).astype(_NUMPY[dtype])
    else:
        expected = np.array(value, _NUMPY[dtype])
    if dtype.is_float and value != value:
        return  # which NaN is not promised
    assert got[: dtype.nbytes] == expected.tobytes()
    assert not any(got[dtype.nbytes :])


@pytest.fixture(scope="module")
def echo():
    device = open_device(0, OpenOptions(settings={"threads": "1"}))

    timeline = device.create_timeline(False)

    def download(buffer, dtype):
        array = np.empty(1, dtype)
        device.wait((device.copy(memoryview(array), buffer.region(), timeline, ()),), 10.0, True)
        return array

    programs = {}
    for dtype in DType:
        params = (
            Param("out", ParamKind.BUFFER, DType.I64, False, True),
            Param("value", ParamKind.SCALAR, dtype),
        )
        programs[dtype] = device.load(KernelSource(LLVM_IR, ECHO, "echo", params))
    out = device.alloc(8, AllocOptions())
    yield SimpleNamespace(device=device, timeline=timeline, download=download), programs, out
    device.close()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (DType.I8, 128), (DType.I8, -129), (DType.U8, -1), (DType.U8, 256), (DType.I64, 2**63),
        (DType.U64, 2**64), (DType.U64, -1), (DType.I32, 1.5), (DType.F32, 1e39),
        (DType.F16, 65520.0), (DType.BOOL, 2), (DType.F32, "1"), (DType.I32, None),
        (DType.BF16, 3.4e38),
    ],
)  # fmt: skip
def test_scalars_out_of_range_or_kind_are_refused(echo, dtype, value):
    rig, programs, out = echo
    with pytest.raises(InvalidCall, match=r"value"):
        rig.device.bind(programs[dtype], (out, value))


def test_bind_refuses_wrong_arguments(rig, texts):
    program = rig.load(texts["increment"], "increment", "bi")
    buffer = rig.upload(np.zeros(4, np.int64))
    for args in (
        (),
        (buffer,),
        (buffer, 1, 2),
        (1, 1),
        (buffer, buffer),
        (buffer.region(8, 99), 1),
    ):
        with pytest.raises(InvalidCall):
            rig.device.bind(program, args)


def test_freed_handles_are_stale(rig, texts):
    device = rig.device
    program = rig.load(texts["increment"], "increment", "bi")
    buffer = rig.upload(np.zeros(4, np.int64))
    bound = device.bind(program, (buffer, 1))
    device.free(buffer)
    with pytest.raises(StaleHandle):
        device.launch(bound, (1, 1, 1), rig.timeline, ())
    with pytest.raises(StaleHandle):
        device.bind(program, (buffer, 1))
    other = device.bind(program, (rig.upload(np.zeros(4, np.int64)), 1))
    device.free(program)
    with pytest.raises(StaleHandle):
        device.launch(other, (1, 1, 1), rig.timeline, ())
    for handle in (buffer, program):
        with pytest.raises(StaleHandle):
            device.free(handle)


def test_handles_of_another_session_are_stale(rig, open_cpu, texts):
    other = open_cpu()
    program = rig.load(texts["increment"], "increment", "bi")
    buffer = rig.upload(np.zeros(4, np.int64))
    bound = rig.device.bind(program, (buffer, 1))
    timeline = other.create_timeline(False)
    with pytest.raises(StaleHandle):
        other.bind(program, (buffer, 1))
    with pytest.raises(StaleHandle):
        other.launch(bound, (1, 1, 1), timeline, ())
    with pytest.raises(StaleHandle):
        rig.device.launch(bound, (1, 1, 1), timeline, ())
    with pytest.raises(StaleHandle):
        other.free(buffer)
    with pytest.raises(StaleHandle):
        other.copy(buffer.region(0, 8), bytes(8), timeline, ())


def test_handles_of_another_plugin_are_stale(rig, texts):
    program = rig.load(texts["increment"], "increment", "bi")
    foreign = Buffer("other:0", 0, object(), 64, "memory")
    alien = Timeline("other:0", 0, object(), False)
    bound = rig.device.bind(program, (rig.upload(np.zeros(1, np.int64)), 1))
    with pytest.raises(StaleHandle):
        rig.device.bind(program, (foreign, 1))
    with pytest.raises(StaleHandle):
        rig.device.launch(bound, (1, 1, 1), alien, ())
    with pytest.raises(StaleHandle):
        rig.device.copy(foreign.region(0, 8), bytes(8), rig.timeline, ())
