"""Failures and processes: a process with a lost device ends well, and errors go to another one."""

from __future__ import annotations

import pickle
from typing import Any

from hal.core.description import Feature
from hal.core.errors import (
    CompileError,
    DeviceLost,
    FailureKind,
    OutOfMemory,
    Scope,
    StaleHandle,
)
from hal.core.values import AllocOptions
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.faults import LOST, Doom, caught, plant, planted
from hal_conformance.rig import Rig
from hal_conformance.steps import element, elsewhere, lines, stamp, work

failure_process = Cases("I", Level.RESILIENT)

NEEDS = (Feature.INJECT,)

_LOSE = """
from hal.core.errors import *
from hal.core.values import Fault
line, gate = device.create_timeline(False), device.create_timeline(True)
buffer = device.alloc(64, AllocOptions())
kind, scope = FailureKind.{kind}, Scope.{scope}
failure = Failure(kind, scope, name, "fill of the suite", "planted")
blocked = device.copy(buffer.region(0, 32), buffer.region(32, 32), line, [Point(gate, 1)])
other = device.create_timeline(False)
device.inject(Fault(failure, "fill"))
point = device.fill(buffer.region(), bytes(1), other, ())
"""


@failure_process.case(
    "process-ends-after-loss", "close.failed", needs=NEEDS, timeout_s=60, once=True
)
def _(rig: Rig) -> None:
    """Without `close`, with work that never ran: the process ends, with status 0 and in silence."""
    code = _LOSE.format(kind="DEVICE_LOST", scope="DEVICE") + _SEEN
    expect.equal(elsewhere(rig, code), ["DeviceLost", "DeviceLost"], "what the waits raised")


_SEEN = """
result = []
for waiting in (point, blocked):
    try:
        device.wait([waiting], 10, True)
    except OperationFailed as error:
        result.append(type(error).__name__)
"""


@failure_process.case(
    "process-ends-with-a-hang", "close.failed", needs=NEEDS, timeout_s=60, once=True
)
def _(rig: Rig) -> None:
    code = _LOSE.format(kind="HANG", scope="OPERATION")
    waits = elsewhere(rig, code + "result = device.wait([blocked], 0.01, True)")
    expect.equal(waits, False, "a wait before the process ended with hanging work")


@failure_process.case(
    "errors-go-to-another-process",
    "inject.true",
    "wait.raises",
    needs=NEEDS,
    timeout_s=60,
    once=True,
)
def _(rig: Rig) -> None:
    """An error of a device in another process arrives here with its type and whole failure."""
    code = _LOSE.format(kind="DEVICE_LOST", scope="DEVICE") + _PICKLED
    error, failure = pickle.loads(bytes.fromhex(elsewhere(rig, code)))
    expect.equal(type(error), DeviceLost, "the type of the error")
    expect.equal(error.failure, failure, "the failure that the error carries")
    expect.equal(failure.message, "planted", "the failure's message")


_PICKLED = """
import pickle
try:
    device.wait([point], 10, True)
except OperationFailed as error:
    result = pickle.dumps((error, failure)).hex()
"""


@failure_process.case("failed-operation-pickles", "inject.true", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    fill = work(rig, "fill")
    failure = plant(rig.device, planted(rig.device), "fill")
    error = caught(rig.device, fill.submit(line, ()))
    expect.equal(_again(error).failure, failure, "the failure after a round trip")


@failure_process.case("lost-device-pickles", "inject.true", needs=NEEDS)
def _(rig: Rig) -> None:
    failure = Doom(rig).strike()
    error = expect.raises(DeviceLost, rig.device.alloc, 8, AllocOptions())
    expect.equal(_again(error).failure, failure, "the failure after a round trip")


@failure_process.case("refusals-pickle", "inject.true", needs=NEEDS)
def _(rig: Rig) -> None:
    """Errors that no wait raises: no memory, a program that is none, a stale handle."""
    device, source = rig.device, rig.source(stamp(element(rig)))
    plant(device, planted(device, (FailureKind.OUT_OF_MEMORY, Scope.OPERATION)), "alloc")
    memory = _again(expect.raises(OutOfMemory, device.alloc, 64, AllocOptions()))
    expect.equal(memory.requested, 64, "the bytes asked for, after a round trip")
    plant(device, planted(device, (FailureKind.COMPILE, Scope.OPERATION)), "load")
    program = expect.raises(CompileError, device.load, source)
    expect.equal(_again(program).log, program.log, "the compiler's log after a round trip")
    buffer = rig.buffer(8)
    device.free(buffer)
    stale = expect.raises(StaleHandle, device.free, buffer)
    expect.equal(str(_again(stale)), str(stale), "the text after a round trip")


@failure_process.case("health-pickles", "health.cause", needs=NEEDS)
def _(rig: Rig) -> None:
    """A supervisor in another process hears of the device's state."""
    Doom(rig, how=LOST).strike()
    health = rig.device.health()
    expect.equal(pickle.loads(pickle.dumps(health)), health, "the health after a round trip")


def _again(error: Any) -> Any:
    """The error as another process gets it."""
    copy = pickle.loads(pickle.dumps(error))
    expect.equal((type(copy), str(copy)), (type(error), str(error)), "the error's type and text")
    return copy
