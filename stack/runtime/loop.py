"""Loops: the segments of a body, submitted once for each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hal.core.values import Region, Waits
from stack.compiler.program import BufferRef, LoopCall
from stack.runtime.placement import BufferRange
from stack.runtime.segments import Regions, Segment, region_of
from stack.runtime.stream import Stream

Place = Callable[[BufferRef], BufferRange | Region]
"""Where a buffer is: in the arena, or in an array that each run gives."""


class Loop:
    """Submits a body again and again. Steps that are submitted are not waited for, but for the
    value that tells whether there is a further one."""

    def __init__(self, call: LoopCall, place: Place, body: Sequence[Segment]) -> None:
        self._steps, self._reverse, self._tested = call.steps, call.reverse, call.tested
        self._consts, self._rows, self._stacks = (
            [place(ref) for ref in refs] for refs in (call.consts, call.rows, call.stacks)
        )
        self._carried = [(place(c.begin), place(c.other), place(c.end)) for c in call.carried]
        self._body = body

    def submit(self, stream: Stream, regions: Regions, waits: Waits) -> None:
        def found(places: Iterable[BufferRange | Region]) -> list[Region]:
            return [region_of(p, regions) if isinstance(p, BufferRange) else p for p in places]

        consts, rows, stacks = map(found, (self._consts, self._rows, self._stacks))
        carried = [found(each) for each in self._carried]
        now, made = [begin for begin, _, _ in carried], 0
        if waits:  # all that follows comes behind it on the one timeline
            one = [*consts, *now, *rows][0]
            nothing = Region(one.buffer, one.offset, 0)
            stream.submitted(stream.device.fill(nothing, b"\0", stream.timeline, waits))
        while made < self._steps and (not self._tested or _is_true(stream, now[0])):
            at = self._at(made)
            into = [each[1 + (self._steps - made) % 2] for each in carried]
            given = [*consts, *now, *(self._part(r, at) for r in rows)]
            inner = [*given, *into, *(self._part(s, at) for s in stacks)]
            for segment in self._body:
                segment.submit(stream, inner, ())
            now, made = into, made + 1
            stream.throttle()
        for region, (_, _, end) in zip(now, carried, strict=True):
            if region is not end and end.nbytes:
                stream.copy(end, region)
        for stack in stacks if made < self._steps else ():
            for step in range(made, self._steps):
                rest = self._part(stack, self._at(step))
                stream.submitted(stream.device.fill(rest, b"\0", stream.timeline, ()))

    def _at(self, step: int) -> int:
        return self._steps - 1 - step if self._reverse else step

    def _part(self, whole: Region, at: int) -> Region:
        nbytes = whole.nbytes // self._steps
        return Region(whole.buffer, whole.offset + at * nbytes, nbytes)


def _is_true(stream: Stream, flag: Region) -> bool:
    """A bool on the device, read now."""
    host = bytearray(1)
    point = stream.copy(memoryview(host), flag, host)
    stream.wait(point, "the condition of a loop")
    return host[0] != 0
