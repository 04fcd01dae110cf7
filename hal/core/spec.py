"""The device contract, as a pluggy hook specification.

A plugin is a module named by an entry point of the group `hal.plugins`. It implements `PluginSpec`:
two hooks that find and open devices. What `open_device` returns is an object that implements
`DeviceSpec` for that one device. Hooks without the mark *optional* are mandatory; there are
fifteen. An optional hook belongs to a `Feature` of `DeviceInfo.features`: a declared feature MUST
work [feature.declared], and a hook whose feature is not declared MUST raise `Unsupported` and
change nothing [feature.undeclared].

Every sentence with a MUST carries an id in brackets; the cases of `hal_conformance` name the ids
that they prove.

Importing a plugin MUST NOT initialise a device, start a thread or write an environment variable,
and takes less than 0.1 s of the plugin's own time [plugin.import].

Terms. A *point* is a value of a timeline's counter. A call that takes `timeline` and `waits` is
*submitted*. It MUST return without waiting for the work [submit.async], with a new point. The
work MUST run after every point in `waits` [submit.waits] and after everything submitted earlier to
the same timeline [submit.order], and reach its point when it is done. A point that nothing has
submitted yet may be waited for. If the operation fails, or if a point in `waits` failed, its point
MUST fail with the first cause, unchanged, and so does every later point that depends on it
[submit.fails]; an operation whose wait failed MUST NOT run [submit.poisoned]. Operations that do
not depend on a failure of scope OPERATION or QUEUE MUST NOT be touched by it [submit.apart]. What
breaks the contract MUST be refused by an exception before anything is submitted [call.refused].
Handles of another device, of a closed device or of an earlier epoch MUST raise `StaleHandle`
[handle.stale]. Everything MUST be callable from any thread [call.threads].

Failure. When the device is lost, every unreached point MUST fail with the cause within 100 ms
[failure.loss]. An operation that makes no progress for `Limits.progress_s` is a hang: within twice
that time its point MUST fail with FailureKind.HANG [failure.hang]. After a failure of scope DEVICE
or RESET every submission MUST raise `DeviceLost` with the first cause, until `reset`
[failure.refuses].
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
        variable written [enumerate.pure]. MUST return the same indices in the same order as long as
        the machine does not change [enumerate.stable]. An empty list means that the plugin works
        and there is no device.

        Owner: the result is a plain value.
        Blocks: briefly (less than 1 s).
        Raises: PluginError with the cause when the vendor's driver is missing or broken.
        """

    @_one
    def open_device(self, index: int, options: OpenOptions) -> object:
        """Open a device and return the object that implements `DeviceSpec` for it.

        Opening the same index twice MUST give two independent sessions: handles of one are foreign
        to the other [open.sessions]. An index that `enumerate_devices` does not list and an unknown
        setting MUST be refused [open.refused]. Sessions opened and closed MUST leave no descriptor,
        thread or memory behind [open.leaks].

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

        MUST return equal values from open to close [describe.constant]. Every number MUST be read
        from the device, measured or declared by the vendor for it; 0 says not known
        [describe.true]. A call at a limit MUST work and one past it MUST be refused
        [describe.limits].

        Owner: the result is a plain value. Blocks: no. Raises: nothing.
        """

    @_one
    def close(self) -> None:
        """Wait for submitted work, free everything and end the session.

        MUST be idempotent [close.twice]. MUST succeed with live handles; using them afterwards
        raises StaleHandle [close.live]. MUST let submitted work that can run finish first
        [close.drains]. A device that has failed MUST close silently [close.failed].

        Owner: releases all that the session owned. Blocks: until submitted work is done or has
        failed. Raises: nothing.
        """

    @_one
    def health(self) -> Health:
        """Report the device's state.

        MUST answer within 50 ms while the device computes, hangs or is lost, from any thread
        [health.prompt]. MUST name the first cause once the device is lost [health.cause].

        Owner: the result is a plain value. Blocks: no. Raises: nothing.
        """

    @_one
    def free(self, handle: Handle) -> None:
        """Give a buffer, program, launchable, graph, timeline or group back.

        The resource MUST live until the last submitted operation that uses it is done
        [free.deferred]. Plugins do not cache: once that operation is done the memory MUST be back
        with the device [free.returns]. A second free MUST raise StaleHandle [free.twice]. A
        host-driven timeline that is freed MUST fail its waiters [free.timeline].

        Owner: ends the caller's ownership. Blocks: no.
        Raises: StaleHandle for a handle freed before or of another session.
        """

    # memory

    @_one
    def alloc(self, nbytes: int, options: AllocOptions) -> Buffer:
        """Allocate a raw slab; the stack's pool divides slabs, plugins do not.

        Live buffers MUST NOT overlap, and the address that a kernel or `map` sees MUST be a
        multiple of the space's granularity [alloc.apart]. Every GLOBAL and HOST space MUST serve,
        and a SCRATCHPAD space, which belongs to program instances, MUST be refused [alloc.spaces].
        `nbytes` 0 MUST give a valid empty buffer [alloc.empty]. With `options.zero` the bytes MUST
        be zero [alloc.zero]; otherwise they are undefined. Too much MUST raise OutOfMemory and
        leave the device usable [alloc.exhausted]. `options.shareable` needs Feature.IPC.

        Owner: the caller, until `free`. Blocks: while the device allocates.
        Raises: OutOfMemory (the device stays usable); InvalidCall for a negative size or unknown
        space; Unsupported for `shareable` without the feature.
        """

    @_one
    def copy(
        self, dst: Region | HostMemory, src: Region | HostMemory, timeline: Timeline, waits: Waits
    ) -> Point:
        """Submit a copy of bytes; sizes that differ MUST be refused [copy.sizes].

        MUST write every byte of `dst` and none outside it, at any offset and size [copy.exact]. At
        most one side is host memory, which is contiguous and (as `dst`) writable. Host memory as
        `src` is read before the call returns or kept unchanged by the caller until the point is
        reached: the plugin may do either, so the caller keeps it unchanged. Ranges outside a buffer
        and overlapping regions of one buffer MUST be refused [copy.ranges]. This is also the
        point-to-point core of communication: with Feature.PEER_COPY a region may belong to a peer
        listed in `DeviceInfo.links` (put when it is `dst`, get when it is `src`), or to a buffer
        from `import_buffer`; both directions MUST move the same bytes [copy.peer].

        Owner: buffers stay alive until the point. Blocks: no.
        Raises: InvalidCall for sizes that differ or ranges outside the buffer; Unsupported for a
        peer without the feature.
        """

    @_one
    def fill(self, dst: Region, pattern: bytes, timeline: Timeline, waits: Waits) -> Point:
        """Submit filling a region with a repeated pattern of 1, 2, 4 or 8 bytes.

        MUST write the whole region and nothing else [fill.exact]. Another pattern length, or an
        offset or size that is no multiple of it, MUST be refused [fill.refused].

        Owner: the buffer stays alive until the point. Blocks: no.
        Raises: InvalidCall for another pattern length, alignment or range.
        """

    # programs

    @_one
    def load(self, source: KernelSource) -> Program:
        """Turn program text into a program that can be launched; no later call MUST need to compile
        [load.compiles].

        MUST check that the entry exists with these parameters [load.entry]. Text that is not a
        program MUST raise CompileError with the compiler's log, and MUST NOT harm the process
        [load.damaged]. A build option that the format's documentation does not name MUST be refused
        [load.options]. A format that `DeviceInfo.formats` does not list MUST raise
        UnsupportedFormat [load.format]. With a cache directory a second load of equal text on an
        equal fingerprint is served from there; a corrupt or unwritable cache MUST be ignored and
        never be an error [load.cache].

        Owner: the caller, until `free`. Blocks: while it compiles.
        Raises: UnsupportedFormat listing the accepted formats; CompileError with the compiler's log
        and line.
        """

    @_one
    def bind(self, program: Program, args: Sequence[Argument]) -> Launchable:
        """Bind arguments to a program's parameters, in order, so that launching costs nothing more.

        Scalars MUST be captured now, buffers by reference [bind.captures]. Every element type of
        `DeviceInfo.dtypes` MUST arrive as it was given [bind.scalars]. Wrong arguments MUST be
        refused [bind.refused]. A `Slot` makes the launchable usable in `record` only.

        Owner: the caller, until `free`. Blocks: no.
        Raises: InvalidCall for a wrong number or kind of arguments or a scalar out of its type's
        range.
        """

    @_one
    def launch(self, launchable: Launchable, grid: Grid, timeline: Timeline, waits: Waits) -> Point:
        """Submit one run of a program over a grid of independent program instances.

        Every instance of the grid MUST run exactly once with its own ids [launch.grid], in any
        order and at once. It MUST compute what the program's format says, within
        `DeviceInfo.numeric` [launch.exact]. A program MUST NOT write outside what it stores to
        [launch.inside]. A grid with a zero runs nothing and MUST still reach its point
        [launch.empty]. With `NumericProfile.deterministic` repeated runs MUST give equal bits
        [launch.deterministic].

        Owner: everything bound stays alive until the point. Blocks: no.
        Raises: InvalidCall for a grid beyond `Limits.grid` or a launchable with slots.
        """

    # timelines

    @_one
    def create_timeline(self, host_driven: bool) -> Timeline:
        """Create a timeline at value 0.

        A device timeline is an ordered queue: each submitted operation MUST take the next value
        [timeline.values]. A host-driven timeline takes no operations; `signal` advances it, and
        device operations may wait for it. Operations on two timelines that wait for a host-driven
        point MUST NOT hold each other up [timeline.independent].

        Owner: the caller, until `free`. Blocks: no. Raises: InvalidCall beyond `Limits.queues`.
        """

    @_one
    def signal(self, timeline: Timeline, value: int, failure: Failure | None) -> None:
        """Advance a host-driven timeline to `value`, or fail every point of it that is not reached.

        MUST wake every waiter, on the host and on the device [signal.wakes]. The first failure MUST
        be kept; later signals on a failed timeline are ignored [signal.first]. A device timeline
        and a value that does not grow MUST be refused [signal.refused].

        Owner: nothing changes hands. Blocks: no.
        Raises: InvalidCall for a device timeline or a value that does not grow.
        """

    @_one
    def wait(self, points: Sequence[Point], timeout_s: float, wait_all: bool) -> bool:
        """Wait until all points (or any of them) are reached; False when the deadline passes first.

        MUST return True only when the points are reached [wait.true], and MUST return False soon
        after the deadline [wait.deadline]. `timeout_s` 0 polls. MUST NOT hold the interpreter lock
        while waiting [wait.lock] and MUST let a KeyboardInterrupt through within 100 ms
        [wait.interrupt]. No points: True at once. A value that nothing submitted yet owes is waited
        for. The first cause of an awaited point that failed MUST be raised [wait.raises].

        Owner: nothing changes hands. Blocks: up to `timeout_s` seconds.
        Raises: OperationFailed or DeviceLost with the first cause when an awaited point failed.
        """

    # optional hooks: memory

    @_one
    def map(self, region: Region, writable: bool) -> memoryview:
        """*Optional, Feature.MAP.* Give the host a view of device memory, valid until the buffer is
        freed; both sides MUST see the same bytes [map.same].

        The caller orders its accesses with `wait`; a space that is not coherent needs `copy`
        instead.

        Owner: the device keeps the memory. Blocks: no. Raises: InvalidCall for a range outside the
        buffer.
        """

    @_one
    def import_host(self, memory: memoryview) -> Buffer:
        """*Optional, Feature.IMPORT_HOST.* Use host memory as a buffer without a copy.

        The device and the host MUST see the same bytes, and the plugin MUST hold a reference to
        `memory` until `free` and not longer [import_host.same].

        Owner: the caller of both. Blocks: no. Raises: InvalidCall for memory that is not
        contiguous.
        """

    @_one
    def export_buffer(self, buffer: Buffer) -> SharedHandle:
        """*Optional, Feature.IPC.* Name a shareable buffer so that another process can import it.

        The memory MUST live until the last process frees it, also if the exporter dies first after
        the import [export.lives].

        Owner: unchanged. Blocks: no. Raises: InvalidCall for a buffer that was not allocated
        `shareable`.
        """

    @_one
    def import_buffer(self, shared: SharedHandle) -> Buffer:
        """*Optional, Feature.IPC.* Map a buffer that another process exported; both MUST see
        the same bytes [import.same].

        Owner: the caller, until `free`. Blocks: briefly.
        Raises: Unsupported for an unknown `kind`; InvalidCall when the exporter is gone.
        """

    # optional hooks: graphs, host calls, observation

    @_one
    def record(self, commands: Sequence[Command]) -> Graph:
        """*Optional, Feature.GRAPH.* Record commands that `replay` runs with one call.

        A command MUST run after those named in its `after`, or after all earlier ones
        [record.order]. Launchables and buffers MUST be kept alive by the graph [record.keeps].

        Owner: the caller, until `free`. Blocks: while the device prepares the graph.
        Raises: InvalidCall for a command that names itself or a later one.
        """

    @_one
    def replay(
        self, graph: Graph, slots: Sequence[Argument], timeline: Timeline, waits: Waits
    ) -> Point:
        """*Optional, Feature.GRAPH.* Submit all commands of a graph with these slot arguments.

        MUST do what submitting the commands would do, each time anew [replay.same], with the
        arguments of this call in the slots [replay.slots]. A failing command MUST fail the graph's
        point with that command's cause [replay.fails].

        Owner: everything recorded stays alive until the point. Blocks: no.
        Raises: InvalidCall when `slots` does not have `graph.slots` arguments.
        """

    @_one
    def host_call(self, function: HostFunction, timeline: Timeline, waits: Waits) -> Point:
        """*Optional, Feature.HOST_CALL.* Submit a call of a host function.

        MUST call it once, in the timeline's order [host_call.order]; the time that it takes is the
        caller's and MUST NOT count as a hang [host_call.slow]. It may submit work; the caller
        lets it not wait for points of the same timeline. An exception MUST fail the point with
        FailureKind.HOST_CALL [host_call.fails].

        Owner: the plugin holds `function` until the point. Blocks: no. Raises: nothing more.
        """

    @_one
    def timestamps(self, point: Point) -> Sequence[Span]:
        """*Optional, Feature.TIMESTAMPS.* Say when the operation of a reached point ran on the
        device.

        A span MUST lie between submission and the end of the wait, and end after it starts
        [timestamps.true]. A graph gives one span per command, in their order. Only the newest spans
        are kept; older points give none.

        Owner: the result is a plain value. Blocks: no. Raises: InvalidCall for a point not reached.
        """

    @_one
    def stats(self, space: str) -> MemoryStats:
        """*Optional, Feature.STATS.* Count the raw allocations of a space (empty: the first GLOBAL
        one); the counts MUST be exact [stats.exact].

        Owner: the result is a plain value. Blocks: no. Raises: InvalidCall for an unknown space.
        """

    # optional hooks: failure

    @_one
    def reset(self) -> int:
        """*Optional, Feature.RESET.* Bring a failed device back; give the new epoch.

        Every unreached point MUST fail, all memory be freed and all handles become stale
        [reset.clears]. The device MUST work again afterwards [reset.works].

        Owner: releases everything. Blocks: while the device restarts. Raises: DeviceLost if it
        cannot.
        """

    @_one
    def subscribe(self, callback: Callable[[Failure], None]) -> None:
        """*Optional, Feature.SUBSCRIBE.* Call back once for each failure that belongs to no
        operation, such as a corrected memory error, heat, or a link that went down; each subscriber
        MUST be called once per failure [subscribe.once].

        Owner: the plugin holds `callback` until `close`. Blocks: no. Raises: nothing.
        """

    @_one
    def inject(self, fault: Fault) -> None:
        """*Optional, Feature.INJECT.* Make the n-th next call of a hook fail as described; the
        failure MUST reach its waiters as it was given [inject.true]. For tests.

        HANG makes the operation hang; a failure of scope DEVICE or RESET takes the device with it;
        PARTIAL_WRITE writes a part and fails; DATA_CORRUPTION is detected; at "alloc" an
        OUT_OF_MEMORY raises OutOfMemory, at "load" a COMPILE raises CompileError; a fault at
        "health" belongs to no operation and goes to the subscribers.

        Owner: nothing. Blocks: no. Raises: Unsupported for a hook or kind that cannot be injected.
        """

    # optional hooks: collectives and vendor operators

    @_one
    def create_group(self, spec: GroupSpec) -> Group:
        """*Optional, Feature.COLLECTIVES.* Join a communicator; every member calls it with its
        rank. A member that does not come MUST be named to the others at their deadline
        [group.missing], and members that disagree MUST be refused [group.disagree]. With
        Feature.GROUP_IPC the members may be in different processes of one host [group.processes].
        Members are told apart by key and rank alone: processes that each have their own "cpu:0"
        name it once per process in `peers`.

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

        MUST give every rank the result that the kind defines, for every element type of
        `DeviceInfo.dtypes` [collective.exact]. float16 and bfloat16 MUST be accumulated in float32
        [collective.accumulate]. `dst` equal to `src` means in place, and MUST give the same result
        [collective.in_place]. Sizes that do not fit MUST be refused on the member that brings them
        [collective.refused]. A member that calls with another kind, type, count, reduction or root
        MUST fail the call on every member [collective.mismatch]. A member that does not come within
        the group's `timeout_s`, or whose device or process is lost, MUST fail the call on the
        others, with Scope.PEER and naming the rank [collective.missing]. With
        `NumericProfile.deterministic` equal calls MUST give equal bits [collective.deterministic].

        Owner: regions stay alive until the point. Blocks: no. Raises: InvalidCall for sizes that do
        not fit.
        """

    @_one
    def abort(self, group: Group, cause: Failure) -> None:
        """*Optional, Feature.COLLECTIVES.* Fail the group's unfinished calls on this member, at
        once.

        MUST be local, idempotent and callable from any thread, and wake this member's waiters
        [abort.wakes].

        Owner: unchanged. Blocks: no. Raises: InvalidCall for a cause that is no Failure.
        """

    @_one
    def async_error(self, group: Group) -> Failure | None:
        """*Optional, Feature.COLLECTIVES.* The first failure of the group on this member,
        which MUST be kept [async_error.first]; None before.

        Owner: the result is a plain value. Blocks: no. Raises: nothing.
        """

    @_one
    def shrink(self, group: Group, ranks: Sequence[int]) -> Group:
        """*Optional, Feature.COLLECTIVES.* Make a new group of these ranks, without the failed
        ones.

        Every surviving member calls it with the same ranks, in the old numbering. The new group
        MUST work, whatever state the old one is in [shrink.works].

        Owner: the caller owns both groups. Blocks: as `create_group`. Raises: as `create_group`.
        """

    @_one
    def operators(self) -> Sequence[Operator]:
        """*Optional, Feature.OPERATORS.* List vendor operators that the stack may pick where they
        are faster; each MUST compute what its name says [operators.exact].

        Owner: the result is a plain value. Blocks: no. Raises: nothing.
        """

    @_one
    def load_operator(self, operator: Operator, constants: Mapping[str, int]) -> Program:
        """*Optional, Feature.OPERATORS.* Prepare a vendor operator for the given shape constants.

        Owner: the caller, until `free`. Blocks: while it prepares. Raises: Unsupported for
        constants outside the operator's conditions.
        """

    # notice

    @_one
    def without(self, feature: Feature, instead: str) -> None:
        """*Notice.* The stack tells the device's wrappers that it does `instead` because the device
        lacks `feature`; plugins do not implement it.

        Owner: nothing. Blocks: no. Raises: nothing.
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


NOTICES = ("without",)
"""Hooks that the stack calls and only wrappers hear."""

MANDATORY_DEVICE = tuple(
    name for name in hooks(DeviceSpec) if name not in OPTIONAL and name not in NOTICES
)
MANDATORY_PLUGIN = hooks(PluginSpec)
