"""A context of the driver, and what lives in it: events, streams and memory.

A fault ends a context: every later call in it fails. A kernel that hangs keeps it, and to give back
what is in it would wait for the kernel. So everything knows its context, and is given back only in
one that lives.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Any

from hal_plugin_cuda.driver import STICKY, Driver, DriverError

STAGE_NBYTES = 4 << 20
"""What of a copy goes through pinned memory at a time."""
_NON_BLOCKING, _PORTABLE = 1, 1


class Context:
    """A context of a device. Within `with` it is the thread's current one."""

    def __init__(self, driver: Driver, device: int) -> None:
        self.driver = driver
        self.native = driver.made("CUcontext", "cuCtxCreate_v2", 0, device)
        self.lives = True
        """Whether what is in it can be given back."""
        self.events: list[Any] = []
        """Those that nobody uses."""
        self._popped = driver.ffi.new("CUcontext *")
        driver.call("cuCtxPopCurrent_v2", self._popped)  # to make one makes it current

    def __enter__(self) -> None:
        self.driver.library.cuCtxPushCurrent_v2(self.native)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.driver.library.cuCtxPopCurrent_v2(self._popped)

    def end(self, name: str, native: Any) -> None:
        """Give something back by the driver's function, where that can be done."""
        if not self.lives:
            return
        try:
            with self:
                self.driver.call(name, native)
        except DriverError as error:
            if error.number not in STICKY:  # of which an operation tells
                raise

    def close(self) -> None:
        """Give back everything that is in it."""
        if self.lives:
            self.lives = False
            self.driver.call("cuCtxDestroy_v2", self.native)

    def lose(self, *, hangs: bool) -> None:
        """What is in it cannot be given back one by one. One that does not hang goes as a whole."""
        if self.lives and not hangs:
            self.driver.library.cuCtxDestroy_v2(self.native)
        self.lives = False


class Event:
    """An event of the driver, which goes back to its context when nobody uses it."""

    __slots__ = ("context", "native")

    def __init__(self, context: Context) -> None:
        self.context = context
        free = context.events
        made = context.driver.made
        self.native = free.pop() if free else made("CUevent", "cuEventCreate", 0)

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
    that were not over when it was looked at last."""

    def __init__(self, context: Context) -> None:
        self.context = context
        with context:
            self.native = context.driver.made("CUstream", "cuStreamCreate", _NON_BLOCKING)
        self.last: Event | None = None
        self.waiting: deque[Event] = deque()
        self._stage: Any = None

    def stage(self) -> Any:
        """Pinned memory of `STAGE_NBYTES`, which operations of this stream use one by one."""
        if self._stage is None:
            made = self.context.driver.made
            self._stage = made("void *", "cuMemHostAlloc", STAGE_NBYTES, _PORTABLE)
        return self._stage

    def __del__(self) -> None:
        if hasattr(self, "native"):
            self.context.end("cuStreamDestroy_v2", self.native)
            if self._stage is not None:
                self.context.end("cuMemFreeHost", self._stage)


class Block:
    """Memory at an address, which the function `name` gives back. `held` is the host's memory that
    it is, if it is that."""

    __slots__ = ("_name", "_native", "address", "context", "held")

    def __init__(
        self, context: Context, address: int, name: str, native: Any, held: object = None
    ) -> None:
        self.context, self.address, self.held = context, address, held
        self._name, self._native = name, native

    def release(self) -> None:
        """Give it back."""
        self.context.end(self._name, self._native)
        self._native = self.held = None
