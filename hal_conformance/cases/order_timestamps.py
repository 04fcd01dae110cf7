"""Timestamps: spans lie where the work was, and in the order that it was asked for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from hal.core.description import Feature
from hal.core.errors import InvalidCall
from hal.core.values import FillCommand, Point, Span
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.rig import Rig
from hal_conformance.steps import KINDS, lines, work

order_timestamps = Cases("F", Level.ASYNC)

NEEDS = (Feature.TIMESTAMPS,)
_MUCH = 32 << 20
_VALUES = (18, 258, 1026)
"""Behind the powers of two at which a ring of spans may end."""


def _check(spans: Sequence[Span], count: int, begin_ns: int, end_ns: int) -> None:
    """So many spans, each of a time that is not negative, between the two moments."""
    expect.equal(len(spans), count, "the number of spans")
    for span in spans:
        expect.that(span.start_ns <= span.end_ns, f"{span} ends before it starts")
        expect.that(begin_ns <= span.start_ns, f"{span} starts before {begin_ns}")
        expect.that(span.end_ns <= end_ns, f"{span} ends after {end_ns}")


@order_timestamps.case("span-lies-in-its-time", "timestamps.true", needs=NEEDS, kind=KINDS)
def _(rig: Rig, kind: str) -> None:
    (line,) = lines(rig, 1)
    one = work(rig, kind)
    begin_ns = time.monotonic_ns()
    point = one.submit(line, ())
    rig.done(point)
    _check(rig.device.timestamps(point), 1, begin_ns, time.monotonic_ns())


@order_timestamps.case("span-of-much", "timestamps.true", needs=NEEDS)
def _(rig: Rig) -> None:
    """A span of work that takes nearly all the time that the host waits for it is no longer than
    that."""
    (line,), nbytes = lines(rig, 1), min(_MUCH, rig.info.limits.alloc_nbytes // 4)
    target, source = rig.buffer(nbytes), rig.buffer(nbytes)
    for _ in range(3):
        begin_ns = time.monotonic_ns()
        point = rig.device.copy(target.region(), source.region(), line, ())
        rig.done(point)
        _check(rig.device.timestamps(point), 1, begin_ns, time.monotonic_ns())


@order_timestamps.case("span-starts-after-its-wait", "timestamps.true", "submit.waits", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate = rig.gate()
    point = work(rig, "copy").submit(line, (gate.point,))
    time.sleep(0.002)
    opened_ns = time.monotonic_ns()
    gate.open()
    rig.done(point)
    _check(rig.device.timestamps(point), 1, opened_ns, time.monotonic_ns())


@order_timestamps.case("spans-of-a-timeline", "timestamps.true", "submit.order", needs=NEEDS)
def _(rig: Rig) -> None:
    fill, copy = work(rig, "fill"), work(rig, "copy")
    points = [one.submit(rig.timeline(), ()) for one in (fill, copy) * 10]
    rig.done(points[-1])
    spans = [span for point in points for span in rig.device.timestamps(point)]
    edges = [edge for span in spans for edge in (span.start_ns, span.end_ns)]
    expect.equal(len(edges), 40, "the edges of 20 spans")
    expect.equal(edges, sorted(edges), "the edges in the order of the operations")


@order_timestamps.case("spans-across-timelines", "timestamps.true", "submit.waits", needs=NEEDS)
def _(rig: Rig) -> None:
    held, gate, copy = lines(rig, 3), rig.gate(), work(rig, "copy")
    points = [gate.point]
    for index in range(12):
        points.append(copy.submit(held[index % 3], (points[-1],)))
    gate.open()
    rig.done(points[-1])
    spans = [rig.device.timestamps(point)[0] for point in points[1:]]
    for before, after in itertools.pairwise(spans):
        expect.that(before.end_ns <= after.start_ns, f"{after} starts before {before} ends")


@order_timestamps.case("span-of-the-newest", "timestamps.true", needs=NEEDS)
def _(rig: Rig) -> None:
    """However many operations were before it on the timeline."""
    fill = work(rig, "fill")
    for value in range(1, max(_VALUES) + 1):
        if value in _VALUES:
            rig.done(Point(rig.timeline(), value - 1))
        begin_ns = time.monotonic_ns()
        point = fill.submit(rig.timeline(), ())
        if value in _VALUES:
            rig.done(point)
            _check(rig.device.timestamps(point), 1, begin_ns, time.monotonic_ns())


@order_timestamps.case(
    "span-for-each-command",
    "timestamps.true",
    needs=(Feature.TIMESTAMPS, Feature.GRAPH),
    count=(5, 71, 263),
)
def _(rig: Rig, count: int) -> None:
    """In the order of the commands, of which each waits for all before it."""
    buffer = rig.buffer(8 * count)
    graph = rig.device.record([FillCommand(buffer.region(8 * i, 8), b"\1") for i in range(count)])
    begin_ns = time.monotonic_ns()
    point = rig.device.replay(graph, (), rig.timeline(), ())
    rig.done(point)
    spans = rig.device.timestamps(point)
    _check(spans, count, begin_ns, time.monotonic_ns())
    starts = [span.start_ns for span in spans]
    expect.equal(starts, sorted(starts), "the starts of the spans in the order of the commands")


@order_timestamps.case("no-span-before-the-point", "timestamps.true", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate = rig.gate()
    point = work(rig, "fill").submit(line, (gate.point,))
    expect.raises(InvalidCall, rig.device.timestamps, point)
    expect.raises(InvalidCall, rig.device.timestamps, Point(line, 9))
    gate.open()
    rig.done(point)
