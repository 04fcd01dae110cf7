"""Which nodes of a graph get a buffer, and where that buffer is.

A node gets one (is a *root*) when it must (outputs, products, reductions, pieces of a
concatenation) or when computing it again in every consumer would cost more than storing it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from math import prod
from typing import Literal

from hal.core.facts import dataclass
from hal.tile.node import Node, toposort
from hal.tile.size import equal, hint, is_one
from stack.compiler.graph.access import Affine, Index, Regroup, regrouped
from stack.compiler.graph.expr import MOVEMENT
from stack.compiler.program import BufferKind, GraphRequest
from stack.ops import OPS, exchange_of, is_exchange
from stack.ops.attention import SEALED, expressions, over_leaves
from stack.ops.operator import OpKind

WHOLE = {row.name for row in OPS.values() if row.kind in (OpKind.EXCHANGE, OpKind.LOOP)}
"""What reads and writes buffers as a whole, whose elements lie one after the other."""
OWN_KERNEL = SEALED | {"matmul", "reduce", "scan", "scatter"} | WHOLE
PUT_TOGETHER = ("concat", "overwrite")
"""What lies where its operands do, and has no kernel."""
INLINE_LIMIT = 100
"""Operations that one expression may hold; a longer chain is stored half-way."""
CHEAP = 24
"""Operations that are computed again rather than stored."""
SLOW = frozenset({"div", "sqrt", "rsqrt", "exp", "log", "tanh"})
"""Operations that take many times as long as to load an element."""
DOWN, ACROSS = 64, 16
"""Rows, and columns of them, from which on a slow value for each column is stored: each row would
compute all of them again, where a value for a row is computed once for all of its columns. Measured
on Zen 4 by batch norms of matrices: 4096 by 256 take 0.6 of the time."""
NESTING_LIMIT = 64
"""Nodes, views included, that may be nested in one expression, because it is read recursively."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a root lives: element f of it is at `base + (f // run) * stride + f % run` of a
    buffer, for f in range(rows * run)."""

    kind: BufferKind | Literal["scratch"]
    index: int
    base: int
    run: int
    stride: int
    rows: int = 1

    def lies_like(self, other: Home) -> bool:
        """Whether elements are at the same offsets as in another home, be it in another buffer."""
        return (self.base, self.run, self.stride) == (other.base, other.run, other.stride)

    def is_like(self, other: Home) -> bool:
        """Whether it is known to be as long, too; nothing is asked of sizes."""
        own, theirs = ((h.base, h.run, h.stride, h.rows) for h in (self, other))
        return all(map(equal, own, theirs))

    def offset(self, index: Index, regroup: Regroup = regrouped) -> Affine:
        """The buffer's element that holds the root's element at `index`."""
        flat = index.flat()
        if self.stride == self.run:
            return flat.shift(self.base)
        outer, inner = regroup(index, (self.rows, self.run)).at
        return outer.times(self.stride).plus(inner).shift(self.base)


def base(n: Node) -> Node:
    """The node below reshapes, which has the same elements in the same order."""
    while n.op == "reshape":
        n = n.srcs[0]
    return n


def piece(n: Node) -> tuple[Node, int]:
    """The node whose buffer holds a loop's operand in one piece, and at which element: what another
    loop gives lies in its node, one result after the other."""
    n = base(n)
    if n.op == "slice" and n["step"] == (1,) and base(n.srcs[0]).op == "loop":
        return base(n.srcs[0]), n["start"][0]
    return n, 0


def uses(outputs: Sequence[Node]) -> Counter[Node]:
    """How often each node below reshapes is an operand."""
    return Counter(base(s) for n in toposort(outputs) for s in n.srcs if n.op != "reshape")


def below_views(n: Node, roots: Mapping[Node, object]) -> Node:
    """The computed or stored node that a chain of views looks at."""
    while n.op in MOVEMENT and n not in roots:
        n = n.srcs[0]
    return n


def _matmul_operand(n: Node, roots: Mapping[Node, object], users: Counter[Node]) -> Node:
    """The node that a product's operand is packed from: below views and casts, of which edges
    (`pad`) take reads that leave elements out. What has no buffer and is rounded to fewer bytes
    for everybody is stored so."""
    rounded: Node | None = None
    while n not in roots and (n.op in MOVEMENT or n.op == "cast"):
        below = n.srcs[0]
        if n.op == "cast" and n.dtype.nbytes < below.dtype.nbytes:
            rounded = n
        elif n.op == "cast":
            rounded = None
        if users[base(below)] > 1:
            rounded = None
        n = below
    return n if rounded is None or n in roots else rounded


def _chosen_matrices(n: Node) -> Node | None:
    """The gather that a batch of matrices is, each of them as a whole, below casts and turns of all
    of them: a product reads those that are chosen where they are."""
    rank = len(n.shape)
    while n.op == "cast" or (n.op == "permute" and n["perm"][:-2] == tuple(range(rank - 2))):
        n = n.srcs[0]
    whole = n.op == "gather" and not n["batch"] and len(n.srcs[0].shape) - n["axis"] > 2
    return n if whole else None


def _forced(order: Sequence[Node], request: GraphRequest) -> dict[Node, None]:
    roots: dict[Node, None] = dict.fromkeys(base(o) for o in request.outputs)
    for n in order:
        if n.op == "input" or n.op in OWN_KERNEL or n.op in (*PUT_TOGETHER, "contiguous"):
            roots[n] = None
        if n.op in PUT_TOGETHER:
            roots.update(dict.fromkeys(map(base, n.srcs)))
        if n.op in WHOLE:
            roots.update(dict.fromkeys(piece(s)[0] if n.op == "loop" else base(s) for s in n.srcs))
    users = uses(request.outputs)
    for n in order:
        if n.op == "matmul" or n.op in SEALED:
            count = 4 if n.op == "attention_gradients" else 3
            for s in n.srcs[:count]:
                chosen = _chosen_matrices(s) if n.op == "matmul" else None
                operands = (_matmul_operand(s, roots, users),) if chosen is None else chosen.srcs
                roots.update(dict.fromkeys(below_views(o, roots) for o in operands))
        elif n.op == "gather":
            roots[below_views(n.srcs[0], roots)] = None
    return roots


@dataclass(frozen=True, slots=True)
class Inline:
    """A node as the expression that it is where nothing in it has a buffer but what it reads."""

    reads: frozenset[Node]
    cost: int
    """Operations, each as often as it is computed."""
    expensive: bool
    slow: bool
    nesting: int

    @staticmethod
    def of(n: Node, roots: Container[Node], known: Mapping[Node, Inline]) -> Inline:
        below = [known[s] for s in n.srcs if s not in roots]
        stored = frozenset(s for s in n.srcs if s in roots)
        return Inline(
            stored.union(*(b.reads for b in below)),
            (n.op not in MOVEMENT) + sum(b.cost for b in below),
            OPS[n.op].expensive or any(b.expensive for b in below),
            n.op in SLOW or any(b.slow for b in below),
            1 + max((b.nesting for b in below), default=0),
        )

    def is_cheap(self, n: Node, times: float) -> bool:
        """Whether computing n `times` times in each user takes less than reading it."""
        big = sum(1 for r in self.reads if hint(r.type.size) * 8 >= hint(n.type.size))
        return big <= 1 and not self.expensive and self.cost * times <= CHEAP


def worth_storing(
    request: GraphRequest, extra: Iterable[Node] = ()
) -> tuple[dict[Node, None], dict[Node, Inline]]:
    """Every node that must get a buffer or is stored rather than computed in each consumer, in
    topological order, inputs included, and every node as an expression; `extra` are further ones
    that must."""
    order = list(toposort(request.outputs))
    roots = _forced(order, request)
    roots.update(dict.fromkeys(extra))
    users = _users(order, roots)
    inner, down = _of_scores(order), _down_rows(order)
    known: dict[Node, Inline] = {}
    for n in order:
        known[n] = Inline.of(n, roots, known)
        pays = (n in down and known[n].slow) or _pays(n, users.get(n, {}), known[n])
        if n not in inner and pays:
            roots[n] = None
    return {n: None for n in order if n in roots}, known


def _of_scores(order: Sequence[Node]) -> set[Node]:
    """What is computed for each score inside of attentions and nowhere else: it is never stored,
    however much it takes."""
    sealed = [n for n in order if n.op in SEALED]
    if not sealed:
        return set()
    exprs = {s for n in sealed for s in expressions(n)}
    least = min(hint(prod(s.shape[-2:])) for s in exprs if s.shape)
    found = set(over_leaves([x for s in sealed for x in expressions(s)]))
    users: dict[Node, list[Node]] = {}
    for n in order:
        for s in n.srcs:
            users.setdefault(s, []).append(n)
    for n in reversed(order):
        own = users.get(n, ())
        alone = own and all(u in found or (u.op in SEALED and n in exprs) for u in own)
        if n.op not in OWN_KERNEL and n.op != "input" and hint(n.type.size) >= least and alone:
            found.add(n)
    return found


def _users(order: Sequence[Node], roots: Mapping[Node, object]) -> dict[Node, dict[Node, float]]:
    """The nodes that compute with each node, be it through views, and how often each of them takes
    an element: in as many windows as it is in."""
    users: dict[Node, dict[Node, float]] = {}
    for n in order:
        if n.op not in MOVEMENT or n in roots:
            for s in n.srcs:
                of = users.setdefault(below_views(s, roots), {})
                of[n] = max(of.get(n, 0.0), _windows(s, roots))
    return users


def _down_rows(order: Sequence[Node]) -> set[Node]:
    """The nodes that are the same in many rows and differ in each of many columns."""
    found = set()
    for n in order:
        if n.op == "expand" and n.shape and n.type.size:
            (x,) = n.srcs
            same = x.shape[-1:] == n.shape[-1:]
            if (
                same
                and hint(n.shape[-1]) >= ACROSS
                and hint(n.type.size) >= DOWN * hint(x.type.size)
            ):
                found.add(base(x))
    return found


def _windows(n: Node, roots: Mapping[Node, object]) -> float:
    """In how many windows of a chain of views an element is."""
    times = 1.0
    while n.op in MOVEMENT and n not in roots:
        if n.op == "window" and n.srcs[0].type.size:
            times *= max(1.0, hint(n.type.size) / hint(n.srcs[0].type.size))
        n = n.srcs[0]
    return times


def _pays(n: Node, users: Mapping[Node, float], inline: Inline) -> bool:
    """Whether to store what need not be stored."""
    if inline.nesting > NESTING_LIMIT:
        return True
    if n.op in MOVEMENT or n.op in ("const", "arange"):
        return False
    if inline.cost > INLINE_LIMIT:
        return True
    taken = sum(users.values())
    if n.type.size == 1 or taken <= 1:
        return False
    return not inline.is_cheap(n, taken / len(users))


def place(request: GraphRequest, roots: Mapping[Node, None]) -> tuple[dict[Node, Home], list[int]]:
    """A home for each root, and the sizes in bytes of the temporaries.

    Pieces of a concatenation live inside it, so that it costs no copy, and what overwrites a part
    lives in that. What ranks combine element
    by element is computed where the result will be, if nobody else reads it.
    """
    homes: dict[Node, Home] = {}
    users = uses(request.outputs)
    temps: list[int] = []
    for i, n in enumerate(request.inputs):
        homes[n] = _whole(n, "input", i)
    for i, n in enumerate(request.outputs):
        homes[base(n)] = _whole(base(n), "output", i)
    for n in reversed(list(roots)):
        if n not in homes:
            homes[n] = _whole(n, "temp", len(temps))
            temps.append(n.type.nbytes)
        if n.op == "concat":
            axis: int = n["axis"]
            own = homes[n]
            inner = prod(n.shape[axis + 1 :])
            stride, start = n.shape[axis] * inner, 0
            for piece in n.srcs:
                run = piece.shape[axis] * inner
                outer = prod(piece.shape[:axis]) if run else 1
                # One run only: its stride does not matter, and equal to the run it reads as
                # contiguous.
                apart = run if outer == 1 else stride
                homes[base(piece)] = Home(own.kind, own.index, own.base + start, run, apart, outer)
                start += run
        if n.op == "overwrite":
            whole, part = n.srcs
            homes[base(part)] = _of_part(homes[n], n)
            if base(whole).op == "overwrite":
                homes[base(whole)] = homes[n]
        if is_exchange(n) and exchange_of(n).in_place:
            below = base(n.srcs[0])
            if users[below] == 1 and not is_exchange(below):
                homes.setdefault(below, homes[n])
    return homes, temps


def _of_part(own: Home, n: Node) -> Home:
    """Where the part of an `overwrite` lies, of which the whole lies in one piece at `own`."""
    part, shape = n.srcs[1].shape, n.shape
    cut = [a for a, (m, size) in enumerate(zip(part, shape, strict=True)) if not equal(m, size)]
    last = cut[-1]
    lead = next((a for a in range(last) if not is_one(part[a])), last)
    inner = prod(shape[last + 1 :])
    offset = sum(
        lo * prod(shape[a + 1 :]) for a, lo in enumerate(n["start"]) if a < lead or a == last
    )
    run, rows = part[last] * inner, prod(part[lead:last])
    stride = run if is_one(rows) else shape[last] * inner
    return Home(own.kind, own.index, own.base + offset, run, stride, rows)


def _whole(n: Node, kind: BufferKind, index: int) -> Home:
    return Home(kind, index, 0, n.type.size, n.type.size)
