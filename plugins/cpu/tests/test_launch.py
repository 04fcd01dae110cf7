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
    Slot,
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
GRID = """
define void @grid(ptr %args, ptr %grid, i64 %begin, i64 %end) {
  %out = load ptr, ptr %args
  call void @llvm.memcpy.p0.p0.i64(ptr %out, ptr %grid, i64 24, i1 false)
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


def test_vector_add(rig, texts):
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 100_003), np.float32)
    c = rig.device.alloc(a.nbytes, AllocOptions())
    program = rig.load(texts["add"], "add", "bbb")
    bound = rig.device.bind(program, (rig.upload(a), rig.upload(b), c))
    rig.wait(rig.device.launch(bound, (len(a), 1, 1), rig.timeline, ()))
    assert np.array_equal(rig.download(c, np.float32), a + b)


@pytest.mark.parametrize(
    "grid",
    [(1, 1, 1), (2, 1, 1), (7, 1, 1), (1000, 1, 1), (5, 7, 1), (3, 5, 11), (1, 1, 64), (64, 33, 9)],
)
def test_every_instance_runs_exactly_once(rig, texts, grid):
    total = grid[0] * grid[1] * grid[2]
    counts = rig.upload(np.zeros(total + 64, np.int32))
    bound = rig.device.bind(rig.load(texts["count"], "count", "b"), (counts,))
    for _ in range(5):
        rig.device.launch(bound, grid, rig.timeline, ())
    seen = rig.download(counts, np.int32)
    assert (seen[:total] == 5).all()
    assert (seen[total:] == 0).all()


def test_grid_sizes_reach_the_program(rig):
    out = rig.upload(np.zeros(3, np.int64))
    bound = rig.device.bind(rig.load(GRID, "grid", "b"), (out,))
    rig.device.launch(bound, (3, 2, 4), rig.timeline, ())
    assert rig.download(out, np.int64).tolist() == [3, 2, 4]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_empty_grid_runs_nothing_and_reaches_its_point(rig, texts, axis):
    counts = rig.upload(np.zeros(8, np.int32))
    bound = rig.device.bind(rig.load(texts["count"], "count", "b"), (counts,))
    grid = tuple(0 if i == axis else 4 for i in range(3))
    rig.wait(rig.device.launch(bound, grid, rig.timeline, ()))
    assert not rig.download(counts, np.int32).any()


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


@pytest.mark.slow
def test_grid_at_the_limit_runs(rig):
    seen = rig.upload(np.zeros(3, np.int64))
    bound = rig.device.bind(rig.load(GRID, "grid", "b"), (seen,))
    x, y, z = rig.device.describe().limits.grid
    for grid in ((x, 1, 1), (1, y, 1), (1, 1, z), (x, y, z)):
        rig.device.launch(bound, grid, rig.timeline, ())
        assert rig.download(seen, np.int64).tolist() == list(grid)


_NUMPY = {d: np.dtype(d.short.replace("f", "float").replace("u", "uint")
              if d.kind != "i" else "int" + d.short[1:])
          for d in DType if d not in (DType.BF16, DType.BOOL)}  # fmt: skip


def _values(dtype):
    if dtype is DType.BOOL:
        return st.booleans()
    if dtype.is_float:
        return st.floats(width=min(dtype.bits, 64) if dtype is not DType.BF16 else 16)
    low = -(2 ** (dtype.bits - 1)) if dtype.kind == "i" else 0
    return st.integers(low, low + 2**dtype.bits - 1)


@settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_scalars_arrive_bit_for_bit(echo, data):
    rig, programs, out = echo
    dtype = data.draw(st.sampled_from(list(DType)))
    value = data.draw(_values(dtype))
    rig.device.launch(rig.device.bind(programs[dtype], (out, value)), (1, 1, 1), rig.timeline, ())
    got = rig.download(out, np.uint64).tobytes()
    if dtype is DType.BF16:  # the drawn values are exact in float16 but not all in bfloat16
        expected = np.array(value, np.float32).astype(ml_dtypes.bfloat16)
    elif dtype is DType.BOOL:
        expected = np.array(value, np.uint8)
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


def test_region_arguments_start_at_their_offset(rig, texts):
    values = rig.upload(np.zeros(8, np.int64))
    program = rig.load(texts["increment"], "increment", "bi")
    bound = rig.device.bind(program, (values.region(24, 16), 5))
    rig.device.launch(bound, (2, 1, 1), rig.timeline, ())
    assert rig.download(values, np.int64).tolist() == [0, 0, 0, 5, 5, 0, 0, 0]


def test_a_launchable_with_slots_cannot_be_launched(rig, texts):
    program = rig.load(texts["increment"], "increment", "bi")
    bound = rig.device.bind(program, (Slot(0), 1))
    with pytest.raises(InvalidCall, match="slots"):
        rig.device.launch(bound, (1, 1, 1), rig.timeline, ())


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
