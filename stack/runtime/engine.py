"""The engine: one device with its memory pool, its timeline and its plans."""

from __future__ import annotations

import gc
import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall, error_for
from hal.core.facts import dataclass
from hal.core.values import Region
from hal.tile.node import Type
from hal.tile.numeric import NUMPY, quiet
from hal.tile.size import Values
from stack.collector import paused
from stack.compiler.program import CompiledGraph, GraphRequest
from stack.runtime.array import Array, refusal
from stack.runtime.canonical import structure
from stack.runtime.exchange import RankGroup
from stack.runtime.families import Dynamic, Families, Instance, Numbers
from stack.runtime.loop import written_out
from stack.runtime.memory import ArrayMemory
from stack.runtime.offload import copied_nbytes, offloaded
from stack.runtime.placement import Placement
from stack.runtime.plan import Bound, Plan, argument_nbytes
from stack.runtime.programs import Programs
from stack.runtime.resources import Resources
from stack.runtime.sized import plan_of
from stack.runtime.snapshot import Readings, Snapshot
from stack.runtime.stream import Stream

Host = np.ndarray[Any, np.dtype[Any]]
Compile = Callable[[GraphRequest], CompiledGraph]

TIMEOUT_S = 300.0
PLANS = 256
"""How many plans are kept for graphs that come again."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What it costs that a plan takes `nbytes`, where it takes `kept_nbytes` with every value kept:
    operators that are computed `again`, of which `segments` of the graph, and bytes that each run
    copies to the host's memory and back."""

    nbytes: int
    kept_nbytes: int
    again: int
    segments: str
    copied_nbytes: int

    def __str__(self) -> str:
        return (
            f"takes {self.nbytes} bytes, {self.kept_nbytes} with every value kept: "
            f"{self.again} operators are computed again, of segments {self.segments}; "
            f"{self.copied_nbytes} bytes are copied to the host's memory and back"
        )


class OverBudget(InvalidCall):
    """A call takes `nbytes` at least, and may take fewer."""

    def __init__(self, message: str, nbytes: int) -> None:
        super().__init__(message)
        self.nbytes = nbytes


@dataclass(frozen=True, slots=True)
class Holdings:
    """What an engine holds: `plans` that somebody holds, of which the engine itself keeps `kept`
    (PLANS at most) for graphs that come again, and the `programs` that are loaded for them. Those
    of plans that are gone are given back to the device by the next new plan or `sync`."""

    plans: int
    kept: int
    programs: int


