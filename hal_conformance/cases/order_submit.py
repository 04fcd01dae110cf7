"""Submitted operations: at once, after their waits, in their timeline's order, each on its own."""

from __future__ import annotations

from hal.core.values import Point
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.expect import Unfit
from hal_conformance.rig import Rig
from hal_conformance.steps import (
    KINDS,
    QUIET_S,
    cells,
    element,
    lines,
    pair,
    still,
    turn,
    turned,
    up_to,
    work,
)

order_submit = Cases("F", Level.ASYNC)


@order_submit.case("waits", "submit.async", "submit.waits", kind=KINDS)
def _(rig: Rig, kind: str) -> None:
    (line,) = lines(rig, 1)
    gate, one = rig.gate(), work(rig, kind)
    point = one.submit(line, (gate.point,))
    still(rig, point, f"the {kind} that waits")
    expect.equal(one.ran(), False, "whether it ran before its wait")
    gate.open()
    rig.done(point)
    expect.equal(one.ran(), True, "whether it ran after its wait")


@order_submit.case("behind-earlier-work", "submit.order", kind=KINDS)
def _(rig: Rig, kind: str) -> None:
    (line,) = lines(rig, 1)
    gate, one, first = rig.gate(), work(rig, kind), work(rig, "fill")
    first.submit(line, (gate.point,))
    point = one.submit(line, ())
    still(rig, point, f"the {kind} behind a fill that waits")
    expect.equal(one.ran(), False, "whether it overtook the fill")
    gate.open()
    rig.done(point)
    expect.that(one.ran() and first.ran(), "both ran once the wait was over")


@order_submit.case("holds-later-work", "submit.order", kind=KINDS)
def _(rig: Rig, kind: str) -> None:
    (line,) = lines(rig, 1)
    gate, one, later = rig.gate(), work(rig, kind), work(rig, "copy")
    one.submit(line, (gate.point,))
    point = later.submit(line, ())
    still(rig, point, f"the copy behind a {kind} that waits")
    expect.equal(later.ran(), False, f"whether the copy overtook the {kind}")
    gate.open()
    rig.done(point)


@order_submit.case("every-wait-counts", "submit.waits", place=range(4))
def _(rig: Rig, place: int) -> None:
    (line,) = lines(rig, 1)
    gates, one = [rig.gate() for _ in range(4)], work(rig, "fill")
    point = one.submit(line, [gate.point for gate in gates])
    for other in (gate for i, gate in enumerate(gates) if i != place):
        other.open()
    still(rig, point, f"a fill of which wait {place} of 4 is open")
    gates[place].open()
    rig.done(point)


@order_submit.case("many-waits", "submit.waits")
def _(rig: Rig) -> None:
    gates = [rig.gate() for _ in range(50)]
    point = work(rig, "fill").submit(rig.timeline(), [gate.point for gate in gates])
    for gate in gates[:-1]:
        gate.open()
    still(rig, point, "a fill of which the last of 50 waits is open")
    gates[-1].open()
    rig.done(point)


@order_submit.case("values-count-up", "timeline.values")
def _(rig: Rig) -> None:
    line, other = lines(rig, 2)
    fill, copy = work(rig, "fill"), work(rig, "copy")
    values = [one.submit(line, ()).value for one in (fill, copy, fill, copy, copy)]
    expect.equal(values, [1, 2, 3, 4, 5], "the values of five operations")
    expect.equal(copy.submit(other, ()).value, 1, "the first value of another timeline")
    rig.done(Point(line, 5))


@order_submit.case("value-by-value", "timeline.values", "wait.true")
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gates, fill = [rig.gate() for _ in range(4)], work(rig, "fill")
    points = [fill.submit(line, (gate.point,)) for gate in gates]
    for number, gate in enumerate(gates):
        gate.open()
        rig.done(points[number])
        expect.that(all(map(rig.pending, points[number + 1 :])), "later values are not reached")
        expect.that(not any(map(rig.pending, points[: number + 1])), "earlier values stay reached")


@order_submit.case("waits-for-a-value-nobody-owes-yet", "submit.waits")
def _(rig: Rig) -> None:
    line, other = lines(rig, 2)
    late, early = work(rig, "copy"), work(rig, "fill")
    point = late.submit(line, (Point(other, 2),))
    early.submit(other, ())
    still(rig, point, "a copy that waits for the second value, of which one is submitted")
    expect.equal(late.ran(), False, "whether the copy ran")
    early.submit(other, ())
    rig.done(point)


@order_submit.case("runs-of-a-timeline-in-order", "submit.order")
def _(rig: Rig) -> None:
    dtype = element(rig, ints=True)
    (buffer,), (array,) = cells(rig, dtype, 1)
    program = rig.program(turn(dtype))
    numbers = [int(k) for k in rig.random.integers(0, 50, 60)]
    for k in numbers:
        rig.launch(program, (buffer, k))
    expect.same(rig.array(buffer, dtype), turned(array, numbers), "60 runs in order")


