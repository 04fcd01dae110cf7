"""An opened core group: its main memory, its process, and programs for it."""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hal.cache import Cache
from hal.core.dtypes import DType
from hal.core.errors import (
    CompileError,
    Failure,
    FailureKind,
    InvalidCall,
    OperationFailed,
    PluginError,
    Scope,
)
from hal.core.values import AllocOptions, Collective, Grid, KernelSource, Param, ParamKind
from hal.hosted.machine import BaseMachine, Machine, Part
from hal.tile.numeric import constant, quiet
from hal_plugin_sunway import elf, toolchain
from hal_plugin_sunway.allocation import allocation_cycles
from hal_plugin_sunway.arena import Arena, Slab
from hal_plugin_sunway.chip import Chip
from hal_plugin_sunway.choice import Choice
from hal_plugin_sunway.coregroup import CoreGroup, CoreGroupFailure, Loaded
from hal_plugin_sunway.describe import ldm_nbytes
from hal_plugin_sunway.folder import Folder
from hal_plugin_sunway.report import Report
from hal_plugin_sunway.ring import without
from hal_plugin_sunway.traffic import Move, Phase, cycles, phases

_FAILURES = {
    "illegal-address": FailureKind.ILLEGAL_ADDRESS,
    "launch-fault": FailureKind.LAUNCH_FAULT,
    "ldm": FailureKind.OUT_OF_MEMORY,
    "deadlock": FailureKind.HANG,
    "hang": FailureKind.HANG,
}
"""Failures of a program by the emulator's words. They end the operation alone: main memory stays,
and a core group whose process ended gets a new one."""

_MOST_LOADED = 2048
"""Programs that the process has at once; it takes twice as many."""

_PATIENCE = 1.5
"""Of `progress_s`: the process notices a hang after half of what it is given, or all of it."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program on disk, the entry and parameters of its source."""

    path: Path
    entry: str
    params: tuple[Param, ...]


@dataclass(slots=True)
class _Process:
    """The core group's process, if there is one, and what it has loaded."""

    group: CoreGroup | None = None
    loaded: dict[Path, Loaded] = field(default_factory=dict)

    def end(self) -> None:
        """End the process, if there is one."""
        group, self.group = self.group, None
        self.loaded.clear()
        if group is not None:
            group.end()


def _let_go(process: _Process, arena: Arena, owner: int) -> None:
    """The machine was dropped; a forked child's has its owner in the parent."""
    if os.getpid() == owner:
        process.end()
        arena.close()


