"""Every kind of wrong argument is refused with its value before the device sees it."""

import inspect
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hal_plugin_bytes.device import PYTHON, BytesDevice
from hypothesis import given

from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import (
    Failure,
    FailureKind,
    InvalidCall,
    OperationFailed,
    PluginError,
    Scope,
    StaleHandle,
    Unsupported,
    UnsupportedFormat,
)
from hal.core.spec import hookimpl
from hal.core.values import (
    AllocOptions,
    Buffer,
    CopyCommand,
    FillCommand,
    GroupSpec,
    KernelSource,
    LaunchCommand,
    Param,
    ParamKind,
    Point,
    Region,
    Slot,
)
from hal.core.wrappers.checks import check_argument, check_copy, shrunk
from hal.core.wrappers.validation import validate


def test_right_calls_reach_the_device(device, queue, buffer, add_source):
    filled = device.fill(buffer.region(), b"\1\2", queue, [])
    program = device.load(add_source)
    launchable = device.bind(program, [buffer.region(0, 4), 10])
    launched = device.launch(launchable, (1, 1, 1), queue, [filled])
    host = bytearray(16)
    assert device.wait([device.copy(host, buffer.region(), queue, [launched])], 0.0, True)
    assert host == bytes([11, 12, 11, 12] + [1, 2] * 6)


def test_a_graph_with_slots_reaches_the_device(device, queue, buffer, add_source):
    launchable = device.bind(device.load(add_source), [Slot(0), Slot(1)])
    other = device.alloc(4, AllocOptions())
    commands = [
        FillCommand(buffer.region(), b"\5"),
        LaunchCommand(launchable, (1, 1, 1)),
        CopyCommand(other.region(), buffer.region(0, 4), after=(1,)),
    ]
    graph = device.record(commands)
    assert device.wait([device.replay(graph, [buffer, 3], queue, [])], 0.0, True)
    assert bytes(device.map(other.region(), False)) == bytes([8] * 4)
    with pytest.raises(InvalidCall, match="takes a u8 scalar, got 'x'"):
        device.replay(graph, [buffer, "x"], queue, [])
    with pytest.raises(InvalidCall, match="the graph has 2 slots, got 1"):
        device.replay(graph, [buffer], queue, [])
    with pytest.raises(InvalidCall, match="has slots; only a graph fills them"):
        device.launch(launchable, (1, 1, 1), queue, [])


@pytest.mark.parametrize("nbytes", [-1, 1.5, True, "8", None])
def test_sizes_are_counts(device, nbytes):
    with pytest.raises(InvalidCall, match=f"nbytes must be an int of at least 0, is {nbytes!r}"):
        device.alloc(nbytes, AllocOptions())


def test_alloc_options_are_checked(device):
    with pytest.raises(InvalidCall, match=r"no memory space 'vram'; it has \['ram'\]"):
        device.alloc(1, AllocOptions(space="vram"))
    with pytest.raises(Unsupported, match="'ipc'"):
        device.alloc(1, AllocOptions(shareable=True))


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 17), (16, 1), (-1, 2), (4, -4), (1 << 60, 1)])
def test_regions_lie_within_their_buffer(device, queue, buffer, offset, nbytes):
    with pytest.raises(InvalidCall, match=r"past the buffer of 16 bytes|negative region"):
        device.fill(Region(buffer, offset, nbytes), b"\0", queue, [])


@pytest.mark.parametrize("pattern", [b"", b"123", b"1234567", b"1234567890123456"])
def test_patterns_have_a_length_of_the_contract(device, queue, buffer, pattern):
    with pytest.raises(InvalidCall, match=f"1, 2, 4 or 8 bytes, not {len(pattern)}"):
        device.fill(buffer.region(), pattern, queue, [])


@pytest.mark.parametrize(("offset", "nbytes"), [(1, 4), (4, 6)])
def test_patterns_divide_offset_and_size(device, queue, buffer, offset, nbytes):
    with pytest.raises(InvalidCall, match="no multiple of the pattern's 4 bytes"):
        device.fill(buffer.region(offset, nbytes), b"1234", queue, [])


def test_copies_have_equal_sizes_and_a_device_side(device, queue, buffer):
    with pytest.raises(InvalidCall, match="dst has 16 bytes, src has 3"):
        device.copy(buffer.region(), b"abc", queue, [])
    with pytest.raises(InvalidCall, match="both sides are host memory"):
        device.copy(bytearray(3), b"abc", queue, [])
    with pytest.raises(InvalidCall, match="read-only"):
        device.copy(bytes(16), buffer.region(), queue, [])
    with pytest.raises(InvalidCall, match="not contiguous"):
        device.copy(memoryview(bytearray(32))[::2], buffer.region(), queue, [])
    with pytest.raises(InvalidCall, match=r"memoryview\(array\)"):
        device.copy(np.zeros(16, np.uint8), buffer.region(), queue, [])


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8))
def test_overlap_is_what_sets_of_bytes_say(dst, src, nbytes):
    buffer = Buffer("bytes:0", 0, None, 16, "ram")
    touched = set(range(dst, dst + nbytes)) & set(range(src, src + nbytes))
    try:
        check_copy("copy", Region(buffer, dst, nbytes), Region(buffer, src, nbytes))
        refused = False
    except InvalidCall:
        refused = True
    assert refused == bool(touched)


