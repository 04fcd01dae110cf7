"""Where the buffers of a compiled graph are: temporaries in one arena, those that wait in the
host's memory in another one there, the rest given at each run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hal.core.values import ParamKind
from stack.compiler.program import (
    BufferKind,
    BufferRef,
    Call,
    CompiledGraph,
    CopyCall,
    ExchangeCall,
    LoopCall,
)
from stack.memory.plan import Layout, Lifetime, plan
from stack.runtime.hazards import Access, ByteRange


@dataclass(frozen=True, slots=True)
class BufferRange:
    """Bytes of the arena (`argument` None), of the host's memory ("host") or of the array at that
    position in (*inputs, *outputs); `whole` tells that they are all bytes of that array."""

    argument: int | Literal["host"] | None
    offset: int
    nbytes: int
    whole: bool = False


class Placement:
    """The places of a graph's buffers, temporaries by a layout of as many bytes or more if one is
    given. An updated output is at its input's position."""

    def __init__(self, graph: CompiledGraph, alignment: int, layout: Layout | None = None) -> None:
        self.layout = layout or plan(lifetimes(graph, graph.temps), alignment)
        self.host = plan(lifetimes(graph, host_sizes(graph), "host"), alignment)
        count = len(graph.inputs)
        updated = dict(graph.updates)
        self._outputs = [updated.get(i, count + i) for i in range(len(graph.outputs))]
        self._sizes = [t.nbytes for t in (*graph.inputs, *graph.outputs)]

    def place(self, ref: BufferRef) -> BufferRange:
        if ref.kind == "temp":
            return BufferRange(None, self.layout.offsets[ref.index] + ref.offset_nbytes, ref.nbytes)
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
