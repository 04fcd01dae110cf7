"""What machines over a driver with queues have in common: memory of two kinds, a stream for what
must be done before a call returns, the driver's clock, and first launches that take long."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from hal.core.errors import Failure, FailureKind, OperationFailed, Scope, Unsupported
from hal.core.facts import dataclass
from hal.core.values import AllocOptions, SharedHandle, Slot
from hal.hosted.machine import Part
from hal.hosted.slab import Slab, Slabs
from hal.hosted.streams import StreamMachine
from hal.hosted.watch import waits_s

COMPILE_S = 60.0
"""How long a driver may take to generate code at a first launch."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10e-6, 1e-3

_ABANDONED: list[object] = []
"""Streams and operations that never ended: giving them back would wait for them."""


class Releasable(Protocol):
    """What a driver gives and takes back."""

    def release(self) -> object:
        """Nobody uses it any more."""


class Bindable(Protocol):
    """A program with arguments."""

    def put(self, index: int, arg: Part | float) -> None:
        """Set the argument of a parameter."""


@dataclass(eq=False, slots=True)
class DriverMemory:
    """A memory object of the driver (None: no memory), over the host's memory `slab` if there is
    one. `handle` are the bytes of a kernel's argument that name it."""

    native: Releasable | None
    handle: bytes
    slab: Slab | None = None

    @property
    def host(self) -> Slab:
        """The host's memory that it is."""
        assert self.slab is not None, "declared by devices that compute in the host's memory"
        return self.slab