@pytest.mark.parametrize("grid", [(5, 1, 1), (1, 1, -1), (1, 1), [1, 1, 1], (1.0, 1, 1), None])
def test_grids_are_three_counts_within_the_limit(device, queue, buffer, add_source, grid):
    launchable = device.bind(device.load(add_source), [buffer, 1])
    with pytest.raises(InvalidCall, match="grid"):
        device.launch(launchable, grid, queue, [])
    assert device.wait([device.launch(launchable, (4, 0, 4), queue, [])], 0.0, True)


def test_programs_are_in_an_accepted_format_and_within_limits(device, add_source):
    with pytest.raises(UnsupportedFormat, match=f"'ptx/1'; accepted are {PYTHON}"):
        device.load(KernelSource("ptx/1", "", "f", ()))
    with pytest.raises(InvalidCall, match="5 parameters of 4"):
        device.load(KernelSource(PYTHON, "", "f", add_source.params[:1] * 5))


def test_arguments_fit_their_parameters(device, buffer, add_source):
    program = device.load(add_source)
    for args, said in [
        ([buffer], r"got 1 arguments for 2 parameters \(data, n\)"),
        ([7, 7], "'data' takes a buffer or region, got 7"),
        ([buffer, buffer], "'n' takes a u8 scalar"),
        ([buffer, 256], "256 for parameter 'n' is outside u8: 0 to 255"),
        ([buffer.region(8, 9), 1], "past the buffer"),
        ([Slot(-1), 1], "a slot must be an int of at least 0, is -1"),
    ]:
        with pytest.raises(InvalidCall, match=said):
            device.bind(program, args)


INTS = [d for d in DType if d.is_int]


@given(st.sampled_from(INTS), st.integers(-(2**65), 2**65))
def test_integer_scalars_are_in_range_exactly_when_numpy_holds_them(dtype, value):
    name = {"i": "int", "u": "uint"}[dtype.kind] + str(dtype.bits)
    info = np.iinfo(name)
    param = Param("n", ParamKind.SCALAR, dtype)
    if info.min <= value <= info.max:
        check_argument("bind", param, value)
    else:
        with pytest.raises(InvalidCall, match="outside"):
            check_argument("bind", param, value)


@pytest.mark.parametrize("dtype", [DType.F16, DType.F32, DType.F64])
def test_float_scalars_end_at_numpys_largest(dtype):
    param = Param("x", ParamKind.SCALAR, dtype)
    largest = float(np.finfo(f"float{dtype.bits}").max)
    for fine in (largest, -largest, math.inf, math.nan, 3):
        check_argument("bind", param, fine)
    if dtype is not DType.F64:
        with pytest.raises(InvalidCall, match="outside"):
            check_argument("bind", param, largest * 1.01)


@pytest.mark.parametrize(
    ("dtype", "value"), [(DType.I32, 1.0), (DType.I32, True), (DType.BOOL, 1), (DType.F32, "1")]
)
def test_scalars_are_of_their_parameters_kind(dtype, value):
    with pytest.raises(InvalidCall, match=f"takes a {dtype.short} scalar"):
        check_argument("bind", Param("x", ParamKind.SCALAR, dtype), value)


def test_freed_handles_are_stale(device, queue, buffer):
    device.free(buffer)
    for call in (
        lambda: device.free(buffer),
        lambda: device.fill(buffer.region(), b"\0", queue, []),
        lambda: device.map(buffer.region(), True),
    ):
        with pytest.raises(StaleHandle, match="freed"):
            call()


def test_handles_of_another_device_are_stale(registry, device, queue):
    with registry.open("bytes:1") as other:
        theirs = other.alloc(16, AllocOptions())
        with pytest.raises(StaleHandle, match="the buffer belongs to bytes:1, not to bytes:0"):
            device.copy(theirs.region(), bytes(16), queue, [])
        point = Point(other.create_timeline(True), 1)
        with pytest.raises(StaleHandle, match="the timeline belongs to bytes:1"):
            device.wait([point], 0.0, True)


def test_handles_are_stale_after_a_reset(device, buffer):
    assert device.reset() == 1
    with pytest.raises(StaleHandle, match="made in epoch 0 of bytes:0, which is in epoch 1"):
        device.free(buffer)
    device.free(device.alloc(1, AllocOptions()))


def test_nothing_works_after_close(registry, add_source):
    device = registry.open("bytes:0")
    buffer = device.alloc(1, AllocOptions())
    device.close()
    for call in (
        lambda: device.free(buffer),
        lambda: device.alloc(1, AllocOptions()),
        lambda: device.load(add_source),
        lambda: device.create_timeline(True),
    ):
        with pytest.raises(StaleHandle, match="bytes:0 is closed"):
            call()


