"""Failures of one operation: as they were given, to all that depends on it and to nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hal.core.description import Feature
from hal.core.errors import (
    CompileError,
    DeviceLost,
    Failure,
    FailureKind,
    OperationFailed,
    OutOfMemory,
    Scope,
)
from hal.core.values import AllocOptions, FillCommand, HealthState, Point
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import together
from hal_conformance.faults import FAULT, HOOKS, caught, plant, planted
from hal_conformance.rig import Rig
from hal_conformance.steps import element, lines, pair, some, stamp, work

failure_operation = Cases("I", Level.RESILIENT)

NEEDS = (Feature.INJECT,)
OPERATION, QUEUE = Scope.OPERATION, Scope.QUEUE
KINDS = {
    FailureKind.LAUNCH_FAULT: ("launch", OPERATION),
    FailureKind.ILLEGAL_ADDRESS: ("launch", OPERATION),
    FailureKind.OUT_OF_MEMORY: ("launch", OPERATION),
    FailureKind.DATA_CORRUPTION: ("copy", OPERATION),
    FailureKind.PARTIAL_WRITE: ("copy", OPERATION),
    FailureKind.LINK_DOWN: ("copy", Scope.LINK),
    FailureKind.ABORTED: ("fill", QUEUE),
}


@failure_operation.case("fails", "inject.true", "wait.raises", needs=NEEDS, hook=HOOKS)
def _(rig: Rig, hook: str) -> None:
    (line,) = lines(rig, 1)
    one, failure = work(rig, hook), planted(rig.device, FAULT, hook=hook)
    plant(rig.device, failure, hook)
    error = caught(rig.device, one.submit(line, ()))
    expect.that(not isinstance(error, DeviceLost), "a failed operation is no lost device")
    expect.equal(error.failure, failure, "the failure")
    expect.that(str(failure) in str(error), f"the error says what failed: {error}")
    expect.equal(rig.device.health().state, HealthState.OK, "the device's state")


@failure_operation.case("kind", "inject.true", "wait.raises", needs=NEEDS, kind=tuple(KINDS))
def _(rig: Rig, kind: FailureKind) -> None:
    hook, scope = KINDS[kind]
    (line,) = lines(rig, 1)
    one, failure = work(rig, hook), planted(rig.device, (kind, scope), hook=hook)
    plant(rig.device, failure, hook)
    error = caught(rig.device, one.submit(line, ()))
    expect.failure(error, kind, scope)
    expect.equal(error.failure, failure, "the failure")
    expect.equal(rig.device.health().state, HealthState.OK, "the device's state")


@failure_operation.case("every-word-arrives", "inject.true", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    words = "matmul_0 [tile 3,4]: \u00fcberlauf, 100 % of {limit}\n" * 20
    failure = replace(planted(rig.device), operation="launch matmul_0", message=words)
    failure = replace(failure, retryable=True)
    plant(rig.device, failure, "launch")
    error = caught(rig.device, work(rig, "launch").submit(line, ()))
    expect.equal(error.failure, failure, "the failure")


@failure_operation.case(
    "reaches-all-that-depends", "submit.fails", "submit.poisoned", needs=NEEDS, hook=HOOKS
)
def _(rig: Rig, hook: str) -> None:
    """Behind it on its timeline, on another one, and behind that one's, wherever they wait."""
    line, *others = some(rig, 3)
    gate, one, copy = rig.gate(), work(rig, hook), work(rig, "copy-in")
    failure = plant(rig.device, planted(rig.device, hook=hook), hook)
    failed = one.submit(line, (gate.point,))
    points = [copy.submit(line, ())]
    last = failed
    for other in others:
        last = copy.submit(other, (last,))
        points += [last, copy.submit(other, ())]
    gate.open()
    for point in [failed, *points, copy.submit(line, ()), Point((line, *others)[-1], 7)]:
        expect.equal(caught(rig.device, point).failure, failure, "the cause at a dependent point")
    expect.equal(copy.ran(), False, "whether an operation behind the failure ran")


@failure_operation.case(
    "dependents-of-every-kind", "submit.fails", "submit.poisoned", needs=NEEDS, hook=HOOKS
)
def _(rig: Rig, hook: str) -> None:
    line, *others = some(rig, 2)
    fill, one = work(rig, "fill"), work(rig, hook)
    failure = plant(rig.device, planted(rig.device, hook="fill"), "fill")
    point = one.submit((line, *others)[-1], (fill.submit(line, ()),))
    expect.equal(caught(rig.device, point).failure, failure, "the cause")
    expect.equal(one.ran(), False, f"whether a {hook} behind the failure ran")


