"""The device contract, as a pluggy hook specification.

A plugin is a module named by an entry point of the group `hal.plugins`. It implements `PluginSpec`:
two hooks that find and open devices. What `open_device` returns is an object that implements
`DeviceSpec` for that one device. Hooks without the mark *optional* are mandatory; there are
fifteen. An optional hook belongs to a `Feature` of `DeviceInfo.features`: declared means that it
works, undeclared means that calling it raises `Unsupported` and changes nothing.

Terms. A *point* is a value of a timeline's counter. A call that takes `timeline` and `waits` is
*submitted*: it returns at once with a new point, runs after every point in `waits` and after
everything submitted earlier to the same timeline, and reaches its point when it is done. If it
fails, or if a point in `waits` failed, its point fails with the first cause, and so does every
later point that depends on it. Handles of another device, of a closed device or of an earlier epoch
raise `StaleHandle`. Everything may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pluggy

from hal.core.description import DeviceInfo, DeviceSummary, Feature
from hal.core.errors import Failure
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
    HostFunction,
    HostMemory,
    KernelSource,
    Launchable,
    MemoryStats,
    OpenOptions,
    Operator,
    Point,
    Program,
    Region,
    SharedHandle,
    Span,
    Timeline,
    Waits,
)

PROJECT = "hal"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

_one = hookspec(firstresult=True)


class PluginSpec:
    """What a plugin module implements: discovery."""

    @_one
    def enumerate_devices(self) -> Sequence[DeviceSummary]:
        """List the devices that this machine has for the plugin.

        MUST be free of side effects: no device is initialised, no thread started, no environment
        variable written. MUST return the same indices in the same order as long as the machine does
        not change. An empty list means that the plugin works and there is no device.

        Owner: the result is a plain value.
        Blocks: briefly (less than 1 s).
        Raises: PluginError with the cause when the vendor's driver is missing or broken.
        """

    @_one
    def open_device(self, index: int, options: OpenOptions) -> object:
        """Open a device and return the object that implements `DeviceSpec` for it.

        Opening the same index twice gives two independent sessions: handles of one are foreign to
        the other.

        Owner: the caller, until it calls `close`.
        Blocks: while the device initialises.
        Raises: InvalidCall when there is no such index or `options.settings` has an unknown key;
        PluginError when the device exists but cannot be opened.
        """


class DeviceSpec:
    """What an opened device implements."""

    # description and life

    @_one
    def describe(self) -> DeviceInfo:
        """Say what the device is and can do.

        MUST return equal values from open to close. Every number MUST be read from the device,
        measured or declared by the vendor for it; 0 says not known.

        Owner: the result is a plain value. Blocks: no. Raises: nothing.
        """

    @_one
    def close(self) -> None:
        """Wait for submitted work, free everything and end the session.

        MUST be idempotent. MUST succeed with live handles; using them afterwards raises
        StaleHandle. A device that has failed closes silently.

        Owner: releases all that the session owned. Blocks: until submitted work is done or has
        failed. Raises: nothing.
        """

    @_one
    def health(self) -> Health:
        """Report the device's state.

        MUST answer within 50 ms while the device computes, hangs or is lost, from any thread.

        Owner: the result is a plain value. Blocks: no. Raises: nothing.
        """

    @_one
    def free(self, handle: Handle) -> None:
        """Give a buffer, program, launchable, graph, timeline or group back.

        The resource goes away after the last submitted operation that uses it. Plugins do not
        cache: once that operation is done the memory is back with the device.

        Owner: ends the caller's ownership. Blocks: no.
        Raises: StaleHandle for a handle freed before or of another session.
        """

    # memory

    @_one
    def alloc(self, nbytes: int, options: AllocOptions) -> Buffer:
        """Allocate a raw slab; the stack's pool divides slabs, plugins do not.

        MUST be aligned to the space's granularity. `nbytes` 0 gives a valid empty buffer. Contents
        are undefined without `options.zero`. `options.shareable` needs Feature.IPC.

        Owner: the caller, until `free`. Blocks: while the device allocates.
        Raises: OutOfMemory (the device stays usable); InvalidCall for a negative size or unknown
        space; Unsupported for `shareable` without the feature.
        """

    @_one
    def copy(
        self, dst: Region | HostMemory, src: Region | HostMemory, timeline: Timeline, waits: Waits
    ) -> Point:
        """Submit a copy of bytes; the sizes of both sides MUST be equal.

        At most one side is host memory, which is contiguous and (as `dst`) writable. Host memory as
        `src` is read before the call returns or kept unchanged by the caller until the point is
        reached: the plugin may do either, so the caller keeps it unchanged. Regions of one buffer
        MUST NOT overlap. This is also the point-to-point core of communication: with
        Feature.PEER_COPY a region may belong to a peer listed in `DeviceInfo.links` (put when it is
        `dst`, get when it is `src`), or to a buffer from `import_buffer`.

        Owner: buffers stay alive until the point. Blocks: no.
        Raises: InvalidCall for sizes that differ or ranges outside the buffer; Unsupported for a
        peer without the feature.
        """

    @_one
    def fill(self, dst: Region, pattern: bytes, timeline: Timeline, waits: Waits) -> Point:
        """Submit filling a region with a repeated pattern of 1, 2, 4 or 8 bytes.

        Offset and size MUST be multiples of the pattern's length.

        Owner: the buffer stays alive until the point. Blocks: no.
        Raises: InvalidCall for another pattern length, alignment or range.
        """

    # programs

    @_one
    def load(self, source: KernelSource) -> Program:
        """Turn program text into a program that can be launched; no later call compiles.

        MUST check that the entry exists. With a cache directory a second load of equal text on an
        equal fingerprint is served from there; a corrupt or unwritable cache is ignored and never
        an error.

        Owner: the caller, until `free`. Blocks: while it compiles.
        Raises: UnsupportedFormat listing the accepted formats; CompileError with the compiler's log
        and line.
        """

    @_one
    def bind(self, program: Program, args: Sequence[Argument]) -> Launchable:
        """Bind arguments to a program's parameters, in order, so that launching costs nothing more.

        Scalars are captured now; buffers by reference. A `Slot` makes the launchable usable in
        `record` only.

        Owner: the caller, until `free`. Blocks: no.
        Raises: InvalidCall for a wrong number or kind of arguments or a scalar out of its type's
        range.
        """

    @_one
    def launch(self, launchable: Launchable, grid: Grid, timeline: Timeline, waits: Waits) -> Point:
        """Submit one run of a program over a grid of independent program instances.

        Instances may run in any order and at once. A grid with a zero runs nothing and still
        reaches its point.

        Owner: everything bound stays alive until the point. Blocks: no.
        Raises: InvalidCall for a grid beyond `Limits.grid` or a launchable with slots.
        """

    # timelines

    @_one
    def create_timeline(self, host_driven: bool) -> Timeline:
        """Create a timeline at value 0.

        A device timeline is an ordered queue: each submitted operation takes the next value. A
        host-driven timeline takes no operations; `signal` advances it, and device operations may
        wait for it.

        Owner: the caller, until `free`. Blocks: no. Raises: InvalidCall beyond `Limits.queues`.
        """

    @_one
    def signal(self, timeline: Timeline, value: int, failure: Failure | None) -> None:
        """Advance a host-driven timeline to `value`, or fail every point of it that is not reached.

        MUST wake every waiter, on the host and on the device. The first failure is kept; later
        signals on a failed timeline are ignored.

        Owner: nothing changes hands. Blocks: no.
        Raises: InvalidCall for a device timeline or a value that does not grow.
        """

    @_one
    def wait(self, points: Sequence[Point], timeout_s: float, wait_all: bool) -> bool:
        """Wait until all points (or any of them) are reached; False when the deadline passes first.

        `timeout_s` 0 polls. MUST NOT hold the interpreter lock while waiting and MUST let a
        KeyboardInterrupt through within 100 ms. No points: True at once. A value that nothing
        submitted yet owes is waited for.

        Owner: nothing changes hands. Blocks: up to `timeout_s` seconds.
        Raises: OperationFailed or DeviceLost with the first cause when an awaited point failed.
        """

    # optional hooks: memory

    @_one
    def map(self, region: Region, writable: bool) -> memoryview:
        """*Optional, Feature.MAP.* Give the host a view of device memory, valid until the buffer is
        freed.

        The caller orders its accesses with `wait`; a space that is not coherent needs `copy`
        instead.

        Owner: the device keeps the memory. Blocks: no. Raises: InvalidCall for a range outside the
        buffer.
        """

    @_one
    def import_host(self, memory: memoryview) -> Buffer:
        """*Optional, Feature.IMPORT_HOST.* Use host memory as a buffer without a copy.

        The plugin holds a reference to `memory` until `free`.

        Owner: the caller of both. Blocks: no. Raises: InvalidCall for memory that is not
        contiguous.
        """

    @_one
    def export_buffer(self, buffer: Buffer) -> SharedHandle:
        """*Optional, Feature.IPC.* Name a shareable buffer so that another process can import it.

        The memory lives until the last process frees it, also if the exporter dies first after the
        import.

        Owner: unchanged. Blocks: no. Raises: InvalidCall for a buffer that was not allocated
        `shareable`.
        """

    @_one
    def import_buffer(self, shared: SharedHandle) -> Buffer:
        """*Optional, Feature.IPC.* Map a buffer that another process exported.

        Owner: the caller, until `free`. Blocks: briefly.
        Raises: Unsupported for an unknown `kind`; InvalidCall when the exporter is gone.
        """

    # optional hooks: graphs, host calls, observation

    @_one
    def record(self, commands: Sequence[Command]) -> Graph:
        """*Optional, Feature.GRAPH.* Record commands that `replay` runs with one call.

        A command runs after those named in its `after`, or after all earlier ones. Launchables and
        buffers are kept alive by the graph.

        Owner: the caller, until `free`. Blocks: while the device prepares the graph.
        Raises: InvalidCall for a command that names itself or a later one.
        """

    @_one
    def replay(
        self, graph: Graph, slots: Sequence[Argument], timeline: Timeline, waits: Waits
    ) -> Point:
        """*Optional, Feature.GRAPH.* Submit all commands of a graph with these slot arguments.

        A failing command fails the graph's point with that command's cause.

        Owner: everything recorded stays alive until the point. Blocks: no.
        Raises: InvalidCall when `slots` does not have `graph.slots` arguments.
        """

    @_one
    def host_call(self, function: HostFunction, timeline: Timeline, waits: Waits) -> Point:
        """*Optional, Feature.HOST_CALL.* Submit a call of a host function.

        It may submit work; it must not wait for points of the same timeline. An exception fails the
        point with FailureKind.HOST_CALL.

        Owner: the plugin holds `function` until the point. Blocks: no. Raises: nothing more.
        """

    @_one
    def timestamps(self, point: Point) -> Sequence[Span]:
        """*Optional, Feature.TIMESTAMPS.* Say when the operation of a reached point ran on the
        device.

        A graph gives one span per command. Only the newest spans are kept; older points give none.

        Owner: the result is a plain value. Blocks: no. Raises: InvalidCall for a point not reached.
        """

    @_one
    def stats(self, space: str) -> MemoryStats:
        """*Optional, Feature.STATS.* Count the raw allocations of a space (empty: the first GLOBAL
        one).

        Owner: the result is a plain value. Blocks: no. Raises: InvalidCall for an unknown space.
        """

    # optional hooks: failure

    @_one
    def reset(self) -> int:
        """*Optional, Feature.RESET.* Bring a failed device back; give the new epoch.

        Every unreached point fails, all memory is freed, all handles become stale.

        Owner: releases everything. Blocks: while the device restarts. Raises: DeviceLost if it
        cannot.
        """

    @_one
    def subscribe(self, callback: Callable[[Failure], None]) -> None:
        """*Optional, Feature.SUBSCRIBE.* Call back once for each failure that belongs to no
        operation, such as a corrected memory error, heat, or a link that went down.

        Owner: the plugin holds `callback` until `close`. Blocks: no. Raises: nothing.
        """

    @_one
    def inject(self, fault: Fault) -> None:
        """*Optional, Feature.INJECT.* Make the n-th next call of a hook fail as described. For
        tests.

        Owner: nothing. Blocks: no. Raises: Unsupported for a hook or kind that cannot be injected.
        """

    # optional hooks: collectives and vendor operators

    @_one
    def create_group(self, spec: GroupSpec) -> Group:
        """*Optional, Feature.COLLECTIVES.* Join a communicator; every member calls it with its
        rank.

        Owner: the caller, until `free`. Blocks: until all members joined or `spec.timeout_s`
        passed. Raises: DeadlineExceeded naming the missing ranks; InvalidCall when members disagree
        on the peers.
        """

    @_one
    def collective(
        self,
        group: Group,
        call: Collective,
        dst: Region,
        src: Region,
        timeline: Timeline,
        waits: Waits,
    ) -> Point:
        """*Optional, Feature.COLLECTIVES.* Submit one collective; members call in the same order.

        `dst` equal to `src` means in place. float16 and bfloat16 are accumulated in float32. A
        member that calls with another kind, type, count or root fails the call on every member.

        Owner: regions stay alive until the point. Blocks: no. Raises: InvalidCall for sizes that do
        not fit.
        """

    @_one
    def abort(self, group: Group, cause: Failure) -> None:
        """*Optional, Feature.COLLECTIVES.* Fail the group's unfinished calls on this member, at
        once.

        MUST be local, idempotent and callable from any thread.

        Owner: unchanged. Blocks: no. Raises: nothing.
        """

    @_one
    def async_error(self, group: Group) -> Failure | None:
        """*Optional, Feature.COLLECTIVES.* The first failure of the group, if any.

        Owner: the result is a plain value. Blocks: no. Raises: nothing.
        """

    @_one
    def shrink(self, group: Group, ranks: Sequence[int]) -> Group:
        """*Optional, Feature.COLLECTIVES.* Make a new group of these ranks, without the failed
        ones.

        Every surviving member calls it with the same ranks, in the old numbering.

        Owner: the caller owns both groups. Blocks: as `create_group`. Raises: as `create_group`.
        """

    @_one
    def operators(self) -> Sequence[Operator]:
        """*Optional, Feature.OPERATORS.* List vendor operators that the stack may pick where they
        are faster.

        Owner: the result is a plain value. Blocks: no. Raises: nothing.
        """

    @_one
    def load_operator(self, operator: Operator, constants: Mapping[str, int]) -> Program:
        """*Optional, Feature.OPERATORS.* Prepare a vendor operator for the given shape constants.

        Owner: the caller, until `free`. Blocks: while it prepares. Raises: Unsupported for
        constants outside the operator's conditions.
        """


OPTIONAL: Mapping[str, Feature] = {
    "map": Feature.MAP,
    "import_host": Feature.IMPORT_HOST,
    "export_buffer": Feature.IPC,
    "import_buffer": Feature.IPC,
    "record": Feature.GRAPH,
    "replay": Feature.GRAPH,
    "host_call": Feature.HOST_CALL,
    "timestamps": Feature.TIMESTAMPS,
    "stats": Feature.STATS,
    "reset": Feature.RESET,
    "subscribe": Feature.SUBSCRIBE,
    "inject": Feature.INJECT,
    "create_group": Feature.COLLECTIVES,
    "collective": Feature.COLLECTIVES,
    "abort": Feature.COLLECTIVES,
    "async_error": Feature.COLLECTIVES,
    "shrink": Feature.COLLECTIVES,
    "operators": Feature.OPERATORS,
    "load_operator": Feature.OPERATORS,
}
"""The feature that each optional hook belongs to; every other hook is mandatory."""


def hooks(spec: type) -> tuple[str, ...]:
    """The hook names of a spec class, in the order of its text."""
    return tuple(name for name in vars(spec) if not name.startswith("_"))


MANDATORY_DEVICE = tuple(name for name in hooks(DeviceSpec) if name not in OPTIONAL)
MANDATORY_PLUGIN = hooks(PluginSpec)
