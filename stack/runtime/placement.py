"""Where the buffers of a compiled graph are: temporaries in one arena, or in outputs that are not
written yet, those that wait in the host's memory in another one there, the rest given at each run.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from hal.core.facts import dataclass
from hal.core.values import ParamKind
from stack.compiler.program import (
    BufferKind,
    BufferRef,
    Call,
    CompiledGraph,
    CopyCall,
    ExchangeCall,
    KernelCall,
    LoopCall,
)
from stack.memory.plan import Layout, Lifetime, Part, plan
from stack.runtime.hazards import Access, ByteRange


@dataclass(frozen=True, slots=True)
class BufferRange:
    """Bytes of the arena (`argument` None), of the host's memory ("host") or of the array at that
    position in (*inputs, *outputs); `whole` tells that they are all bytes of that array."""

    argument: int | Literal["host"] | None
    offset: int
    nbytes: int
    whole: bool = False


GUEST_NBYTES = 1 << 16
"""From which size on temporaries lie in outputs: places there are given at each run, which takes
longer than small ones are worth."""


class Placement:
    """The places of a graph's buffers, temporaries by a layout of as many bytes or more if one is
    given. An updated output is at its input's position."""

    def __init__(self, graph: CompiledGraph, alignment: int, layout: Layout | None = None) -> None:
        count = len(graph.inputs)
        updated = dict(graph.updates)
        fresh = [i for i, t in enumerate(graph.outputs) if i not in updated]
        self._rooms = [i for i in fresh if graph.outputs[i].nbytes >= GUEST_NBYTES]
        self.layout = layout or self._planned(graph, alignment)
        self.host = plan(lifetimes(graph, host_sizes(graph), "host"), alignment)
        self._outputs = [updated.get(i, count + i) for i in range(len(graph.outputs))]
        self._sizes = [t.nbytes for t in (*graph.inputs, *graph.outputs)]

    def _planned(self, graph: CompiledGraph, alignment: int) -> Layout:
        """A layout in which large temporaries of kernels may lie in outputs that these write
        later."""
        if any(isinstance(c, LoopCall) for c in graph.calls):
            return plan(lifetimes(graph, graph.temps), alignment)
        others = [r for c in graph.calls if not isinstance(c, KernelCall) for r in refs(c)]
        large = {i for i, n in enumerate(graph.temps) if n >= GUEST_NBYTES}
        guests = large - {r.index for r in others if r.kind == "temp"}
        outputs = _in_parts(graph, [t.nbytes for t in graph.outputs], "output")
        end = len(graph.calls)
        rooms = [
            Lifetime(o.nbytes, o.first, end, tuple(replace(p, last=end) for p in o.parts))
            for o in (outputs[i] for i in self._rooms)
        ]
        temps = _in_parts(graph, graph.temps, "temp")
        return plan(temps, alignment, rooms, guests)

    def place(self, ref: BufferRef) -> BufferRange:
        if ref.kind == "temp":
            room = self.layout.room(ref.index)
            memory = None if room is None else self._outputs[self._rooms[room]]
            begin = self.layout.offsets[ref.index] + ref.offset_nbytes
            return BufferRange(memory, begin, ref.nbytes)
        if ref.kind == "host":
            return BufferRange("host", self.host.offsets[ref.index], ref.nbytes)
        argument = ref.index if ref.kind == "input" else self._outputs[ref.index]
        whole = ref.offset_nbytes == 0 and ref.nbytes == self._sizes[argument]
        return BufferRange(argument, ref.offset_nbytes, ref.nbytes, whole)

    def within(self, body: CompiledGraph) -> Placement:
        """The places of a loop's body, whose temporaries are this graph's."""
        return Placement(body, 1, self.layout)

    def access(self, call: Call) -> Access:
        """The bytes that a call reads and writes."""
        if isinstance(call, LoopCall):
            own = [
                self._span(ref) for c in call.body.calls for ref in refs(c) if ref.kind == "temp"
            ]
            written = (*map(self._span, call.writes), *own)
            return Access((*map(self._span, call.reads), *written), written)
        if isinstance(call, CopyCall):
            return Access((self._span(call.src),), (self._span(call.dst),))
        if isinstance(call, ExchangeCall):
            return Access(tuple(map(self._span, call.sources)), (self._span(call.dst),))
        reads, writes = [], []
        for param, arg in zip(call.source.params, call.args, strict=True):
            if isinstance(arg, BufferRef):
                assert param.kind is ParamKind.BUFFER, f"{param.name} takes no buffer"
                span = self._span(arg)
                reads += [span] * param.reads
                writes += [span] * param.writes
        return Access(tuple(reads), tuple(writes))

    def _span(self, ref: BufferRef) -> ByteRange:
        place = self.place(ref)
        return ByteRange(place.argument, place.offset, place.offset + place.nbytes)


