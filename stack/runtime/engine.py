"""The engine: one device with its memory pool, its timeline and its plans."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hal.core.description import SpaceKind
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import Failure, InvalidCall, error_for
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from stack.compiler.program import CompiledGraph, GraphRequest
from stack.memory.pool import Pool
from stack.runtime.array import Array, Life
from stack.runtime.canonical import renumbered, structure
from stack.runtime.plan import Arena, Plan
from stack.runtime.programs import Programs
from stack.runtime.stream import Stream

Host = np.ndarray[Any, np.dtype[Any]]
Compile = Callable[[GraphRequest], CompiledGraph]

TIMEOUT_S = 300.0
PLANS = 256
"""How many plans are kept for graphs that come again."""


class Engine:
    """Runs graphs on a device. `compile` turns a request into calls; `timeout_s` bounds every wait.

    Everything is submitted in order to one timeline and nothing but `get` and `sync` waits for it.
    May be used from any thread. `fallbacks` counts what had to be done the slow way for want of a
    feature.
    """

    def __init__(self, device: Device, compile: Compile, timeout_s: float = TIMEOUT_S) -> None:
        space = device.info.space(SpaceKind.GLOBAL)
        assert space is not None, "every device has a global memory space"
        self.device = device
        self.closed = False
        self.alignment = max(space.granularity, 64)
        self.fallbacks: Counter[str] = Counter()
        self.stream = Stream(device, timeout_s, self._failed)
        self.pool = Pool(device, self.alignment, self._reclaim)
        self.programs = Programs(device)
        self._compile = compile
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._lock = threading.RLock()
        self._lives: dict[int, Life] = {}
        self._arena: Callable[[], Arena | None] = lambda: None

    def put(self, value: npt.ArrayLike, dtype: DType) -> Array:
        """A new array with a copy of host values, converted to `dtype`. Returns before it is
        there."""
        host = np.array(value, NUMPY[dtype], order="C")
        array = self.empty(Type(host.shape, dtype))
        self._fill(array, host)
        return array

    def write(self, array: Array, value: npt.ArrayLike) -> None:
        """Overwrite an array with host values of its shape, converted to its type.

        Raises InvalidCall for another shape. An array that failed has a value again.
        """
        host = np.array(value, NUMPY[array.type.dtype], order="C")
        if host.shape != array.type.shape:
            raise InvalidCall(f"cannot write values of shape {host.shape} to {array!r}")
        self._check_own(array)
        with self.stream.lock:
            if array.failure is not None:
                array.revive()
            self._fill(array, host)

    def get(self, array: Array) -> Host:
        """The values of an array, once they are there; bf16 as ml_dtypes.bfloat16.

        Raises OperationFailed or DeviceLost with the first cause when they will never be,
        DeadlineExceeded when they are late.
        """
        self._check_own(array)
        host = np.empty(array.type.shape, NUMPY[array.type.dtype])
        with self.stream.lock:
            if array.failure is not None:
                raise error_for(array.failure)
            if not host.size:
                return host
            # The stream keeps `host` until the copy is done, also when the wait is interrupted.
            point = self.stream.copy(_bytes(host), array.region, host)
        self.stream.wait(point, f"reading {array.type}")
        return host

    def empty(self, type: Type) -> Array:
        """A new array with undefined values. Raises OutOfMemory."""
        return self.allocate(type, f"array {type}")

    def allocate(self, type: Type, label: str) -> Array:
        """`empty` with a name for out-of-memory reports."""
        block = self.pool.allocate(type.size * type.dtype.nbytes, label)
        array = Array(self, type, block)
        life = Life(array, self._ended)
        life.block = block
        self._lives[id(life)] = life
        return array

    def plan(self, request: GraphRequest) -> Plan:
        """The plan of a request; one of equal structure is found again. Raises what compiling
        raises."""
        key = structure(request)
        with self._lock:
            found = self._plans.get(key)
            if found is None:
                found = self._plans[key] = Plan(self, self._compile(renumbered(request)))
                self._forget_oldest()
            self._plans.move_to_end(key)
            return found

    def arena(self, nbytes: int) -> Arena:
        """Memory for a plan's temporaries, shared with other plans where it is large enough."""
        found = self._arena()
        if found is None or found.nbytes < nbytes:
            found = Arena(self, nbytes)
            self._arena = weakref.ref(found)
        return found

    def sync(self, timeout_s: float | None = None) -> None:
        """Wait for everything submitted so far; raises as `get`."""
        self.stream.drain("submitted work", timeout_s)
        self.programs.sweep()

    def close(self) -> None:
        """Close the device; its arrays and plans are of no use any more. Idempotent."""
        self.closed = True
        self._plans.clear()
        self.device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _fill(self, array: Array, host: Host) -> None:
        if host.size:
            with self.stream.lock:
                array.written = self.stream.copy(array.region, _bytes(host), host).value
            self.stream.throttle()

    def _check_own(self, array: Array) -> None:
        if array.engine is not self:
            raise InvalidCall(f"{array!r} does not belong to this engine of {self.device.name}")

    def _forget_oldest(self) -> None:
        while len(self._plans) > PLANS:
            self._plans.popitem(last=False)
        self.programs.sweep()

    def _failed(self, failure: Failure, was_reached: Callable[[int], bool]) -> None:
        """Keep what was computed before the failure; everything that was still owed has failed with
        it."""
        for array in [life() for life in list(self._lives.values())]:
            if array is None:
                continue
            if array.written and not was_reached(array.written):
                array.poison(failure)
            array.written = 0

    def _ended(self, life: weakref.ref[Array]) -> None:
        """Runs inside the garbage collection of an array, so it must not wait for anything."""
        assert isinstance(life, Life)
        del self._lives[id(life)]
        self.pool.release(life.block)

    def _reclaim(self) -> None:
        """Drop plans that nobody holds and arrays in reference cycles, and wait for their last
        use."""
        with self._lock:
            self._plans.clear()
        gc.collect()
        self.sync()


def _bytes(host: Host) -> memoryview:
    return host.reshape(-1).view(np.uint8).data
