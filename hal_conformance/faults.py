"""Failures that cases plant, and what must come of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from hal.core.device import Device
from hal.core.errors import DeviceLost, Failure, FailureKind, OperationFailed, Scope, Unsupported
from hal.core.values import AllocOptions, Fault, Point, Timeline
from hal_conformance import expect
from hal_conformance.expect import Unfit, Unproved, Wrong
from hal_conformance.rig import WAIT_S, Rig, waited
from hal_conformance.steps import lines

LOST = (FailureKind.DEVICE_LOST, Scope.DEVICE)
RESET_REQUIRED = (FailureKind.RESET_REQUIRED, Scope.RESET)
FAULT = (FailureKind.LAUNCH_FAULT, Scope.OPERATION)

_HELD_S = 1.0

HOOKS = ("launch", "copy", "fill", "replay", "host_call")
"""The hooks of submitted operations on one device, as `Fault.hook` and as kinds of `steps.work`."""


def planted(
    device: Device,
    how: tuple[FailureKind, Scope] = FAULT,
    text: str = "planted",
    hook: str = "launch",
) -> Failure:
    """A failure of that device, in words that no device makes up."""
    kind, scope = how
    return Failure(kind, scope, device.name, f"{hook} of the suite", f"{text} {kind.value}")


def plant(device: Device, failure: Failure, hook: str, nth: int = 1) -> Failure:
    """Inject the failure; gives it. Unfit where the device cannot inject this one."""
    try:
        device.inject(Fault(failure, hook, nth))
    except Unsupported as refusal:
        raise Unfit(f"the device cannot inject it: {refusal}") from refusal
    return failure


def lost_error(error: object, failure: Failure) -> None:
    """The error is a DeviceLost of exactly that failure."""
    if not isinstance(error, DeviceLost):
        raise Wrong(f"got {error!r}, expected DeviceLost of {failure}")
    expect.equal(error.failure, failure, "the failure that the error carries")


def caught(device: Device, point: Point, timeout_s: float = WAIT_S) -> OperationFailed:
    """The error that a wait for a point raises; the point must fail in time."""
    try:
        reached = waited(device, point, timeout_s)
    except OperationFailed as error:
        return error
    raise Wrong(
        "a point that must fail was reached"
        if reached
        else f"a point that must fail was still open after {timeout_s} s"
    )


@contextlib.contextmanager
def no_hang(work: str) -> Iterator[None]:
    """The body waits for that work, which is no hang, or goes on with the device after it."""
    try:
        yield
    except OperationFailed as error:
        if error.failure.kind is not FailureKind.HANG:
            raise
        raise Wrong(f"{work} was taken for a hang: {error.failure.message}") from error


class Doom:
    """A device with a fill that loses it as soon as `strike` submits it."""

    def __init__(
        self, rig: Rig, device: Device | None = None, how: tuple[FailureKind, Scope] = LOST
    ) -> None:
        self.device = device or rig.device
        self.failure = planted(self.device, how, hook="fill")
        # The only timeline of a device is the case's: the fill comes behind what is there.
        one = self.device.info.limits.queues == 1
        self._line = None if one else lines(rig, 1, self.device)[0]
        self._buffer = self.device.alloc(8, AllocOptions())
        self._rig = rig

    def submit(self, line: Timeline | None = None, waits: tuple[Point, ...] = ()) -> Point:
        """Submit the fill; gives its point, which will fail."""
        line = line or self._line or self._rig.timeline(self.device)
        plant(self.device, self.failure, "fill")
        return self.device.fill(self._buffer.region(), b"\0", line, waits)

    def strike(self) -> Failure:
        """Lose the device and see it lost; gives the cause."""
        if self._line is None:
            line = self._rig.timeline(self.device)
            before = self.device.fill(self._buffer.region(0, 0), b"\0", line, ())
            try:
                idle = waited(self.device, before, _HELD_S)
            except OperationFailed:
                idle = False
            if not idle:
                raise Unfit("the device's only timeline is held")
        error = caught(self.device, self.submit())
        lost_error(error, self.failure)
        return self.failure


def progress_s(device: Device) -> float:
    """The device's time without progress. Unfit where it does not watch for hangs, unproved where
    it takes longer to find one than a case waits."""
    seconds = device.info.limits.progress_s
    if not seconds:
        raise Unfit("the device does not watch for hangs")
    need_found_in_time(device)
    return seconds


def need_found_in_time(device: Device) -> None:
    """Unproved where a hang takes longer to be found than a case waits. Until then nothing ends
    it, and a close waits for it, too."""
    seconds = 2 * device.info.limits.progress_s
    if seconds > WAIT_S:
        raise Unproved(f"a hang may take {seconds:g} s to be found; set a shorter time")


def fastest(tries: int, attempt: Callable[[int], float]) -> float:
    """The least seconds of some attempts."""
    return min(attempt(number) for number in range(tries))


@contextlib.contextmanager
def stopwatch() -> Iterator[list[float]]:
    """The seconds that the body took, in the list when it is over."""
    seconds: list[float] = []
    begin = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - begin)
