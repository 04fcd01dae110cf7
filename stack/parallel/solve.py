"""Which way each operator is computed: that of least cost over the whole graph.

Each value chooses a way, and in which placements it is wanted besides the one that it has then;
each of its readers chooses among those. Exchanges are paid once for a value, however many read it.
That is a minimum over a graph of variables with costs between neighbours, which is found by
sequential tree-reweighted messages (Kolmogorov, IEEE TPAMI 28(10), 2006); a descent on the exact
costs ends it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.facts import dataclass
from hal.tile.node import Node, Type, toposort
from stack.ir.pattern import number_of
from stack.ops import OPS, LoopBody
from stack.ops.operator import OpKind
from stack.parallel.convert import route
from stack.parallel.loops import is_divided
from stack.parallel.placement import SUM, WHOLE, Packed, Placement, Routed, Row, Sharded
from stack.parallel.shadowed import shadow_steps
from stack.parallel.way import Way
from stack.parallel.ways import work

Costs = NDArray[np.float64]
NEVER = 1e12


@dataclass(frozen=True, slots=True)
class Price:
    """What counts: bytes that a rank sends, in units of themselves, a call for itself, and what a
    rank computes. A product is dear, so that ranks share it rather than exchange less."""

    call: float = 512.0
    operation: float = 1 / 8
    byte: float = 1 / 32
    view: float = 1 / 256
    """Of a rank's part of an axis that it has as a whole: mostly read where it lies. One of a flat
    array is copied."""
    moved: float = 16.0
    """How much dearer it is to move what is stored along an axis that a strategy divides: then the
    others come to it."""


PRICE = Price()


def _lies_apart(type: Type, p: Placement) -> bool:
    """Whether what a rank has of a value is in more than one piece of it."""
    return isinstance(p, Sharded) and prod(type.shape[: p.axis]) > 1


def _is_routed(way: Way) -> bool:
    return any(isinstance(p, Routed) for p in way.operands)


@dataclass(slots=True)
class _Graph:
    """Variables by number, the costs of their states, and of pairs of states."""

    own: list[Costs] = field(default_factory=list)
    edges: list[tuple[int, int, Costs]] = field(default_factory=list)

    def add(self, costs: Sequence[float] | Costs) -> int:
        self.own.append(np.asarray(costs, np.float64))
        return len(self.own) - 1


@dataclass(frozen=True, slots=True)
class _Problem:
    """Variables, and a state for each to begin with; told apart by the digest of all numbers."""

    digest: bytes
    graph: _Graph = field(compare=False)
    begun: tuple[int, ...] = field(compare=False)
    sweeps: int = 24

    @staticmethod
    def of(graph: _Graph, begun: Sequence[int], sweeps: int) -> _Problem:
        found, known = blake2b(), dict[int, bytes]()
        for own in graph.own:
            found.update(b"%d " % own.size + own.tobytes())
        for a, b, table in graph.edges:
            if id(table) not in known:  # many edges share one
                known[id(table)] = blake2b(table.tobytes()).digest()
            found.update(b"%d %d " % (a, b) + known[id(table)])
        found.update(repr(begun).encode())
        return _Problem(found.digest(), graph, tuple(begun), sweeps)


_Offers = list[tuple[Placement, frozenset[Placement]]]


class Chooser:
    """Costs of one graph."""

    def __init__(
        self,
        order: Sequence[Node],
        ways: Mapping[Node, Sequence[Way]],
        wanted: Sequence[tuple[Node, Placement]],
        ranks: int,
        price: Price,
        shadows: int = 0,
    ) -> None:
        """`wanted` has the placement of each output; of `shadows` groups the matrices travel, where
        rows do (`stack.parallel.shadowed`)."""
        self.order, self.ways, self.ranks, self.price = order, ways, ranks, price
        self.shadows = shadows
        self.wanted = wanted
        self._place = {n: i for i, n in enumerate(order)}
        self.readers: dict[Node, list[tuple[Node, int]]] = {n: [] for n in order}
        for n in order:
            for i, s in enumerate(n.srcs):
                self.readers[s].append((n, i))
        self._ends: dict[Node, list[Placement]] = {n: [] for n in order}
        for n, p in wanted:
            self._ends[n].append(p)
        every = (p for n in order for w in ways[n] for p in (w.result, *w.operands))
        self._number = {
            p: i for i, p in enumerate(dict.fromkeys([*every, *(p for _, p in wanted)]))
        }
        """An order of placements that is the same in all processes; that of a set is not."""
        self._staying = _staying(order, ways)
        self._steps: dict[tuple[Type, bool, bool, Placement, Placement], float] = {}
        self._spreads: dict[tuple[Node, Placement, frozenset[Placement]], float] = {}
        self._bodies: dict[LoopBody, float] = {}
        self._unit = max([1, *(n.type.nbytes for n in order)]) / 1e6

    def step(self, n: Node, a: Placement, b: Placement) -> float:
        """The cost of one change of a value's placement."""
        if isinstance(b, Routed) and number_of(n) is not None:
            return 0.0 if a == WHOLE else NEVER  # a constant is one everywhere
        stays = n in self._staying
        key = n.type, stays, n.op == "input", a, b
        if key not in self._steps:
            # What is stored in rows is gathered by the parameter, when that is used
            parts = a.parts if n.op == "input" and isinstance(a, Packed) else ()
            rows = any(isinstance(part.placement, Row) for part in parts)
            steps = None if rows else route(n.type, a, b, self.ranks, self.shadows)
            times = self.price.moved if stays else 1.0
            # A rank's own part of a whole value, of which none is sent
            each = self.price.byte if isinstance(b, Row | Packed) else self.price.view
            taken = 0.0 if a == b or steps else each * n.type.nbytes / self.ranks
            if steps and any(_lies_apart(n.type, p) for p in (a, b)):
                taken = self.price.byte * n.type.nbytes  # laid out anew for those that exchange it
            self._steps[key] = (
                NEVER
                if steps is None
                else (sum(m * times + self.price.call for _, m in steps) + taken) / self._unit
            )
        return self._steps[key]

    def spread(self, n: Node, a: Placement, targets: frozenset[Placement]) -> float:
        """The cost to have a value in these placements, made from it or from one another."""
        key = n, a, targets
        if key not in self._spreads:
            self._spreads[key] = self._spread(n, a, targets)
        return self._spreads[key]

    def _spread(self, n: Node, a: Placement, targets: frozenset[Placement]) -> float:
        left = sorted((t for t in targets if t != a), key=self._number.__getitem__)
        have, total = [a], 0.0
        while left:
            cost, best = min(
                ((self.step(n, s, t), i) for i, t in enumerate(left) for s in have),
            )
            total += cost
            have.append(left.pop(best))
        return total

    def compute(self, n: Node, way: Way) -> float:
        if n.op == "loop":
            return self._looped(n, way)
        done = work(n, way, self.ranks)
        each = self.price.operation if n.op == "matmul" else self.price.byte
        steps = shadow_steps(n, self.shadows, self.ranks) if _is_routed(way) else ()
        sent = sum(nbytes + self.price.call for _, nbytes in steps)
        return (done * each + sent) / self._unit

    def _looped(self, n: Node, way: Way) -> float:
        """The steps of a loop, which ranks have a part of each of, or make alike."""
        body = n["body"]
        if body not in self._bodies:
            nodes = [x for x in toposort(body.outputs) if x.op != "input"]
            wholes = ((x, Way((WHOLE,) * len(x.srcs), WHOLE)) for x in nodes)
            self._bodies[body] = sum(self.compute(x, whole) for x, whole in wholes)
        steps: int = n["steps"]
        return steps * self._bodies[body] / (self.ranks if is_divided(way.operands) else 1)

    def total(self, chosen: Mapping[Node, Way]) -> float:
        """The exact cost of an assignment, in the units that are compared."""
        return self._sum(self.order, chosen)

    def _sum(self, nodes: Iterable[Node], chosen: Mapping[Node, Way]) -> float:
        return sum(
            self.compute(n, chosen[n]) + self.spread(n, chosen[n].result, self._read(n, chosen))
            for n in nodes
        )

    def _read(self, n: Node, chosen: Mapping[Node, Way]) -> frozenset[Placement]:
        read = [chosen[c].operands[i] for c, i in self.readers[n]]
        return frozenset(read + self._ends[n])

    def choose(self, sweeps: int = 24) -> dict[Node, Way]:
        """The way of each node."""
        graph, number, offers = self._variables()
        lazy = self._lazily()
        self._descend(lazy)
        found = []
        begun = self._states(lazy, graph, number, offers)
        for state in _settled(_Problem.of(graph, begun, sweeps)):
            chosen = {n: self.ways[n][state[number[n]]] for n in self.order}
            self._descend(chosen)
            self._gather_later(chosen)
            found.append(chosen)
        return min(found, key=self.total)

    def _states(
        self,
        chosen: Mapping[Node, Way],
        graph: _Graph,
        number: Mapping[Node, int],
        offers: Mapping[Node, tuple[int, _Offers]],
    ) -> list[int]:
        """The states of all variables for an assignment. A value that is read in more placements
        than a state has keeps the first ones: what is left out is mended by what follows."""
        state = [0] * len(graph.own)
        for n in self.order:
            state[number[n]] = self.ways[n].index(chosen[n])
            if n in offers:
                which, states = offers[n]
                r, read = chosen[n].result, self._read(n, chosen)
                fitting = [i for i, (a, have) in enumerate(states) if a == r and read <= have]
                state[which] = fitting[0] if fitting else states.index((r, frozenset([r])))
        return state

    def _lazily(self) -> dict[Node, Way]:
        """Each node the way that is cheapest where its operands are, and sums as late as may be."""
        chosen: dict[Node, Way] = {}
        for n in self.order:

            def cost(way: Way, n: Node = n) -> tuple[float, int, bool]:
                pairs = [
                    (s, chosen[s].result, p) for s, p in zip(n.srcs, way.operands, strict=True)
                ]
                moved = sum(self.step(s, a, p) for s, a, p in pairs)
                changes = sum(a != p for _, a, p in pairs)
                return moved + self.compute(n, way), changes, way.result != SUM

            chosen[n] = min(self.ways[n], key=cost)
        return chosen

    def _descend(self, chosen: dict[Node, Way], rounds: int = 4) -> None:
        for _ in range(rounds):
            changed = False
            for n in self.order:
                if len(self.ways[n]) == 1:
                    continue
                near = list(dict.fromkeys(n.srcs))

                def cost(way: Way, n: Node = n, near: list[Node] = near) -> float:
                    chosen[n] = way
                    around = (self.spread(s, chosen[s].result, self._read(s, chosen)) for s in near)
                    own = self.spread(n, way.result, self._read(n, chosen))
                    return self.compute(n, way) + own + sum(around)

                old = chosen[n]
                best, least = old, cost(old)
                for way in self.ways[n]:
                    if (now := cost(way)) < least - 1e-9:
                        best, least = way, now
                chosen[n] = best
                changed = changed or best is not old
            if not changed:
                return

    def _gather_later(self, chosen: dict[Node, Way]) -> None:
        """Gather what comes of a value rather than the value, where all of that can be computed of
        its parts and costs less: a chain, of which no single node is better off so."""
        for n in self.order:
            if not isinstance(chosen[n].result, Sharded) or WHOLE not in self._read(n, chosen):
                continue
            divided = {n: chosen[n]}
            left = [(self._place[c], c) for c, _ in self.readers[n]]
            heapify(left)
            while left:
                _, m = heappop(left)
                if m in divided or chosen[m].result != WHOLE:
                    continue
                for way in self.ways[m]:
                    if isinstance(way.result, Sharded) and all(
                        p == divided[s].result if s in divided else chosen[s].result in (p, WHOLE)
                        for s, p in zip(m.srcs, way.operands, strict=True)
                    ):
                        divided[m] = way
                        for c, _ in self.readers[m]:
                            heappush(left, (self._place[c], c))
                        break
            for m in reversed(list(divided)):  # views of the last values are of whole ones, too
                is_view = OPS[m.op].kind is OpKind.MOVEMENT
                if m is not n and is_view and not any(c in divided for c, _ in self.readers[m]):
                    del divided[m]
            around = dict.fromkeys([*divided, *(s for m in divided for s in m.srcs)])
            later = ChainMap(divided, chosen)
            if self._sum(around, later) < self._sum(around, chosen) - 1e-9:
                chosen.update(divided)

    def _variables(
        self,
    ) -> tuple[_Graph, dict[Node, int], dict[Node, tuple[int, _Offers]]]:
        """The variables and their costs: each node's way, and in which placements its value is to
        be had where several read it."""
        graph = _Graph()
        number: dict[Node, int] = {}
        offers: dict[Node, tuple[int, _Offers]] = {}
        tables: dict[Any, Costs] = {}
        key: Any
        for n in self.order:
            options = self.ways[n]
            own = np.array([self.compute(n, way) for way in options])
            results = tuple(way.result for way in options)
            ends = frozenset(self._ends[n])
            fan = len(self.readers[n])
            if fan < 2 and not ends:
                number[n] = graph.add(own)
            else:
                number[n] = graph.add(own)
                labels = self._labels(n)
                states = _states(results, labels)
                costs = [self.spread(n, r, have) if ends <= have else NEVER for r, have in states]
                which = graph.add(costs)
                key = "result", results, tuple(states)  # variables of one kind share a table
                if key not in tables:
                    tables[key] = np.array(
                        [[0.0 if a == r else NEVER for r, _ in states] for a in results]
                    )
                graph.edges.append((number[n], which, tables[key]))
                offers[n] = which, states
            for i, s in enumerate(n.srcs):
                asked = tuple(way.operands[i] for way in options)
                if s in offers:
                    source, given_states = offers[s]
                    key = ("offer", tuple(given_states), asked)
                    if key not in tables:
                        tables[key] = np.array(
                            [[0.0 if a in h else NEVER for a in asked] for _, h in given_states]
                        )
                else:
                    source, given = number[s], tuple(way.result for way in self.ways[s])
                    key = "step", s.type, s in self._staying, s.op == "input", given, asked
                    if key not in tables:
                        tables[key] = np.array([[self.step(s, a, b) for b in asked] for a in given])
                graph.edges.append((source, number[n], tables[key]))
        return graph, number, offers

    def _labels(self, n: Node) -> tuple[Placement, ...]:
        asked = {way.operands[i]: None for c, i in self.readers[n] for way in self.ways[c]}
        return tuple(asked | dict.fromkeys(self._ends[n]))


