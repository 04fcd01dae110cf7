"""Failures on timelines: who gets them, who does not, and that nothing runs behind them."""

from __future__ import annotations

from hal.core.description import Feature
from hal.core.errors import Failure, FailureKind, OperationFailed, Scope, StaleHandle
from hal.core.values import AllocOptions, Point
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.rig import Rig
from hal_conformance.steps import KINDS, lines, pair, up_to, work

order_poison = Cases("F", Level.ASYNC)

APART = 24
"""So many failures are told apart."""


def _failure(rig: Rig, text: str = "planted") -> Failure:
    return Failure(FailureKind.ABORTED, Scope.OPERATION, rig.name, "signal", text)


@order_poison.case("failed-wait-does-not-run", "submit.poisoned", "submit.fails", kind=KINDS)
def _(rig: Rig, kind: str) -> None:
    (line,) = lines(rig, 1)
    gate, one = rig.gate(), work(rig, kind)
    point = one.submit(line, (gate.point,))
    gate.fail(_failure(rig))
    expect.equal(rig.failed(point), _failure(rig), "the failure")
    expect.equal(one.ran(), False, f"whether a {kind} ran although its wait failed")


@order_poison.case("wait-that-failed-before", "submit.poisoned", "submit.fails", kind=KINDS)
def _(rig: Rig, kind: str) -> None:
    (line,) = lines(rig, 1)
    gate, one = rig.gate(), work(rig, kind)
    gate.fail(_failure(rig))
    point = one.submit(line, (gate.point,))
    expect.equal(rig.failed(point), _failure(rig), "the failure")
    expect.equal(one.ran(), False, f"whether a {kind} ran although its wait had failed")


@order_poison.case("fails-the-rest-of-the-timeline", "submit.fails", "submit.poisoned")
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate, fill, copy = rig.gate(), work(rig, "fill"), work(rig, "copy")
    points = [fill.submit(line, (gate.point,)), copy.submit(line, ())]
    gate.fail(_failure(rig))
    for point in [*points, copy.submit(line, ()), Point(line, 9)]:
        expect.equal(rig.failed(point), _failure(rig), f"the failure of value {point.value}")
    expect.that(not fill.ran() and not copy.ran(), "nothing ran behind the failure")


@order_poison.case("fails-over-timelines", "submit.fails", "submit.poisoned")
def _(rig: Rig) -> None:
    held = up_to(rig, 6)
    gate, copy = rig.gate(), work(rig, "copy")
    points = [gate.point]
    for line in held:
        points.append(copy.submit(line, (points[-1],)))
    gate.fail(_failure(rig))
    for point in points[::-1]:
        expect.equal(rig.failed(point), _failure(rig), "the cause at a place of the chain")
    expect.equal(copy.ran(), False, "whether a copy of the chain ran")


@order_poison.case("one-failed-wait-of-many", "submit.fails", "submit.poisoned", place=range(3))
def _(rig: Rig, place: int) -> None:
    (line,) = lines(rig, 1)
    gates, one = [rig.gate() for _ in range(3)], work(rig, "fill")
    point = one.submit(line, [gate.point for gate in gates])
    for index, gate in enumerate(gates):
        if index == place:
            gate.fail(_failure(rig))
        else:
            gate.open()
    expect.equal(rig.failed(point), _failure(rig), "the failure")
    expect.equal(one.ran(), False, "whether the fill ran")


@order_poison.case("apart-from-a-failure", "submit.apart")
def _(rig: Rig) -> None:
    line, other = lines(rig, 2)
    gate, second, fill, copy = rig.gate(), rig.gate(), work(rig, "fill"), work(rig, "copy")
    failing = fill.submit(line, (gate.point,))
    apart = copy.submit(other, (second.point,))
    gate.fail(_failure(rig))
    rig.failed(failing)
    expect.that(rig.pending(apart), "work that does not depend on the failure waits on")
    second.open()
    rig.done(apart)
    expect.equal(copy.ran(), True, "whether independent work ran")
    rig.done(fill.submit(other, ()))


@order_poison.case("reached-before-the-failure", "submit.apart", "wait.true")
def _(rig: Rig) -> None:
    line, other = lines(rig, 2)
    gate, fill, copy = rig.gate(), work(rig, "fill"), work(rig, "copy")
    reached = fill.submit(line, ())
    rig.done(reached)
    failing = fill.submit(line, (gate.point,))
    gate.fail(_failure(rig))
    rig.failed(failing)
    rig.done(reached)
    rig.done(copy.submit(other, (reached,)))
    expect.equal(copy.ran(), True, "whether work behind the reached point ran")


