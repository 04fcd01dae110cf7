"""A wrapper that keeps how long each kernel of a device ran, and on how many bytes."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any

from hal.core.device import Device
from hal.core.errors import HalError, InvalidCall, OperationFailed
from hal.core.facts import dataclass
from hal.core.spec import hookimpl
from hal.core.values import (
    Argument,
    Buffer,
    Command,
    Graph,
    Grid,
    Handle,
    KernelSource,
    Launchable,
    LaunchCommand,
    ParamKind,
    Point,
    Program,
    Region,
    Slot,
    Span,
)

_seen = hookimpl(wrapper=True)

_DRAIN_EVERY = 64
"""Submissions between two looks for reached points: devices keep only their newest spans."""

_CLOSE_WAIT_S = 10.0
"""How long a closing device's outstanding operations are waited for."""

_COPY = "copy"
"""The name of the spans of copies."""


@dataclass(frozen=True, slots=True)
class LaunchedKernel:
    """One kind of launch: a program with a grid; None: the copies of graphs."""

    source: KernelSource | None
    grid: Grid = (1, 1, 1)

    @property
    def name(self) -> str:
        return _COPY if self.source is None else self.source.entry


@dataclass(slots=True)
class Ran:
    """All launches of one kind: how many, the seconds that they took together, and the bytes of the
    regions that they were given, twice where a region is read and written."""

    calls: int = 0
    seconds: float = 0.0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class _Submitted:
    point: Point
    commands: Sequence[tuple[LaunchedKernel, int]]


@dataclass(eq=False)
class KernelWatch:
    """`engine_for(name, wrappers=[watch])` watches a device that declares `timestamps`.

    `ran` has what was launched. `longest` are the spans of the submission with the most commands,
    and of equal ones the last: of a captured training that is a step.
    """

    ran: dict[LaunchedKernel, Ran] = field(default_factory=lambda: defaultdict(Ran))
    longest: tuple[Span, ...] = ()

    def __call__(self, device: Device) -> object:
        """The wrapper plugin for a device."""
        return _Watched(self, device)


class _Watched:
    def __init__(self, watch: KernelWatch, device: Device) -> None:
        self._watch, self._device = watch, device
        self._sources: dict[Handle, KernelSource] = {}
        self._args: dict[Handle, Sequence[Argument]] = {}
        self._commands: dict[Handle, Sequence[Command]] = {}
        self._pending: deque[_Submitted] = deque()
        self._lock = threading.Lock()

    @_seen
    def load(self, source: KernelSource) -> Generator[None, Program, Program]:
        program = yield
        self._sources[program] = source
        return program

    @_seen
    def bind(self, args: Sequence[Argument]) -> Generator[None, Launchable, Launchable]:
        bound = yield
        self._args[bound] = args
        return bound

    @_seen
    def record(self, commands: Sequence[Command]) -> Generator[None, Graph, Graph]:
        graph = yield
        self._commands[graph] = commands
        return graph

    @_seen
    def replay(self, graph: Graph, slots: Sequence[Argument]) -> Generator[None, Point, Point]:
        point = yield
        self._submitted(point, [self._launched(c, slots) for c in self._commands[graph]])
        return point

    @_seen
    def launch(self, launchable: Launchable, grid: Grid) -> Generator[None, Point, Point]:
        point = yield
        self._submitted(point, [self._launched(LaunchCommand(launchable, grid), ())])
        return point

    @_seen
    def wait(self) -> Generator[None, bool, bool]:
        reached = yield
        self._drain()
        return reached

    @_seen
    def free(self, handle: Handle) -> Generator[None, None, None]:
        self._drain()
        yield
        for table in (self._sources, self._args, self._commands):
            table.pop(handle, None)

    @_seen
    def close(self) -> Generator[None, Any, Any]:
        points = [s.point for s in self._pending]
        with suppress(HalError):  # what was reached is read all the same
            self._device.wait(points, _CLOSE_WAIT_S, True)
        self._drain()
        return (yield)

    def _launched(self, command: Command, slots: Sequence[Argument]) -> tuple[LaunchedKernel, int]:
        if not isinstance(command, LaunchCommand):
            return LaunchedKernel(None), 2 * command.dst.nbytes
        bound, nbytes = command.launchable, 0
        source = self._sources[bound.program]
        for param, arg in zip(source.params, self._args[bound], strict=True):
            if param.kind is ParamKind.BUFFER:
                given = slots[arg.index] if isinstance(arg, Slot) else arg
                assert isinstance(given, Buffer | Region), "a buffer's parameter takes memory"
                nbytes += given.nbytes * (param.reads + param.writes)
        return LaunchedKernel(source, command.grid), nbytes

    def _submitted(self, point: Point, commands: Sequence[tuple[LaunchedKernel, int]]) -> None:
        with self._lock:
            self._pending.append(_Submitted(point, commands))
            many = len(self._pending) % _DRAIN_EVERY == 0
        if many:
            self._drain()

    def _drain(self) -> None:
        """Count what was reached; the rest stays."""
        with self._lock:
            for _ in range(len(self._pending)):
                one = self._pending.popleft()
                if not self._read(one):
                    self._pending.append(one)

    def _read(self, submitted: _Submitted) -> bool:
        """Whether nothing more is to come of a submission."""
        try:
            if not self._device.wait((submitted.point,), 0.0, True):
                return False
            spans = self._device.timestamps(submitted.point)
        except (OperationFailed, InvalidCall):
            return True  # it failed, or its timeline was freed: there are no spans
        waiting: dict[str, deque[tuple[LaunchedKernel, int]]] = defaultdict(deque)
        for launched, nbytes in submitted.commands:
            waiting[launched.name].append((launched, nbytes))
        for span in spans:
            if not waiting[span.name]:
                continue
            launched, nbytes = waiting[span.name].popleft()
            took_ns = span.end_ns - span.start_ns if span.device_ns is None else span.device_ns
            ran = self._watch.ran[launched]
            ran.calls, ran.seconds = ran.calls + 1, ran.seconds + took_ns / 1e9
            ran.nbytes += nbytes
        if len(spans) >= len(self._watch.longest):
            self._watch.longest = tuple(spans)
        return True
