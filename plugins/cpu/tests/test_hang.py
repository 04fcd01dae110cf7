"""Operations that make no progress: injected, and kernels and host calls that really never end."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from hal.core.errors import FailureKind, InvalidCall, OperationFailed, Scope
from hal.core.values import AllocOptions, HealthState, LaunchCommand

PLAIN = AllocOptions()

LOOP = """
define void @stick(ptr %args, ptr %grid, i64 %begin, i64 %end) {
entry:
  %flag = load ptr, ptr %args
  %from_slot = getelementptr i64, ptr %args, i64 1
  %from = load i64, ptr %from_slot
  %late = icmp sge i64 %end, %from
  br i1 %late, label %loop, label %done
loop:
  %now = load volatile i64, ptr %flag
  %go = icmp ne i64 %now, 0
  br i1 %go, label %done, label %loop
done:
  ret void
}
"""


@pytest.fixture
def quick(open_rig):
    """A device that takes a fifth of a second without progress for a hang."""
    return open_rig(progress_s="0.2")


def stuck(rig, flag, instances=1, from_instance=0):
    """A launch whose instances from `from_instance` on end only once the flag is set."""
    program = rig.load(LOOP, "stick", "bi")
    bound = rig.device.bind(program, (flag, from_instance))
    return bound, rig.device.launch(bound, (instances, 1, 1), rig.timeline, ())


def release(rig, flag):
    """Let the kernel end. The flag's memory stays while the kernel reads it."""
    np.frombuffer(rig.device.map(flag.region(), True), np.int64)[:] = 1


def cause(rig, *points, kind=OperationFailed):
    with pytest.raises(kind) as caught:
        rig.device.wait(points, 10, True)
    return caught.value.failure


def until(condition):
    """Poll for what another thread brings about."""
    for _ in range(1000):
        if condition():
            return True
        threading.Event().wait(0.01)
    return False


def test_the_limit_is_declared_and_can_be_set(open_cpu, monkeypatch):
    assert open_cpu().describe().limits.progress_s == 2.0
    monkeypatch.setenv("HAL_CPU_PROGRESS", "0.5")
    assert open_cpu().describe().limits.progress_s == 0.5
    assert open_cpu(progress_s="3").describe().limits.progress_s == 3
    for wrong in ("0", "-1", "soon", "nan"):
        with pytest.raises(InvalidCall, match="progress_s"):
            open_cpu(progress_s=wrong)


@pytest.mark.parametrize("instances", [1, 100])
def test_a_kernel_that_never_ends_is_left_to_itself(quick, texts, instances):
    device = quick.device
    flag = device.alloc(8, AllocOptions(zero=True))
    bound, point = stuck(quick, flag, instances)
    behind = device.launch(bound, (1, 1, 1), quick.timeline, ())
    waiting = device.create_timeline(False)
    far = device.launch(bound, (1, 1, 1), waiting, (point,))
    found = cause(quick, point)
    assert (found.kind, found.scope, found.device) == (FailureKind.HANG, Scope.QUEUE, "cpu:0")
    assert found.operation == "launch stick"
    assert cause(quick, behind) == cause(quick, far) == found
    assert (device.health().state, device.health().cause) == (HealthState.HANGING, found)
    cells = quick.device.alloc(8 * 1000, AllocOptions(zero=True))
    increment = device.bind(quick.load(texts["increment"], "increment", "bi"), (cells, 1))
    line = device.create_timeline(False)
    points = [device.launch(increment, (1000, 1, 1), line, ()) for _ in range(20)]
    assert device.wait(points, 10, True)
    assert set(np.frombuffer(device.map(cells.region(), False), np.int64)) == {20}
    release(quick, flag)
    assert until(lambda: device.health().state is HealthState.OK)


def test_one_worker_that_hangs_among_others_is_found(quick):
    flag = quick.device.alloc(8, AllocOptions(zero=True))
    _, point = stuck(quick, flag, 1000, 1000)  # the last piece alone
    assert cause(quick, point).kind is FailureKind.HANG
    release(quick, flag)


