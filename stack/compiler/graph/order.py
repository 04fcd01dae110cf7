"""The order in which clusters run, and where they write over what they are the last to read."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from hal.tile.node import Node
from hal.tile.size import equal, hint, is_fixed
from stack.compiler.graph.cluster import Cluster, same
from stack.compiler.graph.expr import Read, reads
from stack.compiler.graph.fuse import Fusion
from stack.compiler.graph.ordered import Ordered, read_ordered
from stack.compiler.graph.roots import Home, base
from stack.compiler.program import GraphRequest
from stack.ops import is_message

Extra = Mapping[Cluster, set[Cluster]]
"""What else must run before a cluster."""

Place = tuple[str, int]
"""The kind of a buffer, and its index."""


class _Live:
    """The buffers that clusters have yet to read."""

    def __init__(self, fusion: Fusion) -> None:
        self._inputs = {c: {n for r in c.roots for n in fusion.needs[r]} for c in fusion.clusters}
        self._readers = Counter(n for needed in self._inputs.values() for n in needed)

    def growth(self, c: Cluster) -> int:
        """The bytes by which the live set grows when the cluster runs."""
        last = (n for n in self._inputs[c] if self._readers[n] == 1 and n.op != "input")
        return sum(map(_nbytes, c.roots)) - sum(map(_nbytes, last))

    def run(self, c: Cluster) -> None:
        """The cluster has read its inputs."""
        self._readers.subtract(self._inputs[c])


def _nbytes(n: Node) -> int:
    return hint(n.type.nbytes)


def schedule(fusion: Fusion, extra: Extra) -> list[Cluster] | None:
    """A topological order that frees buffers early; None when `extra` dependencies make a cycle.

    Among the clusters that can run, those that the first exchange between ranks waits for run
    first, then those of the second one; of these the one that shrinks the live set most, then the
    earliest.
    """
    clusters, live = fusion.clusters, _Live(fusion)
    before = {c: fusion.dependencies(c) | extra.get(c, set()) for c in clusters}
    turn = turns(fusion, before)

    def key(c: Cluster) -> tuple[int, int, int, Cluster]:
        return turn[c], live.growth(c), c.number, c

    waiting = {c: len(needs) for c, needs in before.items()}
    ready = [key(c) for c in clusters if not waiting[c]]
    heapq.heapify(ready)
    followers: dict[Cluster, list[Cluster]] = {cluster: [] for cluster in before}
    for cluster, needs in before.items():
        for need in needs:
            followers[need].append(cluster)
    out: list[Cluster] = []
    while ready:
        *_, c = heapq.heappop(ready)
        out.append(c)
        live.run(c)
        for follower in followers[c]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, key(follower))
    return out if len(out) == len(clusters) else None


def turns(fusion: Fusion, before: Extra) -> dict[Cluster, int]:
    """For each cluster the place of the first exchange that waits for it, or that it is; see
    `stack.compiler.graph.turns`. What a message only comes behind has a place before what it sends:
    a rank of a pipeline that waits for a gradient would go on with a later forward pass else, and
    hold more activations than its table says. What takes the results of exchanges and is waited for
    by nothing comes when the next one is on its way: until then the results need their memory."""
    exchanges = [c for c in fusion.clusters if c.kind == "exchange"]
    exchanges.sort(key=lambda c: c.roots[0]["turn"])
    turn: dict[Cluster, int] = {}
    for number, exchange in enumerate(exchanges):
        (n,) = exchange.roots
        earlier = {base(s) for s in n.srcs[1:]} if is_message(n) else set[Node]()
        behind = [c for need in fusion.needs[n] if need in earlier for c in fusion.producers(need)]
        for place, first in ((2 * number, behind), (2 * number + 1, [exchange])):
            stack = list(first)
            while stack:
                c = stack.pop()
                if c not in turn:
                    turn[c] = place
                    stack.extend(before[c])
    at = {exchange.roots[0]: number for number, exchange in enumerate(exchanges)}
    awaited = set().union(*before.values())
    for c in fusion.clusters:
        given = [at[n] for r in c.roots for n in fusion.needs[r] if n in at]
        if given and c not in awaited:
            turn[c] = 2 * min(max(given) + 2, len(exchanges)) + 1
    return {c: turn.get(c, 2 * len(exchanges) + 1) for c in fusion.clusters}


class _Acyclic:
    """What must run before a cluster besides what the fusion says, as long as there is an order."""

    def __init__(self, fusion: Fusion) -> None:
        self.extra: dict[Cluster, set[Cluster]] = {}
        self._followers: dict[Cluster, set[Cluster]] = {c: set() for c in fusion.clusters}
        for c in fusion.clusters:
            for need in fusion.dependencies(c):
                self._followers[need].add(c)

    def add(self, wanted: Extra) -> bool:
        """Whether there still is an order with these; if not, nothing is added."""
        pairs = ((need, c) for c, needs in wanted.items() for need in needs)
        new = [(need, c) for need, c in pairs if c not in self._followers[need]]
        for need, c in new:
            self._followers[need].add(c)
        if any(map(self._follows_itself, {c for _, c in new})):
            for need, c in new:
                self._followers[need].remove(c)
            return False
        for need, c in new:
            self.extra.setdefault(c, set()).add(need)
        return True

    def _follows_itself(self, first: Cluster) -> bool:
        seen, stack = set[Cluster](), [first]
        while stack:
            found = self._followers[stack.pop()] - seen
            if first in found:
                return True
            seen |= found
            stack += found
        return False


def update_in_place(
    request: GraphRequest, fusion: Fusion
) -> tuple[list[Cluster], list[tuple[int, int]]]:
    """(the order of the clusters, the updates that still need a copy at the end).

    An update is in place when its cluster can run after every other reader of the input, and itself
    reads the input only at the element that it writes. Then the root's home becomes the input.
    """
    # Updates are as many as a model's parameters and their moments, so that none may cost a walk
    # through the whole graph.
    before = _Acyclic(fusion)
    inside = _inside(fusion)
    readers: dict[Node, list[Node]] = {}
    for r in fusion.of:
        for n in dict.fromkeys(fusion.needs[r]):
            readers.setdefault(n, []).append(r)
    copies: list[tuple[int, int]] = []
    for output, target in request.updates:
        root, source = base(request.outputs[output]), request.inputs[target]
        if not root.type.size:
            continue
        wanted = _last(fusion, root, source, readers)
        if wanted is None or not before.add(wanted):
            copies.append((output, target))
            continue
        old, new = fusion.homes[root], fusion.homes[source]
        moved = inside.pop((old.kind, old.index))  # the root, and its pieces
        for n in moved:
            fusion.homes[n] = replace(fusion.homes[n], kind=new.kind, index=new.index)
        inside.setdefault((new.kind, new.index), []).extend(moved)
    order = schedule(fusion, before.extra)
    assert order is not None, "the graph has a cycle"
    return order, copies


def _inside(fusion: Fusion) -> dict[Place, list[Node]]:
    """What lies in each buffer."""
    found: dict[Place, list[Node]] = {}
    for n, home in fusion.homes.items():
        found.setdefault((home.kind, home.index), []).append(n)
    return found


def take_over(
    request: GraphRequest, fusion: Fusion, order: Sequence[Cluster], stored: Container[Node]
) -> None:
    """Write a stored root over a temporary that its kernel is the last to read, if that reads only
    the element that it writes: clipped gradients over those before clipping, the gradient of logits
    over their logarithms. Both must be all that is in their memory, but for the first piece of a
    concatenation: what it is written over is then there from the beginning.
    """
    at = {c: i for i, c in enumerate(order)}
    readers: dict[Node, set[Cluster]] = {}
    for r in fusion.of:
        for n in fusion.needs[r]:
            readers.setdefault(n, set()).add(fusion.of[r])
    inside = _inside(fusion)
    whole = {("output", i) for i, n in enumerate(request.outputs) if base(n) in fusion.of}
    messages = [c.roots[0] for c in order if c.kind == "exchange" and is_message(c.roots[0])]
    sent = {base(n.srcs[0]) for n in messages}

    def is_sending(n: Node, c: Cluster) -> bool:
        """Whether an exchange may still be reading a value when later kernels run. Of what a
        message comes behind it reads nothing, and keeps what earlier ones send."""
        return c.kind == "exchange" and (n in sent or not is_message(c.roots[0]))

    def is_free(n: Node, last: Cluster, own: Home) -> bool:
        """Whether a temporary is like the root's memory, and read by nobody else from then on."""
        home = fusion.homes[n]
        nodes = inside[home.kind, home.index] if home.kind == "temp" else []
        read = [(m, c) for m in nodes for c in readers.get(m, ())]
        return (
            (n, last) in read
            and all(fusion.homes[m].is_like(own) for m in nodes)
            and all(at[c] < at[last] or (m, c) == (n, last) for m, c in read)
            and not any(is_sending(m, c) for m, c in read)
        )

    def is_alone(own: Home) -> bool:
        """Whether nothing else is where a root is, but for a concatenation that it lies in."""
        others = [m for m in inside[own.kind, own.index] if not fusion.homes[m].is_like(own)]
        in_one_run = equal(own.run, own.stride) and equal(own.rows, 1)
        return not others or (
            in_one_run
            and all(
                m.op == "concat" or not _meet([_written(fusion.homes[m])], [_written(own)])
                for m in others
            )
        )

    for last in order:
        needs = dict.fromkeys(n for r in last.roots for n in fusion.needs[r] if n not in last.roots)
        for root in last.roots:
            own = fusion.homes[root]
            place = (own.kind, own.index)
            if root not in stored or not (own.kind == "temp" or place in whole):
                continue
            if not is_alone(own):
                continue
            for n in needs:
                old = fusion.homes[n]
                if (
                    n.dtype is root.dtype
                    and (old.kind, old.index) != place
                    and is_free(n, last, own)
                    and _reads_in_place(fusion, last, [root], n)
                ):
                    moved = inside.pop((old.kind, old.index))
                    for m in moved:
                        fusion.homes[m] = replace(fusion.homes[m], kind=own.kind, index=own.index)
                    inside[place] += moved
                    break


