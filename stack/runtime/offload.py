"""Temporaries that wait in the host's memory between two calls that use them. Pure.

A copy behind the one call and another before the next one leave every other call as it is, so
nothing changes but where bytes are: results have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from hal.core.facts import dataclass
from stack.compiler.program import (
    BufferRef,
    Call,
    CompiledGraph,
    CopyCall,
    ExchangeCall,
    KernelCall,
    LoopCall,
)
from stack.runtime.placement import lifetimes, refs

NbytesOf = Callable[[CompiledGraph], int]


@dataclass(frozen=True, slots=True)
class _Idle:
    """A temporary that holds a value between two calls, by their places, and is not used."""

    temp: int
    after: int
    before: int
    nbytes: int

    @property
    def worth(self) -> int:
        return self.nbytes * (self.before - self.after)


STEPS = 64
"""How many limits of the bytes in use are tried, of equal distances."""


def offloaded(
    graph: CompiledGraph, budget: int, host_budget: int, nbytes_of: NbytesOf
) -> CompiledGraph:
    """The graph with as many values copied to the host's memory, and back, as it takes to need at
    most `budget` bytes by `nbytes_of`, and at most `host_budget` there; with those that leave the
    least, where that is not enough.

    Where most is in use the value is taken that saves the most bytes for the longest time. What is
    placed leaves gaps, so less in use may take more. That all budgets have one least, the same
    limits are tried for each of them, first those that may be enough.
    """
    whole = nbytes_of(graph)
    if whole <= budget or host_budget <= 0:
        return graph
    spans = lifetimes(graph, graph.temps)
    live = [0] * len(graph.calls)
    for span, steps in zip(spans, _steps_of(graph), strict=True):
        for i in range(steps[0], steps[-1] + 1) if steps else ():
            live[i] += span.nbytes
    most = max(live, default=0)
    chosen, peaks = list[_Idle](), [most]
    picks = _picks(graph, live, host_budget)
    tried = {0: (whole, graph)}

    def waiting(limit: int) -> tuple[int, CompiledGraph]:
        """With as many values at the host as it takes that `limit` bytes are in use at most, or
        with all; and what that needs."""
        while peaks[-1] > limit and (pick := next(picks, None)) is not None:
            chosen.append(pick)
            peaks.append(max(live))
        count = next((i for i, peak in enumerate(peaks) if peak <= limit), len(chosen))
        if count not in tried:
            made = _with_copies(graph, chosen[:count])
            tried[count] = nbytes_of(made), made
        return tried[count]

    enough = most - (whole - budget)  # if gaps take as much as they do now
    limits = [most - most * i // STEPS for i in range(1, STEPS + 1)]
    for limit in sorted(limits, key=lambda n: (n > enough, abs(n - enough))):
        nbytes, found = waiting(limit)
        if nbytes <= budget:
            fewer_nbytes, fewer = waiting(max(limit, enough))
            return fewer if fewer_nbytes <= budget else found
    return min(tried.values(), key=lambda pair: pair[0])[1]


def copied_nbytes(graph: CompiledGraph) -> int:
    """The bytes that a run copies to the host's memory and back."""
    copies = (c for c in graph.calls if isinstance(c, CopyCall))
    return sum(c.dst.nbytes for c in copies if "host" in (c.dst.kind, c.src.kind))


def _steps_of(graph: CompiledGraph) -> list[list[int]]:
    """The places of the calls that use each temporary."""
    steps: list[list[int]] = [[] for _ in graph.temps]
    for i, call in enumerate(graph.calls):
        for index in dict.fromkeys(ref.index for ref in refs(call) if ref.kind == "temp"):
            steps[index].append(i)
    return steps


