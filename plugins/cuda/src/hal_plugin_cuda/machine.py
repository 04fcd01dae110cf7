"""An opened device: its context, its streams, its memory and what runs on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from hal.core.description import DeviceInfo
from hal.core.errors import (
    DeviceLost,
    Failure,
    FailureKind,
    InvalidCall,
    OperationFailed,
    PluginError,
    Scope,
)
from hal.core.values import Grid, KernelSource, Operator, SharedHandle
from hal.hosted.ccl import CclGroup, Seat, invitation
from hal.hosted.device import HostedDevice
from hal.hosted.driven import DriverMemory
from hal.hosted.forks import starts
from hal.hosted.machine import BaseMachine, GoesOn, Invitation, Part
from hal.hosted.order import Order
from hal.hosted.plugin import Choice
from hal.hosted.staged import StagedMachine
from hal.hosted.streams import RUNNING, After
from hal_plugin_cuda import driver as cuda
from hal_plugin_cuda.context import Block, Context, Event, Mark, Stream
from hal_plugin_cuda.describe import capability, describe
from hal_plugin_cuda.driver import Driver, DriverError
from hal_plugin_cuda.lt import BoundProduct, Product, operators
from hal_plugin_cuda.programs import Bound, Loaded, Programs
from hal_plugin_cuda.shared import Mapped, attached, shareable
from hal_plugin_cuda.wheels import nccl

_PLACE = 50, 33, 34
"""Numbers of `CUdevice_attribute`: the device's domain, bus and place there."""
_QUEUED = RUNNING + 1
_DEPTH = 900
"""Operations of a stream with the driver: its queue has about 1024 places, and one more waits
inside the driver's call, where nobody can end it."""
_ORIGIN_NS = 2e9
"""Times are float32 milliseconds from an origin, which is set anew when it lies so far back."""
_HELD: list[object] = []
"""What hanging kernels use, for as long as the process lives."""


def opened(choice: Choice) -> HostedDevice:
    """Open the device. Raises PluginError when the driver does not let it, and in a process that
    was forked from one in which it ran."""
    starts("CUDA", choice.name)
    try:
        found = cuda.driver()
        device = found.made("int", "cuDeviceGet", choice.place.position)
        info = describe(found, device, choice)
        return HostedDevice(info, CudaMachine(info, found, device, choice), Order())
    except (OSError, DriverError) as error:
        raise PluginError(f"{choice.name} cannot be opened: {error}") from error


@dataclass(eq=False, slots=True)
class _Joined:
    """Launches as one graph of the driver; `nodes` are their bindings, each with its node, what the
    node was made of, and the binding's version then."""

    context: Context
    graph: Any
    executable: Any
    nodes: list[tuple[Bound, Any, Any, int]]

    def __del__(self) -> None:
        self.context.end("cuGraphExecDestroy", self.executable)
        self.context.end("cuGraphDestroy", self.graph)