@order_poison.case("gate-values-before-a-failure", "signal.wakes", "submit.apart")
def _(rig: Rig) -> None:
    line, other = pair(rig)
    host, fill, copy = rig.device.create_timeline(True), work(rig, "fill"), work(rig, "copy")
    low, high = (
        fill.submit(line, (Point(host, 3),)),
        copy.submit(other, (Point(host, 4),)),
    )
    rig.device.signal(host, 3, None)
    rig.done(low)
    rig.device.signal(host, 4, _failure(rig))
    expect.equal(rig.failed(high), _failure(rig), "the failure of value 4")
    expect.equal(copy.ran(), False, "whether the copy behind value 4 ran")
    expect.that(rig.device.wait([Point(host, 3)], 0, True), "value 3 stays reached")


@order_poison.case("first-signalled-failure-is-kept", "signal.first")
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate, fill = rig.gate(), work(rig, "fill")
    gate.fail(_failure(rig, "first"))
    gate.fail(_failure(rig, "second"))
    rig.device.signal(gate.timeline, 5, None)
    for point in (gate.point, Point(gate.timeline, 5), fill.submit(line, (gate.point,))):
        expect.equal(rig.failed(point), _failure(rig, "first"), "the failure")


@order_poison.case("failures-apart", "submit.fails", "submit.poisoned", "signal.first")
def _(rig: Rig) -> None:
    """Each of many failures comes as it was signalled, to the host and to the work that waits for
    it, in whatever order they are asked for, and none in the place of another one."""
    kinds = (FailureKind.ABORTED, FailureKind.LAUNCH_FAULT, FailureKind.DATA_CORRUPTION)
    failures = [
        Failure(
            kinds[i % 3], Scope.OPERATION, rig.name, f"work {i}", f"{i} {'why ' * i}", i % 2 == 1
        )
        for i in range(APART)
    ]
    gates, fill = [rig.gate() for _ in failures], work(rig, "fill")
    for gate, failure in zip(gates, failures, strict=True):
        gate.fail(failure)
    for number in rig.random.permutation(APART):
        gate, failure = gates[number], failures[number]
        expect.equal(rig.failed(gate.point), failure, f"failure {number} of {APART}")
        (line,) = lines(rig, 1)
        behind = fill.submit(line, (gate.point,))
        what = f"failure {number} of {APART}, behind it"
        expect.equal(rig.failed(behind), failure, what)
        rig.device.free(line)


@order_poison.case("freed-gate-fails-its-waiters", "free.timeline", kind=KINDS)
def _(rig: Rig, kind: str) -> None:
    line, other = pair(rig)
    gate, one = rig.gate(), work(rig, kind)
    point = one.submit(line, (gate.point,))
    rig.device.free(gate.timeline)
    rig.failed(point)
    expect.equal(one.ran(), False, f"whether a {kind} ran although its gate was freed")
    expect.raises(StaleHandle, one.submit, other, (gate.point,))


@order_poison.case("memory-of-failed-work-comes-back", "free.returns", needs=(Feature.STATS,))
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate, before = rig.gate(), rig.device.stats("").live_nbytes
    buffer = rig.device.alloc(4096, AllocOptions())
    point = rig.device.fill(buffer.region(), b"\1", line, (gate.point,))
    rig.device.free(buffer)
    gate.fail(_failure(rig))
    rig.failed(point)
    expect.equal(rig.device.stats("").live_nbytes, before, "the bytes held after the failure")


@order_poison.case("many-waiters-of-one-failure", "wait.raises", "submit.fails")
def _(rig: Rig) -> None:
    held = up_to(rig, 20)
    gate, fill = rig.gate(), work(rig, "fill")
    points = [fill.submit(line, (gate.point,)) for line in held]
    gate.fail(_failure(rig))
    for point in points:
        expect.equal(rig.failed(point), _failure(rig), "the failure of a timeline")
    error = expect.raises(OperationFailed, rig.device.wait, points, 1, True)
    expect.equal(expect.failure(error), _failure(rig), "the failure of all points")