def _sent(graph: CompiledGraph) -> dict[int, tuple[int, int]]:
    """From which call to which one nothing may overwrite a temporary that is sent: another rank may
    not have asked for it, and wait for what comes behind that."""
    found: dict[int, tuple[int, int]] = {}
    begins: dict[int, int] = {}
    for i, call in enumerate(graph.calls):
        if isinstance(call, ExchangeCall):
            for ref in call.kept:
                if ref.kind == "temp" and ref.index in begins:
                    found[ref.index] = begins[ref.index], i
            for ref in call.sources:
                if ref.kind == "temp":
                    begins.setdefault(ref.index, i)
    return found


def _picks(graph: CompiledGraph, live: list[int], host_budget: int) -> Iterator[_Idle]:
    """What waits in the host's memory, in the order in which it is taken; `live` has the bytes that
    are in use during each call, less with each of them."""
    sent = _sent(graph)
    left = [
        _Idle(temp, after, before, graph.temps[temp])
        for temp, steps in enumerate(_steps_of(graph))
        for after, before in pairwise(steps)
        if before - after > 1 and graph.temps[temp]
        if not (temp in sent and sent[temp][0] <= after and before <= sent[temp][1])
    ]
    kept: set[int] = set()
    while live:
        peak = max(range(len(live)), key=live.__getitem__)
        fitting = [
            p
            for p in left
            if p.after < peak < p.before and (p.temp in kept or p.nbytes <= host_budget)
        ]
        if not fitting:
            return
        pick = max(fitting, key=lambda p: (p.worth, -p.temp, -p.after))
        left.remove(pick)
        host_budget -= 0 if pick.temp in kept else pick.nbytes
        kept.add(pick.temp)
        for i in range(pick.after + 1, pick.before):
            live[i] -= pick.nbytes
        yield pick


def _with_copies(graph: CompiledGraph, chosen: Sequence[_Idle]) -> CompiledGraph:
    """The graph with a place in the host's memory for each temporary that waits there. What comes
    back is another temporary; a value that is there already and was not overwritten since is not
    copied there again."""
    after = {(p.temp, p.after) for p in chosen}
    before = {(p.temp, p.before) for p in chosen}
    slots = {temp: i for i, temp in enumerate(dict.fromkeys(p.temp for p in chosen))}
    temps, calls = list(graph.temps), list[Call]()
    now = {temp: temp for temp in slots}
    stored: set[int] = set()

    def named(ref: BufferRef) -> BufferRef:
        return replace(ref, index=now.get(ref.index, ref.index)) if ref.kind == "temp" else ref

    def sides(temp: int) -> tuple[BufferRef, BufferRef]:
        nbytes = graph.temps[temp]
        return BufferRef("host", slots[temp], 0, nbytes), BufferRef("temp", now[temp], 0, nbytes)

    for i, call in enumerate(graph.calls):
        used = dict.fromkeys(ref.index for ref in refs(call) if ref.kind == "temp")
        for temp in used:
            if (temp, i) in before:
                now[temp] = len(temps)
                temps.append(graph.temps[temp])
                host, own = sides(temp)
                calls.append(CopyCall(own, host))
        calls.append(_renamed(call, named))
        stored -= {ref.index for ref in _written(call) if ref.kind == "temp"}
        for temp in used:
            if (temp, i) in after and temp not in stored:
                calls.append(CopyCall(*sides(temp)))
                stored.add(temp)
    return replace(graph, temps=tuple(temps), calls=tuple(calls))


def _renamed(call: Call, name: Callable[[BufferRef], BufferRef]) -> Call:
    if isinstance(call, ExchangeCall | LoopCall):
        return call.renamed(name)
    if isinstance(call, CopyCall):
        return CopyCall(name(call.dst), name(call.src))
    args = (name(arg) if isinstance(arg, BufferRef) else arg for arg in call.args)
    return replace(call, args=tuple(args))


def _written(call: Call) -> Sequence[BufferRef]:
    if isinstance(call, KernelCall):
        pairs = zip(call.source.params, call.args, strict=True)
        return [arg for param, arg in pairs if isinstance(arg, BufferRef) and param.writes]
    return call.writes if isinstance(call, LoopCall) else (call.dst,)
