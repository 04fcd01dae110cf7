"""Values of a graph that are computed again where they are read late, instead of being kept until
then, so that the graph runs within a number of bytes. Pure.

The nodes of a graph are in an order, in which what is alive is greatest at one place: what is
before that is early, in a training step the forward pass. The early nodes are cut into segments,
where little crosses (Chen et al., arXiv 1604.06174). Of a segment that is computed again only what
crosses its ends is kept. What is late and reads others of its values reads copies, which wait for
what arrives there first: in a training step the gradient of the segment's result.

An attention is one operator here, if it is one kernel of the device: it is computed again by the
same kernel.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import accumulate

from hal.core.facts import dataclass
from hal.tile.node import Node, rebuild
from stack.compiler.graph.roots import base
from stack.compiler.graph.saved import choose_roots
from stack.compiler.graph.turns import in_order
from stack.compiler.program import GraphRequest
from stack.ops import OPS, is_exchange
from stack.ops.attention import SEALED, expressions, inside, over_leaves
from stack.ops.behind import behind
from stack.ops.operator import OpKind

SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Into how many segments a graph is cut, in the order in which that is tried."""

ALIKE = 1.01
"""How much more than the least an estimate may be to count as the least, too."""


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A request of the same outputs, bit for bit, that takes `nbytes`, of which `again` operators
    are computed twice."""

    request: GraphRequest
    nbytes: int
    again: int = 0
    segments: str = "none"


def within(
    request: GraphRequest,
    budget: int,
    nbytes_of: Callable[[GraphRequest], int],
    folded: Callable[[GraphRequest], GraphRequest],
) -> Recomputation:
    """The request with as little computed again as it takes to need at most `budget` bytes, by
    `nbytes_of`: the first number of segments that is enough, and of these as few as are enough.
    `folded` finds in a request the operators that it is compiled as.

    Requests are compiled for `nbytes_of`, which takes seconds. So a budget that is too small is
    told by two of them: the number of segments that leaves the least by an estimate, and the first
    one. Then it is the one of these that leaves less.
    """
    least = Recomputation(request, nbytes_of(request))
    if least.nbytes <= budget:
        return least
    line = _Line(folded(request))
    counts = {cuts: count for count in reversed(SEGMENTS) if (cuts := line.cuts(count))}
    segments = {count: len(cuts) for cuts, count in reversed(counts.items())}
    if not segments:
        return least
    known: dict[tuple[int, int], Recomputation] = {}

    def tried(count: int, dropped: int) -> Recomputation:
        if (count, dropped) not in known:
            made, again = line.again(count, dropped)
            said = f"1 to {dropped} of {count}"
            known[count, dropped] = Recomputation(made, nbytes_of(made), again, said)
        return known[count, dropped]

    def estimated(count: int) -> int:
        return _Line(line.again(count, segments[count])[0]).alive

    left = {count: estimated(count) for count in segments}
    few = min(left.values()) * ALIKE
    best, first = next(count for count, nbytes in left.items() if nbytes <= few), min(segments)
    ends = [least]
    for count in dict.fromkeys((best, first)):
        ends.append(tried(count, segments[count]))
        if ends[-1].nbytes <= budget:
            break
    else:
        return min(ends, key=lambda r: r.nbytes)
    count = next(c for c, most in segments.items() if tried(c, most).nbytes <= budget)
    low, high = 1, segments[count]
    while low < high:
        middle = (low + high) // 2
        if tried(count, middle).nbytes <= budget:
            high = middle
        else:
            low = middle + 1
    return tried(count, high)


class _Line:
    """The nodes of a request in an order, and what is early in it. What an attention computes of
    each score is no node of its own, but a part of that: `srcs` has what it reads."""

    def __init__(self, request: GraphRequest) -> None:
        self.request = request
        order = in_order(request.outputs)
        sealed = [n for n in order if n.op in SEALED]
        self.inner = over_leaves([x for n in sealed for x in expressions(n)])
        self.order = [n for n in order if n not in self.inner]
        self.srcs = {n: self._read(n) for n in self.order}
        self.place = {n: i for i, n in enumerate(self.order)}
        self.stored = choose_roots(self.request)
        self.free: set[Node] = set()
        """Inputs, constants and views of them: they are there, or cost nothing."""
        for n in self.order:
            is_view = OPS[n.op].kind is OpKind.MOVEMENT or n.op == "cast"
            if n.op in ("input", "const", "arange") or (is_view and n.srcs[0] in self.free):
                self.free.add(n)
        self.peak, self.alive = self._peak()
        self.readers: dict[Node, list[int]] = {n: [] for n in self.order}
        for i, n in enumerate(self.order):
            for s in self.srcs[n]:
                self.readers[s].append(i)
        early = self.order[: self.peak + 1]
        self.own = [n for n in early if n not in self.free]
        saved = [
            self._nbytes(n) if self.readers[n] and self.readers[n][-1] > self.peak else 0
            for n in early
        ]
        self.saved = list(accumulate(saved))
        change = [0] * (len(early) + 1)
        for n in self.own:
            last = max((r for r in self.readers[n] if r <= self.peak), default=self.place[n])
            change[self.place[n]] += n.type.nbytes
            change[last] -= n.type.nbytes
        self.crossing = list(accumulate(change))[:-1]
        """Bytes that early nodes behind each place read of those up to it."""

    def _read(self, n: Node) -> tuple[Node, ...]:
        if n.op not in SEALED:
            return n.srcs
        parts = [x for x in inside(expressions(n)) if x in self.inner]
        below = (*n.srcs, *(s for x in parts for s in x.srcs))
        return tuple(dict.fromkeys(s for s in below if s not in self.inner))

    def made(self, n: Node, of: Callable[[Node], Node]) -> Node:
        """The node, which reads other nodes in the place of its own."""
        done: dict[Node, Node] = {}
        for x in inside(expressions(n)) if n.op in SEALED else ():
            if x in self.inner:
                done[x] = rebuild(x, tuple(done[s] if s in done else of(s) for s in x.srcs))
        srcs = tuple(done[s] if s in done else of(s) for s in n.srcs)
        return rebuild(n, srcs)

    def _nbytes(self, n: Node) -> int:
        return n.type.nbytes if n in self.stored and n not in self.free else 0

    def _peak(self) -> tuple[int, int]:
        """The last place before which most bytes are computed that are read behind it, and how
        many these are."""
        last = {n: i for i, n in enumerate(self.order)}
        reads: dict[Node, frozenset[Node]] = {}
        for i, n in enumerate(self.order):
            below = [frozenset((s,)) if s in self.stored else reads[s] for s in self.srcs[n]]
            reads[n] = frozenset().union(*below)
            if n in self.stored:
                last.update(dict.fromkeys(reads[n], i))
        change = [0] * (len(self.order) + 1)
        for i, n in enumerate(self.order):
            change[i] += self._nbytes(n)
            change[last[n]] -= self._nbytes(n)
        alive = list(accumulate(change))
        most, place = max((nbytes, i) for i, nbytes in enumerate(alive[:-1]))
        return place, most

    def cuts(self, count: int) -> tuple[int, ...]:
        """Places that part the early nodes into about so many segments that keep equally much, each
        where least crosses."""
        total = self.saved[-1] if self.saved else 0
        found: dict[int, None] = {}
        for number in range(1, count):
            low, high = (int(total * (number + d) / count) for d in (-0.5, 0.5))
            begin, end = bisect_left(self.saved, low), bisect_left(self.saved, high)
            if begin < end and total:
                at = min(range(begin, end), key=lambda i: (self.crossing[i], i))
                found[at] = None
        return tuple(sorted(found))

    def again(self, count: int, dropped: int) -> tuple[GraphRequest, int]:
        """The request whose first `dropped` segments are computed again, and how many operators
        are."""
        cuts = self.cuts(count)
        segment = {n: bisect_left(cuts, self.place[n]) for n in self.own}
        kept = {base(o) for o in self.request.outputs}
        for n in self.own:
            ends = [r for r in self.readers[n] if r <= self.peak]
            crosses = ends and bisect_left(cuts, ends[-1]) > segment[n]
            is_view = OPS[n.op].kind is OpKind.MOVEMENT and n.srcs[0] in kept
            alone = is_exchange(n) or n.op == "loop" or segment[n] >= dropped
            if crosses or is_view or alone:
                kept.add(n)
        copying = _Copying(self, segment, kept, dropped)
        outputs = copying.outputs()
        return replace(self.request, outputs=outputs), len(copying.copies)


class _Copying:
    """The late nodes, which read copies. What is late and follows from early nodes of the dropped
    segments alone, as a derivative of an activation does, is `local`: it belongs to its segment."""

    def __init__(
        self, line: _Line, segment: Mapping[Node, int], kept: set[Node], dropped: int
    ) -> None:
        self.line = line
        self.segment = dict(segment)
        self.done: dict[Node, Node] = {}
        self.copies: dict[tuple[int, Node], Node] = {}
        self.arrived: dict[int, Node] = {}
        self.dropped = {n for n in line.own if n not in kept}
        self.local: set[Node] = set()
        follows = {n for n in line.own if self.segment[n] >= dropped}
        for n in line.order[line.peak + 1 :]:
            below = [s for s in line.srcs[n] if s not in line.free]
            own = [self.segment[s] for s in below if s in self.segment]
            is_local = len(own) == len(below) and all(i < dropped for i in own)
            if not follows.isdisjoint(below):
                follows.add(n)
            reads = any(s in self.dropped or s in self.local for s in below)
            if reads and is_local and n not in line.free and not is_exchange(n):
                self.local.add(n)
                self.segment[n] = max(own)
        self.follows = follows

    def outputs(self) -> tuple[Node, ...]:
        for i, n in enumerate(self.line.order):
            if i <= self.line.peak or n in self.local or n in self.line.free:
                self.done[n] = self.line.made(n, self.done.__getitem__)
                continue
            now = {s: self.done[s] for s in self.line.srcs[n]}
            for s in now:
                if s in self.dropped or s in self.local:
                    # What the first late reader of a segment reads besides: the newest of it.
                    others = [s for s in self.line.srcs[n] if s in self.follows]
                    latest = max(
                        others,
                        key=self.line.place.__getitem__,
                        default=self.line.order[self.line.peak],
                    )
                    self.arrived.setdefault(self.segment[s], self.done[latest])
                    now[s] = self._copied(s, self.segment[s])
            self.done[n] = self.line.made(n, now.__getitem__)
        return tuple(self.done[o] for o in self.line.request.outputs)

    def _copied(self, root: Node, segment: int) -> Node:
        """A value that is computed again from what is kept, when the segment's gradient is
        there."""
        arrived = self.arrived[segment]
        stack = [root]
        while stack:
            n = stack[-1]
            below = [s for s in self.line.srcs[n] if s in self.dropped or s in self.local]
            waiting = [s for s in below if (segment, s) not in self.copies]
            if (segment, n) in self.copies or not waiting:
                stack.pop()
                self.copies.setdefault((segment, n), self._copy(n, segment, arrived))
            else:
                stack += waiting
        return self.copies[segment, root]

    def _copy(self, n: Node, segment: int, arrived: Node) -> Node:
        """The node of copies. One of which all operands are kept waits by what costs least; of an
        attention the first one, since masks tell which products are made."""
        line, given = self.line, self.line.srcs[n]
        now = {s: self.copies.get((segment, s), self.done[s]) for s in given}
        if not any((segment, s) in self.copies for s in given):
            known = given[:1] if n.op in SEALED else [s for s in given if s.op != "const"]
            late = [s for s in known if s not in line.free] or known
            for s in sorted(late, key=lambda s: (s.type != arrived.type, s.type.nbytes))[:1]:
                now[s] = behind(now[s], arrived)
        return line.made(n, now.__getitem__)
