"""Loops: the segments of a body, submitted once for each step, or for several short ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from hal.core.values import Region, Waits
from stack.compiler.program import BufferRef, Call, CompiledGraph, CopyCall, KernelCall, LoopCall
from stack.runtime.placement import BufferRange
from stack.runtime.segments import Regions, Segment, region_of
from stack.runtime.stream import Stream

Place = Callable[[BufferRef], BufferRange | Region]
"""Where a buffer is: in the arena, or in an array that each run gives."""


AT_ONCE = 96
"""Calls of the steps that are submitted at once, at most. On Zen 3 a submission takes its caller
some ten microseconds, in which it could launch as many kernels."""


WRITTEN_OUT = 320
"""Calls of a loop at most that become calls of the graph around it, as those of a loop over the
columns of a panel in each step of one over the panels. A loop is else submitted apart from what is
before and behind it."""


def written_out(graph: CompiledGraph) -> CompiledGraph:
    """The same calls, in which short loops are their steps. Their number is known when a plan is
    made."""
    if not any(isinstance(c, LoopCall) for c in graph.calls):
        return graph
    calls = list[Call]()
    for call in graph.calls:
        if not isinstance(call, LoopCall):
            calls.append(call)
            continue
        body = written_out(call.body)
        is_short = call.steps * len(body.calls) <= WRITTEN_OUT
        if call.tested or not is_short or any(isinstance(c, LoopCall) for c in body.calls):
            calls.append(replace(call, body=body))
        else:
            calls += (c for step in range(call.steps) for c in _made(call, body, step))
    return replace(graph, calls=tuple(calls))


def _made(call: LoopCall, body: CompiledGraph, step: int) -> Iterator[Call]:
    """The calls of a step, on the buffers around the loop."""
    at = call.steps - 1 - step if call.reverse else step

    def part(whole: BufferRef) -> BufferRef:
        nbytes = whole.nbytes // call.steps
        return replace(whole, offset_nbytes=whole.offset_nbytes + at * nbytes, nbytes=nbytes)

    to_end = (call.steps - step) % 2
    before = [c.begin if not step else c.other if to_end else c.end for c in call.carried]
    after = [c.end if to_end else c.other for c in call.carried]
    places = {
        "input": [*call.consts, *before, *map(part, call.rows)],
        "output": [*after, *map(part, call.stacks)],
    }

    def named(ref: BufferRef) -> BufferRef:
        if ref.kind not in places:
            return ref
        whole = places[ref.kind][ref.index]
        return replace(
            whole, offset_nbytes=whole.offset_nbytes + ref.offset_nbytes, nbytes=ref.nbytes
        )

    for c in body.calls:
        yield _renamed(c, named)


def _renamed(call: Call, name: Callable[[BufferRef], BufferRef]) -> Call:
    if isinstance(call, CopyCall):
        return CopyCall(name(call.dst), name(call.src))
    assert isinstance(call, KernelCall), "a step without loops is launches and copies"
    return replace(call, args=tuple(name(a) if isinstance(a, BufferRef) else a for a in call.args))


def steps_at_once(call: LoopCall) -> int:
    """How many steps are submitted at once: 0, or an even number, of which the last one leaves the
    carried values where a loop ends. There is one step before these at least."""
    if call.tested:
        return 0
    return min(AT_ONCE // max(1, len(call.body.calls)), call.steps - 1) // 2 * 2


def several(call: LoopCall, steps: int) -> CompiledGraph:
    """So many steps, an even number, as one graph. Its inputs are the constants, then the rows of
    each step; its outputs two places for each carried value, the second of which has the value
    that the first step takes, and will have the one that the last step gives, then the stacks of
    each step."""
    body, consts, carried = call.body, len(call.consts), len(call.carried)
    rows, stacks = len(call.rows), len(call.stacks)

    def named(ref: BufferRef, step: int) -> BufferRef:
        i = ref.index
        before, after = (carried, 0) if step % 2 == 0 else (0, carried)
        if ref.kind == "input" and consts <= i < consts + carried:
            return replace(ref, kind="output", index=before + i - consts)
        if ref.kind == "input" and i >= consts:
            return replace(ref, index=i - carried + step * rows)
        if ref.kind == "output" and i < carried:
            return replace(ref, index=after + i)
        if ref.kind == "output":
            return replace(ref, index=carried + i + step * stacks)
        return ref

    given, kept = body.inputs[consts + carried :], body.outputs[carried:]
    return CompiledGraph(
        (*body.inputs[:consts], *given * steps),
        (*body.outputs[:carried] * 2, *kept * steps),
        (),
        body.temps,
        tuple(_renamed(c, partial(named, step=step)) for step in range(steps) for c in body.calls),
    )


class Loop:
    """Submits a body again and again. Steps that are submitted are not waited for, but for the
    value that tells whether there is a further one."""

    def __init__(
        self,
        call: LoopCall,
        place: Place,
        body: Sequence[Segment],
        at_once: int = 0,
        many: Sequence[Segment] = (),
    ) -> None:
        self._steps, self._reverse, self._tested = call.steps, call.reverse, call.tested
        self._consts, self._rows, self._stacks = (
            [place(ref) for ref in refs] for refs in (call.consts, call.rows, call.stacks)
        )
        self._carried = [(place(c.begin), place(c.other), place(c.end)) for c in call.carried]
        self._body = body
        self._at_once, self._many = at_once, many

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
        alone = self._steps
        if self._at_once:
            alone = 1 + (self._steps - 1) % self._at_once
        while made < alone and (not self._tested or _is_true(stream, now[0])):
            into = [each[1 + (self._steps - made) % 2] for each in carried]
            given = [*consts, *now, *self._parts(rows, made, 1)]
            inner = [*given, *into, *self._parts(stacks, made, 1)]
            for segment in self._body:
                segment.submit(stream, inner, ())
            now, made = into, made + 1
            stream.throttle()
        places = [each[i] for i in (1, 2) for each in carried]
        while alone <= made < self._steps:
            inner = [*consts, *self._parts(rows, made, self._at_once)]
            inner += [*places, *self._parts(stacks, made, self._at_once)]
            for segment in self._many:
                segment.submit(stream, inner, ())
            made += self._at_once
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

    def _parts(self, wholes: Sequence[Region], first: int, steps: int) -> list[Region]:
        """What these steps have of each."""
        return [self._part(w, self._at(first + k)) for k in range(steps) for w in wholes]

    def _part(self, whole: Region, at: int) -> Region:
        nbytes = whole.nbytes // self._steps
        return Region(whole.buffer, whole.offset + at * nbytes, nbytes)


def _is_true(stream: Stream, flag: Region) -> bool:
    """A bool on the device, read now."""
    host = bytearray(1)
    point = stream.copy(memoryview(host), flag, host)
    stream.wait(point, "the condition of a loop")
    return host[0] != 0
