"""Many programs at once: each keeps its own constants, however many come and go beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.values import Program
from hal.tile.build import Builder, add, mul, unary
from hal.tile.kernel import Kernel
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.additions import add_number, number_type
from hal_conformance.case import Cases, Level
from hal_conformance.cases.memory_exhausted import room
from hal_conformance.cases.programs_load import run_addition
from hal_conformance.held import check_held, held, used
from hal_conformance.kernels import need
from hal_conformance.rig import Rig

programs_alive = Cases("D", Level.CORE)

COUNT = 16
_OPS = ("exp", "log", "sin", "cos", "tanh", "erf", "sqrt", "rsqrt")
ALIVE, ALIVE_S = 1000, 4.0
DISTINCT, DISTINCT_S, DISTINCT_ROUNDS = 100, 5.0, 4
STEPS = 60
ROOM_LOADS, ROOM_S = 20, 3.0
LEAK_NBYTES = 4 << 20
"""What compilers and allocators may keep of a hundred small texts: LLVM's keeps about 5 KiB of
each."""


def _function(number: int, dtype: DType) -> Kernel:
    """y = f(x * a + b), with a function and constants that follow from the number."""
    b = Builder(f"function_{number}")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, reads=False, writes=True)
    value = add(mul(b.load(x, 0, (COUNT,), (1,)), 0.25 + number / 64), 0.5 + number / 32)
    b.store(y, 0, unary(_OPS[number % len(_OPS)], value), (1,))
    return b.kernel()


@programs_alive.case("alive-together", "launch.exact", "free.deferred", timeout_s=60)
def _(rig: Rig) -> None:
    """Sixteen programs with tables of constants: loaded first, run in any order, some freed and
    others loaded between; every one computes its own function all the time."""
    dtype = DType.F64 if DType.F64 in rig.info.dtypes else DType.F32
    need(rig, dtype)
    x = np.linspace(0.1, 2.0, COUNT).astype(NUMPY[dtype])
    source = rig.buffer(x)
    kernels = [_function(number, dtype) for number in range(16)]
    wanted = [rig.golden(k, {"x": x, "y": np.zeros_like(x)})["y"] for k in kernels]
    programs: dict[int, Program] = {i: rig.program(k) for i, k in enumerate(kernels)}

    def check(number: int, when: str) -> None:
        target = rig.buffer(COUNT * dtype.nbytes)
        point = rig.launch(programs[number], [source, target])
        got = rig.array(target, dtype, [point])
        near = np.abs(wanted[number]).astype(np.float64) * (1e-13 if dtype is DType.F64 else 1e-5)
        expect.near(got, wanted[number], near, f"program {number} of {len(programs)}, {when}")

    for number in rig.random.permutation(np.repeat(np.arange(16), 2)):
        check(int(number), "all loaded first")
    freed = [int(n) for n in rig.random.permutation(16)[:8]]
    for number in freed:
        rig.device.free(programs.pop(number))
    for number in programs:
        check(number, "after eight others were freed")
    for number in freed:
        programs[number] = rig.program(kernels[number])
    for number in rig.random.permutation(16):
        check(int(number), "after eight were loaded again")


@programs_alive.case("alive-in-sessions", "open.sessions", "launch.exact")
def _(rig: Rig) -> None:
    """Two sessions load different programs under one name, and each has its own."""
    other = Rig(rig.case, rig.setting)
    try:
        ours = [rig.program(add_number(rig, n, "same")) for n in (1, 2)]
        theirs = [other.program(add_number(other, n, "same")) for n in (3, 4)]
        for _ in range(2):
            for number, program in enumerate(ours, 1):
                run_addition(rig, program, number, f"a program of the first session, {number}")
            for number, program in enumerate(theirs, 3):
                run_addition(other, program, number, f"a program of the second session, {number}")
    finally:
        other.close()
    run_addition(rig, ours[0], 1, "a program of the first session after the second one was closed")


def _late(rig: Rig, number: int) -> Kernel:
    """x += STEPS + number, one after the other: the number is the last thing in a long text."""
    b = Builder("late")
    x = b.buffer("x", number_type(rig), writes=True)
    value = b.load(x, 0, (COUNT,), (1,))
    for _ in range(STEPS):
        value = add(value, 1)
    b.store(x, 0, add(value, number), (1,))
    return b.kernel()


@programs_alive.case("alive-equal-heads", "launch.exact", "load.cache", again=(False, True))
def _(rig: Rig, again: bool) -> None:
    """Programs of one name whose texts differ in one character far behind the beginning are
    different programs, also to whoever keeps them by a hash or by their first bytes."""
    sources = [rig.source(_late(rig, number)) for number in (5, 6, 7)]
    pairs = enumerate(zip(*(source.text for source in sources), strict=False))
    head = next((at for at, letters in pairs if len(set(letters)) > 1), 0)
    programs = [rig.device.load(source) for source in sources]
    if again:
        for program in programs:
            rig.device.free(program)
        programs = [rig.device.load(source) for source in sources]
    for number, program in zip((5, 6, 7), programs, strict=True):
        kernel, zeros = _late(rig, number), np.zeros(COUNT, NUMPY[number_type(rig)])
        buffer = rig.buffer(zeros)
        point = rig.launch(program, [buffer])
        got = rig.array(buffer, number_type(rig), [point])
        text = f"the program that ends with + {number}, whose first {head} letters others have"
        expect.same(got, rig.golden(kernel, {"x": zeros})["x"], text)


def _distinct(rig: Rig, number: int) -> Kernel:
    return add_number(rig, number % 31, f"distinct_{number}")


def _loaded(
    rig: Rig, first: int, most: int, seconds: float, keep: Callable[[Program], object]
) -> int:
    """Load distinct texts for so long at most; gives how many."""
    end_s = time.monotonic() + seconds
    for number in range(first, first + most):
        keep(rig.device.load(rig.source(_distinct(rig, number))))
        if time.monotonic() > end_s:
            break
    return number - first + 1


@programs_alive.case("alive-by-the-thousand", "load.compiles", "launch.exact", timeout_s=60)
def _(rig: Rig) -> None:
    """A thousand live programs, or as many as some seconds give: first, last and any are right."""
    programs: list[Program] = []
    count = _loaded(rig, 0, ALIVE, ALIVE_S, programs.append)
    chosen = {0, 1, count // 2, count - 1} | {int(n) for n in rig.random.integers(0, count, 12)}
    for number in sorted(chosen):
        what = f"program {number} of {count} live ones"
        run_addition(rig, programs[number], number % 31, what)
    for program in programs:
        rig.device.free(program)


@programs_alive.case("load-distinct-and-free", "free.returns", "open.leaks", timeout_s=60)
def _(rig: Rig) -> None:
    """A hundred distinct texts leave nothing, in this process and by the device's own count. There
    is no cache, which may hold what it has not written."""
    rig = Rig(rig.case, replace(rig.setting, cache_dir=""))
    try:
        _load_distinct(rig)
    finally:
        rig.close()


@programs_alive.case("load-leaves-room", "free.returns", timeout_s=90)
def _(rig: Rig) -> None:
    """The code of a program that was freed takes no memory of the device: as much as before can be
    allocated. What a first load leaves there for good does not count."""
    rig = Rig(rig.case, replace(rig.setting, cache_dir=""))
    try:
        found, counts = [], []
        for first in (3000, 4000, 5000):
            counts.append(_loaded(rig, first, ROOM_LOADS, ROOM_S, rig.device.free))
            found.append(room(rig))
            if len(found) > 1 and found[-1] >= found[-2]:
                return
    finally:
        rig.close()
    raise expect.Wrong(
        f"after {counts[0]}, {counts[1]} and {counts[2]} more programs that were loaded and freed "
        f"there is room for {found[0]}, {found[1]} and {found[2]} bytes: freed programs keep "
        "memory of the device"
    )


def _load_distinct(rig: Rig) -> None:
    counts = Feature.STATS in rig.info.features

    def load(first: int, most: int) -> int:
        return _loaded(rig, first, most, DISTINCT_S, rig.device.free)

    load(0, DISTINCT // 5)
    before, stats = held(), rig.device.stats("").live_nbytes if counts else 0
    rounds: list[int] = []
    while len(rounds) < DISTINCT_ROUNDS:  # what an allocator keeps grows a few times
        resident, count = used(), load(1000 * (1 + len(rounds)), DISTINCT)
        rounds.append(resident.grown())
        if rounds[-1] < max(LEAK_NBYTES * count // DISTINCT, LEAK_NBYTES // 2):
            break
    else:
        raise expect.Wrong(
            f"{count} distinct texts, loaded and freed, took {rounds[-1]} bytes of the process, "
            f"and each of {len(rounds)} rounds took so much: {rounds}"
        )
    check_held(before, "distinct texts, loaded and freed,")
    if counts:
        expect.equal(rig.device.stats("").live_nbytes, stats, "the device's memory after them")


@programs_alive.case("bound-apart", "bind.captures", "launch.exact")
def _(rig: Rig) -> None:
    """Three hundred launchables of one program, each with its own numbers and buffers."""
    dtype = DType.I32 if DType.I32 in rig.info.dtypes else DType.F32
    need(rig, dtype)
    b = Builder("scaled")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, reads=False, writes=True)
    b.store(y, 0, add(b.load(x, 0, (COUNT,), (1,)), b.scalar("k", dtype)), (1,))
    program, source = rig.program(b.kernel()), np.arange(COUNT).astype(NUMPY[dtype])
    given, target = rig.buffer(source), rig.buffer(300 * COUNT * dtype.nbytes)
    nbytes = COUNT * dtype.nbytes
    bound = [
        rig.device.bind(program, (given, target.region(i * nbytes, nbytes), i)) for i in range(300)
    ]
    for number in rig.random.permutation(300):
        point = rig.device.launch(bound[int(number)], (1, 1, 1), rig.timeline(), ())
    got: NDArray[np.generic] = rig.array(target, dtype, [point]).reshape(300, COUNT)
    wanted = source + np.arange(300).astype(source.dtype)[:, None]
    expect.same(got, wanted.astype(source.dtype), "what 300 launchables of one program stored")
