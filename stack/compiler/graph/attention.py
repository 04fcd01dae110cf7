"""Attention as one operation: softmax(scores) @ v, where nothing else needs the scores.

`fold` finds it in a graph that has been prepared; `read_attention` gives its operands as
expressions. The node `attention` has the sources q, k turned, v, and what makes of a score the
exponent of its weight, an expression over the leaf `scores`: a scale, masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, rebuild, substitute, toposort
from hal.tile.size import is_fixed
from stack import ops as g
from stack.compiler.graph.access import Axis, Materialise, Want
from stack.compiler.graph.cluster import Cluster, Nest
from stack.compiler.graph.expr import Expr, Walk
from stack.compiler.graph.operands import operand
from stack.compiler.graph.roots import Home
from stack.compiler.graph.space import Group, Space, solved
from stack.ops import OPS
from stack.ops.attention import LEAVES, expressions, over_leaves
from stack.ops.operator import OpKind

MOST_COLUMNS = 128
"""Columns of q and of v up to which rows of them are kept in a scratchpad."""
_MOST_STEPS = 8
_MOST_NODES = 48
_STEPS = frozenset({"mul", "add", "sub", "where"})


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention's operands over (batch axes, m, depth), (batch axes, depth, keys) and (batch
    axes, keys, n), and expressions over (batch axes, m, keys) from leaves."""

    root: Node
    leaves: tuple[Node, ...]
    """Those that stand for q @ k and, in gradients, for given @ v turned."""
    batch: Group
    m: Axis
    n: Axis
    depth: Axis
    keys: Axis
    flat: Axis | None
    """The root's last axis where what it has lies there one after the other."""
    q: Expr
    k: Expr
    v: Expr
    given: Expr | None
    """In gradients, the derivative by the result, over (batch axes, m, n)."""
    exponent: Expr
    inner: tuple[Expr, ...]
    """Further expressions of a score: factors, or the derivatives by scores and the weights."""

    @property
    def dtype(self) -> DType:
        """The type in which scores are computed."""
        return self.root.srcs[4 if self.given else 3].dtype.computed_in

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """All operands and expressions."""
        given = () if self.given is None else (self.given,)
        return (self.q, self.k, self.v, *given, self.exponent, *self.inner)


def fold(
    outputs: tuple[Node, ...],
    small: bool = True,
    suits: Callable[[Node], bool] = lambda n: True,
) -> tuple[Node, ...]:
    """The outputs with each product that is an attention as one node; with `small` those alone
    whose q and k are made of few nodes. `suits` says of such a node whether it is wanted."""
    users = _users(outputs)
    products = (n for n in toposort(outputs) if n.op == "matmul")
    folded = {n: _attention(n, users, small) for n in products}
    found = {n: whole for n, whole in folded.items() if whole is not None and suits(whole)}
    return replaced(outputs, found) if found else outputs


def replaced(outputs: tuple[Node, ...], found: Mapping[Node, Node]) -> tuple[Node, ...]:
    """The outputs with each node that is a key replaced by its value, also inside of other
    values."""
    done: dict[Node, Node] = {}
    for output in outputs:
        stack = [output]
        while stack:
            last = stack[-1]
            below = (found[last],) if last in found else last.srcs
            pending = [s for s in below if s not in done] if last not in done else []
            if pending:
                stack += reversed(pending)
                continue
            stack.pop()
            if last not in done:
                srcs = tuple(done[s] for s in below)
                done[last] = srcs[0] if last in found else rebuild(last, srcs)
    return tuple(done[output] for output in outputs)


def _users(outputs: tuple[Node, ...]) -> Mapping[Node, int]:
    users: dict[Node, int] = {}
    for n in toposort(outputs):
        for s in set(n.srcs):
            users[s] = users.get(s, 0) + 1
    for n in outputs:
        users[n] = users.get(n, 0) + 1
    return users


def has_gradients(outputs: tuple[Node, ...]) -> bool:
    """Whether a product of a softmax's weights is among the outputs whose powers something else
    needs, too: a training step, in which `checkpoint` may have the same attention once more without
    that. One kernel sums in another order, so there no attention is one."""
    users = _users(outputs)
    for n in toposort(outputs):
        weights = n.srcs[0] if n.op == "matmul" else n
        while weights.op == "cast":
            (weights,) = weights.srcs
        if n.op != "matmul" or weights.op != "mul":
            continue
        for power, over in (weights.srcs, weights.srcs[::-1]):
            total = over
            for op in ("expand", "recip"):
                total = total.srcs[0] if total.op == op else total
            of_powers = total.op == "reduce" and total.srcs == (power,) and power.op == "exp"
            if of_powers and users[power] > 2:
                return True
    return False


def _attention(n: Node, users: Mapping[Node, int], small: bool) -> Node | None:
    weights, v = n.srcs
    while weights.op == "cast" and users[weights] == 1:
        (weights,) = weights.srcs
    exponent = _softmax(weights, users)
    scores = None if exponent is None else scores_of(exponent, users)
    if exponent is None or scores is None:
        return None
    (made,) = substitute((exponent,), {scores: g.scores(scores.type)})
    if len(list(toposort((exponent if small else made,)))) > _MOST_NODES:
        return None
    q, k = scores.srcs
    if not (is_fixed(q.shape[-1]) and is_fixed(n.shape[-1])):
        return None  # the kernel divides its memory by widths
    if max(q.shape[-1], n.shape[-1]) > MOST_COLUMNS or not scores.dtype.is_float:
        return None
    return g.attention(q, k, v, made, n.dtype)


