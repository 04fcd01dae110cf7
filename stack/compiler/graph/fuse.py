"""Which roots share a kernel.

A cluster is one kernel: roots over one *domain*, the loop axes in order, each parallel or reduced.
A root joins the cluster of something that it reads when both see the same element of it at the same
time, so that the value stays in a register (or in the cache, between two passes over a row).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hal.tile.node import Node
from hal.tile.size import equal, hint
from stack.compiler.graph.access import Axis, Materialise, Split
from stack.compiler.graph.cluster import Cluster, Nest, moved_from, settle
from stack.compiler.graph.ordered import Ordered, read_ordered
from stack.compiler.graph.roots import OWN_KERNEL, PUT_TOGETHER, Home, base
from stack.compiler.graph.space import Domain, domain_of, elements, rows, same_domain
from stack.compiler.graph.turns import in_turns
from stack.ops import is_exchange, is_message

MOST_ROOTS = 24
SERIAL = 1 << 14
"""Elements up to which it does not matter that one program instance does all the work."""
ENOUGH_ROWS = 64
"""Rows from which on each may be the work of one program instance."""


class Fusion:
    """Clusters of a graph's roots, built by adding one root after the other.

    `alone` holds the cluster of each computed root on its own, in topological order; `needs` the
    roots that each root reads; `updates` the root that takes the place of an input, with the input;
    `moves` says whether a scatter is to write its result in other orders, too.
    """

    def __init__(
        self,
        alone: Mapping[Node, Cluster],
        needs: Mapping[Node, list[Node]],
        homes: dict[Node, Home],
        updates: Iterable[tuple[Node, Node]] = (),
        *,
        moves: bool = False,
    ) -> None:
        self.homes, self.needs, self._moves = homes, needs, moves
        # Kernels of plain loops write in place what they read. Others may have to write it beside
        # the input, to be copied: an optimizer's step in a product all weights and moments.
        self._in_place = {
            w for root, source in updates for w in self.writers(root) if source in needs.get(w, ())
        }
        # What overwrites a part of a value, and what has overwritten others before it.
        self._earlier = {
            w: set(self.writers(base(n.srcs[0])))
            for n in needs
            if n.op == "overwrite" and base(n.srcs[0]).op == "overwrite"
            for w in self.writers(base(n.srcs[1]))
        }
        self.clusters: list[Cluster] = []
        self.of: dict[Node, Cluster] = {}
        self._readers: dict[Node, list[Cluster]] = {}
        self._after: dict[Cluster, set[Cluster]] = {}
        self._exchanges: list[Cluster] = []
        order = in_turns(list(alone))
        self._awaited = _awaited(order)
        self._turn = _turns(self._awaited, needs)
        self._collectives = [not is_message(root) for root in order if is_exchange(root)]
        for root in order:
            single = alone[root]
            into = next((c for c in self._candidates(root) if self._joins(root, c)), single)
            if into is single:
                self.clusters.append(into)
                self._after[into] = set()
            self.of[root] = into
            for need in self.needs[root]:
                self._readers.setdefault(need, []).append(into)
                self._after[into] |= self.producers(need) - {into}
            if is_exchange(root):
                # In the order of their turns: no kernel for one may need a later one.
                self._after[into].update(self._exchanges[-1:])
                self._exchanges.append(into)
        self._number = {root: i for i, root in enumerate(order)}
        # Merge kernels over the same rows that met only after both had begun.
        for cluster in list(self.clusters):
            if cluster.kind != "loops" or all(not reduced for _, reduced in cluster.domain):
                continue
            alike = [c for c in self._after[cluster] if same_domain(c.domain, cluster.domain)]
            for other in sorted(alike, key=lambda c: c.number):
                if other.kind == "loops" and self._merges(other, cluster):
                    break

    def dependencies(self, cluster: Cluster) -> set[Cluster]:
        """Clusters that must run before this one."""
        return self._after[cluster]

    def producers(self, root: Node) -> set[Cluster]:
        """The clusters that write a root: several where it is put together."""
        return {self.of[w] for w in self.writers(root) if w in self.of}

    def writers(self, root: Node) -> list[Node]:
        """The computed roots that fill a root's buffer: the pieces of a concatenation, what
        overwrites parts in the order in which it does."""
        if root.op not in PUT_TOGETHER:
            return [root]
        pieces = [n for n in self.needs[root] if root.op == "concat" or n.op != "input"]
        return [w for piece in pieces for w in self.writers(piece)]

    # one more root

    def _candidates(self, root: Node) -> list[Cluster]:
        """Clusters that compute what the root reads, latest first, then those that read the same
        large data."""
        if root.op in OWN_KERNEL - {"reduce"} or not root.type.size:
            return []
        own = {c for need in self.needs[root] for c in self.producers(need)}
        large = [
            need for need in self.needs[root] if hint(need.type.size) * 2 > hint(root.type.size)
        ]
        siblings = dict.fromkeys(c for need in large for c in self._readers.get(need, ()))
        latest = sorted(own, key=lambda c: -c.number)
        return latest + [
            c
            for c in siblings
            if c not in own and c.kind == "loops" and self._is_turn_of(c.roots[0], root)
        ]

    def _is_turn_of(self, first: Node, root: Node) -> bool:
        """Whether two roots may share a kernel that reads the same data, though that lets an
        exchange wait for what another one needs: where that is one collective directly before the
        other. A message is waited for by a rank with a graph of its own."""
        turn, other = self._turn[first], self._turn[root]
        if turn == other:
            return True
        pair = self._collectives[turn : other + 1]
        return other == turn + 1 and self._awaited[root] == other and pair == [True, True]

    def _joins(self, root: Node, cluster: Cluster) -> bool:
        domain = common_domain(root, cluster)
        if cluster.kind == "scatter" and not (domain is not None and self._takes(root, cluster)):
            return False
        if domain is None or len(cluster.roots) >= MOST_ROOTS:
            return False
        others = {c for need in self.needs[root] for c in self.producers(need)} - {cluster}
        if self._reaches(others, cluster):
            return False
        is_plain = cluster.kind == "loops" and all(not reduced for _, reduced in domain)
        if not is_plain and not self._in_place.isdisjoint([*cluster.roots, root]):
            return False
        if self._reads_part([*cluster.roots, root]) or self._delays([root], cluster):
            return False
        nest = self._joined(root, cluster, domain)
        if nest is None:
            return False
        cluster.domain, cluster.nest = domain, nest
        cluster.roots.append(root)
        return True

    def _joined(self, root: Node, cluster: Cluster, domain: Domain) -> Nest | None:
        """The cluster with the root in it; None where that cannot be."""
        if same_domain(domain, cluster.domain):
            nest = cluster.nest.with_root(root)
            if isinstance(nest, Materialise):
                return None
            if not isinstance(nest, Split):
                return nest if nest.is_local() else None
        return self._settled(cluster, domain, [*cluster.roots, root])

    def _settled(self, cluster: Cluster, domain: Domain, roots: list[Node]) -> Nest | None:
        nest = settle(cluster.kind, domain, roots, self.homes)
        return nest if isinstance(nest, Nest) and nest.is_local() else None

    def _takes(self, root: Node, cluster: Cluster) -> bool:
        """Whether a scatter can write its result where the root's elements are."""
        if not self._moves:
            return False
        found = read_ordered([*cluster.roots, root], self.homes)
        return isinstance(found, Ordered) and found.addressed(root, Axis(1)) is not None

    def _reads_part(self, roots: list[Node]) -> bool:
        """Whether one of the roots reads a buffer that another one fills in part, or writes to one
        after it."""
        own = set(roots)
        if any(not own.isdisjoint(self._earlier.get(r, ())) for r in roots):
            return True
        outside = {need for r in roots for need in self.needs[r]} - own
        return any(w in own for need in outside for w in self.writers(need))

    def _delays(self, roots: Sequence[Node], cluster: Cluster) -> bool:
        """Whether the exchange that waits for the cluster would wait for what a later one needs, if
        these roots joined: a sum over all micro-batches in one kernel with that over the first
        ones, for instance."""
        turn = self._awaited[cluster.roots[0]]
        needs = {need for root in roots for need in self.needs[root]}.difference(roots)
        computed = (w for need in needs for w in self.writers(need) if w in self.of)
        return any(self._awaited[w] > turn for w in computed if self.of[w] is not cluster)

    # two kernels as one

    def _merges(self, first: Cluster, second: Cluster) -> bool:
        """Merge `second` into `first`, which it depends on, if that is possible."""
        roots = sorted([*first.roots, *second.roots], key=self._number.__getitem__)
        if len(roots) > MOST_ROOTS or self._reads_part(roots) or self._delays(second.roots, first):
            return False
        if self._reaches(self._after[second] - {first}, first):
            return False
        nest = self._settled(first, first.domain, roots)
        if nest is None:
            return False
        first.roots, first.nest = roots, nest
        self._after[first] |= self._after.pop(second) - {first}
        self.clusters.remove(second)
        self.of.update(dict.fromkeys(second.roots, first))
        for needs in self._after.values():
            if second in needs:
                needs.remove(second)
                needs.add(first)
        return True

    # dependencies

    def _reaches(self, start: Iterable[Cluster], cluster: Cluster) -> bool:
        """Whether one of `start` depends on `cluster`."""
        stack, seen = list(start), set[Cluster]()
        while stack:
            current = stack.pop()
            if current is cluster:
                return True
            if current not in seen:
                seen.add(current)
                stack.extend(self._after[current])
        return False