def _staying(order: Sequence[Node], ways: Mapping[Node, Sequence[Way]]) -> frozenset[Node]:
    """Inputs that are divided along axes, and other views of them."""
    found: set[Node] = set()
    for n in order:
        if n.op == "input":
            (p,) = (way.result for way in ways[n])
            parts = [part.placement for part in p.parts] if isinstance(p, Packed) else [p]
            if n.dtype.is_float and any(isinstance(q, Sharded) for q in parts):
                found.add(n)
        elif len(n.srcs) == 1 and n.srcs[0] in found and OPS[n.op].kind is OpKind.MOVEMENT:
            found.add(n)
    return frozenset(found)


@lru_cache(maxsize=4096)
def _states(
    results: tuple[Placement, ...], labels: tuple[Placement, ...]
) -> list[tuple[Placement, frozenset[Placement]]]:
    """A value's placement, and all in which it is to be had: at most two more."""
    found = []
    for r in dict.fromkeys(results):
        others = [p for p in labels if p != r]
        for more in range(min(2, len(others)) + 1):
            found += [(r, frozenset((r, *extra))) for extra in combinations(others, more)]
    return found


def _minimum(graph: _Graph, sweeps: int) -> list[int]:
    """A state for each variable, of nearly least cost in all. Edges go from lower to higher
    numbers."""
    ahead: list[list[int]] = [[] for _ in graph.own]
    behind: list[list[int]] = [[] for _ in graph.own]
    for e, (a, b, _) in enumerate(graph.edges):
        ahead[a].append(e)
        behind[b].append(e)
    up = [np.zeros(len(graph.own[b])) for _, b, _ in graph.edges]
    down = [np.zeros(len(graph.own[a])) for a, _, _ in graph.edges]
    weight = [1 / max(len(ahead[i]), len(behind[i]), 1) for i in range(len(graph.own))]

    def belief(i: int) -> Costs:
        total = graph.own[i].copy()
        for e in behind[i]:
            total += up[e]
        for e in ahead[i]:
            total += down[e]
        return total

    best: tuple[float, list[int]] = (float("inf"), [])
    for sweep in range(sweeps):
        for i in range(len(graph.own)):
            if not ahead[i]:
                continue
            total = weight[i] * belief(i)
            for e in ahead[i]:
                table = graph.edges[e][2]
                sent = np.minimum.reduce((total - down[e])[:, None] + table, 0)
                up[e] = sent - np.minimum.reduce(sent)
        for i in reversed(range(len(graph.own))):
            if not behind[i]:
                continue
            total = weight[i] * belief(i)
            for e in behind[i]:
                table = graph.edges[e][2]
                sent = np.minimum.reduce(table + (total - up[e]), 1)
                down[e] = sent - np.minimum.reduce(sent)
        if sweep % 4 == 3:
            found = _decoded(graph, ahead, behind, down)
            best = min(best, found)
    return best[1]


