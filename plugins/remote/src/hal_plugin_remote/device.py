"""A device on a server, as the contract wants it: every hook is one message.

Submissions are not answered: a timeline's values are known in advance, since each submitted
operation takes the next one. What makes something (memory, programs, timelines) asks and waits.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hal.core.description import DeviceInfo, Feature
from hal.core.description_json import from_json
from hal.core.errors import (
    DeadlineExceeded,
    DeviceLost,
    Failure,
    FailureKind,
    HalError,
    InvalidCall,
    Scope,
    StaleHandle,
    Unsupported,
)
from hal.core.spec import hookimpl
from hal.core.values import (
    AllocOptions,
    Argument,
    Buffer,
    Collective,
    Command,
    Fault,
    Graph,
    Grid,
    Group,
    GroupSpec,
    Handle,
    Health,
    HealthState,
    HostFunction,
    HostMemory,
    KernelSource,
    Launchable,
    MemoryStats,
    OpenOptions,
    Operator,
    Param,
    ParamKind,
    Point,
    Program,
    Region,
    Span,
    Timeline,
    Waits,
)
from hal_plugin_remote.address import Place, connect, lives
from hal_plugin_remote.connection import Connection, Progress, Remote

_ANSWER_S = 0.04
"""How long `health` waits for the server; then it says what was heard last."""
_HERE_ONLY = frozenset({Feature.MAP, Feature.IMPORT_HOST, Feature.IPC, Feature.GROUP_IPC})
"""What only a device in this machine's memory can do."""


