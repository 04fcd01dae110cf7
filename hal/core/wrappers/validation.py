"""Argument validation, one wrapper for every device: a call that breaks the contract stops here.

It checks what the contract says about arguments and nothing that only the device can know. A handle
is good if this session gave it, in this epoch, and it was not freed. What a hook returns must be of
the contract's type; a PluginError says which hook returned what.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.errors import Failure, InvalidCall, PluginError, Unsupported, UnsupportedFormat
from hal.core.kinds import check_kind, shown
from hal.core.spec import DeviceSpec, hookimpl, hooks
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
    HostFunction,
    HostMemory,
    KernelSource,
    Launchable,
    Operator,
    Point,
    Program,
    Region,
    SharedHandle,
    Slot,
    Timeline,
    Waits,
)
from hal.core.wrappers.checks import (
    check_argument,
    check_arguments,
    check_copy,
    check_count,
    check_flag,
    check_grid,
    check_host_memory,
    check_list,
    check_pattern,
    check_region,
    check_space,
    check_timeout,
)
from hal.core.wrappers.graph_checks import SlotParams, check_commands, slot_params
from hal.core.wrappers.handles import Handles

_checked = hookimpl(wrapper=True)
H = TypeVar("H", bound=Handle)
V = TypeVar("V")


def validate(device: Device) -> Validation:
    """The wrapper "validate": see the module."""
    return Validation(device)


class Validation:
    """The hooks. Each checks its arguments, lets the device work and keeps note of handles."""

    def __init__(self, device: Device) -> None:
        self._info = device.info
        self._name = device.name
        self._handles = Handles(device.name, device.health().epoch)
        self._peers = frozenset(link.peer for link in device.info.links)
        self._slots: dict[int, SlotParams] = {}

    # life

    @_checked
    def close(self) -> Generator[None]:
        yield
        self._handles.close()

    @_checked
    def reset(self) -> Generator[None, int, int]:
        self._handles.check_open(f"{self._name}.reset")
        epoch = self._gave("reset", int, (yield))
        self._handles.restart(epoch)
        return epoch

    @_checked
    def free(self, handle: Handle) -> Generator[None]:
        self._handles.drop(f"{self._name}.free", handle)
        self._slots.pop(id(handle), None)
        yield

    # memory

    @_checked
    def alloc(self, nbytes: int, options: AllocOptions) -> Generator[None, Buffer, Buffer]:
        where = f"{self._name}.alloc"
        self._handles.check_open(where)
        check_count(where, "nbytes", nbytes)
        check_kind(where, "options", options, AllocOptions)
        check_space(where, options.space, self._info)
        if options.shareable and Feature.IPC not in self._info.features:
            raise Unsupported(f"{where}: shareable memory needs the feature 'ipc', not declared")
        return self._new("alloc", Buffer, (yield))

    @_checked
    def copy(
        self, dst: Region | HostMemory, src: Region | HostMemory, timeline: Timeline, waits: Waits
    ) -> Generator[None, Point, Point]:
        where = self._submit("copy", timeline, waits)
        check_copy(where, dst, src)
        for side in (dst, src):
            if isinstance(side, Region) and not self._is_peer(where, side.buffer):
                self._handles.check(where, side.buffer, Buffer)
        return self._point("copy", timeline, (yield))

    @_checked
    def fill(
        self, dst: Region, pattern: bytes, timeline: Timeline, waits: Waits
    ) -> Generator[None, Point, Point]:
        where = self._submit("fill", timeline, waits)
        self._region(where, dst)
        check_pattern(where, dst, pattern)
        return self._point("fill", timeline, (yield))

    @_checked
    def map(self, region: Region, writable: bool) -> Generator[None, memoryview, memoryview]:
        self._region(f"{self._name}.map", region)
        check_flag(f"{self._name}.map", "writable", writable)
        return self._gave("map", memoryview, (yield))

    @_checked
    def import_host(self, memory: memoryview) -> Generator[None, Buffer, Buffer]:
        where = f"{self._name}.import_host"
        self._handles.check_open(where)
        check_host_memory(where, memory, writable=False)
        return self._new("import_host", Buffer, (yield))

    @_checked
    def export_buffer(self, buffer: Buffer) -> Generator[None, SharedHandle, SharedHandle]:
        self._handles.check(f"{self._name}.export_buffer", buffer, Buffer)
        return self._gave("export_buffer", SharedHandle, (yield))

    @_checked
    def import_buffer(self, shared: SharedHandle) -> Generator[None, Buffer, Buffer]:
        where = f"{self._name}.import_buffer"
        self._handles.check_open(where)
        check_kind(where, "shared", shared, SharedHandle)
        check_count(where, "nbytes", shared.nbytes)
        return self._new("import_buffer", Buffer, (yield))

    @_checked
    def stats(self, space: str) -> Generator[None, object, object]:
        check_space(f"{self._name}.stats", space, self._info)
        return (yield)

    # programs

    @_checked
    def load(self, source: KernelSource) -> Generator[None, Program, Program]:
        where = f"{self._name}.load"
        self._handles.check_open(where)
        check_kind(where, "source", source, KernelSource)
        if source.format not in self._info.formats:
            accepted = ", ".join(self._info.formats)
            raise UnsupportedFormat(f"{where}: format {source.format!r}; accepted are {accepted}")
        if len(source.params) > self._info.limits.args:
            most = self._info.limits.args
            raise InvalidCall(
                f"{where}: {source.entry} has {len(source.params)} parameters of {most}"
            )
        return self._new("load", Program, (yield))

    @_checked
    def bind(
        self, program: Program, args: Sequence[Argument]
    ) -> Generator[None, Launchable, Launchable]:
        where = f"{self._name}.bind"
        self._handles.check(where, program, Program)
        where = f"{where} of {program.entry}"
        check_arguments(where, program.params, args)
        for arg in args:
            self._argument(where, arg)
        launchable = self._new("bind", Launchable, (yield))
        self._slots[id(launchable)] = slot_params(where, program.params, args)
        return launchable

    @_checked
    def launch(
        self, launchable: Launchable, grid: Grid, timeline: Timeline, waits: Waits
    ) -> Generator[None, Point, Point]:
        where = self._submit("launch", timeline, waits)
        self._handles.check(where, launchable, Launchable)
        check_grid(where, grid, self._info.limits.grid)
        if self._slots.get(id(launchable)):
            raise InvalidCall(
                f"{where}: {launchable.program.entry} has slots; only a graph fills them"
            )
        return self._point("launch", timeline, (yield))

    @_checked
    def operators(self) -> Generator[None, object, object]:
        self._handles.check_open(f"{self._name}.operators")
        return (yield)

    @_checked
    def load_operator(
        self, operator: Operator, constants: object
    ) -> Generator[None, Program, Program]:
        where = f"{self._name}.load_operator"
        self._handles.check_open(where)
        check_kind(where, "operator", operator, Operator)
        check_kind(where, "constants", constants, Mapping[str, int])
        return self._new("load_operator", Program, (yield))

    # timelines

    @_checked
    def create_timeline(self, host_driven: bool) -> Generator[None, Timeline, Timeline]:
        self._handles.check_open(f"{self._name}.create_timeline")
        check_flag(f"{self._name}.create_timeline", "host_driven", host_driven)
        return self._new("create_timeline", Timeline, (yield))

    @_checked
    def signal(self, timeline: Timeline, value: int, failure: Failure | None) -> Generator[None]:
        where = f"{self._name}.signal"
        self._handles.check(where, timeline, Timeline)
        check_count(where, "value", value)
        check_kind(where, "failure", failure, Failure | None)
        if not timeline.host_driven:
            raise InvalidCall(
                f"{where}: the device advances this timeline; signal a host-driven one"
            )
        yield

    @_checked
    def wait(
        self, points: Sequence[Point], timeout_s: float, wait_all: bool
    ) -> Generator[None, bool, bool]:
        where = f"{self._name}.wait"
        self._points(where, points)
        check_timeout(where, timeout_s)
        check_flag(where, "wait_all", wait_all)
        return self._gave("wait", bool, (yield))

    @_checked
    def host_call(
        self, function: HostFunction, timeline: Timeline, waits: Waits
    ) -> Generator[None, Point, Point]:
        _check_callable(self._submit("host_call", timeline, waits), function)
        return self._point("host_call", timeline, (yield))

    @_checked
    def timestamps(self, point: Point) -> Generator[None, object, object]:
        self._points(f"{self._name}.timestamps", (point,))
        return (yield)

    # graphs

    @_checked
    def record(self, commands: Sequence[Command]) -> Generator[None, Graph, Graph]:
        where = f"{self._name}.record"
        self._handles.check_open(where)
        slots = check_commands(where, commands, self._handles, self._slots, self._info.limits.grid)
        graph = self._new("record", Graph, (yield))
        self._slots[id(graph)] = slots
        return graph

    @_checked
    def replay(
        self, graph: Graph, slots: Sequence[Argument], timeline: Timeline, waits: Waits
    ) -> Generator[None, Point, Point]:
        where = self._submit("replay", timeline, waits)
        self._handles.check(where, graph, Graph)
        check_list(where, "slots", slots)
        if len(slots) != graph.slots:
            raise InvalidCall(
                f"{where}: the graph has {graph.slots} slots, got {len(slots)} arguments"
            )
        for index, param in self._slots.get(id(graph), ()):
            check_argument(where, param, slots[index])
            self._argument(where, slots[index])
        return self._point("replay", timeline, (yield))

    # failure and collectives

    @_checked
    def subscribe(self, callback: Callable[[Failure], None]) -> Generator[None]:
        self._handles.check_open(f"{self._name}.subscribe")
        _check_callable(f"{self._name}.subscribe", callback)
        yield

    @_checked
    def inject(self, fault: Fault) -> Generator[None]:
        where = f"{self._name}.inject"
        check_kind(where, "fault", fault, Fault)
        check_count(where, "nth", fault.nth, least=1)
        if fault.hook not in hooks(DeviceSpec):
            raise InvalidCall(f"{where}: the contract has no hook {fault.hook!r}")
        yield

    @_checked
    def create_group(self, spec: GroupSpec) -> Generator[None, Group, Group]:
        where = f"{self._name}.create_group"
        self._handles.check_open(where)
        check_kind(where, "spec", spec, GroupSpec)
        check_timeout(where, spec.timeout_s)
        if not 0 <= spec.rank < len(spec.peers) or spec.peers[spec.rank] != self._name:
            raise InvalidCall(f"{where}: {self._name} is not member {spec.rank} of {spec.peers}")
        return self._new("create_group", Group, (yield))

    @_checked
    def collective(
        self,
        group: Group,
        call: Collective,
        dst: Region,
        src: Region,
        timeline: Timeline,
        waits: Waits,
    ) -> Generator[None, Point, Point]:
        where = self._submit("collective", timeline, waits)
        self._handles.check(where, group, Group)
        check_kind(where, "call", call, Collective)
        check_count(where, "count", call.count)
        if not 0 <= call.root < group.size:
            raise InvalidCall(f"{where}: root {call.root} is not a rank of {group.size} members")
        for region in (dst, src):
            self._region(where, region)
        return self._point("collective", timeline, (yield))

    @_checked
    def abort(self, group: Group, cause: Failure) -> Generator[None]:
        self._handles.check(f"{self._name}.abort", group, Group)
        check_kind(f"{self._name}.abort", "cause", cause, Failure)
        yield

    @_checked
    def async_error(self, group: Group) -> Generator[None, object, object]:
        self._handles.check(f"{self._name}.async_error", group, Group)
        return (yield)

    @_checked
    def shrink(self, group: Group, ranks: Sequence[int]) -> Generator[None, Group, Group]:
        where = f"{self._name}.shrink"
        self._handles.check(where, group, Group)
        check_kind(where, "ranks", ranks, Sequence[int])
        if group.rank not in ranks or not all(0 <= rank < group.size for rank in ranks):
            raise InvalidCall(
                f"{where}: {ranks} of {group.size} ranks, which must include {group.rank}"
            )
        return self._new("shrink", Group, (yield))

    # shared

    def _new(self, hook: str, kind: type[H], result: object) -> H:
        """Take note of the handle that a hook gave."""
        return self._handles.add(self._gave(hook, kind, result))

    def _point(self, hook: str, timeline: Timeline, result: object) -> Point:
        point = self._gave(hook, Point, result)
        if point.timeline is not timeline:
            raise PluginError(f"{self._name}.{hook} returned a point of another timeline")
        return point

    def _gave(self, hook: str, kind: type[V], result: object) -> V:
        """What a hook returned. Raises PluginError when it is not of the kind that it must be."""
        if isinstance(result, kind):
            return result
        raise PluginError(
            f"{self._name}.{hook} returned {result!r} ({type(result).__name__}); "
            f"it must return a {kind.__name__}"
        )

    def _submit(self, hook: str, timeline: Timeline, waits: Waits) -> str:
        """Check what every submitted call takes; gives the name of the call for messages."""
        where = f"{self._name}.{hook}"
        self._handles.check(where, timeline, Timeline)
        if timeline.host_driven:
            raise InvalidCall(f"{where}: a host-driven timeline takes no operations")
        self._points(where, waits)
        return where

    def _points(self, where: str, points: Sequence[Point]) -> None:
        check_list(where, "points", points)
        for point in points:
            if not isinstance(point, Point):
                raise InvalidCall(f"{where}: expected a Point, got {shown(point)}")
            self._handles.check(where, point.timeline, Timeline)
            check_count(where, "a point's value", point.value)

    def _region(self, where: str, region: Region) -> None:
        check_region(where, region)
        self._handles.check(where, region.buffer, Buffer)

    def _argument(self, where: str, arg: Argument) -> None:
        if isinstance(arg, Slot | int | float):
            return
        self._handles.check(where, arg.buffer if isinstance(arg, Region) else arg, Buffer)

    def _is_peer(self, where: str, buffer: Buffer) -> bool:
        """Whether a buffer belongs to a device that this one reaches."""
        if not isinstance(buffer.device, str) or buffer.device not in self._peers:
            return False
        if Feature.PEER_COPY not in self._info.features:
            raise Unsupported(f"{where}: {self._name} does not declare 'peer-copy'")
        return True


def _check_callable(where: str, function: object) -> None:
    if not callable(function):
        raise InvalidCall(f"{where}: expected a function, got {shown(function)}")