def _last(
    fusion: Fusion, root: Node, source: Node, readers: Mapping[Node, Sequence[Node]]
) -> Extra | None:
    """Dependencies by which the kernels that write the root, or the pieces that it is put together
    of, are the last to read the input that they overwrite; None where they cannot be."""
    written: dict[Cluster, list[Node]] = {}
    for piece in fusion.writers(root):
        if piece not in fusion.of:
            return None
        written.setdefault(fusion.of[piece], []).append(piece)
    if not all(_reads_in_place(fusion, c, pieces, source) for c, pieces in written.items()):
        return None
    found = _stages(fusion, root, readers)
    if found is None:
        return None
    others = [r for r in readers.get(source, ()) if fusion.of[r] not in written]
    read = {r: _read(r, source, fusion.needs[r]) for r in others}
    for c, pieces in written.items():
        places = [_written(fusion.homes[piece]) for piece in pieces]
        before = {fusion.of[r] for r, own in read.items() if _meet(own, places)}
        found[c] = found.get(c, set()) | before
    return found


def _stages(
    fusion: Fusion, root: Node, readers: Mapping[Node, Sequence[Node]]
) -> dict[Cluster, set[Cluster]] | None:
    """Where several parts of an input are overwritten one after the other: for what writes a part,
    all that writes those before, or reads what was there then; None where one kernel would do
    both."""
    found: dict[Cluster, set[Cluster]] = {}
    while root.op == "overwrite" and (before := base(root.srcs[0])).op == "overwrite":
        writers = fusion.writers(base(root.srcs[1]))
        read = {fusion.of[r] for r in readers.get(before, ())}
        for c in {fusion.of[w] for w in writers}:
            own = [w for w in writers if fusion.of[w] is c]
            if c in read and not _reads_in_place(fusion, c, own, before):
                return None
            earlier = {fusion.of[w] for w in fusion.writers(before)} | read - {c}
            if c in earlier:
                return None
            found[c] = found.get(c, set()) | earlier
        root = before
    return found