class RemoteDevice:
    """One session on a server; it has the features of the device there but for `_HERE_ONLY`."""

    def __init__(self, place: Place, options: OpenOptions, places: Mapping[str, str]) -> None:
        """`places` gives what the same server calls each device that this process reaches there.

        Raises PluginError when the server cannot be reached, and what opening raises there.
        """
        self._place, self._options, self._places = place, options, places
        self._epoch = 0
        self._connect()

    def _connect(self) -> None:
        place = self._place
        self._link = link = Connection(
            connect(place), place.name, place.device, lambda until_s: lives(place, until_s)
        )
        try:
            link.session, table = link.ask(
                "open", self._place.device, self._options, self._place.name
            )
        except HalError:
            link.end()
            raise
        info = from_json(table)
        here = {there: name for name, there in self._places.items()}
        links = tuple(
            replace(link, peer=here[link.peer]) for link in info.links if link.peer in here
        )
        self._info = replace(
            info,
            name=self._place.name,
            plugin="remote",
            description=f"{info.description} at {self._place.address}",
            features=info.features - _HERE_ONLY,
            spaces=tuple(replace(space, host_visible=False) for space in info.spaces),
            links=links,
            declared={},
            facts={**info.facts, "server": self._place.address, "device there": info.name},
        )
        self._finalizer = weakref.finalize(self, link.end)

    # description and life

    @hookimpl
    def describe(self) -> DeviceInfo:
        return self._info

    @hookimpl
    def close(self) -> None:
        link = self._link
        if link.ended:
            return
        with contextlib.suppress(HalError):  # a lost device closes silently
            link.ask("close")
        link.end()
        link.state = HealthState.CLOSED

    @hookimpl
    def health(self) -> Health:
        link = self._link
        if not link.broken and not link.ended:
            try:
                told: Health = link.ask("health", timeout_s=_ANSWER_S)
                return replace(told, epoch=self._epoch)
            except (DeadlineExceeded, DeviceLost, StaleHandle):
                pass
        return Health(link.state, self._epoch, link.cause)

    @hookimpl
    def free(self, handle: Handle) -> None:
        self._link.check_open("free")
        if handle.native.freed:
            raise StaleHandle(f"{self._info.name}.free: the handle was freed already")
        handle.native.freed = True
        with contextlib.suppress(DeviceLost):  # a lost device has freed it
            self._link.post(["free", handle])

    # memory

    @hookimpl
    def alloc(self, nbytes: int, options: AllocOptions) -> Buffer:
        number, space = self._link.ask("alloc", nbytes, options)
        return Buffer(self._info.name, self._epoch, self._remote(number), nbytes, space)

    @hookimpl
    def copy(
        self, dst: Region | HostMemory, src: Region | HostMemory, timeline: Timeline, waits: Waits
    ) -> Point:
        if not isinstance(src, Region):
            return self._submit("copy", timeline, waits, dst, None, payload=_bytes(src))
        if not isinstance(dst, Region):
            return self._submit("copy", timeline, waits, None, src, into=_bytes(dst))
        peers = [
            side.buffer.native
            for side in (dst, src)
            if side.buffer.native.connection is not self._link
        ]
        for peer in peers:
            if peer.freed or peer.connection.ended:
                raise StaleHandle(f"{self._info.name}.copy: the peer's buffer is gone")
        point = self._submit("copy", timeline, waits, dst, src)
        if peers:
            # A free on the peer's own connection must not come before this submission.
            self._link.ask("settle")
        return point

    @hookimpl
    def fill(self, dst: Region, pattern: bytes, timeline: Timeline, waits: Waits) -> Point:
        return self._submit("fill", timeline, waits, dst, pattern)

    # programs

    @hookimpl
    def load(self, source: KernelSource) -> Program:
        # The texts beside it would go over the connection with each of them.
        number = self._link.ask("load", replace(source, beside=()))
        return self._program(number, source.entry, source.params)

    @hookimpl
    def bind(self, program: Program, args: Sequence[Argument]) -> Launchable:
        # Whole numbers for float parameters as floats: they may be longer than msgpack's.
        number = self._link.ask(
            "bind",
            program,
            [
                float(arg)
                if isinstance(arg, int) and param.kind is ParamKind.SCALAR and param.dtype.is_float
                else arg
                for param, arg in zip(program.params, args, strict=True)
            ],
        )
        return Launchable(self._info.name, self._epoch, self._remote(number), program)

    @hookimpl
    def launch(self, launchable: Launchable, grid: Grid, timeline: Timeline, waits: Waits) -> Point:
        return self._submit("launch", timeline, waits, launchable, grid)

    # timelines

    @hookimpl
    def create_timeline(self, host_driven: bool) -> Timeline:
        number = self._link.ask("create_timeline", host_driven)
        progress = Progress(self._link, number, host_driven)
        self._link.track(progress)
        return Timeline(self._info.name, self._epoch, progress, host_driven)

    @hookimpl
    def signal(self, timeline: Timeline, value: int, failure: Failure | None) -> None:
        link, progress = self._link, timeline.native
        link.check_open("signal")
        with link.order:
            with link.changed:
                if progress.failed is not None:
                    return
                if failure is not None:
                    link.fail(progress, progress.reached + 1, failure)
                elif value <= progress.reached:
                    raise InvalidCall(
                        f"{link.name}.signal: the value grows; it is {progress.reached}, "
                        f"asked was {value}"
                    )
                else:
                    progress.reached = value
                    link.changed.notify_all()
            with contextlib.suppress(DeviceLost):  # its points have failed already
                link.post(["signal", timeline, value, failure])

    @hookimpl
    def wait(self, points: Sequence[Point], timeout_s: float, wait_all: bool) -> bool:
        return self._link.wait(points, timeout_s, wait_all)

    # graphs, host calls, observation

    @hookimpl
    def record(self, commands: Sequence[Command]) -> Graph:
        number, slots = self._link.ask("record", commands)
        native = self._remote(number)
        return Graph(self._info.name, self._epoch, native, len(commands), slots)

    @hookimpl
    def replay(
        self, graph: Graph, slots: Sequence[Argument], timeline: Timeline, waits: Waits
    ) -> Point:
        return self._submit("replay", timeline, waits, graph, slots)

    @hookimpl
    def host_call(self, function: HostFunction, timeline: Timeline, waits: Waits) -> Point:
        number = self._link.number()
        self._link.functions[number] = function
        return self._submit("host_call", timeline, waits, number)

    @hookimpl
    def timestamps(self, point: Point) -> Sequence[Span]:
        spans: Sequence[Span] = self._link.ask("timestamps", _named(point))
        return spans

    @hookimpl
    def stats(self, space: str) -> MemoryStats:
        counts: MemoryStats = self._link.ask("stats", space)
        return counts

    # failure

    @hookimpl
    def reset(self) -> int:
        link = self._link
        cause = link.cause or Failure(
            FailureKind.ABORTED, Scope.RESET, link.name, "reset", "the device was reset"
        )
        if link.broken:
            subscribers = link.subscribers
            self._finalizer.detach()
            try:
                self._connect()
            except HalError as error:
                raise DeviceLost(cause) from error
            self._link.subscribers = subscribers
        else:
            link.ask("reset")
            link.fail_all(cause)
            link.functions.clear()
            link.cause, link.state = None, HealthState.OK
        self._epoch += 1
        return self._epoch

    @hookimpl
    def subscribe(self, callback: Callable[[Failure], None]) -> None:
        self._link.subscribers.append(callback)

    @hookimpl
    def inject(self, fault: Fault) -> None:
        self._link.ask("inject", fault)

    # collectives and vendor operators

    @hookimpl
    def create_group(self, spec: GroupSpec) -> Group:
        if foreign := [peer for peer in spec.peers if peer not in self._places]:
            raise Unsupported(
                f"{self._info.name}.create_group: {', '.join(foreign)} is not at the same server"
            )
        there = replace(spec, peers=tuple(self._places[peer] for peer in spec.peers))
        number = self._link.ask("create_group", there)
        return self._group(number, spec.rank, len(spec.peers))

    @hookimpl
    def collective(
        self,
        group: Group,
        call: Collective,
        dst: Region,
        src: Region,
        timeline: Timeline,
        waits: Waits,
    ) -> Point:
        # Sizes that do not fit are the device's to refuse, and before anything is submitted.
        link, progress = self._link, timeline.native
        with link.order:
            at = link.ask("collective", group, call, dst, src, timeline, _all_named(waits))
            progress.submitted = at
        return Point(timeline, at)

    @hookimpl
    def abort(self, group: Group, cause: Failure) -> None:
        try:
            self._link.ask("abort", group, cause)
        except DeviceLost:
            return  # its calls have failed already

    @hookimpl
    def async_error(self, group: Group) -> Failure | None:
        failure: Failure | None = self._link.ask("async_error", group)
        return failure

    @hookimpl
    def shrink(self, group: Group, ranks: Sequence[int]) -> Group:
        number, rank, size = self._link.ask("shrink", group, ranks)
        return self._group(number, rank, size)

    @hookimpl
    def operators(self) -> Sequence[Operator]:
        found: Sequence[Operator] = self._link.ask("operators")
        return found

    @hookimpl
    def load_operator(self, operator: Operator, constants: Mapping[str, int]) -> Program:
        number = self._link.ask("load_operator", operator, constants)
        return self._program(number, operator.name, operator.params)

    # shared

    def _submit(
        self,
        hook: str,
        timeline: Timeline,
        waits: Waits,
        *args: object,
        payload: memoryview | bytes = b"",
        into: memoryview | None = None,
    ) -> Point:
        link, progress = self._link, timeline.native
        link.check_usable(hook)
        with link.order:
            progress.submitted += 1
            at = progress.submitted
            arriving = link.expect(progress, at, into) if into is not None else 0
            body = [hook, progress.number, at, _all_named(waits), *args]
            link.post([*body, arriving] if hook == "copy" else body, payload)
        return Point(timeline, at)

    def _remote(self, number: int) -> Remote:
        return Remote(self._link, number)

    def _program(self, number: int, entry: str, params: tuple[Param, ...]) -> Program:
        return Program(self._info.name, self._epoch, self._remote(number), entry, params)

    def _group(self, number: int, rank: int, size: int) -> Group:
        return Group(self._info.name, self._epoch, self._remote(number), rank, size)


def _named(point: Point) -> tuple[int, int]:
    return point.timeline.native.number, point.value


def _all_named(points: Waits) -> list[tuple[int, int]]:
    return [_named(point) for point in points]


def _bytes(memory: HostMemory) -> memoryview:
    view = memoryview(memory)
    return view.cast("B") if view.nbytes else memoryview(b"")