@failure_operation.case(
    "leaves-others-alone", "submit.apart", needs=NEEDS, scope=(OPERATION, QUEUE)
)
def _(rig: Rig, scope: Scope) -> None:
    line, *others = lines(rig, 5)
    gates, fill = [rig.gate() for _ in others], work(rig, "fill")
    works = [work(rig, "copy") for _ in others]
    points = [
        one.submit(other, (gate.point,))
        for one, other, gate in zip(works, others, gates, strict=True)
    ]
    plant(rig.device, planted(rig.device, (FailureKind.LAUNCH_FAULT, scope)), "fill")
    caught(rig.device, fill.submit(line, ()))
    for point, one, gate in zip(points, works, gates, strict=True):
        expect.that(rig.pending(point), "independent work waits on")
        gate.open()
        rig.done(point)
        expect.equal(one.ran(), True, "whether independent work ran")


@failure_operation.case("works-on-another-timeline", "submit.apart", needs=NEEDS, hook=HOOKS)
def _(rig: Rig, hook: str) -> None:
    line, other = lines(rig, 2)
    one = work(rig, hook)
    plant(rig.device, planted(rig.device, hook=hook), hook)
    caught(rig.device, one.submit(line, ()))
    again = work(rig, hook)
    rig.done(again.submit(other, ()))
    expect.equal(again.ran(), True, f"whether the next {hook} ran")


@failure_operation.case("nth-call", "inject.true", needs=NEEDS, nth=(1, 2, 5))
def _(rig: Rig, nth: int) -> None:
    line, other = lines(rig, 2)
    fill, copy = work(rig, "fill"), work(rig, "copy")
    failure = plant(rig.device, planted(rig.device), "fill", nth)
    points = [fill.submit(line, ()) for _ in range(nth)]
    rig.done(copy.submit(other, ()))
    for point in points[:-1]:
        rig.done(point)
    expect.equal(caught(rig.device, points[-1]).failure, failure, f"the failure of call {nth}")
    rig.done(fill.submit(other, ()))


@failure_operation.case("only-its-hook", "inject.true", needs=NEEDS)
def _(rig: Rig) -> None:
    line, other = pair(rig)
    failure = plant(rig.device, planted(rig.device), "launch")
    for kind in ("fill", "copy", "copy-in", "copy-out"):
        rig.done(work(rig, kind).submit(other, ()))
    error = caught(rig.device, work(rig, "launch").submit(line, ()))
    expect.equal(error.failure, failure, "the failure of the launch")


@failure_operation.case("first-cause-stays", "submit.fails", needs=NEEDS)
def _(rig: Rig) -> None:
    """A second fault on a timeline that has failed changes nothing."""
    (line,) = lines(rig, 1)
    gate, fill, copy = rig.gate(), work(rig, "fill"), work(rig, "copy")
    first = plant(rig.device, planted(rig.device, text="first"), "fill")
    plant(rig.device, planted(rig.device, text="second"), "copy")
    points = [fill.submit(line, (gate.point,)), copy.submit(line, ())]
    gate.open()
    for point in [*points, fill.submit(line, ())] * 2:
        expect.equal(caught(rig.device, point).failure, first, "the cause")


@failure_operation.case("reached-before-it", "submit.apart", "wait.true", needs=NEEDS)
def _(rig: Rig) -> None:
    line, other = lines(rig, 2)
    fill, copy = work(rig, "fill"), work(rig, "copy")
    before = copy.submit(line, ())
    plant(rig.device, planted(rig.device), "fill")
    caught(rig.device, fill.submit(line, ()))
    rig.done(before)
    rig.done(work(rig, "copy-in").submit(other, (before,)))


@failure_operation.case("eight-waiters-wake", "wait.raises", "call.threads", needs=NEEDS)
def _(rig: Rig) -> None:
    line, other = pair(rig)
    gate, fill, copy = rig.gate(), work(rig, "fill"), work(rig, "copy")
    failure = plant(rig.device, planted(rig.device), "fill")
    first = fill.submit(line, (gate.point,))
    points = [first, copy.submit(line, ()), copy.submit(other, (first,)), Point(line, 5)] * 2

    def opener() -> Failure:
        rig.device.wait([first], 0.02, True)
        gate.open()
        return failure

    def met(point: Point) -> Failure:
        return caught(rig.device, point).failure

    calls: list[Callable[[], Failure]] = [partial(met, point) for point in points]
    expect.equal(together([*calls, opener]), [failure] * 9, "what the waiters got")


@failure_operation.case("partial-write", "inject.true", needs=NEEDS, hook=("copy", "fill"))
def _(rig: Rig, hook: str) -> None:
    """A part is written, and the point tells that it was not all."""
    (line,) = lines(rig, 1)
    old, new = bytes(4096), b"\x09" * 4096
    target, source = rig.buffer(old), rig.buffer(new)
    how = (FailureKind.PARTIAL_WRITE, OPERATION)
    failure = plant(rig.device, planted(rig.device, how, hook=hook), hook)
    if hook == "copy":
        point = rig.device.copy(target.region(), source.region(), line, ())
    else:
        point = rig.device.fill(target.region(), b"\x09", line, ())
    expect.equal(caught(rig.device, point).failure, failure, "the failure")
    found = rig.read(target)
    expect.that(set(found) == {0, 9}, f"the target holds the bytes {set(found)}, expected 0 and 9")


