"""A context of the driver, and what lives in it: events, streams, memory and groups.

A fault ends a context: every later call in it fails. A kernel that hangs keeps it, and to give back
what is in it would wait for the kernel. So everything knows its context, and is given back only in
one that lives."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakSet

from hal.hosted.idle import Spent
from hal.hosted.pins import Pins
from hal.hosted.staged import STAGE_NBYTES
from hal_plugin_cuda.driver import NOT_READY, STICKY, Driver, DriverError

_NON_BLOCKING, _PORTABLE, _MAPPED = 1, 1, 3
"""`CU_STREAM_NON_BLOCKING`, `CU_MEMHOSTALLOC_PORTABLE`, `CU_MEMHOSTREGISTER_PORTABLE|DEVICEMAP`."""

_PATIENCE_S = 5.0
_TURN, _PRIMARY = Lock(), set[int]()
"""Devices whose primary context a session of this process has, or has left with a fault in it."""


class Context:
    """A context of a device: the primary one, which other libraries of the process use, too, where
    that is `wanted` and no session has it, else one of its own. Within `with` it is the thread's
    current one, and the one before (that of another library) is so again behind it."""

    def __init__(self, driver: Driver, device: int, wanted: bool) -> None:
        self.driver, self._device = driver, device
        self._popped = driver.ffi.new("CUcontext *")
        with _TURN:
            self.primary = wanted and device not in _PRIMARY
            if self.primary:
                self.native = driver.made("CUcontext", "cuDevicePrimaryCtxRetain", device)
                _PRIMARY.add(device)
            else:
                self.native = driver.made("CUcontext", "cuCtxCreate_v2", 0, device)
                driver.call("cuCtxPopCurrent_v2", self._popped)  # to make one makes it current
        self.groups = WeakSet[Any]()
        """Those that end before it."""
        self.spoilt = False
        """Whether it knew a fault, after which nothing works in it."""
        self.lives = True
        """Whether what is in it can be given back."""
        self.hangs = False
        """Whether something in it does not end, and may use memory as long as the process lives."""
        self.held: list[object] = []
        """What its operations may still use of the host, as nobody knows when they end."""
        self.events: list[Any] = []
        """Those that nobody uses."""
        self.queues: dict[int, deque[Event]] = {}
        """What waits in each stream, by the stream's id."""
        self.spent = Spent(self._is_idle)
        self.pins = Pins(self._register, self._unregister)

    def __enter__(self) -> None:
        self.driver.library.cuCtxPushCurrent_v2(self.native)

    def __exit__(self, *raised: object) -> None:
        self.driver.library.cuCtxPopCurrent_v2(self._popped)

    def end(self, name: str, native: Any) -> None:
        """Give something back by the driver's function, once nothing runs: many of these wait for
        that, and a host function, in which Python may forget a thing, must not call the driver."""
        self.when_idle(partial(self.give_back, name, native))

    def when_idle(self, call: Callable[[], object]) -> None:
        """Have something called by `tidy`, if things can be given back then."""
        if self.lives:
            self.spent.add(call)

    def tidy(self, until_s: float = 0.0) -> None:
        """Give back what nobody uses, if nothing runs, or as soon as nothing does until then."""
        if self.lives:
            with self:
                self.spent.tidy(until_s)

    def give_back(self, name: str, *args: Any) -> None:
        """Do so now, by the driver's function."""
        try:
            self.driver.call(name, *args)
        except DriverError as error:
            if error.number not in STICKY:  # of which an operation tells
                raise

    def _is_idle(self) -> bool:
        query = self.driver.library.cuEventQuery
        newest = [event for waiting in [*self.queues.values()] for event in [*waiting][-1:]]
        return all(query(event.native) != NOT_READY for event in newest)

    def _register(self, start: int, end: int) -> None:
        at = self.driver.ffi.cast("void *", start)
        self.driver.call("cuMemHostRegister_v2", at, end - start, _MAPPED)

    def _unregister(self, start: int) -> None:
        self.give_back("cuMemHostUnregister", self.driver.ffi.cast("void *", start))

    def close(self) -> None:
        """Give everything back that is in it, and it itself, unless something in it hangs."""
        if not self.lives:
            return
        if not self.primary:
            self.lives = False
            self.spent.clear()
            self.give_back("cuCtxDestroy_v2", self.native)
            return
        for group in [*self.groups]:
            group.end()
        self.tidy(time.monotonic() + _PATIENCE_S)
        self.lives = False
        with self:
            while self.events:
                self.give_back("cuEventDestroy_v2", self.events.pop())
        self.give_back("cuDevicePrimaryCtxRelease_v2", self._device)
        if not self.spoilt:
            _PRIMARY.discard(self._device)

    def hang(self) -> None:
        """Something in it does not end, and all of it stays."""
        self.lives, self.hangs = False, True


class Event:
    """An event of the driver, which goes back to its context when nobody uses it."""

    __slots__ = ("context", "native")

    def __init__(self, context: Context) -> None:
        self.context = context
        try:
            self.native = context.events.pop()
        except IndexError:
            self.native = context.driver.made("CUevent", "cuEventCreate", 0)

    def __del__(self) -> None:
        if hasattr(self, "native"):
            self.context.events.append(self.native)


class Mark:
    """An operation between two events. `number` is the state in which it ended, above 0 until then;
    `kept` is what it needs of the host."""

    __slots__ = ("begin", "end", "kept", "number")

    def __init__(self, begin: Event, end: Event, kept: object) -> None:
        self.begin, self.end, self.kept, self.number = begin, end, kept, 1


class Stream:
    """A stream of the driver. `last` is its newest event, and `waiting` are those of operations
    that were not over when it was looked at last. Who copies has its `turn`: the commands of two
    threads would mix in the stage that all copies pass."""

    def __init__(self, context: Context) -> None:
        self.context = context
        with context:
            self.native = context.driver.made("CUstream", "cuStreamCreate", _NON_BLOCKING)
        self.turn = Lock()
        self.last: Event | None = None
        self.waiting = context.queues[id(self)] = deque[Event]()
        self._stage: Any = None

    def stage(self) -> Any:
        """Pinned memory of `STAGE_NBYTES`, which operations of this stream use one by one."""
        if self._stage is None:
            made = self.context.driver.made
            self._stage = made("void *", "cuMemHostAlloc", STAGE_NBYTES, _PORTABLE)
        return self._stage

    def __del__(self) -> None:
        if hasattr(self, "waiting"):
            del self.context.queues[id(self)]
            self.context.end("cuStreamDestroy_v2", self.native)
            if self._stage is not None:
                self.context.end("cuMemFreeHost", self._stage)


class Block:
    """Memory at an address. `host` points there where it is memory of the host."""

    __slots__ = ("address", "context", "host", "release")

    def __init__(
        self, context: Context, address: int, release: Callable[[], object], host: Any = None
    ) -> None:
        self.context, self.address, self.release, self.host = context, address, release, host