def test_a_graph_that_hangs_names_the_program(quick):
    device = quick.device
    flag = device.alloc(8, AllocOptions(zero=True))
    bound = device.bind(quick.load(LOOP, "stick", "bi"), (flag, 0))
    graph = device.record([LaunchCommand(bound, (1, 1, 1))] * 3)
    point = device.replay(graph, (), quick.timeline, ())
    assert cause(quick, point).operation == "launch stick"
    release(quick, flag)
    assert until(lambda: device.health().state is HealthState.OK)


def test_reset_brings_a_device_with_a_stuck_kernel_back(quick, texts):
    device = quick.device
    for epoch in (1, 2):
        # The second reset may come before the kernel begins, and then takes the device's memory.
        own = np.zeros(1 << 17, np.int64)
        flag = (
            device.alloc(own.nbytes, AllocOptions(zero=True))
            if epoch == 1
            else device.import_host(memoryview(own))
        )
        view = device.map(flag.region(), True)
        rig = type(quick)(device)
        _, point = stuck(rig, flag)
        if epoch == 1:
            assert cause(rig, point).kind is FailureKind.HANG
        assert device.reset() == epoch
        assert device.health().state is HealthState.OK
        assert (device.stats("").live_nbytes, device.stats("").live_buffers) == (0, 0)
        cell = device.alloc(8, AllocOptions(zero=True))
        line = device.create_timeline(False)
        increment = device.bind(rig.load(texts["increment"], "increment", "bi"), (cell, 1))
        assert device.wait((device.launch(increment, (1, 1, 1), line, ()),), 10, True)
        np.frombuffer(view, np.int64)[:1] = 1  # the memory is there while the kernel reads it
        assert until(lambda: device.health().state is HealthState.OK)
        device.free(cell)
        assert device.stats("").live_nbytes == 0


@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_kernel_that_comes_on_is_no_hang(open_rig, texts, threads):
    # Each of the instances takes about a millisecond, all together more than the limit.
    rig = open_rig(progress_s="0.3", threads=threads)
    bound = rig.device.bind(rig.load(texts["spin"], "spin", "i"), (700_000,))
    point = rig.device.launch(bound, (600, 1, 1), rig.timeline, ())
    assert rig.device.wait((point,), 60, True)


@pytest.mark.slow
@pytest.mark.turns
def test_a_kernel_that_waits_for_a_processor_is_no_hang(open_rig, texts):
    """Ten processes share one core with the worker, whose one piece then takes longer than the
    limit, and less of the processor's time."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})  # the worker's too
    busy = [sys.executable, "-S", "-c", "while True: pass"]
    others = []
    try:
        rig = open_rig(progress_s="0.5", threads="1")
        spin = rig.load(texts["spin"], "spin", "i")

        def count(n):
            began = time.thread_time(), time.process_time()
            bound = rig.device.bind(spin, (n,))
            point = rig.device.launch(bound, (1, 1, 1), rig.timeline, ())
            assert rig.device.wait((point,), 60, True)
            return time.process_time() - began[1] - (time.thread_time() - began[0])

        n = int(1_000_000 * 0.15 / count(1_000_000))
        others = [subprocess.Popen(busy) for _ in range(10)]
        began = time.monotonic()
        count(n)
        assert time.monotonic() - began > 0.5, "the worker did not wait for a processor"
    finally:
        for other in others:
            other.kill()
            other.wait(60)
        os.sched_setaffinity(0, before)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("ending", ["", "device.close()", "device.reset()", "del device"])
def test_a_process_with_a_stuck_kernel_ends_quietly(ending):
    code = f"""
from hal.core.dtypes import DType
from hal.core.values import *
from hal_plugin_cpu.plugin import open_device
device = open_device(0, OpenOptions(settings={{"threads": "2", "progress_s": "0.1"}}))
flag = device.alloc(8, AllocOptions(zero=True))
params = (Param("a", ParamKind.BUFFER, DType.I64), Param("b", ParamKind.SCALAR, DType.I64))
program = device.load(KernelSource(LLVM_IR, '''{LOOP}''', "stick", params))
line = device.create_timeline(False)
device.launch(device.bind(program, (flag, 0)), (100, 1, 1), line, ())
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
