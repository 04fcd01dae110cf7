"""Injected faults on devices that know nothing of them: failures travel as the contract says."""

import threading

import pytest
from hal_plugin_bytes.device import BytesDevice

import hal
from hal.core.device import Device
from hal.core.errors import (
    CompileError,
    DeviceLost,
    FailureKind,
    InvalidCall,
    OperationFailed,
    OutOfMemory,
    Scope,
    StaleHandle,
)
from hal.core.spec import hookimpl
from hal.core.values import (
    LLVM_IR,
    AllocOptions,
    FillCommand,
    HealthState,
    KernelSource,
    LaunchCommand,
    Point,
)
from hal.core.wrappers.faults import Faults

SOON = 30.0
"""Seconds that nothing here takes; a wait ends when its point is decided."""

EMPTY = "define void @empty(ptr %args, ptr %grid, i64 %begin, i64 %end) {\n  ret void\n}\n"


@pytest.fixture(params=["cpu:0", "reference:0"])
def opened(request):
    """opened(plan): the device with the plan's faults, and the faults."""
    devices = []

    def open(plan):
        faults = Faults(plan)
        devices.append(hal.open(request.param, wrappers=["validate", "races", faults]))
        return devices[-1], faults

    yield open
    for device in devices:
        device.close()


def fill(device, queue, region, byte, waits=()):
    return device.fill(region, bytes([byte]), queue, list(waits))


def contents(device, buffer):
    host, queue = bytearray(buffer.nbytes), device.create_timeline(False)
    assert device.wait([device.copy(host, buffer.region(), queue, [])], SOON, True)
    return host


def filled(device, nbytes=64, byte=1):
    buffer, queue = device.alloc(nbytes, AllocOptions()), device.create_timeline(False)
    assert device.wait([fill(device, queue, buffer.region(), byte)], SOON, True)
    return buffer, queue


def cause_of(device, point):
    with pytest.raises(OperationFailed) as caught:
        device.wait([point], SOON, True)
    return caught.value.failure


def test_a_failing_operation_fails_what_depends_on_it_and_nothing_else(opened):
    device, faults = opened("illegal-address at fill nth 2")
    buffer, queue = filled(device)
    other = device.create_timeline(False)
    apart = device.alloc(8, AllocOptions())
    failing = fill(device, queue, buffer.region(), 2)
    after = fill(device, queue, buffer.region(), 3)
    waiting = fill(device, other, apart.region(), 4, [failing])
    causes = [cause_of(device, point) for point in (failing, after, waiting)]
    assert causes[0] == causes[1] == causes[2]
    assert (causes[0].kind, causes[0].scope) == (FailureKind.ILLEGAL_ADDRESS, Scope.OPERATION)
    assert (causes[0].device, causes[0].operation) == (device.name, "fill")
    assert contents(device, buffer) == bytes([1] * 64)
    assert faults.happened.splitlines()[1].startswith("illegal-address at fill nth 2 device")


def test_memory_runs_out_at_the_planned_call_only(opened):
    device, _ = opened("out-of-memory at alloc every 2")
    device.alloc(8, AllocOptions())
    with pytest.raises(OutOfMemory) as caught:
        device.alloc(9, AllocOptions())
    assert caught.value.requested == 9
    device.alloc(8, AllocOptions())


def test_half_of_a_write_is_there_when_it_fails(opened):
    device, _ = opened("partial-write at fill nth 2; partial-write at copy")
    buffer, queue = filled(device)
    assert cause_of(device, fill(device, queue, buffer.region(), 2)).kind is (
        FailureKind.PARTIAL_WRITE
    )
    queue = device.create_timeline(False)
    copied = device.copy(buffer.region(48), bytes([3] * 16), queue, [])
    assert cause_of(device, copied).kind is FailureKind.PARTIAL_WRITE
    assert contents(device, buffer) == bytes([2] * 32 + [1] * 16 + [3] * 8 + [1] * 8)


@pytest.mark.parametrize("to_host", [False, True])
def test_a_corrupted_copy_differs_in_one_bit_and_says_so(opened, to_host):
    device, _ = opened("seed 3; data-corruption at copy")
    buffer, queue = filled(device)
    host = bytearray(64) if to_host else bytes(64)
    sides = (host, buffer.region()) if to_host else (buffer.region(), host)
    assert cause_of(device, device.copy(*sides, queue, [])).kind is FailureKind.DATA_CORRUPTION
    wanted = bytes([1] * 64) if to_host else bytes(64)
    found = host if to_host else contents(device, buffer)
    assert sum((a ^ b).bit_count() for a, b in zip(found, wanted, strict=True)) == 1


def test_a_slow_operation_holds_those_behind_it_and_then_works(opened):
    device, _ = opened("slow at fill nth 2 seconds 0.05")
    buffer, queue = filled(device)
    fill(device, queue, buffer.region(0, 32), 2)
    assert device.wait([fill(device, queue, buffer.region(32), 3)], SOON, True)
    assert contents(device, buffer) == bytes([2] * 32 + [3] * 32)


@pytest.mark.slow
def test_a_hang_ends_as_one_and_shows_in_the_health(opened):
    device, _ = opened("hang at fill nth 2 seconds 0.05")
    buffer, queue = filled(device)
    gate = device.create_timeline(True)
    hanging = fill(device, queue, buffer.region(), 2, [Point(gate, 1)])
    assert device.health().state is HealthState.HANGING
    assert not device.wait([hanging], 0.02, True)
    device.signal(gate, 1, None)
    assert cause_of(device, hanging).kind is FailureKind.HANG


