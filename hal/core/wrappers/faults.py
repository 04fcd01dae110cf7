"""Fault injection, one wrapper for every device: operations fail as a plan says, and the failure
travels as the contract says. `hal.core.wrappers.fault_plan` has the form of plans.

The device itself needs no `Feature.INJECT`. An operation that is to fail is submitted with one more
wait, for a point of a host-driven timeline that fails.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from hal.core.device import Device
from hal.core.errors import (
    CompileError,
    Failure,
    FailureKind,
    InvalidCall,
    OutOfMemory,
    Scope,
    error_for,
)
from hal.core.spec import hookimpl
from hal.core.values import (
    AllocOptions,
    Argument,
    Collective,
    Command,
    Graph,
    Grid,
    Group,
    Handle,
    Health,
    HostFunction,
    HostMemory,
    KernelSource,
    Launchable,
    LaunchCommand,
    Point,
    Region,
    Timeline,
)
from hal.core.wrappers.fault_calls import FaultCalls, Struck
from hal.core.wrappers.fault_damage import Damage
from hal.core.wrappers.fault_life import Life, ended
from hal.core.wrappers.fault_plan import HEALTH, SLOW, FaultPlan, PlannedFault, parse_plan

_faulty = hookimpl(wrapper=True)


class Faults:
    """A plan at work. `hal.open(name, wrappers=["validate", faults])` adds a device, also several.

    `plan` is a plan's text or the name of its file. Raises InvalidCall for a plan that cannot be
    read.
    """

    def __init__(self, plan: str | os.PathLike[str]) -> None:
        self.plan = parse_plan(_text(plan))
        self._happened: list[PlannedFault] = []
        self._lock = threading.Lock()

    def __call__(self, device: Device) -> object:
        """The wrapper plugin for one device."""
        return _FaultyDevice(device, self.plan, self._add)

    @property
    def happened(self) -> str:
        """The plan of exactly what happened until now; equal calls make it happen again."""
        with self._lock:
            return str(FaultPlan(self.plan.seed, tuple(self._happened)))

    def _add(self, fault: PlannedFault) -> None:
        with self._lock:
            self._happened.append(fault)


class _FaultyDevice:
    """The hooks of one device."""

    def __init__(
        self, device: Device, plan: FaultPlan, happened: Callable[[PlannedFault], None]
    ) -> None:
        self._device = device
        self._happened = happened
        self._calls = FaultCalls(device.name, plan)
        self._life, self._damage = Life(device), Damage(device)
        self._programs: dict[int, tuple[Graph, frozenset[str]]] = {}
        self._subscribers: list[Callable[[Failure], None]] = []

    # life

    @_faulty
    def close(self) -> Generator[None]:
        self._life.end(ended(self._device.name, "close"))
        yield

    @_faulty
    def reset(self) -> Generator[None, int, int]:
        self._life.end(ended(self._device.name, "reset"))
        epoch = yield
        self._life, self._damage = Life(self._device), Damage(self._device)
        self._programs.clear()
        return epoch

    @_faulty
    def free(self, handle: Handle) -> Generator[None]:
        yield
        self._programs.pop(id(handle), None)

    @_faulty
    def health(self) -> Generator[None, Health, Health]:
        if struck := self._strike(HEALTH, ""):
            self._tell(struck.failure)
            if struck.failure.scope in (Scope.DEVICE, Scope.RESET):
                self._life.lose(struck.failure)
        return self._life.health((yield))

    @_faulty
    def subscribe(self, callback: Callable[[Failure], None]) -> Generator[None]:
        yield
        self._subscribers.append(callback)

    # calls that fail at once

    @_faulty
    def alloc(self, nbytes: int, options: AllocOptions) -> Generator[None, Any, Any]:
        self._life.check()
        if struck := self._strike("alloc", ""):
            if struck.failure.kind is FailureKind.OUT_OF_MEMORY:
                raise OutOfMemory(str(struck.failure), nbytes, 0)
            self._lose(struck.failure)
        return (yield)

    @_faulty
    def load(self, source: KernelSource) -> Generator[None, Any, Any]:
        self._life.check()
        if struck := self._strike("load", source.entry):
            if struck.failure.kind is FailureKind.COMPILE:
                raise CompileError(str(struck.failure), log=struck.failure.message)
            self._lose(struck.failure)
        return (yield)

    # graphs

    @_faulty
    def record(self, commands: Sequence[Command]) -> Generator[None, Graph, Graph]:
        graph = yield
        launches = (c.launchable for c in commands if isinstance(c, LaunchCommand))
        self._programs[id(graph)] = graph, frozenset(one.program.entry for one in launches)
        return graph

    # submissions

    @_faulty
    def copy(
        self,
        dst: Region | HostMemory,
        src: Region | HostMemory,
        timeline: Timeline,
        waits: list[Point],
    ) -> Generator[None, Point, Point]:
        if struck := self._enter("copy", ""):
            after = self._life.before(timeline, waits)
            if struck.failure.kind is FailureKind.PARTIAL_WRITE:
                self._harm(struck, waits, self._damage.half_copy(dst, src, after))
            elif struck.failure.kind is FailureKind.DATA_CORRUPTION:
                copied = self._damage.whole_copy(dst, src, after)
                self._harm(struck, waits, copied, lambda: self._damage.flip(dst, struck.random))
            else:
                self._hold(struck, timeline, waits)
        return self._leave((yield))

    @_faulty
    def fill(
        self, dst: Region, pattern: bytes, timeline: Timeline, waits: list[Point]
    ) -> Generator[None, Point, Point]:
        if struck := self._enter("fill", ""):
            if struck.failure.kind is FailureKind.PARTIAL_WRITE:
                after = self._life.before(timeline, waits)
                self._harm(struck, waits, self._damage.half_fill(dst, pattern, after))
            else:
                self._hold(struck, timeline, waits)
        return self._leave((yield))

    @_faulty
    def launch(
        self, launchable: Launchable, grid: Grid, timeline: Timeline, waits: list[Point]
    ) -> Generator[None, Point, Point]:
        if struck := self._enter("launch", launchable.program.entry):
            if struck.failure.kind is FailureKind.PARTIAL_WRITE:
                after = self._life.before(timeline, waits)
                self._harm(struck, waits, self._damage.half_launch(launchable, grid, after))
            else:
                self._hold(struck, timeline, waits)
        return self._leave((yield))

    @_faulty
    def replay(
        self, graph: Graph, slots: Sequence[Argument], timeline: Timeline, waits: list[Point]
    ) -> Generator[None, Point, Point]:
        _, names = self._programs.get(id(graph), (graph, frozenset()))
        if struck := self._enter("replay", *names):
            self._hold(struck, timeline, waits)
        return self._leave((yield))

    @_faulty
    def host_call(
        self, function: HostFunction, timeline: Timeline, waits: list[Point]
    ) -> Generator[None, Point, Point]:
        if struck := self._enter("host_call", ""):
            self._hold(struck, timeline, waits)
        return self._leave((yield))

    @_faulty
    def collective(
        self,
        group: Group,
        call: Collective,
        dst: Region,
        src: Region,
        timeline: Timeline,
        waits: list[Point],
    ) -> Generator[None, Point, Point]:
        if struck := self._enter("collective", call.kind.value):
            self._hold(struck, timeline, waits)
        return self._leave((yield))

    # timelines

    @_faulty
    def signal(self, timeline: Timeline, value: int, failure: Failure | None) -> Generator[None]:
        yield
        self._life.note(Point(timeline, value))

    @_faulty
    def wait(
        self, points: list[Point], timeout_s: float, wait_all: bool
    ) -> Generator[None, bool, bool]:
        done = self._life.wait(tuple(points), timeout_s, wait_all)
        points.clear()  # all waiting is done: the device has nothing left to wait for
        yield
        return done

    # what happens

    def _strike(self, hook: str, *programs: str) -> Struck | None:
        """Count a call; note and give the fault that happens at it."""
        struck = self._calls.strike(hook, *programs)
        if struck is not None:
            self._happened(struck.fault)
        return struck

    def _enter(self, hook: str, *programs: str) -> Struck | None:
        """A submission begins: refused by a lost device, else counted."""
        self._life.check()
        return self._strike(hook, *programs)

    def _leave(self, point: Point) -> Point:
        self._life.note(point)
        return point

    def _lose(self, failure: Failure) -> None:
        self._life.lose(failure)
        raise error_for(failure)

    def _tell(self, failure: Failure) -> None:
        for callback in tuple(self._subscribers):
            callback(failure)

    def _hold(self, struck: Struck, timeline: Timeline, waits: list[Point]) -> None:
        """Let an operation fail, hang or come late: it waits for a gate."""
        life, fault, failure = self._life, struck.fault, struck.failure
        gate = life.gate()
        if fault.kind == SLOW:
            after = life.before(timeline, waits)
            life.later(after, fault.seconds, lambda: life.open(gate), "slow")
        elif failure.kind is FailureKind.HANG:
            self._hang(struck, gate, life.before(timeline, waits))
        else:
            life.fail(gate, failure)
            if failure.kind is FailureKind.LINK_DOWN:
                self._tell(failure)
        waits.append(gate)

    def _hang(self, struck: Struck, gate: Point, after: Sequence[Point]) -> None:
        life, failure = self._life, struck.failure

        def give_up() -> None:
            life.fail(gate, failure)
            life.hanging = None

        limit_s = self._device.info.limits.progress_s or struck.fault.seconds
        life.hanging = failure
        life.later(after, limit_s, give_up, "hang")

    def _harm(
        self,
        struck: Struck,
        waits: list[Point],
        harm: Point,
        more: Callable[[], None] = lambda: None,  # the other operation did all the harm
    ) -> None:
        """Let an operation fail once the harm is done that another one does in its place."""
        life, gate = self._life, self._life.gate()

        def fail() -> None:
            more()
            life.fail(gate, struck.failure)

        life.later((harm,), 0.0, fail, struck.fault.kind)
        waits.append(gate)


def _text(plan: str | os.PathLike[str]) -> str:
    """A plan's text; a name without " at " in it is that of a file."""
    if isinstance(plan, str) and (" at " in plan or not plan.strip()):
        return plan
    try:
        return Path(plan).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidCall(
            f'{plan!r} is neither a fault plan ("KIND at HOOK ...") nor a file with one: {error}'
        ) from error