@lru_cache(maxsize=8)
def _settled(problem: _Problem) -> list[list[int]]:
    """From the states to begin with, and from those of nearly least cost, states of at most their
    cost: again and again variables that form a forest get the best states given all others, which
    is exact. The forests are drawn, and the same for equal graphs. Whoever plans for other
    budgets, ranks of one stage or shares comes with an equal problem, and it takes seconds."""
    graph, found = problem.graph, []
    near: list[list[tuple[int, Costs]]] = [[] for _ in graph.own]
    for a, b, table in graph.edges:
        near[a].append((b, table))
        near[b].append((a, table.T))
    for state in (list(problem.begun), _minimum(graph, problem.sweeps)):
        draw = np.random.default_rng(len(graph.own))
        idle = 0
        for turn in range(60):
            order = _order(near, draw, turn)
            before = [state[i] for i in order]
            _settle_forest(graph, near, order, state)
            idle = 0 if [state[i] for i in order] != before else idle + 1
            if idle == 12:
                break
        found.append(state)
    return found


def _order(near: list[list[tuple[int, Costs]]], draw: np.random.Generator, turn: int) -> list[int]:
    """Variables in the order in which a forest is to take them: along neighbours, so that its trees
    are large, by priorities that are drawn."""
    priority = draw.random(len(near))
    if turn % 3 == 0:
        return [int(i) for i in np.argsort(priority)]
    heap: list[tuple[float, int]] = []
    seen = [False] * len(near)
    found = []
    for start in np.argsort(priority):
        if seen[start]:
            continue
        heappush(heap, (0.0, int(start)))
        seen[start] = True
        while heap:
            _, i = heappop(heap)
            found.append(i)
            for j, _ in near[i]:
                if not seen[j]:
                    seen[j] = True
                    heappush(heap, (float(priority[j]) / len(near[j]), j))
    return found


