"""Failures that nobody injects: programs that do not get on, that fault, that ask for too much.

An injector may be code that every plugin shares. What is here goes through the device's own parts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

import numpy as np

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.errors import FailureKind, HalError, OperationFailed, Scope
from hal.core.facts import dataclass
from hal.core.values import (
    ATHREAD_C,
    HAL_TILE,
    Buffer,
    HealthState,
    KernelSource,
    LaunchCommand,
    Param,
    ParamKind,
    Program,
    Timeline,
)
from hal.tile.build import Builder, add, binary, const, mul
from hal.tile.kernel import Kernel
from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from hal.tile.printer import print_kernel
from hal_conformance import busy, expect
from hal_conformance.additions import add_number
from hal_conformance.case import Cases, Level
from hal_conformance.cases.programs_load import run_addition
from hal_conformance.expect import Unproved
from hal_conformance.faults import caught, no_hang, progress_s, stopwatch
from hal_conformance.kernels import counts, index_of, need
from hal_conformance.rig import Rig, waited
from hal_conformance.steps import lines, some, work

failure_real = Cases("I", Level.RESILIENT)

I32, U32 = DType.I32, DType.U32
LONGER = 5.0
"""How many times `Limits.progress_s` the program that does not get on runs."""
FOUND_S = 20.0
_OFTEN = 5
_LONG, _LONGEST = 9, 3**12
"""How many times as long it runs if it was reached: at least, and while it computed too little."""
WAKES = 3
"""Threads that wake in turn until a hang is known: who looks, whom that tells, and who waits."""
GETS_ON = "work that gets on, launches that each take a part of `Limits.progress_s`,"
_MOST_S = 2.0
"""A device that takes longer for a hang is not tried."""


def spin(rig: Rig) -> Kernel:
    """One instance that computes `count` numbers from each other and stores the last."""
    b = Builder("spin")
    y = b.buffer("y", U32, reads=False, writes=True)
    count = index_of(rig, b, "count")

    def body(_: Node, x: Node) -> list[Node]:
        return [binary("xor", add(mul(x, 1664525), 1013904223), binary("shr", x, 7))]

    (last,) = b.loop(0, count, 1, body, [const(1, U32)])
    b.store(y, 0, last)
    return b.kernel()


@dataclass(slots=True)
class Spin:
    """A launch that makes no progress for `LONGER` times what the device allows. `found_s` is after
    which time that was found, by what a thread on this machine has for itself."""

    rig: Rig
    count: int
    found_s: float = 0.0

    @classmethod
    def of(cls, rig: Rig) -> Spin:
        """Find out how many rounds take so long. They are timed while they are far from a hang."""
        need(rig, U32)
        limit_s = progress_s(rig.device)
        if limit_s > _MOST_S:
            raise expect.Unfit(f"it takes {limit_s} s to find a hang; set a shorter time")
        with no_hang(GETS_ON):
            return cls._timed(rig, limit_s)

    @classmethod
    def _timed(cls, rig: Rig, limit_s: float) -> Spin:
        program, out, count = rig.program(spin(rig)), rig.buffer(4), 1 << 6
        alone, often = _took(rig, program, out, 1), 1
        while True:
            took = _took(rig, program, out, count, often)
            own_s, wall_s = took.own_s - alone.own_s, took.wall_s - alone.wall_s
            enough = own_s > limit_s / 20, wall_s > limit_s / 3
            if not any(enough):
                count, often = 2 * count, 1
            elif often == 1:  # once may have been late
                often = _OFTEN
            else:  # where the device computes in this process, by what it computes
                seconds = own_s if enough[0] else wall_s
                return cls(rig, int(count * LONGER * limit_s / seconds))

    def hangs(self, line: Timeline, in_graph: bool = False) -> OperationFailed:
        """Run it, and see it fail. On a busy machine the time of a few rounds says little of that
        of many: if it was reached, it runs for longer, and for much longer while what was computed
        for it in this process was less than a hang, as it is where another process computes."""
        device, program = self.rig.device, self.rig.program(spin(self.rig))
        limit_s, longer, took_s = progress_s(device), 1, 0.0
        most = np.iinfo(NUMPY[counts(self.rig)]).max
        while True:
            count = min(longer * self.count, most)
            try:
                bound = device.bind(program, (self.rig.buffer(4), count))
                if in_graph:
                    graph = device.record([LaunchCommand(bound, (1, 1, 1))])
                    point = device.replay(graph, (), line, ())
                else:
                    point = device.launch(bound, (1, 1, 1), line, ())
            except OperationFailed as error:
                # The launch before came to its end in the moment in which it was found to hang.
                if longer == 1:
                    raise
                expect.failure(error, FailureKind.HANG)
                self.found_s = took_s
                return error
            begin_s, own_s = time.monotonic(), _others_s()
            try:
                with busy.crowd() as besides:
                    reached = waited(device, point, FOUND_S)
            except OperationFailed as error:
                expect.failure(error, FailureKind.HANG)
                took_s = time.monotonic() - begin_s
                besides.count()
                elsewhere = _others_s() - own_s - besides.looked_s() < limit_s / 2
                self.found_s = besides.own_s(took_s, WAKES, elsewhere)
                return error
            took_s = time.monotonic() - begin_s
            expect.that(reached, f"a launch without progress was still open after {FOUND_S} s")
            own_s = _others_s() - own_s - besides.looked_s()
            if longer == _LONGEST or (longer >= _LONG and own_s > LONGER * limit_s):
                break
            longer *= 3
        raise expect.Wrong(
            f"a launch of one instance that computes for {longer * LONGER * limit_s:.1f} s and "
            f"stores nothing was reached: nothing found that it made no progress for {limit_s} s"
        )


@contextlib.contextmanager
def spinning(rig: Rig) -> Iterator[Spin]:
    """The body may let the device hang. Some devices are busy until the program ends, so another
    case could not run before: this waits for it."""
    endless = Spin.of(rig)
    try:
        yield endless
    finally:
        rig.device.close()
        end_s = time.monotonic() + 20 * LONGER * progress_s(rig.device)
        while not _works(rig) and time.monotonic() < end_s:
            time.sleep(0.02)


def _works(rig: Rig) -> bool:
    try:
        with another(rig) as other:
            run_addition(other, other.program(add_number(other, 1)), 1)
    except HalError:
        return False
    return True


@contextlib.contextmanager
def another(rig: Rig) -> Iterator[Rig]:
    """Sessions of their own for the body."""
    other = Rig(rig.case, rig.setting)
    try:
        yield other
    finally:
        other.close()


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of a launch: of the clock, and of processors for other threads of this process."""

    wall_s: float
    own_s: float