Range = tuple[int, int]
"""Elements [begin, end) of a buffer."""


def _read(root: Node, source: Node, needs: Sequence[Node]) -> list[Range]:
    """Which elements of an input a root reads, where it sees ranges of a flat one; else all."""
    found: list[Range] = []
    seen: set[Node] = set()
    stack = [root]
    while stack:
        n = stack.pop()
        for s in n.srcs:
            if s is source and n.op == "slice" and len(n.shape) == 1 and n["step"] == (1,):
                found.append((n["start"][0], n["stop"][0]))
            elif s is source:
                return [(0, source.type.size)]
            elif s not in seen and s not in needs:
                seen.add(s)
                stack.append(s)
    return found


def _written(home: Home) -> Range:
    return home.base, home.base + (home.rows - 1) * home.stride + home.run


def _meet(some: Sequence[Range], others: Sequence[Range]) -> bool:
    """Whether two ranges share an element; those whose ends are data may."""
    pairs = [(*one, *other) for one in some for other in others]
    return any(
        not all(map(is_fixed, ends)) or (ends[0] < ends[3] and ends[2] < ends[1]) for ends in pairs
    )


def _reads_in_place(
    fusion: Fusion, cluster: Cluster, written: Sequence[Node], source: Node
) -> bool:
    """Whether every read of the input in its writer's kernel is of the element that is written,
    and comes before that, or is one with a read of the writer's. What a product multiplies is read
    for many elements; what follows it is computed once for each."""
    nest = cluster.nest
    if cluster.kind == "scatter":
        ordered = read_ordered(cluster.roots, fusion.homes)
        assert isinstance(ordered, Ordered), "it was read before"
        first, *others = ordered.exprs
        return (
            isinstance(first, Read)
            and first.root is source
            and not first.guards
            and all(same(first.offset, ordered.written[w]) for w in written)
            and all(r.root is not source for e in others for r in reads(e))
        )
    if cluster.kind not in ("loops", "matmul") or any(root not in nest.exprs for root in written):
        return False
    products = [r for r in nest.own if r not in nest.exprs and r not in nest.moved]
    if any(source in fusion.needs[r] for r in products):
        return False
    passes = nest.passes() if cluster.kind == "loops" else dict.fromkeys(nest.own, 0)
    turn = {r: (passes[r], i) for i, r in enumerate(nest.own)}
    for reader, found in nest.reads.items():
        writers = (reader,) if reader in written else written
        for r in found:
            if r.root is not source:
                continue
            if r.guards or not any(same(r.offset, nest.own[w]) for w in writers):
                return False
            for w in writers:
                kept = passes[reader] == passes[w] and any(r is own for own in nest.reads[w])
                if turn[reader] > turn[w] and not kept:
                    return False
    return True