def refs(call: Call) -> Sequence[BufferRef]:
    """The buffers that a call uses."""
    if isinstance(call, CopyCall):
        return (call.dst, call.src)
    if isinstance(call, ExchangeCall):
        return (call.dst, *call.sources, *call.kept)
    if isinstance(call, LoopCall):
        inner = (ref for c in call.body.calls for ref in refs(c) if ref.kind == "temp")
        return (*call.reads, *call.writes, *inner)
    return [arg for arg in call.args if isinstance(arg, BufferRef)]


def host_sizes(graph: CompiledGraph) -> list[int]:
    """The bytes of each temporary that waits in the host's memory."""
    sizes = {ref.index: ref.nbytes for c in graph.calls for ref in refs(c) if ref.kind == "host"}
    return [sizes[i] for i in range(len(sizes))]


def lifetimes(
    graph: CompiledGraph, temps: Sequence[int], kind: BufferKind = "temp"
) -> list[Lifetime]:
    """From the first to the last call that uses each temporary, of these sizes; what a loop uses
    besides its body is used in all calls of that. An unused one takes no bytes."""
    spans: dict[int, tuple[int, int]] = {}
    _note_spans(graph.calls, 0, spans, kind)
    sizes = enumerate(temps)
    return [Lifetime(n if i in spans else 0, *spans.get(i, (0, 0))) for i, n in sizes]


def _note_spans(
    calls: Sequence[Call], at: int, spans: dict[int, tuple[int, int]], kind: BufferKind
) -> int:
    """Note the first and last use of each temporary by calls that are numbered from `at` on; the
    number of the next call."""
    for call in calls:
        last, used = at, refs(call)
        if isinstance(call, LoopCall):
            last = max(at, _note_spans(call.body.calls, at, spans, kind) - 1)
            used = (*call.reads, *call.writes)
        for ref in used:
            if ref.kind == kind:
                first, end = spans.get(ref.index, (at, at))
                spans[ref.index] = min(first, at), max(end, last)
        at = last + 1
    return at


PARTS = 128
"""Into how many parts a buffer is divided at most, about."""


def _in_parts(graph: CompiledGraph, sizes: Sequence[int], kind: BufferKind) -> list[Lifetime]:
    """The same for buffers of a kind in a graph without loops, with the parts of those whose bytes
    are used at other times: what is put together, as the gradients that are clipped as one, is
    written piece by piece."""
    used: dict[int, list[tuple[int, int, int]]] = {}
    for at, call in enumerate(graph.calls):
        for ref in refs(call):
            if ref.kind == kind and ref.nbytes:
                span = ref.offset_nbytes, ref.offset_nbytes + ref.nbytes, at
                used.setdefault(ref.index, []).append(span)
    return [
        life if i not in used else replace(life, parts=_parts(life, used[i]))
        for i, life in enumerate(lifetimes(graph, sizes, kind))
    ]


def _parts(life: Lifetime, used: Sequence[tuple[int, int, int]]) -> tuple[Part, ...]:
    """The parts of a buffer by the bytes [begin, end) that calls use; none where all of it is used
    from the first call on to the last one. Small neighbours are one."""
    cuts = {0, life.nbytes}
    if len({(begin, end) for begin, end, _ in used}) > 1:
        cuts |= {at for begin, end, _ in used for at in (begin, end)}
    ends = sorted(cuts)
    first, last = [life.last] * len(ends), [life.first] * len(ends)
    place = {end: i for i, end in enumerate(ends)}
    for begin, end, at in used:
        for i in range(place[begin], place[end]) if begin in place else ():
            if at < first[i]:
                first[i] = at
            if at > last[i]:
                last[i] = at
    found: list[Part] = []
    for (begin, end), i, j in zip(pairwise(ends), first, last, strict=False):
        i, j = min(i, j), max(i, j)
        small = found and (end - found[-1].begin) * PARTS < life.nbytes
        same = found and (found[-1].first, found[-1].last) == (i, j)
        if small or same:
            p = found.pop()
            begin, i, j = p.begin, min(p.first, i), max(p.last, j)
        found.append(Part(begin, end, i, j))
    return tuple(found) if len(found) > 1 else ()
