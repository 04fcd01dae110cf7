"""The life of programs: freed under work in flight, loaded from threads, nothing left behind."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from functools import partial

import numpy as np

from hal.core.errors import CompileError, StaleHandle
from hal.core.values import KernelSource, Program
from hal_conformance import expect
from hal_conformance.additions import add_number, numbers
from hal_conformance.case import Cases, Level
from hal_conformance.cases.programs_load import run_addition
from hal_conformance.crowd import together
from hal_conformance.held import check_held, held, used
from hal_conformance.rig import Rig

programs_life = Cases("D", Level.CORE)

THREADS = 8
LOADS, LOADS_S = 100, 5.0
REFUSALS = 6
LEAK_NBYTES = 16 << 20
"""A process may grow by so much during LOADS loads: allocators keep some of what is freed."""


@programs_life.case("free-program-in-flight", "free.deferred")
def _(rig: Rig) -> None:
    before, gate = numbers(rig), rig.gate()
    buffer, program = rig.buffer(before), rig.program(add_number(rig, 6))
    bound = rig.device.bind(program, [buffer])
    point = rig.device.launch(bound, (1, 1, 1), rig.timeline(), [gate.point])
    rig.device.free(bound)
    rig.device.free(program)
    others = [rig.program(add_number(rig, number)) for number in (1, 2)]
    gate.open()
    after = np.frombuffer(rig.read(buffer, waits=[point]), before.dtype)
    expect.same(after, before + before.dtype.type(6), "the launch of a program freed meanwhile")
    run_addition(rig, others[1], 2, "a program that was loaded meanwhile")


@programs_life.case("free-program-then-use", "handle.stale", "free.twice")
def _(rig: Rig) -> None:
    program, buffer = rig.program(add_number(rig)), rig.buffer(numbers(rig))
    rig.device.free(program)
    expect.raises(StaleHandle, rig.device.bind, program, [buffer])
    expect.raises(StaleHandle, rig.device.free, program)


@programs_life.case("free-launchable-then-use", "handle.stale", "free.twice")
def _(rig: Rig) -> None:
    program, buffer = rig.program(add_number(rig, 4)), rig.buffer(numbers(rig))
    bound = rig.device.bind(program, [buffer])
    rig.device.free(bound)
    expect.raises(StaleHandle, rig.device.launch, bound, (1, 1, 1), rig.timeline(), ())
    expect.raises(StaleHandle, rig.device.free, bound)
    run_addition(rig, program, 4, "the program, after its launchable was freed")


@programs_life.case("load-same-from-threads", "call.threads")
def _(rig: Rig) -> None:
    source = rig.source(add_number(rig, 5))
    programs = together([lambda: rig.device.load(source)] * THREADS)
    for program in programs:
        run_addition(rig, program, 5, "a program that a thread loaded")


@programs_life.case("load-different-from-threads", "call.threads")
def _(rig: Rig) -> None:
    sources = [rig.source(add_number(rig, number)) for number in range(THREADS)]
    programs = together([partial(rig.device.load, source) for source in sources])
    for number, program in enumerate(programs):
        run_addition(rig, program, number, f"the program that adds {number}")


@programs_life.case("load-bad-and-good-from-threads", "call.threads", "load.damaged")
def _(rig: Rig) -> None:
    source = rig.source(add_number(rig, 3))
    cut = _without_end(source)

    def bad() -> Program | None:
        expect.raises(CompileError, rig.device.load, cut)
        return None

    programs = together([lambda: rig.device.load(source), bad] * 2)
    for program in filter(None, programs):
        run_addition(rig, program, 3, "a program that a thread loaded")


@programs_life.case("load-and-free", "free.returns", "open.leaks")
def _(rig: Rig) -> None:
    source = rig.source(add_number(rig))
    _load_and_free(rig, source, LOADS // 5)
    before, resident = held(), used()
    count = _load_and_free(rig, source, LOADS)
    check_held(before, f"{count} loads and frees")
    grown = resident.grown()
    expect.that(grown < LEAK_NBYTES, f"{count} loads and frees took {grown} bytes of the process")


@programs_life.case("load-damaged-often", "load.damaged", "open.leaks")
def _(rig: Rig) -> None:
    source = rig.source(add_number(rig))
    cut = _without_end(source)
    expect.raises(CompileError, rig.device.load, cut)
    before = held()
    for _ in range(REFUSALS):
        expect.raises(CompileError, rig.device.load, cut)
    check_held(before, f"{REFUSALS} refused loads")


def _without_end(source: KernelSource) -> KernelSource:
    """The first half of a program's lines."""
    lines = source.text.splitlines()
    return replace(source, text="\n".join(lines[: len(lines) // 2]))


def _load_and_free(rig: Rig, source: KernelSource, most: int) -> int:
    """So often, or as often as some seconds give: compilers take long. Gives how often."""
    end_s = time.monotonic() + LOADS_S
    count = 0
    while count < most and time.monotonic() < end_s:
        rig.device.free(rig.device.load(source))
        count += 1
    gc.collect()
    return count
