"""The loss of a device: every waiter hears of it, whatever the device does, and a reset brings it
back."""

import gc
import os
import sys
import threading
import weakref

import numpy as np
import pytest

from hal.core.errors import (
    DeviceLost,
    FailureKind,
    InvalidCall,
    OperationFailed,
    Scope,
    Unsupported,
)
from hal.core.values import AllocOptions, Fault, HealthState, LaunchCommand, Point

PLAIN = AllocOptions()
LOST = (FailureKind.DEVICE_LOST, Scope.DEVICE)


@pytest.fixture
def work(rig, texts):
    """Functions by hook name, each of which makes one call that a fault can strike."""
    device = rig.device
    cell = rig.upload(np.zeros(64, np.int64))
    other = rig.upload(np.zeros(64, np.int64))
    bound = device.bind(rig.load(texts["increment"], "increment", "bi"), (cell, 1))
    graph = device.record([LaunchCommand(bound, (64, 1, 1))] * 4)
    return {
        "launch": lambda: device.launch(bound, (64, 1, 1), rig.timeline, ()),
        "copy": lambda: device.copy(other.region(), cell.region(), rig.timeline, ()),
        "fill": lambda: device.fill(cell.region(), b"\1", rig.timeline, ()),
        "replay": lambda: device.replay(graph, (), rig.timeline, ()),
        "host_call": lambda: device.host_call(lambda: None, rig.timeline, ()),
        "alloc": lambda: device.alloc(8, PLAIN),
        "load": lambda: rig.load(texts["add"], "add", "bbb"),
        "cells": lambda: rig.device.map(cell.region(), False),
    }


def cause(device, *points, kind=OperationFailed):
    with pytest.raises(kind) as caught:
        device.wait(points, 10, True)
    return caught.value.failure


def test_losing_the_device_while_it_computes(rig, texts, failure):
    device = rig.device
    bound = device.bind(rig.load(texts["spin"], "spin", "i"), (30_000_000,))
    running = device.launch(bound, (3, 1, 1), rig.timeline, ())
    graph = device.record([LaunchCommand(bound, (1, 1, 1))] * 50)
    line, other = device.create_timeline(False), device.create_timeline(False)
    replaying = device.replay(graph, (), line, ())
    device.inject(Fault(failure(*LOST), "fill"))
    device.fill(device.alloc(8, PLAIN).region(), b"\0", other, ())
    cause(device, running, kind=DeviceLost)
    cause(device, replaying, kind=DeviceLost)
    device.reset()
    assert device.stats("").live_nbytes == 0


def test_losses_and_resets_leak_nothing(rig, failure):
    device = rig.device

    def cycle():
        timeline = device.create_timeline(False)
        buffer = device.alloc(3 << 20, AllocOptions(shareable=True))
        device.wait((device.host_call(lambda: None, timeline, ()),), 10, True)
        device.inject(Fault(failure(*LOST), "fill"))
        cause(device, device.fill(buffer.region(), b"\1", timeline, ()), kind=DeviceLost)
        device.reset()

    def counts():
        gc.collect()
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    cycle()
    before = counts()
    for _ in range(20):
        cycle()
    for _ in range(1000):
        grown = [now - then for now, then in zip(counts(), before, strict=True) if now > then]
        if not grown:
            break
        threading.Event().wait(0.01)
    assert not grown, "threads or descriptors"
    assert device.health().epoch == 21


@pytest.mark.parametrize("hook", ["launch", "copy", "fill", "replay", "host_call"])
def test_a_partial_write_fails_wherever_it_strikes(rig, work, failure, hook):
    planted = failure(FailureKind.PARTIAL_WRITE)
    rig.device.inject(Fault(planted, hook))
    assert cause(rig.device, work[hook]()) is planted


def test_a_partial_replay_runs_its_first_commands(rig, work, failure):
    rig.device.inject(Fault(failure(FailureKind.PARTIAL_WRITE), "replay"))
    cause(rig.device, work["replay"]())
    assert set(np.frombuffer(work["cells"](), np.int64)) == {2}


def test_faults_that_cannot_happen_are_refused(rig, failure):
    with pytest.raises(InvalidCall):
        rig.device.inject(Fault(failure(), "fill", 0))
    for hook, kind in (("load", FailureKind.HANG), ("health", FailureKind.HANG), ("close", None)):
        with pytest.raises(Unsupported):
            rig.device.inject(Fault(failure(kind or FailureKind.DEVICE_LOST), hook))


def test_a_subscriber_that_fails_keeps_nobody_from_hearing(rig, failure, monkeypatch):
    heard, reported, planted = [], [], failure(FailureKind.LINK_DOWN, Scope.LINK)
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: reported.append(kind))
    rig.device.subscribe(lambda failure: 1 // 0)
    rig.device.subscribe(heard.append)
    rig.device.inject(Fault(planted, "health"))
    assert rig.device.health().state is HealthState.OK
    assert (heard, reported) == ([planted], [ZeroDivisionError])


def test_host_memory_of_failed_copies_is_let_go(rig, failure):
    class Memory(bytearray):
        pass

    ended = threading.Event()
    memory = Memory(1 << 20)
    weakref.finalize(memory, ended.set)
    buffer = rig.device.alloc(1 << 20, PLAIN)
    gate, line = rig.device.create_timeline(True), rig.device.create_timeline(False)
    point = rig.device.copy(buffer.region(), memory, line, (Point(gate, 1),))
    del memory
    rig.device.signal(gate, 0, failure())
    cause(rig.device, point)
    rig.wait(rig.host_point())
    gc.collect()
    assert ended.is_set()
