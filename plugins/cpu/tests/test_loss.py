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


class Waiters:
    """Threads that wait for a point each and keep what they got."""

    def __init__(self, device, points):
        self.failures = [None] * len(points)
        self._begun = threading.Barrier(len(points) + 1, timeout=20)
        self._threads = [
            threading.Thread(target=self._wait, args=(device, rank, point), daemon=True)
            for rank, point in enumerate(points)
        ]
        for thread in self._threads:
            thread.start()
        self._begun.wait(20)

    def _wait(self, device, rank, point):
        self._begun.wait(20)
        try:
            device.wait((point,), 20, True)
        except OperationFailed as error:
            self.failures[rank] = error.failure

    def ended(self):
        for thread in self._threads:
            thread.join(20)
        return self.failures


def cause(device, *points, kind=OperationFailed):
    with pytest.raises(kind) as caught:
        device.wait(points, 10, True)
    return caught.value.failure


@pytest.mark.parametrize("hook", ["launch", "copy", "fill", "replay", "host_call", "alloc", "load"])
def test_a_loss_reaches_eight_waiters(rig, work, failure, hook):
    device, planted = rig.device, failure(*LOST)
    gate = device.create_timeline(True)
    lines = [device.create_timeline(False) for _ in range(4)]
    blocked = [device.host_call(lambda: None, line, (Point(gate, 1),)) for line in lines]
    far = [device.host_call(lambda: None, line, blocked) for line in lines]
    waiters = Waiters(device, blocked + far)
    device.inject(Fault(planted, hook))
    if hook in ("alloc", "load"):
        with pytest.raises(DeviceLost) as caught:
            work[hook]()
        assert caught.value.failure is planted
    else:
        assert cause(device, work[hook](), kind=DeviceLost) is planted
    assert waiters.ended() == [planted] * 8
    assert (device.health().state, device.health().cause) == (HealthState.LOST, planted)
    for again in (work["launch"], work["alloc"], work["load"]):
        with pytest.raises(DeviceLost) as caught:
            again()
        assert caught.value.failure is planted
    assert device.reset() == 1
    assert (device.stats("").live_nbytes, device.stats("").live_buffers) == (0, 0)


def test_a_loss_while_the_device_closes(rig, texts, failure):
    device = rig.device
    bound = device.bind(rig.load(texts["spin"], "spin", "i"), (30_000_000,))
    device.launch(bound, (30, 1, 1), rig.timeline, ())
    device.inject(Fault(failure(*LOST), "health"))
    closing = threading.Thread(target=device.close, daemon=True)
    closing.start()
    assert device.health().state in (HealthState.LOST, HealthState.CLOSED)
    closing.join(20)
    assert not closing.is_alive()
    assert device.health().state is HealthState.CLOSED


def test_a_device_that_was_lost_closes_silently(rig, failure):
    gate = rig.device.create_timeline(True)
    buffer = rig.device.alloc(8, PLAIN)
    rig.device.fill(buffer.region(), b"\1", rig.timeline, (Point(gate, 1),))
    rig.device.inject(Fault(failure(*LOST), "health"))
    assert rig.device.health().state is HealthState.LOST
    rig.device.close()
    rig.device.close()


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
        if counts() <= before:
            break
        threading.Event().wait(0.01)
    assert all(now <= then for now, then in zip(counts(), before, strict=True))
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


def test_corruption_is_detected_and_writes_nothing(rig, work, failure):
    planted = failure(FailureKind.DATA_CORRUPTION)
    rig.device.inject(Fault(planted, "fill"))
    assert cause(rig.device, work["fill"]()) is planted
    assert not np.frombuffer(work["cells"](), np.int64).any()
    assert rig.device.health().state is HealthState.OK


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