@failure_operation.case("out-of-memory-at-alloc", "inject.true", "alloc.exhausted", needs=NEEDS)
def _(rig: Rig) -> None:
    how = (FailureKind.OUT_OF_MEMORY, OPERATION)
    plant(rig.device, planted(rig.device, how, hook="alloc"), "alloc", 2)
    first = rig.device.alloc(64, AllocOptions())
    error = expect.raises(OutOfMemory, rig.device.alloc, 64, AllocOptions())
    expect.equal(error.requested, 64, "the bytes that the error says were asked for")
    second = rig.buffer(b"\1" * 64)
    rig.write(first.region(), b"\2" * 64)
    expect.same_bytes(rig.read(second), b"\1" * 64, "a buffer made after the error")


@failure_operation.case("compile-error-at-load", "inject.true", needs=NEEDS)
def _(rig: Rig) -> None:
    source = rig.source(stamp(element(rig)))
    how = (FailureKind.COMPILE, OPERATION)
    failure = plant(rig.device, planted(rig.device, how, hook="load"), "load")
    error = expect.raises(CompileError, rig.device.load, source)
    said = f"{error} {error.log}"
    expect.that(failure.message in said, f"the error says what was planted: {said}")
    rig.device.free(rig.device.load(source))


@failure_operation.case("failed-replay-can-run-again", "replay.fails", "replay.same", needs=NEEDS)
def _(rig: Rig) -> None:
    line, other = lines(rig, 2)
    work(rig, "replay")
    cell = rig.buffer(bytes(16))
    graph = rig.device.record([FillCommand(cell.region(8 * i, 8), b"\3") for i in range(2)])
    failure = plant(rig.device, planted(rig.device), "replay")
    expect.equal(
        caught(rig.device, rig.device.replay(graph, (), line, ())).failure, failure, "the failure"
    )
    rig.done(rig.device.replay(graph, (), other, ()))
    expect.same_bytes(rig.read(cell), b"\3" * 16, "what the second replay wrote")


@failure_operation.case("nothing-is-swallowed", "inject.true", "submit.fails", needs=NEEDS)
def _(rig: Rig) -> None:
    """Of ten faults among sixty operations, each on a timeline of its own, every one is raised."""
    held, fill = lines(rig, 60), work(rig, "fill")
    at = sorted(int(i) + 1 for i in rig.random.choice(60, 10, replace=False))
    wanted = {nth: planted(rig.device, text=f"fault {nth}") for nth in at}
    for nth, failure in wanted.items():
        plant(rig.device, failure, "fill", nth)
    points = [fill.submit(line, ()) for line in held]
    found = {}
    for nth, point in enumerate(points, 1):
        try:
            rig.done(point)
        except OperationFailed as error:
            found[nth] = error.failure
    expect.equal(found, wanted, "the failures by number of the operation")


@failure_operation.case("nothing-fails-unasked", "submit.apart", "wait.raises", needs=NEEDS)
def _(rig: Rig) -> None:
    """2,000 operations after a failure elsewhere, and not one more failure."""
    line, *held = lines(rig, 5)
    plant(rig.device, planted(rig.device), "fill")
    cell, log = rig.buffer(8), rig.buffer(8 * 1000)
    caught(rig.device, rig.device.fill(cell.region(), b"\0", line, ()))
    gate = rig.gate()
    point = gate.point
    for number in range(1000):
        pattern, region = number.to_bytes(8, "little"), log.region(8 * number, 8)
        wrote = rig.device.fill(cell.region(), pattern, held[number % 4], (point,))
        point = rig.device.copy(region, cell.region(), held[(number + 1) % 4], (wrote,))
    gate.open()
    rig.done(point)
    wanted = b"".join(n.to_bytes(8, "little") for n in range(1000))
    expect.same_bytes(rig.read(log), wanted, "the log of 1,000 rounds")


@failure_operation.case(
    "failed-work-gives-memory-back", "free.returns", needs=(Feature.INJECT, Feature.STATS)
)
def _(rig: Rig) -> None:
    line, other = pair(rig)
    gate, before = rig.gate(), rig.device.stats("").live_nbytes
    buffers = [rig.device.alloc(4096, AllocOptions()) for _ in range(2)]
    plant(rig.device, planted(rig.device), "fill")
    failed = rig.device.fill(buffers[0].region(), b"\1", line, (gate.point,))
    behind = rig.device.copy(buffers[1].region(), buffers[0].region(), other, (failed,))
    for buffer in buffers:
        rig.device.free(buffer)
    gate.open()
    caught(rig.device, behind)
    expect.equal(rig.device.stats("").live_nbytes, before, "the bytes held after the failure")
