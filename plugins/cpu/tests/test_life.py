import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hal_plugin_cpu import plugin
from hal_plugin_cpu.describe import FEATURES

from hal.core.description import Feature, SpaceKind
from hal.core.discovery.manifest import parse_manifest
from hal.core.discovery.registry import Registry
from hal.core.dtypes import DType
from hal.core.errors import FailureKind, InvalidCall, OperationFailed, PluginError, StaleHandle
from hal.core.values import AllocOptions, Fault, HealthState, OpenOptions, Point
from tests.held import descriptors, threads

PLAIN = AllocOptions()


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_manifest_declares_what_the_device_does():
    text = Path(plugin.__file__).with_name("hal-plugin.toml").read_text()
    manifest = parse_manifest(text)
    assert manifest.name == "cpu"
    never = {Feature.OPERATORS, Feature.GROUP_IPC}
    assert manifest.features == FEATURES == frozenset(Feature) - never


def test_the_registry_opens_it_with_and_without_wrappers():
    registry = Registry()
    for wrappers in ((), ("validate",)):
        with registry.open("cpu:0", wrappers=wrappers) as device:
            timeline = device.create_timeline(False)
            buffer = device.alloc(1 << 20, PLAIN)
            point = device.fill(buffer.region(), b"\5", timeline, ())
            assert device.wait((point,), 10, True)
            assert set(bytes(device.map(buffer.region(), False))) == {5}
            device.free(buffer)


def test_enumeration_counts_devices_and_starts_nothing(monkeypatch):
    before = threads()
    assert [s.index for s in plugin.enumerate_devices()] == [0]
    monkeypatch.setenv("HAL_CPU_DEVICES", "3")
    assert [s.index for s in plugin.enumerate_devices()] == [0, 1, 2]
    assert plugin.enumerate_devices() == plugin.enumerate_devices()
    assert not threads() - before
    monkeypatch.setenv("HAL_CPU_DEVICES", "many")
    with pytest.raises(PluginError, match="many"):
        plugin.enumerate_devices()


def test_bad_indices_and_settings_are_refused():
    for index, options in [
        (1, {}), (-1, {}), (0, {"speed": "high"}), (0, {"threads": "0"}), (0, {"threads": "all"}),
        (0, {"memory_nbytes": "-5"}),
    ]:  # fmt: skip
        with pytest.raises(InvalidCall):
            plugin.open_device(index, OpenOptions(settings=options))


def test_threads_come_from_the_setting_then_the_environment(monkeypatch):
    monkeypatch.setenv("HAL_CPU_THREADS", "2")
    for settings, expected in (({}, 2), ({"threads": "5"}, 5)):
        before = threads()
        device = plugin.open_device(0, OpenOptions(settings=settings))
        assert device.describe().limits.instances == expected
        assert len(threads() - before) == expected + 1  # the watch
        device.close()
        assert not threads() - before


def test_memory_is_limited_by_the_setting_then_the_environment(monkeypatch):
    monkeypatch.setenv("HAL_CPU_MEMORY", "4096")
    for settings, expected in (({}, 4096), ({"memory_nbytes": "64"}, 64)):
        device = plugin.open_device(0, OpenOptions(settings=settings))
        assert device.describe().space(SpaceKind.GLOBAL).nbytes == expected
        device.close()
    monkeypatch.setenv("HAL_CPU_MEMORY", "much")
    with pytest.raises(PluginError, match="HAL_CPU_MEMORY must be a whole number"):
        plugin.open_device(0, OpenOptions())


def test_the_description_is_complete_and_constant(rig, open_cpu):
    info = rig.device.describe()
    assert info is rig.device.describe()
    assert info.fingerprint == open_cpu().describe().fingerprint
    assert set(info.dtypes) == set(DType)
    assert info.space(SpaceKind.GLOBAL).nbytes == info.limits.alloc_nbytes > 0
    assert info.space(SpaceKind.SCRATCHPAD).nbytes == 8 << 20
    assert info.limits.vector_nbytes in (16, 32, 64)
    assert list(info.limits.caches) == sorted(info.limits.caches)
    assert len(info.limits.caches) >= 1
    assert info.dtypes[DType.F32] >= info.dtypes[DType.F64] >= 0