class CudaMachine(StagedMachine):
    """One context; a stream is a stream of it, and a mark is two events."""

    meanings: ClassVar[Mapping[int, tuple[FailureKind, Scope]]] = {
        -cuda.OUT_OF_MEMORY: (FailureKind.OUT_OF_MEMORY, Scope.OPERATION),
        **dict.fromkeys((-n for n in cuda.STICKY), (FailureKind.DEVICE_LOST, Scope.DEVICE)),
        **dict.fromkeys((-n for n in cuda.ADDRESSES), (FailureKind.ILLEGAL_ADDRESS, Scope.DEVICE)),
    }

    def __init__(self, info: DeviceInfo, driver: Driver, device: int, choice: Choice) -> None:
        self._driver, self._device, self._library = driver, device, driver.library
        self._null = driver.ffi.NULL
        self._joins = nccl() if choice.place.shared == 1 else None
        self._context = Context(driver, device, bool(self._joins))
        self._programs = Programs(driver, capability(driver, device), choice.cache_dir)
        self._call = driver.ffi.callback("void(void *)", self._run_job)
        self._origin: tuple[Event, float] | None = None
        super().__init__(info.name, info.limits.progress_s, None)

    def renew(self) -> None:
        """A context that knew a fault, or in which something hangs, is no use any more. Raises
        DeviceLost where the driver gives no new one: after some faults it works in no process that
        had one."""
        try:
            self.close()
            self._context = Context(self._driver, self._device, bool(self._joins))
            self.own = self.open_stream()
            self._clock_ns = max(self._difference_ns() for _ in range(8))
        except (DriverError, OperationFailed) as error:
            text = f"{error}; start the process anew: the driver does not recover in this one"
            lost = Failure(FailureKind.DEVICE_LOST, Scope.DEVICE, self.name, "reset", text)
            raise DeviceLost(lost) from error

    def abandon(self, held: Sequence[Any]) -> None:
        """The context stays with what hangs in it: to end it would wait for that."""
        _HELD.extend((*held, self.own, self._context))
        self._context.hang()

    def close(self) -> None:
        self.own = self._origin = None
        self._context.close()

    # memory

    def reserve(self, nbytes: int) -> DriverMemory:
        context = self._context

        def made() -> Block:
            with context:
                address = self._driver.made("CUdeviceptr", "cuMemAlloc_v2", max(nbytes, 1))
            return Block(context, address, partial(context.end, "cuMemFree_v2", address))

        return self._had(made)

    def reserve_shareable(self, nbytes: int) -> DriverMemory:
        return self._had(lambda: shareable(self._context, self._device, nbytes))

    def _had(self, made: Callable[[], Block | Mapped]) -> DriverMemory:
        """What was freed while the device worked is with the driver at the latest when it has no
        memory otherwise."""
        for until_s in (0.0, time.monotonic() + self._progress_s):
            self._context.tidy(until_s)
            try:
                return _memory(made())
            except DriverError as error:
                if error.number != cuda.OUT_OF_MEMORY:
                    raise
                refused = error
        raise MemoryError(str(refused))

    def share(self, memory: DriverMemory, nbytes: int) -> SharedHandle:
        assert isinstance(memory.native, Mapped), "allocated shareable"
        return memory.native.exported(nbytes)

    def attach(self, shared: SharedHandle) -> DriverMemory:
        return _memory(attached(self._context, self._device, shared))

    def release(self, memory: DriverMemory) -> None:
        super().release(memory)
        self._context.tidy()

    def adopt(self, memory: memoryview) -> DriverMemory:
        """Pinned where it lies, so that the device reaches it by the host's address."""
        ffi, context = self._driver.ffi, self._context
        if not memory.nbytes:
            return self.reserve(0)
        try:
            held = ffi.from_buffer(memory, require_writable=not memory.readonly)
            address = int(ffi.cast("uintptr_t", held))
            with context:
                runs = context.pins.add(address, memory.nbytes)
        except (BufferError, ValueError, DriverError) as error:
            raise InvalidCall(f"the device cannot use this memory of the host: {error}") from error

        def unpin(_held: object = held) -> None:
            context.pins.drop(runs)

        return _memory(Block(context, address, partial(context.when_idle, unpin), held))

    # programs

    def compile(self, source: KernelSource) -> Loaded:
        return self._programs.load(source, self._context)

    def operators(self) -> Sequence[Operator]:
        return operators(self._driver.major)

    def prepare(self, operator: Operator, constants: Mapping[str, int]) -> Product:
        with self._context:
            return Product(self._context, operator, constants, self._driver.major)

    def unload(self, program: Loaded | Product) -> None:
        program.unload()
        self._context.tidy()

    def bound(self, program: Loaded | Product) -> Bound | BoundProduct:
        return BoundProduct(program) if isinstance(program, Product) else Bound(program)

    # streams

    def open_stream(self) -> Stream:
        self._context.tidy()
        return Stream(self._context)

    def launch(self, bound: Bound | BoundProduct, grid: Grid, stream: Stream, after: After) -> Mark:
        if 0 in grid:
            return self.nothing(stream, after)
        with self._context:
            begin = self.begun(stream, after)
            if isinstance(bound, BoundProduct):
                if said := bound.loaded.start(bound.addresses, stream.native):
                    raise OperationFailed(self.failed("launch matmul", 0, said))
                return self.ended(stream, begin)
            shape = *grid, bound.lanes, 1, 1, bound.scratch
            how = stream.native, bound.cells, self._null
            number = self._library.cuLaunchKernel(bound.function, *shape, *how)
            if number:
                raise self._refused(f"launch {bound.loaded.entry}", number)
            return self.ended(stream, begin)

    def nothing(self, stream: Stream, after: After) -> Mark:
        with self._context, self._translated("marker"):
            return self.ended(stream, self.begun(stream, after))

    @contextmanager
    def at_work(self, stream: Stream, operation: str) -> Iterator[None]:
        with stream.turn, self._context, self._translated(operation):
            yield

    def address(self, part: Part) -> int:
        return int(part.memory.native.address + part.offset)

    def host(self, side: Part | memoryview, *, writes: bool) -> Any:
        if isinstance(side, Part):
            host = side.memory.native.host
            return None if host is None else host + side.offset
        return self._driver.ffi.from_buffer("char[]", side, require_writable=writes)

    def lends(self, part: Part) -> bool:
        # `Mapped` is for one device alone.
        return isinstance(part.memory.native, Block) and super().lends(part)

    def constant(self, data: bytes) -> Any:
        return self._driver.ffi.from_buffer("char[]", data)

    def stage(self, stream: Stream) -> tuple[Any, int]:
        stage = stream.stage()
        return stage, int(self._driver.ffi.cast("uintptr_t", stage))

    def begun(self, stream: Stream, after: After) -> Event:
        """The event behind which an operation runs: the stream's last one, or one of its own behind
        other streams' marks."""
        if len(stream.waiting) >= _DEPTH:
            self._make_room(stream)
        if not after and stream.last is not None:
            return stream.last
        for mark in after or ():
            self._driver.call("cuStreamWaitEvent", stream.native, mark.end.native, 0)
        event = Event(self._context)
        self._driver.call("cuEventRecord", event.native, stream.native)
        return event

    def ended(self, stream: Stream, begin: Event, kept: object = None) -> Mark:
        event = Event(self._context)
        number = self._library.cuEventRecord(event.native, stream.native)
        if number:
            raise self._refused("marker", number)
        stream.last = event
        stream.waiting.append(event)
        return Mark(begin, event, kept)

    def _make_room(self, stream: Stream) -> None:
        """Wait until the driver can take more without waiting itself. Raises OperationFailed where
        that takes longer than an operation may."""
        ends = time.monotonic() + self._progress_s
        while True:
            waiting = stream.waiting
            while waiting and self._library.cuEventQuery(waiting[0].native) != cuda.NOT_READY:
                waiting.popleft()
            if len(waiting) < _DEPTH:
                return
            if time.monotonic() > ends:
                self.abandon([stream])
                text = f"{_DEPTH} operations wait, and none ended in {self._progress_s:g} s"
                hang = Failure(FailureKind.HANG, Scope.DEVICE, self.name, "launch", text)
                raise OperationFailed(hang)
            time.sleep(50e-6)

    def move(self, dst: int, src: int, nbytes: int, stream: Stream) -> None:
        if nbytes:
            self._driver.call("cuMemcpyAsync", dst, src, nbytes, stream.native)

    def set(self, address: int, unit: bytes, count: int, stream: Stream) -> bool:
        fits = len(unit) in (1, 2, 4) and address % len(unit) == 0
        if fits:
            name, value = f"cuMemsetD{8 * len(unit)}Async", int.from_bytes(unit, "little")
            self._driver.call(name, address, value, count, stream.native)
        return fits

    def on_host(self, dst: Any, src: Any, nbytes: int, stream: Stream, kept: list[object]) -> None:
        """Have a thread of the driver copy bytes of the host when the stream comes to that."""
        if nbytes:
            handle = self._driver.ffi.new_handle((dst, src, nbytes))
            kept.append((handle, dst, src))
            self._driver.call("cuLaunchHostFunc", stream.native, self._call, handle)

    def _run_job(self, handle: Any) -> None:
        self._driver.host.memmove(*self._driver.ffi.from_handle(handle))

    @property
    def seat(self) -> str:
        known = self._context.primary  # wanted where the library is
        return str([self._driver.attribute(n, self._device) for n in _PLACE]) if known else ""

    def invite(self) -> bytes:
        return invitation(str(self._joins))

    def group(self, machines: Mapping[int, Any], to: Invitation, goes_on: GoesOn) -> CclGroup:
        seats = {rank: machine._seat() for rank, machine in machines.items()}
        return CclGroup(str(self._joins), seats, to, self._progress_s, goes_on)

    def _seat(self) -> Seat:
        return Seat(self, self._context, stream := self.open_stream(), stream.native)

    # graphs

    def joined(self, launches: Sequence[tuple[Bound, Grid]]) -> _Joined | None:
        ffi, made = self._driver.ffi, self._driver.made
        if any(isinstance(bound, BoundProduct) for bound, _ in launches):
            return None
        with self._context, self._translated("record"):
            graph, nodes = made("CUgraph", "cuGraphCreate", 0), []
            before: Any = (ffi.NULL, 0)
            for bound, grid in launches:
                if 0 in grid:
                    continue
                facts = ffi.new("CUDA_KERNEL_NODE_PARAMS *")
                facts.func, facts.params = bound.function, bound.cells
                facts.shared_nbytes = bound.scratch
                facts.gx, facts.gy, facts.gz = grid
                facts.bx, facts.by, facts.bz = bound.lanes, 1, 1
                node = made("CUgraphNode", "cuGraphAddKernelNode_v2", graph, *before, facts)
                nodes.append((bound, node, facts, bound.version))
                before = (ffi.new("CUgraphNode *", node), 1)
            executable = made("CUgraphExec", "cuGraphInstantiateWithFlags", graph, 0)
        return _Joined(self._context, graph, executable, nodes)

    def launch_joined(self, joined: _Joined, stream: Stream, after: After) -> Mark:
        with self._context, self._translated("replay"):
            begin = self.begun(stream, after)
            for i, (bound, node, facts, version) in enumerate(joined.nodes):
                if bound.version != version:
                    self._driver.call(
                        "cuGraphExecKernelNodeSetParams_v2", joined.executable, node, facts
                    )
                    joined.nodes[i] = (bound, node, facts, bound.version)
            self._driver.call("cuGraphLaunch", joined.executable, stream.native)
            return self.ended(stream, begin, joined)

    def reaches(self, peer: BaseMachine) -> bool:
        return isinstance(peer, CudaMachine)  # addresses of all devices are apart

    # states and times

    def state(self, mark: Mark) -> int:
        if mark.number <= 0:
            return mark.number
        if not mark.end.context.lives:  # what hung may end yet, and what is behind it run
            mark.end.context.held.append(mark.kept)
            mark.number, mark.kept = -cuda.CONTEXT_GONE, None
            return mark.number
        query = self._library.cuEventQuery
        with mark.end.context:
            number = query(mark.end.native)
            if number == cuda.NOT_READY:
                return _QUEUED if query(mark.begin.native) == cuda.NOT_READY else RUNNING
        mark.number, mark.kept = -number, None
        return mark.number

    def failure(self, operation: str, state: int) -> Failure:
        return self.failed(operation, state, self._driver.words(-state))

    def failed(self, operation: str, number: int, text: str) -> Failure:
        self._context.spoilt |= -number in cuda.STICKY
        return super().failed(operation, number, text)

    def clock_ns(self, mark: Mark) -> tuple[int, int, int]:
        with self._context:
            begin, end = (self._since_origin_ns(e) for e in (mark.begin, mark.end))
        return begin, begin, end

    def _since_origin_ns(self, event: Event) -> int:
        """The time of an event from the first one that was asked for."""
        if self._origin is None:
            self._origin = (event, 0.0)
        origin, base_ns = self._origin
        since_ms = self._driver.made("float", "cuEventElapsedTime", origin.native, event.native)
        since_ns = 1e6 * since_ms
        if since_ns > _ORIGIN_NS:
            self._origin = (event, base_ns + since_ns)
        return int(base_ns + since_ns)

    @contextmanager
    def _translated(self, operation: str) -> Iterator[None]:
        try:
            yield
        except DriverError as error:
            raise self._refused(operation, error.number) from error

    def _refused(self, operation: str, number: int) -> OperationFailed:
        """Why a call did not take an operation. Sticky errors are of an earlier one."""
        text = self._driver.words(number) + ", by what ran before it" * (number in cuda.STICKY)
        return OperationFailed(self.failed(operation, -number, text))


def _memory(native: Block | Mapped) -> DriverMemory:
    return DriverMemory(native, native.address.to_bytes(8, "little"))