def _settle_forest(
    graph: _Graph, near: list[list[tuple[int, Costs]]], order: Sequence[int], state: list[int]
) -> None:
    """Take variables in this order as long as they form a forest, and give them the states of least
    cost; all others keep theirs."""
    component = list(range(len(near)))

    def find(i: int) -> int:
        while component[i] != i:
            component[i] = component[component[i]]
            i = component[i]
        return i

    inside = [False] * len(near)
    for i in order:
        roots = [find(j) for j, _ in near[i] if inside[j]]
        if len(set(roots)) == len(roots):
            inside[i] = True
            for root in roots:
                component[root] = i
    costs: dict[int, Costs] = {}
    for i in order:
        if inside[i]:
            own = graph.own[i].copy()
            for j, table in near[i]:
                if not inside[j]:
                    own += table[:, state[j]]
            costs[i] = own
    done = [False] * len(near)
    for root in order:
        if not inside[root] or done[root]:
            continue
        done[root] = True
        tree: list[tuple[int, int, Costs]] = []
        stack = [root]
        while stack:
            i = stack.pop()
            for j, table in near[i]:
                if inside[j] and not done[j]:
                    done[j] = True
                    tree.append((i, j, table))
                    stack.append(j)
        best: dict[int, NDArray[np.intp]] = {}
        for i, j, table in reversed(tree):
            total = table + costs[j]
            best[j] = total.argmin(1)
            costs[i] += np.minimum.reduce(total, 1)
        state[root] = int(costs[root].argmin())
        for i, j, _ in tree:
            state[j] = int(best[j][state[i]])


def _decoded(
    graph: _Graph, ahead: list[list[int]], behind: list[list[int]], down: list[Costs]
) -> tuple[float, list[int]]:
    state: list[int] = []
    cost = 0.0
    for i, own in enumerate(graph.own):
        paid = own.copy()
        for e in behind[i]:
            paid += graph.edges[e][2][state[graph.edges[e][0]]]
        total = paid.copy()
        for e in ahead[i]:
            total += down[e]
        state.append(int(total.argmin()))
        cost += float(paid[state[-1]])
    return cost, state