def test_devices_of_one_process_are_linked_and_share_the_memory(pair):
    infos = [rig.device.describe() for rig in pair]
    assert [i.name for i in infos] == ["cpu:0", "cpu:1"]
    assert [[link.peer for link in i.links] for i in infos] == [["cpu:1"], ["cpu:0"]]
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert sum(i.limits.alloc_nbytes for i in infos) <= total


def test_after_close_everything_is_stale(rig, texts):
    device = rig.device
    cell = rig.upload(np.zeros(4, np.int64))
    program = rig.load(texts["increment"], "increment", "bi")
    bound = device.bind(program, (cell, 1))
    point = device.launch(bound, (4, 1, 1), rig.timeline, ())
    device.close()
    device.close()
    assert device.health().state is HealthState.CLOSED
    for use in (
        lambda: device.launch(bound, (4, 1, 1), rig.timeline, ()),
        lambda: device.bind(program, (cell, 1)),
        lambda: device.alloc(8, PLAIN),
        lambda: device.create_timeline(True),
        lambda: device.copy(cell.region(0, 4), bytes(4), rig.timeline, ()),
        lambda: device.fill(cell.region(), b"\0", rig.timeline, ()),
        lambda: device.map(cell.region(), False),
        lambda: device.wait((point,), 0, True),
        lambda: device.timestamps(point),
        lambda: device.free(cell),
        lambda: device.record(()),
        lambda: device.host_call(print, rig.timeline, ()),
        lambda: device.reset(),
        lambda: rig.load(texts["increment"], "increment", "bi"),
    ):
        with pytest.raises(StaleHandle):
            use()


def test_close_waits_for_submitted_work(open_rig, texts):
    rig = open_rig()
    shared = rig.device.alloc(8 * 4096, AllocOptions(shareable=True, zero=True))
    other = open_rig()
    mirror = other.device.import_buffer(rig.device.export_buffer(shared))
    program = rig.load(texts["increment"], "increment", "bi")
    bound = rig.device.bind(program, (shared, 1))
    for _ in range(200):
        rig.device.launch(bound, (4096, 1, 1), rig.timeline, ())
    seen = []
    rig.device.host_call(lambda: (time.sleep(0.05), seen.append(1)), rig.timeline, ())
    rig.device.launch(bound, (4096, 1, 1), rig.timeline, ())
    rig.device.close()
    assert seen == [1]
    assert (other.download(mirror, np.int64) == 201).all()


def test_close_ends_what_can_never_run(rig, until_inside_wait):
    gate = rig.device.create_timeline(True)
    buffer = rig.device.alloc(8, PLAIN)
    point = rig.device.fill(buffer.region(), b"\1", rig.timeline, (Point(gate, 1),))
    caught = []

    def wait():
        try:
            rig.device.wait((point,), 20, True)
        except OperationFailed as error:
            caught.append(error.failure.kind)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until_inside_wait(thread)  # afterwards the point is stale
    rig.device.close()
    thread.join(30)
    assert caught == [FailureKind.ABORTED]


def test_a_dropped_device_ends_itself(texts):
    before = threads()
    device = plugin.open_device(0, OpenOptions(settings={"threads": "2"}))
    buffer = device.alloc(100, PLAIN)
    timeline = device.create_timeline(False)
    device.wait((device.host_call(lambda: None, timeline, ()),), 10, True)
    del device
    gc.collect()
    for _ in range(100):
        if not threads() - before:
            break
        time.sleep(0.01)
    assert not threads() - before
    del buffer, timeline


def test_fifty_sessions_leak_nothing(texts, tmp_path):
    def session():
        device = plugin.open_device(0, OpenOptions(str(tmp_path), {"threads": "2"}))
        timeline = device.create_timeline(False)
        buffer = device.alloc(3 << 20, AllocOptions(shareable=True))
        device.wait((device.fill(buffer.region(), b"\1", timeline, ()),), 10, True)
        device.wait((device.host_call(lambda: None, timeline, ()),), 10, True)
        device.close()

    def more():
        gc.collect()
        return threads() - before[0], descriptors() - before[1]

    session()
    time.sleep(0.05)
    before = threads(), descriptors()
    for _ in range(50):
        session()
    for _ in range(100):
        if more() == (set(), set()):
            break
        time.sleep(0.01)
    assert more() == (set(), set())