def _awaited(order: Sequence[Node]) -> dict[Node, int]:
    """Of roots that are in turns how many exchanges come before the one that each is computed
    for."""
    number = 0
    found: dict[Node, int] = {}
    for root in order:
        found[root] = number
        number += is_exchange(root)
    return found


def _turns(awaited: Mapping[Node, int], needs: Mapping[Node, list[Node]]) -> dict[Node, int]:
    """The same, but where a root is computed for none, how many come before it takes the results of
    the last one that it does."""
    at = {root: number for root, number in awaited.items() if is_exchange(root)}
    turn = dict(awaited)
    for root, number in awaited.items():
        given = [at[n] for n in needs[root] if n in at]
        if number == len(at) and given:
            turn[root] = max(given) + 1
    return turn


def common_domain(root: Node, cluster: Cluster) -> Domain | None:
    """The domain of the cluster with the root in it, None if there is none."""
    domain, total = cluster.domain, elements(cluster.domain)
    if cluster.kind in ("matmul", "scatter"):
        source, _ = moved_from(root, set(cluster.roots).__contains__, cluster.kind)
        own = source in cluster.roots or (cluster.kind == "matmul" and equal(root.type.size, total))
        return domain if root.op != "reduce" and own else None
    if cluster.kind != "loops":
        return None
    if root.op == "reduce":
        # The domain of a reduction if it can be that of a cluster with `domain`, too.
        alone = domain_of(root)
        plain = all(not reduced for _, reduced in domain) and equal(elements(alone), total)
        return alone if (plain or same_domain(alone, domain)) and _is_parallel(alone) else None
    count = rows(domain)
    fits = equal(root.type.size, total) or equal(root.type.size, count)
    return domain if fits and (equal(count, total) or _is_parallel(domain)) else None


def _is_parallel(domain: Domain) -> bool:
    return hint(rows(domain)) >= ENOUGH_ROWS or hint(elements(domain)) <= SERIAL


def root_needs(roots: Mapping[Node, object]) -> dict[Node, list[Node]]:
    """The roots that each root reads."""
    return {root: _needs(root, roots) for root in roots}


def _needs(root: Node, roots: Mapping[Node, object]) -> list[Node]:
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(reversed(root.srcs))
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n in roots:
            found[n] = None
        else:
            stack.extend(reversed(n.srcs))
    return list(found)