def _others_s() -> float:
    """Seconds of processors for other threads of this process."""
    return time.process_time() - time.thread_time()


def _took(rig: Rig, program: Program, out: Buffer, count: int, often: int = _OFTEN) -> Took:
    """The least of so many launches of that many rounds."""
    found = []
    for _ in range(often):
        own_s = _others_s()
        with stopwatch() as seconds:
            rig.done(rig.launch(program, (out, count)))
        found.append((seconds[0], _others_s() - own_s))
    wall, own = zip(*found, strict=True)
    return Took(min(wall), min(own))


@failure_real.case("real-hang", "failure.hang", timeout_s=60, how=("launch", "replay"))
def _(rig: Rig, how: str) -> None:
    """A launch that computes on and on in one instance is a hang, and so is what is behind it."""
    if how == "replay" and Feature.GRAPH not in rig.info.features:
        raise expect.Unfit("the device does not declare graph")
    with spinning(rig) as endless:
        (line,) = lines(rig, 1)
        behind = work(rig, "copy-out")
        error = endless.hangs(line, how == "replay")
        try:
            after = behind.submit(line, ())
        except OperationFailed as refused:
            expect.equal(refused.failure, error.failure, "why the next submission was refused")
        else:
            found = caught(rig.device, after).failure
            expect.equal(found, error.failure, "the cause behind the hang")
        if error.failure.scope is Scope.OPERATION:  # else the device does not say what ran
            expect.equal(behind.ran(), False, "whether what is behind the hang ran")


@failure_real.case("real-hang-in-time", "failure.hang", timeout_s=60, timed=True)
def _(rig: Rig) -> None:
    """Found within twice `Limits.progress_s`, in the best of three sessions, by the time that a
    thread on this machine has for itself."""
    most_s = 2 * progress_s(rig.device)
    took: list[float] = []
    for _ in range(3):
        with another(rig) as other, spinning(other) as endless:
            (line,) = lines(other, 1)
            endless.hangs(line)
            took.append(endless.found_s)
        if min(took) <= most_s:
            return
    raise expect.Wrong(f"the best of three took {min(took):.3f} s, allowed are {most_s} s")