class SunwayMachine(Machine):
    """A core group whose process starts with its first program."""

    ends_hangs = True

    def __init__(self, name: str, chip: Chip, choice: Choice, nbytes: int) -> None:
        self._name, self._chip, self._choice = name, chip, choice
        self._arena = Arena(nbytes)
        self._cache = Cache(choice.cache_dir, "sunway")
        self._remedies = without(choice.without)
        self._report = Report(choice.report, chip, threading.Lock())
        self._folder = Folder()
        self._process, self._lock = _Process(), threading.RLock()
        end = (self._process, self._arena, os.getpid())
        weakref.finalize(self, _let_go, *end).atexit = False

    def allocate(self, nbytes: int, options: AllocOptions) -> Slab:
        with self._lock:
            slab = self._arena.take(nbytes)
        cycles = allocation_cycles(self._chip, self._choice.memory_mode, nbytes)
        self._report.allocation(nbytes, cycles)
        return slab

    def release(self, memory: Slab) -> None:
        with self._lock:
            self._arena.give(memory)

    def read(self, memory: Slab, offset: int, nbytes: int) -> bytes:
        start = memory.offset + offset
        return self._arena.memory[start : start + nbytes]

    def write(self, memory: Slab, offset: int, data: bytes | memoryview) -> None:
        start = memory.offset + offset
        self._arena.memory[start : start + len(data)] = data

    def map(self, memory: Slab) -> memoryview:
        end = memory.offset + memory.nbytes
        return memoryview(self._arena.memory)[memory.offset : end]

    def compile(self, source: KernelSource) -> Compiled:
        if source.options:
            raise CompileError(f"{source.format} has no build options, got {dict(source.options)}")
        if not re.fullmatch(r"[A-Za-z_]\w*", source.entry, re.ASCII):
            raise CompileError(f"{source.entry!r} is no name of a function in C", "no such name")
        try:
            return self._compiled(source)
        except OSError as error:
            raise PluginError(
                f"load of {source.entry}: the host has no room, descriptor or process for the "
                f"program: {error}; clear {self._folder.name}, set TMPDIR to a folder with room, "
                "or raise `ulimit -n`, `-f` or `-u`"
            ) from error

    def _compiled(self, source: KernelSource) -> Compiled:
        folder = Path(self._folder.name)
        path = toolchain.program(source.text, folder, source.entry, cache=self._cache)
        compiled = Compiled(path, source.entry, source.params)
        with self._lock:
            try:
                loaded = self._load(path)
            except CoreGroupFailure:
                # Let a program go that cannot be loaded, as the kept one may be of no use; so may
                # the process's own program, if it has ended
                toolchain.discard(path, self._cache)
                if self._process.group is None or not self._process.group.alive():
                    self._end()
                    toolchain.discard(toolchain.worker(self._cache), self._cache)
                toolchain.program(source.text, folder, source.entry, cache=self._cache)
                try:
                    loaded = self._load(path)
                except CoreGroupFailure as failure:
                    raise CompileError(
                        f"the program cannot be loaded: {failure}", str(failure)
                    ) from failure
            # Refuse what does not fit into the LDM, and an entry that is not there or is another.
            room = ldm_nbytes(self._chip)
            if loaded.ldm_nbytes > room:
                text = f"its variables take {loaded.ldm_nbytes} bytes of LDM; a CPE has {room}"
                occupied = elf.ldm_map(compiled.path)
                raise CompileError(f"{compiled.entry}: {text}:\n{occupied}", occupied)
            if not self._group().has_entry(loaded, compiled.entry):
                raise CompileError(
                    f"the program has no function {compiled.entry!r}", "no such function"
                )
            found = elf.string(compiled.path, f"{compiled.entry}_params")
            if found is None:
                text = f"the program has no text {compiled.entry}_params that names its parameters"
                raise CompileError(f"{text}; see the format athread-c/1", text)
            if not set(filter(None, found.split(", "))) <= _SIGNATURES:
                text = f"{compiled.entry}_params is no list of parameters: {found!r}"
                raise CompileError(f"{text}; see the format athread-c/1", text)
            if found != (wanted := signature(compiled.params)):
                raise InvalidCall(
                    f"{compiled.entry} has the parameters ({found}); asked was ({wanted})"
                )
        return compiled

    def copy_ns(self, nbytes: int, peer: BaseMachine | None) -> float:
        """The memory's controller reads and writes every byte; those of another core group come
        over the ring, as fast as its controller gives them."""
        if not isinstance(peer, SunwayMachine):
            return self.fill_ns(2 * nbytes)
        move = Phase((Move(0, 1, nbytes),))
        return self._ring_ns("copy", (move,), (self._name, peer._name))

    def collective_ns(self, call: Collective, peers: Sequence[str]) -> float:
        """The phases of a collective over the ring."""
        return self._ring_ns(call.kind.value, phases(call, len(peers)), peers)

    def _ring_ns(self, what: str, parts: Sequence[Phase], devices: Sequence[str]) -> float:
        places = [int(device.rpartition(":")[2]) for device in devices]
        taken = cycles(self._chip, self._remedies, parts, places)
        self._report.transfer(what, places, taken)
        return self._chip.seconds(taken) * 1e9

    def fill_ns(self, nbytes: int) -> float:
        """The memory's controller has every byte once."""
        return 1e9 * nbytes / (self._chip["memory_nbytes_s"] * (1 - self._chip["lost_share"]))

    def run(self, program: Compiled, args: Sequence[Part | float], grid: Grid) -> float:
        slots = [f"s{n:x}" for n in grid]
        slots += [_slot(p, a) for p, a in zip(program.params, args, strict=True)]
        patience_s = self._choice.progress_s * _PATIENCE
        with self._lock:
            try:
                loaded, group = self._load(program.path), self._group()
                if self._choice.trace:
                    group.trace(self._choice.trace)
                outcome = group.run(loaded, program.entry, slots, patience_s)
            except CoreGroupFailure as failure:
                if failure.lost:
                    self._end()
                kind = _FAILURES.get(failure.kind, FailureKind.DEVICE_LOST)
                scope = Scope.DEVICE if kind is FailureKind.DEVICE_LOST else Scope.OPERATION
                where = f" (source line {failure.line})" if failure.line else ""
                raise OperationFailed(
                    Failure(kind, scope, self._name, f"launch {program.entry}", f"{failure}{where}")
                ) from failure
        self._report.launch(program.entry, grid, outcome)
        return self._chip.seconds(outcome.cycles) * 1e9

    def close(self) -> None:
        """End the process and give the main memory back; a second time nothing happens."""
        with self._lock:
            self._end()
            self._arena.close()
            self._folder.cleanup()

    def _group(self) -> CoreGroup:
        """The process. One that ended while nothing ran is replaced: main memory is not in it."""
        if self._process.group is not None and not self._process.group.alive():
            self._end()
        process = self._process
        if process.group is None:
            arena = self._arena
            try:
                process.group = CoreGroup(self._chip, arena.fd, arena.nbytes, self._cache)
            except OSError as error:
                text = f"the core group's process does not start: {error}"
                raise CoreGroupFailure("lost", 0, text, lost=True) from error
        return process.group

    def _end(self) -> None:
        self._process.end()

    def _load(self, path: Path) -> Loaded:
        """The program in the process, loaded now unless it is there. The one that was not used for
        longest makes room."""
        group, present = self._group(), self._process.loaded
        loaded = present.pop(path, None)
        if loaded is None:
            if len(present) >= _MOST_LOADED:
                group.unload(present.pop(next(iter(present))))
            loaded = group.load(path)
        present[path] = loaded
        return loaded


_SIGNATURES = {f"{kind.value} {dtype.short}" for kind in ParamKind for dtype in DType}


def signature(params: Sequence[Param]) -> str:
    """How a program in athread-c/1 names its parameters."""
    return ", ".join(f"{p.kind.value} {p.dtype.short}" for p in params)


def _slot(param: Param, arg: Part | float) -> str:
    if isinstance(arg, Part):
        return f"b{arg.memory.offset + arg.offset}:{arg.nbytes}"
    assert param.kind is ParamKind.SCALAR, "a buffer parameter takes a buffer"
    with quiet():
        data = constant(arg, param.dtype).tobytes()
    return f"s{int(np.frombuffer(data.ljust(8, bytes(1)), np.uint64)[0]):x}"