@order_submit.case("copies-of-a-timeline-in-order", "submit.order")
def _(rig: Rig) -> None:
    chain = [rig.buffer(rig.noise(32)) for _ in range(40)]
    first = rig.read(chain[0])
    for to, of in zip(chain[1:], chain, strict=False):
        rig.device.copy(to.region(), of.region(), rig.timeline(), ())
    expect.same_bytes(rig.read(chain[-1]), first, "the end of a chain of copies")


@order_submit.case("independent-of-a-held-timeline", "timeline.independent", kind=KINDS)
def _(rig: Rig, kind: str) -> None:
    line, other = lines(rig, 2)
    gate, one = rig.gate(), work(rig, kind)
    held = work(rig, "fill").submit(line, (gate.point,))
    rig.done(one.submit(other, ()))
    expect.that(one.ran() and rig.pending(held), "only the other timeline is held")
    gate.open()


@order_submit.case("two-held-timelines", "timeline.independent", kind=KINDS)
def _(rig: Rig, kind: str) -> None:
    line, other = lines(rig, 2)
    gate, second, one = rig.gate(), rig.gate(), work(rig, kind)
    held = work(rig, kind).submit(line, (gate.point,))
    point = one.submit(other, (second.point,))
    second.open()
    rig.done(point)
    expect.that(rig.pending(held), "the first timeline is still held")
    gate.open()
    rig.done(held)


@order_submit.case("gates-open-in-reverse", "timeline.independent", "submit.waits")
def _(rig: Rig) -> None:
    held = up_to(rig, 40)
    gates, fill = [rig.gate() for _ in held], work(rig, "fill")
    points = [fill.submit(line, (gate.point,)) for line, gate in zip(held, gates, strict=True)]
    for index in reversed(range(len(held))):
        expect.that(rig.pending(points[index]), "a held operation is open")
        gates[index].open()
        rig.done(points[index])


@order_submit.case("long-queue-behind-a-gate", "submit.async", "submit.order")
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate, buffer = rig.gate(), rig.buffer(8)
    first = rig.device.fill(buffer.region(), b"\0", line, (gate.point,))
    for number in range(1, 2001):
        last = rig.device.fill(buffer.region(), number.to_bytes(8, "little"), line, ())
    expect.equal(last.value, 2001, "the last of 2,001 values")
    expect.that(rig.pending(first), "the first fill waits")
    gate.open()
    rig.done(last)
    expect.equal(int.from_bytes(rig.read(buffer), "little"), 2000, "the last fill's pattern")


@order_submit.case("empty-operations-keep-order", "submit.order", "submit.waits")
def _(rig: Rig) -> None:
    line, other = pair(rig)
    gate, buffer = rig.gate(), rig.buffer(8)
    nothing = rig.device.copy(buffer.region(0, 0), buffer.region(8, 0), line, (gate.point,))
    empty = rig.device.fill(buffer.region(4, 0), b"\1", line, ())
    far = work(rig, "fill").submit(other, (empty,))
    still(rig, far, "a fill that waits for an empty one behind an empty copy that waits")
    expect.that(rig.pending(nothing), "the empty copy waits")
    gate.open()
    rig.done(far)


@order_submit.case("waits-of-reached-points", "submit.waits")
def _(rig: Rig) -> None:
    line, other = pair(rig)
    gate, fill = rig.gate(), work(rig, "fill")
    gate.open()
    reached = fill.submit(other, ())
    rig.done(reached)
    zero = Point(other, 0)
    rig.done(fill.submit(line, (gate.point, reached, zero, reached)))


@order_submit.case("waits-of-the-same-timeline", "submit.waits")
def _(rig: Rig) -> None:
    fill = work(rig, "fill")
    point = fill.submit(rig.timeline(), ())
    for _ in range(10):
        point = fill.submit(rig.timeline(), (point,))
    rig.done(point)


@order_submit.case("refused-calls-take-no-value", "call.refused", "timeline.values")
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    buffer, gate = rig.buffer(8), rig.gate()
    for call in (
        lambda: rig.device.fill(buffer.region(), b"abc", line, ()),
        lambda: rig.device.copy(buffer.region(0, 4), bytes(5), line, ()),
        lambda: rig.device.copy(buffer.region(4, 8), bytes(8), line, ()),
    ):
        expect.raises(ValueError, call)
    host = gate.timeline
    expect.raises(ValueError, rig.device.fill, buffer.region(), b"\0", host, ())
    expect.equal(rig.device.fill(buffer.region(), b"\0", line, ()).value, 1, "the first value")
    rig.done(Point(line, 1))


@order_submit.case("more-timelines-than-instances", "timeline.independent")
def _(rig: Rig) -> None:
    count = rig.info.limits.instances + 2
    if count > 200:
        raise Unfit(f"it needs {count} timelines")
    held, free = lines(rig, count), rig.timeline()
    gate, fill = rig.gate(), work(rig, "fill")
    points = [fill.submit(line, (gate.point,)) for line in held]
    rig.done(work(rig, "copy").submit(free, ()), timeout_s=5)
    expect.that(not rig.device.wait(points, QUIET_S, False), "no held operation ran")
    gate.open()
    for point in points:
        rig.done(point)