class DrivenMachine(StreamMachine):
    """The device `name`. Its memory is made of `slabs` if it computes in the host's memory, else
    the driver's own. `progress_s` is how long an operation may take. `meanings` says what the
    driver's numbers of failures mean, where that is not a fault of the launch."""

    meanings: ClassVar[Mapping[int, tuple[FailureKind, Scope]]] = {}

    def __init__(self, name: str, progress_s: float, slabs: Slabs | None) -> None:
        self.name, self.slabs, self._progress_s = name, slabs, progress_s
        self._long: list[tuple[Any, float]] = []
        self.own = self.open_stream()
        # The most of several, because each is too small by the time from the look at the clock on.
        self._clock_ns = max(self._difference_ns() for _ in range(8))

    @abstractmethod
    def reserve(self, nbytes: int) -> DriverMemory:
        """Memory of the driver. Raises MemoryError when there is none."""

    def reserve_shareable(self, nbytes: int) -> DriverMemory:
        """The same, which `share` names to other processes (Feature.IPC)."""
        raise Unsupported("this machine shares no memory")

    @abstractmethod
    def over(self, slab: Slab) -> DriverMemory:
        """A memory object over memory of the host. Raises InvalidCall when the device cannot use
        it."""

    @abstractmethod
    def bound(self, program: Any) -> Bindable:
        """A program whose arguments will be set."""

    @abstractmethod
    def clock_ns(self, mark: Any) -> tuple[int, int, int]:
        """When the driver was given an operation that is over, began it and ended it, in ns of the
        driver's clock."""

    # memory

    def allocate(self, nbytes: int, options: AllocOptions) -> DriverMemory:
        if self.slabs is not None:
            return self.over(self.slabs.allocated(max(nbytes, 1), options))
        memory = self.reserve_shareable(nbytes) if options.shareable else self.reserve(nbytes)
        if options.zero and nbytes:
            whole = Part(memory, 0, nbytes)
            self.finish("alloc", self.fill(whole, b"\0", nbytes, self.own, None))
        return memory

    def release(self, memory: DriverMemory) -> None:
        if memory.native is not None:
            memory.native.release()
        if memory.slab is not None:
            memory.slab.release()

    def read(self, memory: DriverMemory, offset: int, nbytes: int) -> bytes:
        if memory.slab is not None:
            return bytes(memory.slab.view()[offset : offset + nbytes])
        host, part = bytearray(nbytes), Part(memory, offset, nbytes)
        self.finish("copy", self.copy(memoryview(host), part, nbytes, self.own, None))
        return bytes(host)

    def write(self, memory: DriverMemory, offset: int, data: bytes | memoryview) -> None:
        if memory.slab is not None:
            memory.slab.view()[offset : offset + len(data)] = data
            return
        part = Part(memory, offset, len(data))
        self.finish("copy", self.copy(part, memoryview(data), len(data), self.own, None))

    def map(self, memory: DriverMemory) -> memoryview:
        return memory.host.view()

    def adopt(self, memory: memoryview) -> DriverMemory:
        return self.over(self._in_host().adopted(memory))

    def share(self, memory: DriverMemory, nbytes: int) -> SharedHandle:
        return self._in_host().handle(memory.host, nbytes)

    def attach(self, shared: SharedHandle) -> DriverMemory:
        return self.over(self._in_host().attached(shared))

    def _in_host(self) -> Slabs:
        assert self.slabs is not None, "declared by devices that compute in the host's memory"
        return self.slabs

    # programs

    def bind(self, program: Any, args: Sequence[Part | float | Slot]) -> Any:
        bound = self.bound(program)
        for index, arg in enumerate(args):
            if not isinstance(arg, Slot):
                bound.put(index, arg)
        return bound

    def rebind(self, bound: Bindable, index: int, arg: Part | float) -> None:
        bound.put(index, arg)

    # failures and time

    def failure(self, operation: str, state: int) -> Failure:
        return self.failed(operation, state, f"the driver ended it with status {state}")

    def failed(self, operation: str, number: int, text: str) -> Failure:
        """What a number of the driver means."""
        kind, scope = self.meanings.get(number, (FailureKind.LAUNCH_FAULT, Scope.OPERATION))
        return Failure(kind, scope, self.name, operation, text)

    def finish(self, operation: str, mark: Any, more_s: float = 0.0) -> None:
        """Wait for an operation on the own stream, at most `more_s` longer than it may take, and
        than a thread of this process waits for a processor. Raises OperationFailed."""
        ends, pause_s = time.monotonic() + self._progress_s + more_s, _FIRST_PAUSE_S
        before: dict[int, float] = {}
        late_s = 0.0
        while (state := self.state(mark)) > 0:
            if not before and pause_s == _LONGEST_PAUSE_S:
                before = waits_s()
            if time.monotonic() > ends + late_s:
                starved_s = max(s - before.get(thread, s) for thread, s in waits_s().items())
                if starved_s > late_s:
                    late_s = starved_s
                    continue
                self.abandon([mark])
                text = f"it did not end in {self._progress_s + more_s:g} s"
                raise OperationFailed(
                    Failure(FailureKind.HANG, Scope.DEVICE, self.name, operation, text)
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if state < 0:
            raise OperationFailed(self.failure(operation, state))

    def expect_long(self, mark: Any) -> None:
        """This launch may take `COMPILE_S` more than others."""
        self._long = [*self._still_long(), (mark, time.monotonic() + COMPILE_S)]

    def is_patient(self) -> bool:
        self._long = self._still_long()
        return bool(self._long)

    def _still_long(self) -> list[tuple[Any, float]]:
        """The launches that may be compiling, each with the end of patience."""
        now_s = time.monotonic()
        return [x for x in self._long if now_s < x[1] and self.state(x[0]) > 0]

    def times(self, mark: Any) -> tuple[int, int]:
        _, begin_ns, end_ns = self.clock_ns(mark)
        return begin_ns + self._clock_ns, end_ns + self._clock_ns

    def abandon(self, held: Sequence[Any]) -> None:
        _ABANDONED.extend((*held, self.own))
        self.own = self.open_stream()

    def _difference_ns(self) -> int:
        """What is to be added to the driver's clock to have the host's, or a little less."""
        now_ns = time.monotonic_ns()
        mark = self.nothing(self.own, None)
        self.finish("open", mark)
        return now_ns - self.clock_ns(mark)[0]