class Engine:
    """Runs graphs on a device. `compile` turns a request into calls; `timeout_s` bounds every wait.

    Everything is submitted in order to one timeline and nothing but `get` and `sync` waits for it.
    May be used from any thread. `fallbacks` counts what had to be done the slow way for want of a
    feature. `groups` are the groups of ranks that the device is in, by the names that graphs have
    for them; whoever enters a group there takes it out before it ends.
    """

    def __init__(
        self,
        device: Device,
        compile: Compile,
        timeout_s: float = TIMEOUT_S,
        programs: Programs | None = None,
    ) -> None:
        """`programs` are the device's, if `compile` begins to load them."""
        self.device = device
        self.memory = ArrayMemory(device, self._reclaim)
        self.pool = self.memory.pool
        self.stream = Stream(device, timeout_s, self.memory.poison)
        self.programs = programs or Programs(device)
        self.fallbacks: Counter[str] = Counter()
        self.groups: dict[str, RankGroup] = {}
        self.resources = Resources(
            device, self.memory, self.stream, self.programs, self.fallbacks, self.groups
        )
        self._readings = Readings(self.stream)
        self.closed = False
        self.families = Families(device.info, compile)
        self._kept: OrderedDict[Hashable, Plan] = OrderedDict()
        self._plans: WeakValueDictionary[Hashable, Plan] = WeakValueDictionary()
        self._lock = threading.RLock()

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

    def fill(self, array: Array, begin: int, count: int, value: npt.NDArray[Any]) -> None:
        """Make so many of an array's elements, from that one on in row-major order, equal to a 0-d
        host array of its element type.

        Raises InvalidCall for elements that it does not have, the cause where it failed.
        """
        self.stream.throttle()
        with self.stream.lock:
            region = self._part(array, begin, count * array.type.dtype.nbytes)
            timeline = self.stream.timeline
            point = self.device.fill(region, value.tobytes(), timeline, array.readers)
            self.stream.submitted(point)
            array.written = point.value

    def copy(self, array: Array, begin: int, source: Array) -> None:
        """Make as many of an array's elements as another one of its element type has, from that one
        on in row-major order, equal to them. Raises as `fill`."""
        self.stream.throttle()
        with self.stream.lock:
            given = self._part(source, 0, source.nbytes)
            region = self._part(array, begin, source.nbytes)
            array.written = self.stream.copy(region, given, None, array.readers).value

    def _part(self, array: Array, begin: int, nbytes: int) -> Region:
        """So many bytes of an array, from that element on."""
        self._check_own(array)
        if array.failure is not None:
            raise error_for(array.failure)
        own, offset = array.region, begin * array.type.dtype.nbytes
        if not 0 <= offset <= offset + nbytes <= own.nbytes:
            raise InvalidCall(f"{array!r} has no {nbytes} bytes from its element {begin} on")
        return Region(own.buffer, own.offset + offset, nbytes)

    def get(self, array: Array, out: Host | None = None) -> Host:
        """The values of an array, once they are there; bf16 as ml_dtypes.bfloat16. They go into
        `out`, if given: contiguous, of the array's shape and type.

        Raises InvalidCall for another `out`, OperationFailed or DeviceLost with the first cause
        when they will never be, DeadlineExceeded when they are late.
        """
        shape, dtype = array.type.shape, NUMPY[array.type.dtype]
        host = np.empty(shape, dtype) if out is None else out
        if host.shape != shape or host.dtype != dtype or not host.flags.c_contiguous:
            raise InvalidCall(f"the values of {array!r} do not go into {host.dtype}{host.shape}")
        self._read(array, 0, host)
        return host

    def get_part(self, array: Array, begin: int, shape: tuple[int, ...]) -> Host:
        """As `get`, of as many elements as an array of that shape has, from that one on in
        row-major order."""
        host = np.empty(shape, NUMPY[array.type.dtype])
        self._read(array, begin, host)
        return host

    def _read(self, array: Array, begin: int, host: Host) -> None:
        with self.stream.lock:
            region = self._part(array, begin, host.nbytes)
            if not host.size:
                return
            # The stream keeps `host` until the copy is done, also when the wait is interrupted.
            point = self.stream.copy(_bytes(host), region, host)
        self.stream.wait(point, f"reading {array.type}")

    def snapshot(self, arrays: Sequence[Array]) -> Snapshot:
        """The values that these arrays have now, to be read while later work goes on. What writes
        one of them in place waits on the device until the snapshot is closed.

        Raises InvalidCall for an array of another engine, OperationFailed or DeviceLost with the
        cause of one that failed.
        """
        for array in arrays:
            self._check_own(array)
        return self._readings.snapshot(arrays)

    def empty(self, type: Type) -> Array:
        """A new array with undefined values. Raises OutOfMemory."""
        return self.memory.allocate(type, f"array {type}")

    def plan(self, request: GraphRequest, keep: bool = True, general: bool = True) -> Plan | Bound:
        """The plan of a request; one of equal structure is found again while somebody holds it,
        which the engine itself does for the last PLANS that it was to `keep`. Requests that differ
        in numbers and sizes alone share what is compiled, see `Families`, unless it is not to be
        `general`. Raises what compiling raises."""
        key: Hashable = structure(request)
        with self._lock:
            found = self._plans.get(key)
            numbers: tuple[Numbers, ...] = ()
            if found is None:
                with self.compiling():
                    instance = self.families.instance(request, general)
                    numbers = instance.numbers
                    key = instance.key or key
                    found = self._made(key, instance)
            if keep:
                self._kept[key] = found
                self._kept.move_to_end(key)
                if len(self._kept) > PLANS:
                    self._kept.popitem(last=False)
            return self._bound(found, numbers)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """In it this thread makes plans: programs that it begins are compiled while it goes on, and
        Python's collector holds still."""
        with paused(), self.programs.ahead():
            yield

    def within(
        self, request: GraphRequest, nbytes: int, host_nbytes: int | None, what: str
    ) -> tuple[Plan, Fitted]:
        """The plan of a request that needs at most so many bytes at one time for inputs, outputs
        and temporaries, and what that costs. Where it takes more, values wait in the host's memory,
        at most `host_nbytes` (None: none if the device's memory is the host's, else as many as it
        takes), and where that is not enough, others are computed again. Raises OverBudget, with
        the least there is, where that is more; it names `what` is planned."""
        # Imported here, since an engine that finds all it needs in caches compiles nothing.
        from stack.compiler.compile import folded_graph  # noqa: PLC0415
        from stack.compiler.graph.recompute import within  # noqa: PLC0415

        inputs, outputs = ([n.type for n in nodes] for nodes in (request.inputs, request.outputs))
        always = argument_nbytes(inputs, outputs, request.updates)
        host = self.memory.default_host_nbytes if host_nbytes is None else host_nbytes
        fitted: dict[GraphRequest, CompiledGraph] = {}

        def needed(graph: CompiledGraph) -> int:
            arena = Placement(written_out(graph), self.memory.alignment).layout.arena_nbytes
            return arena + argument_nbytes(graph.inputs, graph.outputs, graph.updates)

        def fit(request: GraphRequest) -> int:
            graph = self.families.compiled_alone(request)
            fitted[request] = offloaded(graph, nbytes, host, needed)
            return needed(fitted[request])

        with self._lock, paused():
            kept = needed(self.families.compiled_alone(request))
            found = within(request, nbytes, fit, lambda r: folded_graph(r, self.device.info))
            graph = fitted[found.request]
            copied = copied_nbytes(graph)
            told = Fitted(found.nbytes, kept, found.again, found.segments, copied)
            if found.nbytes > nbytes:
                raise OverBudget(
                    f"{what} may take {nbytes} bytes, and takes {found.nbytes} at least, of which "
                    f"{always} are arguments, parameters, states and results, with all computed "
                    f"again that can be and {copied} bytes copied to the host's memory and back, "
                    f"{kept} with every value kept; give it {found.nbytes} ({_mib(found.nbytes)}), "
                    "or a smaller model or arguments",
                    found.nbytes,
                )
            plan = self._plans[object()] = Plan(self.resources, graph)
            self.programs.sweep()
            return plan, told

    def dynamic(self, request: GraphRequest, why: str) -> Dynamic | None:
        """A request with `facts`, compiled for many values of its symbols, of which `at` makes
        plans, best in the same `compiling`; None where its sizes cannot be data. Raises what
        compiling raises."""
        with self._lock, paused():
            return self.families.sized(request, why)

    def at(self, dynamic: Dynamic, values: Values) -> Plan | Bound | None:
        """The plan for values of the symbols; None where they do not meet the conditions."""
        with self._lock:
            instance = dynamic.instance(values)
            if instance is None:
                return None
            return self._bound(self._made(instance.key, instance), instance.numbers)

    def _made(self, key: Hashable, instance: Instance) -> Plan:
        found = self._plans.get(key)
        if found is None:
            source = instance.source
            found = self._plans[key] = (
                Plan(self.resources, instance.graph())
                if source is None
                else plan_of(self.resources, source, instance.sizes)
            )
            found.source = source
            self.programs.sweep()
        return found

    def _bound(self, plan: Plan, numbers: Sequence[Numbers]) -> Plan | Bound:
        if not numbers:
            return plan
        with quiet():
            return Bound(plan, [self.put(values, dtype) for dtype, values in numbers])

    def plans(self) -> tuple[Plan, ...]:
        """All plans that somebody holds."""
        with self._lock:
            return tuple(self._plans.values())

    def held(self) -> Holdings:
        """How many plans and programs there are."""
        with self._lock:
            return Holdings(len(self._plans), len(self._kept), self.programs.count)

    def sync(self, timeout_s: float | None = None) -> None:
        """Wait for everything submitted so far; raises as `get`."""
        self.stream.drain("submitted work", timeout_s)
        self.programs.sweep()

    def close(self) -> None:
        """Close the device; its arrays and plans are of no use any more. Idempotent."""
        self.closed = True
        self._kept.clear()
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
                point = self.stream.copy(array.region, _bytes(host), host, array.readers)
                array.written = point.value
            self.stream.throttle()

    def _check_own(self, array: Array) -> None:
        if array.pool is not self.pool:
            raise refusal(array, f"this engine of {self.device.name}")

    def _reclaim(self) -> None:
        """Drop plans that nobody holds and arrays in reference cycles, and wait for their last
        use."""
        with self._lock:
            self._kept.clear()
        gc.collect()
        self.sync()


def _mib(nbytes: int) -> str:
    """No fewer bytes than these."""
    return f"{math.ceil(nbytes / 2**20 * 100) / 100:.2f} MiB"


def _bytes(host: Host) -> memoryview:
    return host.reshape(-1).view(np.uint8).data