def test_a_lost_device_fails_what_it_owes_and_refuses_more(opened):
    device, _ = opened("device-lost at fill nth 3")
    buffer, queue = filled(device)
    gate = device.create_timeline(True)
    reached = Point(queue, 1)
    owed = fill(device, queue, buffer.region(), 2, [Point(gate, 1)])
    causes = []
    waiter = threading.Thread(target=lambda: causes.append(cause_of(device, owed)), daemon=True)
    waiter.start()
    other = device.create_timeline(False)
    last = fill(device, other, device.import_host(memoryview(bytearray(4))).region(), 3)
    waiter.join(SOON)
    assert causes[0] == cause_of(device, last)
    assert causes[0].kind is FailureKind.DEVICE_LOST
    assert device.health().state is HealthState.LOST
    assert device.health().cause == causes[0]
    device.signal(gate, 1, None)
    assert device.wait([reached], 0.0, True)
    assert cause_of(device, owed) == causes[0]
    for call in (
        lambda: fill(device, queue, buffer.region(), 4),
        lambda: device.alloc(1, AllocOptions()),
    ):
        with pytest.raises(DeviceLost) as caught:
            call()
        assert caught.value.failure == causes[0]


def test_a_reset_brings_a_lost_device_back(opened):
    device, _ = opened("reset-required at copy")
    buffer, queue = filled(device)
    point = device.copy(bytearray(64), buffer.region(), queue, [])
    assert cause_of(device, point).kind is FailureKind.RESET_REQUIRED
    assert device.health().state is HealthState.RESET_REQUIRED
    epoch = device.reset()
    assert device.health().state is HealthState.OK
    assert device.health().epoch == epoch
    with pytest.raises(StaleHandle):
        device.free(buffer)
    buffer, _ = filled(device, byte=5)
    assert contents(device, buffer) == bytes([5] * 64)


def test_a_fault_of_no_operation_goes_to_the_subscribers(opened):
    device, _ = opened("link-down at health nth 2")
    told = []
    device.subscribe(told.append)
    device.health()
    assert told == []
    assert device.health().state is HealthState.OK
    assert [failure.kind for failure in told] == [FailureKind.LINK_DOWN]
    assert told[0].scope is Scope.LINK


def test_a_device_closes_while_a_fault_holds_an_operation(opened):
    device, _ = opened("slow at fill seconds 3000")
    fill(device, device.create_timeline(False), device.alloc(8, AllocOptions()).region(), 1)
    device.close()


def test_what_happened_by_chance_happens_again_by_its_plan(opened):
    plan = "seed 5; launch-fault at fill probability 0.3; slow at fill probability 0.2 seconds 0"
    device, faults = opened(plan)
    first = fates(device)
    assert {True, False} == set(first)
    again, replayed = opened(faults.happened)
    assert fates(again) == first
    assert replayed.happened == faults.happened


def fates(device):
    """Whether each of 20 fills fails, each on a timeline of its own."""
    return [not succeeds(device) for _ in range(20)]


def succeeds(device):
    queue, buffer = device.create_timeline(False), device.alloc(4, AllocOptions())
    try:
        return device.wait([fill(device, queue, buffer.region(), 1)], SOON, True)
    except OperationFailed:
        return False


# programs, on the device that compiles them


@pytest.fixture
def source():
    return KernelSource(LLVM_IR, EMPTY, "empty", ())


def test_a_compile_failure_is_of_the_named_program(source):
    faults = Faults("compile at load program empty")
    with hal.open("cpu:0", wrappers=["validate", faults]) as device:
        with pytest.raises(CompileError, match="compile in load empty"):
            device.load(source)
        device.load(source)


def test_a_program_is_found_in_launches_and_in_graphs(source):
    faults = Faults(
        "launch-fault at launch program other; launch-fault at launch program empty nth 2;"
        "launch-fault at replay program empty"
    )
    with hal.open("cpu:0", wrappers=["validate", faults]) as device:
        launchable = device.bind(device.load(source), [])
        graphs = [
            device.record([FillCommand(device.alloc(4, AllocOptions()).region(), b"x")]),
            device.record([LaunchCommand(launchable, (1, 1, 1))]),
        ]
        queue = device.create_timeline(False)
        launches = [device.launch(launchable, (1, 1, 1), queue, []) for _ in range(2)]
        queue = device.create_timeline(False)
        replays = [device.replay(graph, [], queue, []) for graph in graphs]
        for good, bad, name in ((*launches, "launch empty"), (*replays, "replay empty")):
            assert device.wait([good], SOON, True)
            assert cause_of(device, bad).operation == name


def test_a_plan_may_be_a_file(tmp_path):
    path = tmp_path / "plan.txt"
    path.write_text("out-of-memory at alloc\n")
    device = hal.open("cpu:0", wrappers=["validate", f"faults:{path}"])
    with device, pytest.raises(OutOfMemory):
        device.alloc(8, AllocOptions())
    with pytest.raises(InvalidCall, match="neither a fault plan"):
        Faults(str(tmp_path / "missing.txt"))


def test_a_device_without_a_spare_timeline_says_what_damage_needs():
    class OneQueue(BytesDevice):
        @hookimpl
        def create_timeline(self, host_driven):
            if not host_driven and any(self.queues):
                raise InvalidCall("bytes:0 has one queue")
            return super().create_timeline(host_driven)

    device = Device(OneQueue(), "bytes:0", [Faults("partial-write at fill")])
    queue, buffer = device.create_timeline(False), device.alloc(8, AllocOptions())
    with pytest.raises(InvalidCall, match="partial-write and data-corruption need a timeline"):
        fill(device, queue, buffer.region(), 1)