START = """
import os, select, sys, threading
from hal.core.errors import *
from hal.core.values import *
from hal_plugin_cpu.plugin import open_device
device = open_device(0, OpenOptions(settings={"threads": "2"}))
timeline = device.create_timeline(False)
buffer = device.alloc(1 << 20, AllocOptions())
point = device.fill(buffer.region(), b"\\1", timeline, ())
device.wait((point,), 10, True)

def break_next_fill(kind, scope):
    device.inject(Fault(Failure(kind, scope, "cpu:0", "test", ""), "fill"))
    device.fill(buffer.region(), b"\\1", timeline, ())

def wait_for_ever():
    try:
        device.wait((Point(timeline, 99),), 99, True)
    except HalError:
        pass
"""


@pytest.mark.slow
@pytest.mark.turns
def test_a_forked_child_is_told_and_the_parent_goes_on():
    code = (
        START
        + """
pid = os.fork()
if pid == 0:
    told = 0
    for use in (lambda: device.fill(buffer.region(), b"\\2", timeline, ()),
                lambda: device.wait((point,), 1, True), lambda: device.free(buffer),
                lambda: device.alloc(8, AllocOptions()), lambda: device.reset()):
        try:
            use()
        except StaleHandle as error:
            told += "fork" in str(error)
    device.close()
    fresh = open_device(0, OpenOptions(settings={"threads": "2"}))
    line = fresh.create_timeline(False)
    mine = fresh.alloc(100, AllocOptions())
    told += fresh.wait((fresh.fill(mine.region(), b"\\7", line, ()),), 10, True)
    sys.stdout.flush()
    os._exit(told)
select.select([os.pidfd_open(pid)], [], [], 20)
_, status = os.waitpid(pid, os.WNOHANG)
point = device.fill(buffer.region(), b"\\3", timeline, ())
print(os.waitstatus_to_exitcode(status), device.wait((point,), 10, True))
"""
    )
    done = run_python(code)
    assert (done.stdout.split(), done.stderr) == (["6", "True"], "")


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    "ending",
    [
        "",
        "raise SystemExit(0)",
        "for _ in range(1000): device.fill(buffer.region(), b'\\1', timeline, ())",
        "device.host_call(lambda: print(end=''), timeline, ())",
        "gate = device.create_timeline(True)\n"
        "device.fill(buffer.region(), b'\\1', timeline, (Point(gate, 1),))",
        "break_next_fill(FailureKind.HANG, Scope.OPERATION)",
        "break_next_fill(FailureKind.DEVICE_LOST, Scope.DEVICE)",
        "threading.Thread(target=wait_for_ever, daemon=True).start()",
    ],
)
def test_the_process_ends_quietly_without_close(ending):
    done = run_python(START + ending)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_fault_that_never_happens_does_not_outlive_a_reset(rig, failure):
    rig.device.inject(Fault(failure(), "fill", 5))
    rig.device.reset()
    timeline = rig.device.create_timeline(False)
    buffer = rig.device.alloc(8, PLAIN)
    points = [rig.device.fill(buffer.region(), b"\0", timeline, ()) for _ in range(6)]
    assert rig.device.wait(points, 10, True)


def test_a_thread_that_waited_gets_a_core_that_goes_on_computing():
    """On the one core of a process, whose threads do not take it from each other: what sends a
    result to another rank is awake before the work behind that result is done."""
    code = """
import os
import threading

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except PermissionError:
    print("not allowed")
    raise SystemExit
import hal
from hal.core.values import AllocOptions, Point, Region

with hal.open("cpu:0") as device:
    buffer = device.alloc(16 << 20, AllocOptions())
    gate, timeline = device.create_timeline(True), device.create_timeline(False)
    fills = [
        device.fill(Region(buffer, 0, 16 << 20), b"\\1", timeline, [Point(gate, 1)])
        for _ in range(20)
    ]
    found = []

    def follow():
        assert device.wait(fills[:1], 30, True)
        found.append(device.wait(fills[-1:], 0, True))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    thread.join(0.1)  # it sleeps by now
    device.signal(gate, 1, None)
    assert device.wait(fills[-1:], 30, True)
    thread.join(30)
    print(*found)
"""
    done = run_python(code)
    if done.stdout == "not allowed\n":
        pytest.skip("this process may not say how its threads share a core")
    assert (done.stdout, done.stderr) == ("False\n", "")