def test_a_handle_of_another_kind_is_refused(device, queue, buffer):
    with pytest.raises(InvalidCall, match="expected a Timeline"):
        device.fill(buffer.region(), b"\0", buffer, [])
    with pytest.raises(InvalidCall, match="expected a Launchable"):
        device.launch(buffer, (1, 1, 1), queue, [])


def test_timelines_take_what_their_kind_takes(device, queue, buffer):
    host = device.create_timeline(host_driven=True)
    with pytest.raises(InvalidCall, match="host-driven timeline takes no operations"):
        device.fill(buffer.region(), b"\0", host, [])
    with pytest.raises(InvalidCall, match="the device advances this timeline"):
        device.signal(queue, 1, None)


def test_points_and_deadlines_are_numbers(device, queue):
    with pytest.raises(InvalidCall, match="a point's value must be an int"):
        device.wait([Point(queue, -1)], 0.0, True)
    for timeout_s in (-1.0, math.nan, None):
        with pytest.raises(InvalidCall, match="timeout_s"):
            device.wait([], timeout_s, True)
    assert device.wait([], math.inf, True)


@pytest.mark.parametrize("after", [(1,), (-1,), (5,)])
def test_commands_name_only_earlier_ones(device, buffer, after):
    commands = [FillCommand(buffer.region(), b"\0"), FillCommand(buffer.region(), b"\0", after)]
    with pytest.raises(InvalidCall, match=f"command 1 is after {after[0]}"):
        device.record(commands)


def test_a_wrong_command_is_named_by_its_index(device, buffer):
    commands = [FillCommand(buffer.region(), b"\0"), FillCommand(buffer.region(), b"123")]
    with pytest.raises(InvalidCall, match="record, command 1: a pattern has"):
        device.record(commands)


def test_a_device_failure_passes_through_unchanged(device, queue, buffer, add_source):
    gate = device.create_timeline(host_driven=True)
    failure = Failure(FailureKind.ABORTED, Scope.OPERATION, "bytes:0", "test", "stop")
    device.signal(gate, 1, failure)
    with pytest.raises(OperationFailed, match="stop") as caught:
        device.wait([Point(gate, 5)], 0.0, True)
    assert caught.value.failure is failure


@pytest.mark.parametrize(
    ("hook", "call", "returned", "words"),
    [
        ("alloc", lambda d, q: d.alloc(4, AllocOptions()), None, "alloc returned None (NoneType)"),
        ("create_timeline", lambda d, q: d.create_timeline(True), 7, "must return a Timeline"),
        ("wait", lambda d, q: d.wait([], 0.0, True), "yes", "wait returned 'yes' (str)"),
        ("reset", lambda d, q: d.reset(), None, "reset returned None"),
        (
            "fill",
            lambda d, q: d.fill(d.alloc(4, AllocOptions()).region(), b"x", q, []),
            3,
            "must return a Point",
        ),
    ],
)
def test_a_hook_that_returns_the_wrong_type_is_named(hook, call, returned, words):
    implementation = BytesDevice()
    queue = implementation.create_timeline(False)
    setattr(implementation, hook, hookimpl(wrong(hook, returned)))
    device = Device(implementation, "bytes:0", [validate])
    if hook != "create_timeline":
        queue = device.create_timeline(False)
    with pytest.raises(PluginError) as caught:
        call(device, queue)
    assert words in str(caught.value)


def wrong(hook, returned):
    """A hook with the contract's parameters that returns something else."""
    parameters = ", ".join(inspect.signature(getattr(BytesDevice, hook)).parameters)
    scope = {"returned": returned}
    exec(f"def {hook}({parameters.removeprefix('self').lstrip(', ')}): return returned", scope)
    return scope[hook]


def test_a_point_of_another_timeline_is_refused():
    implementation = BytesDevice()
    device = Device(implementation, "bytes:0", [validate])
    first, second = device.create_timeline(False), device.create_timeline(False)
    buffer = device.alloc(4, AllocOptions())
    implementation.submit = lambda name, run, timeline, waits: Point(second, 1)
    with pytest.raises(PluginError, match=r"fill returned a point of another timeline"):
        device.fill(buffer.region(), b"x", first, [])


def test_a_smaller_group_has_its_ranks_peers_in_their_order_and_a_key_of_its_own():
    whole = GroupSpec("whole", 2, ("a", "b", "c", "d"), 3.0)
    assert shrunk("d.shrink", whole, (3, 2)) == GroupSpec("whole/3,2", 1, ("d", "c"), 3.0)


@pytest.mark.parametrize("ranks", [(), (0, 1), (2, 2), (-1, 2), (2, 4)])
def test_ranks_that_make_no_smaller_group_are_refused(ranks):
    whole = GroupSpec("whole", 2, ("a", "b", "c", "d"), 3.0)
    with pytest.raises(InvalidCall, match=r"d.shrink: \[.*\] are not ranks of a group of 4, each"):
        shrunk("d.shrink", whole, ranks)