@failure_real.case("close-ends-a-real-hang", "close.failed", timeout_s=60)
def _(rig: Rig) -> None:
    with spinning(rig) as endless:
        (line,) = lines(rig, 1)
        endless.hangs(line)
        rig.device.close()
        expect.equal(rig.device.health().state, HealthState.CLOSED, "the state after close")


@failure_real.case(
    "reset-ends-a-real-hang", "reset.works", "reset.clears", needs=(Feature.RESET,), timeout_s=60
)
def _(rig: Rig) -> None:
    with spinning(rig) as endless:
        (line,) = lines(rig, 1)
        endless.hangs(line)
        rig.reset()
        expect.equal(rig.device.health().state, HealthState.OK, "the state after the reset")
        rig.until(lambda: _adds(rig), "a right launch after the reset")


def _adds(rig: Rig) -> bool:
    """Whether the device computes. While what hung still runs, a launch may hang, too."""
    try:
        run_addition(rig, rig.program(add_number(rig, 3)), 3, "the device after the reset")
    except OperationFailed:
        rig.reset()
        return False
    return True


ATHREAD = """#include <slave.h>
const char f_params[] = "buffer i32";
struct args {{ long grid[3]; int *out; }};
__thread_local long x[8] __attribute__((aligned(64)));
void f(void *v) {{ struct args *p = v; (void)p; {body} }}
"""


def _outside() -> str:
    """A kernel that stores far behind its buffer."""
    b = Builder("f")
    b.store(b.buffer("out", I32, reads=False, writes=True), 1_000_000, const(1, I32))
    return print_kernel(b.kernel())


OUT = (Param("out", ParamKind.BUFFER, I32, reads=False, writes=True),)
FAULTS: Mapping[str, Mapping[str, tuple[str, tuple[FailureKind, ...]]]] = {
    HAL_TILE: {
        "outside": (_outside(), (FailureKind.LAUNCH_FAULT, FailureKind.ILLEGAL_ADDRESS)),
    },
    ATHREAD_C: {
        "outside": (
            ATHREAD.format(body="*(volatile int *)0 = 1;"),
            (FailureKind.ILLEGAL_ADDRESS, FailureKind.LAUNCH_FAULT),
        ),
        "memory": (
            ATHREAD.format(body="for (;;) ldm_malloc(40000);"),
            (FailureKind.OUT_OF_MEMORY,),
        ),
    },
}
"""By format: programs that access memory which is not theirs, and that ask for more than there is,
and the kinds of failure that say so. In other formats such a program means nothing."""


@failure_real.case("real-fault", "submit.fails", "launch.inside", what=("outside", "memory"))
def _(rig: Rig, what: str) -> None:
    """A program that faults fails its point and what depends on it, and nothing else."""
    known = [(f, FAULTS[f][what]) for f in rig.info.formats if what in FAULTS.get(f, {})]
    if not known:
        raise Unproved(f"no program in {', '.join(rig.info.formats)} can say it")
    (name, (text, kinds)), *_ = known
    need(rig, I32)
    line, *others = some(rig, 3)
    cell = rig.buffer(64)
    copy, apart = work(rig, "copy-out"), work(rig, "copy-in")
    program = rig.device.load(KernelSource(name, text, "f", OUT))
    point = rig.device.launch(rig.device.bind(program, (cell,)), (1, 1, 1), line, ())
    for free in others[-1:]:
        rig.done(apart.submit(free, ()))
    failure = caught(rig.device, point).failure
    expect.that(failure.kind in kinds, f"a fault of the program ({what}) came as {failure}")
    expect.equal(failure.scope, Scope.OPERATION, "the failure's scope")
    for waiting in (copy.submit(line, ()), *(copy.submit(o, (point,)) for o in others[:-1])):
        expect.equal(
            caught(rig.device, waiting).failure, failure, "the cause of what depends on it"
        )
    expect.equal(copy.ran(), False, "whether a copy behind the fault ran")
    expect.equal(apart.ran(), bool(others), "whether a copy apart from the fault ran")
    run_addition(rig, rig.program(add_number(rig, 2)), 2, "a launch after the fault")


@failure_real.case("real-fault-in-a-host-call", "host_call.fails", needs=(Feature.HOST_CALL,))
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    point = rig.device.host_call(_raise, line, ())
    failure = caught(rig.device, point).failure
    expect.equal(failure.kind, FailureKind.HOST_CALL, "the failure's kind")
    expect.that("no such number" in failure.message, f"the message is {failure.message!r}")


def _raise() -> None:
    raise ArithmeticError("no such number")
