"""Values of a graph that are computed again where they are read late, instead of being kept until
then, so that the graph runs within a number of bytes. Pure.

The nodes of a graph are in an order, in which what is alive is greatest at one place: what is
before that is early, in a training step the forward pass. The early nodes are cut into segments,
where little crosses (Chen et al., arXiv 1604.06174). Of a segment that is computed again only what
crosses its ends is kept. What is late and reads others of its values reads copies, which wait for
what arrives there first: in a training step the gradient of the segment's result.

What attention computes, and what it reads, is kept: it becomes one kernel with its gradients
(`trained`), which sums in another order than one without them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from hal.core.errors import InvalidCall
from hal.tile.node import Node, rebuild, toposort
from stack.compiler.graph.roots import base, choose_roots
from stack.compiler.graph.turns import numbered
from stack.compiler.program import GraphRequest
from stack.ir.simplify import simplify
from stack.ops import OPS, is_exchange
from stack.ops.behind import behind
from stack.ops.operator import OpKind

SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Into how many segments a graph is cut, in the order in which that is tried."""


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A request of the same outputs, bit for bit, that takes `nbytes`, of which `again` operators
    are computed twice; `kept_nbytes` is what the request took that keeps everything."""

    request: GraphRequest
    nbytes: int
    kept_nbytes: int
    again: int
    segments: str = "none"

    def __str__(self) -> str:
        return (
            f"takes {self.nbytes} bytes, {self.kept_nbytes} with every value kept: "
            f"{self.again} operators are computed again, of segments {self.segments}"
        )


def within(
    request: GraphRequest, budget: int, nbytes_of: Callable[[GraphRequest], int], what: str
) -> Recomputation:
    """The request with as little computed again as it takes to need at most `budget` bytes, by
    `nbytes_of`: the first number of segments that is enough, and of these as few as are enough.
    `what` names it.

    Raises InvalidCall, with the least bytes that were found, where none is enough.
    """
    kept = nbytes_of(request)
    if kept <= budget:
        return Recomputation(request, kept, kept, 0)
    line = _Line(request)

    def tried(count: int, dropped: int) -> Recomputation:
        made, again = line.again(count, dropped)
        said = f"1 to {dropped} of {count}"
        return Recomputation(made, nbytes_of(made), kept, again, said)

    least = kept
    seen: set[tuple[int, ...]] = set()
    for count in SEGMENTS:
        cuts = line.cuts(count)
        if cuts in seen or not cuts:
            continue
        seen.add(cuts)
        found = tried(count, len(cuts))
        least = min(least, found.nbytes)
        if found.nbytes > budget:
            continue
        low, high = 1, len(cuts)
        while low < high:
            middle = (low + high) // 2
            other = tried(count, middle)
            if other.nbytes <= budget:
                found, high = other, middle
            else:
                low = middle + 1
        return found
    raise InvalidCall(
        f"{what} may take {budget} bytes, and takes {least} at least, with all computed again that "
        f"can be, {kept} with every value kept; give it {least}, or smaller arguments"
    )


class _Line:
    """The nodes of a request in an order, and what is early in it."""

    def __init__(self, request: GraphRequest) -> None:
        outputs = simplify(numbered(request.outputs))
        self.request = replace(request, outputs=outputs)
        self.order = list(toposort(outputs))
        self.place = {n: i for i, n in enumerate(self.order)}
        self.stored = choose_roots(self.request)
        self.free: set[Node] = set()
        """Inputs, constants and views of them: they are there, or cost nothing."""
        for n in self.order:
            is_view = OPS[n.op].kind is OpKind.MOVEMENT or n.op == "cast"
            if n.op in ("input", "const") or (is_view and n.srcs[0] in self.free):
                self.free.add(n)
        self.peak = self._peak()
        self.readers: dict[Node, list[int]] = {n: [] for n in self.order}
        for i, n in enumerate(self.order):
            for s in n.srcs:
                self.readers[s].append(i)
        early = self.order[: self.peak + 1]
        self.own = [n for n in early if n not in self.free]
        saved = [self._nbytes(n) if self.readers[n] and self._is_late(n) else 0 for n in early]
        self.saved = list(accumulate(saved))
        change = [0] * (len(early) + 1)
        for n in self.own:
            last = max((r for r in self.readers[n] if r <= self.peak), default=self.place[n])
            change[self.place[n]] += n.type.nbytes
            change[last] -= n.type.nbytes
        self.crossing = list(accumulate(change))[:-1]
        """Bytes that early nodes behind each place read of those up to it."""

    def _nbytes(self, n: Node) -> int:
        return n.type.nbytes if n in self.stored and n not in self.free else 0

    def _is_late(self, n: Node) -> bool:
        return self.readers[n][-1] > self.peak

    def _peak(self) -> int:
        """The last place before which most bytes are computed that are read behind it."""
        last = {n: i for i, n in enumerate(self.order)}
        reads: dict[Node, frozenset[Node]] = {}
        for i, n in enumerate(self.order):
            below = [frozenset((s,)) if s in self.stored else reads[s] for s in n.srcs]
            reads[n] = frozenset().union(*below)
            if n in self.stored:
                last.update(dict.fromkeys(reads[n], i))
        change = [0] * (len(self.order) + 1)
        for i, n in enumerate(self.order):
            change[i] += self._nbytes(n)
            change[last[n]] -= self._nbytes(n)
        alive = list(accumulate(change))
        return max(range(len(self.order)), key=lambda i: (alive[i], i))

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

    def _of_softmaxes(self) -> set[Node]:
        """The early values of each softmax: from the operands of the product that it is of to those
        of the products that read it."""
        found: set[Node] = set()
        for power in self.own:
            if power.op != "exp" or power.srcs[0].op != "sub":
                continue
            stack = [power]
            while stack:
                n = stack.pop()
                if n in found or n in self.free or self.place[n] > self.peak:
                    continue
                found.add(n)
                if n.op == "matmul":
                    found.update(x for s in n.srcs for x in _views(s))
                elif n.op != "reduce":
                    stack += n.srcs
            stack = [self.order[i] for i in self.readers[power]]
            while stack:
                n = stack.pop()
                if n in found or self.place[n] > self.peak:
                    continue
                found.add(n)
                if n.op == "matmul":
                    found.update(x for s in n.srcs for x in _views(s))
                else:
                    stack += [self.order[i] for i in self.readers[n]]
        return found

    def again(self, count: int, dropped: int) -> tuple[GraphRequest, int]:
        """The request whose first `dropped` segments are computed again, and how many operators
        are."""
        cuts = self.cuts(count)
        segment = {n: bisect_left(cuts, self.place[n]) for n in self.own}
        kept = {base(o) for o in self.request.outputs} | self._of_softmaxes()
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


def _views(n: Node) -> list[Node]:
    """A value and those that it is a view of."""
    found = [n]
    while OPS[n.op].kind is OpKind.MOVEMENT or n.op == "cast":
        n = n.srcs[0]
        found.append(n)
    return found


class _Copying:
    """The late nodes, which read copies. What is late and follows from early nodes of the dropped
    segments alone, as a derivative of an activation does, is `local`: it belongs to its segment."""

    def __init__(
        self, line: _Line, segment: Mapping[Node, int], kept: set[Node], dropped: int
    ) -> None:
        self.line, self.kept = line, kept
        self.segment = dict(segment)
        self.done: dict[Node, Node] = {}
        self.copies: dict[tuple[int, Node], Node] = {}
        self.arrived: dict[int, Node] = {}
        self.dropped = {n for n in line.own if n not in kept}
        self.local: set[Node] = set()
        follows = {n for n in line.own if self.segment[n] >= dropped}
        for n in line.order[line.peak + 1 :]:
            below = [s for s in n.srcs if s not in line.free]
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
                self.done[n] = rebuild(n, tuple(self.done[s] for s in n.srcs))
                continue
            again = [s for s in n.srcs if s in self.dropped or s in self.local]
            for s in again:
                self.arrived.setdefault(self.segment[s], self._arriving(n))
            srcs = (
                self._copied(s, self.segment[s]) if s in again else self.done[s] for s in n.srcs
            )
            self.done[n] = rebuild(n, tuple(srcs))
        return tuple(self.done[o] for o in self.line.request.outputs)

    def _arriving(self, reader: Node) -> Node:
        """What the first late reader of a segment reads besides: the newest of it."""
        others = [s for s in reader.srcs if s in self.follows]
        latest = max(
            others, key=self.line.place.__getitem__, default=self.line.order[self.line.peak]
        )
        return self.done[latest]

    def _copied(self, root: Node, segment: int) -> Node:
        """A value that is computed again from what is kept, when the segment's gradient is
        there."""
        arrived = self.arrived[segment]
        stack = [root]
        while stack:
            n = stack[-1]
            below = [s for s in n.srcs if s in self.dropped or s in self.local]
            waiting = [s for s in below if (segment, s) not in self.copies]
            if (segment, n) in self.copies or not waiting:
                stack.pop()
                self.copies.setdefault((segment, n), self._copy(n, segment, arrived))
            else:
                stack += waiting
        return self.copies[segment, root]

    def _copy(self, n: Node, segment: int, arrived: Node) -> Node:
        srcs = [self.copies.get((segment, s), self.done[s]) for s in n.srcs]
        late = [i for i, s in enumerate(n.srcs) if s not in self.line.free]
        if not late:  # it waits for something all the same: what is least
            given = [i for i, s in enumerate(n.srcs) if s.op != "const"]
            late = [min(given, key=lambda i: n.srcs[i].type.nbytes)] if given else []
        for i in late:
            if (segment, n.srcs[i]) not in self.copies:
                srcs[i] = behind(srcs[i], arrived)
        return rebuild(n, tuple(srcs))