def _softmax(n: Node, users: Mapping[Node, int]) -> Node | None:
    """What a softmax along the last axis is of, if nothing else uses its parts."""
    if n.op != "mul" or users[n] != 1 or n.dtype.is_narrow:
        return None
    for power, over in (n.srcs, n.srcs[::-1]):
        total = _alone(over, ("expand", "recip", "reduce"), users)
        below = _alone(power, ("exp", "sub"), users, (2,)) if total is not None else None
        if total is None or below is None or total.srcs != (power,) or not _is_last(total, "sum"):
            continue
        exponent, most = below.srcs
        top = _alone(most, ("expand", "reduce"), users)
        if top is not None and top.srcs == (exponent,) and _is_last(top, "max"):
            return exponent if users[exponent] == 2 else None
    return None


def _alone(
    n: Node, ops: tuple[str, ...], users: Mapping[Node, int], first: tuple[int, ...] = (1,)
) -> Node | None:
    """The last of a chain of operations, the first of which has so many users, the others one."""
    for number, op in enumerate(ops):
        if n.op != op or users[n] != (first[0] if number == 0 else 1):
            return None
        if number + 1 < len(ops):
            n = n.srcs[0]
    return n


def _is_last(n: Node, kind: str) -> bool:
    return (n["kind"], n["axes"]) == (kind, (len(n.shape) - 1,))


def scores_of(exponent: Node, users: Mapping[Node, int]) -> Node | None:
    """The product that exponents are made of, element by element."""
    n, most = exponent, 2
    for _ in range(_MOST_STEPS):
        if users[n] != most:
            return None
        if n.op == "matmul":
            return n
        if n.op not in _STEPS:
            return None
        above = [s for s in n.srcs if s.dtype is n.dtype and (s.op in _STEPS or s.op == "matmul")]
        if len(above) != 1:
            return None
        n, most = above[0], 1
    return None


# reading it


def with_leaves(root: Node, homes: Mapping[Node, Home]) -> dict[Node, Home]:
    """The homes with some for an attention's leaves, which nothing is ever read from."""
    leaves = [n for n in over_leaves(expressions(root)) if n.op in LEAVES]
    sizes = [n.type.size for n in leaves]
    own = (Home("scratch", i, 0, size, size) for i, size in enumerate(sizes))
    return {**homes, **dict(zip(leaves, own, strict=True))}


def read_attention(cluster: Cluster, homes: Mapping[Node, Home]) -> Attention | Materialise:
    """The operands of an attention's cluster, whose batch axes are split as they need, or the
    operand that needs a buffer to be read."""
    root = cluster.roots[0]
    with_leaf = with_leaves(root, homes)
    leaves = tuple(n for n in with_leaf if n.op in LEAVES)
    q, k, v, *rest = root.srcs
    is_flat, has_given = root.op != "attention", root.op == "attention_gradients"
    beside = _beside_scores(root, homes)

    def read(space: Space) -> tuple[Nest, Attention] | Want:
        nest = cluster.over(space, homes)
        if not isinstance(nest, Nest):
            return nest
        batch, *rows = space.groups
        flat = rows[-1][0] if is_flat else None
        m, n = (Axis(q.shape[-2]), Axis(v.shape[-1])) if is_flat else (g[0] for g in rows)
        depth, keys = Axis(q.shape[-1]), Axis(k.shape[-1])
        walk = Walk(with_leaf)

        def over(x: Node, *last: Axis) -> Expr:
            # Factors may be one number.
            return operand(walk, x, batch + last if x.shape else (), batch)

        operands = over(q, m, depth), over(k, depth, keys), over(v, keys, n)
        given = over(rest[0], m, n) if has_given else None
        for x in beside:
            over(x, m, keys)
        exponent, *inner = (over(x, m, keys) for x in expressions(root))
        return walk.first or (
            nest,
            Attention(
                *(root, leaves, batch, m, n, depth, keys, flat),
                *(*operands, given, exponent, tuple(inner)),
            ),
        )

    found = solved(cluster.nest.space, read)
    if isinstance(found, Materialise):
        return Materialise(beside.get(found.node, found.node))
    cluster.nest = found[0]
    return found[1]


def _beside_scores(root: Node, homes: Mapping[Node, Home]) -> dict[Node, Node]:
    """What an attention's expressions read besides scores, and what of it gets a buffer where it
    cannot be read: as small as it is before it is expanded to a square. What is computed of scores
    has no buffer."""
    scores = over_leaves(expressions(root))
    stack, seen = [x for x in expressions(root) if x.shape], set[Node]()
    found: dict[Node, Node] = {}
    while stack:
        n = stack.pop()
        if n in seen or n.op in LEAVES:
            continue
        seen.add(n)
        if n in scores or (OPS[n.op].kind is OpKind.ELEMENTWISE and n not in homes):
            stack += n.srcs
        else:
            found[n] = n.srcs[0] if n.op == "expand" else n
    return found
