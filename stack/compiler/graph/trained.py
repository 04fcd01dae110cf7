"""Attention with its gradients, where nothing else needs the weights: two nodes instead of products
and softmaxes of the square of the length.

The forward one saves each row's greatest exponent and the sum of its powers. From these, and from
q and k, the backward one computes the weights again. What a softmax subtracts from derivatives, the
sum over keys of power * (given @ v turned) * factors, is total * sum(given * result), by the law of
associativity, and so takes no pass over keys.

It is found in the graph as rules of differentiation and simplification leave it: from the powers of
a softmax on, all users are elementwise operations, sums over keys and products.

Beside attentions with gradients those without are computed by the same kernel: one may be the
forward pass of another one that `checkpoint` computes again for its gradients, with the same bits.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, substitute, toposort
from hal.tile.size import hint, is_fixed
from stack import ops as g
from stack.compiler.graph.attention import replaced, scores_of
from stack.ops import OPS
from stack.ops.attention import over_leaves
from stack.ops.operator import OpKind

MOST_COLUMNS = 256
"""Columns of q and of v up to which rows of them are kept in a cache."""
MOST_NODES = 96
"""Nodes of the expressions that a kernel computes for each score."""
ROWS_OF_PART = 256
"""Rows for which a core of its own pays, which sums derivatives by k and v for itself."""

Users = Mapping[Node, Sequence[Node]]
Factor = tuple[str, Node]
"""A node to multiply by ("mul"), or a condition where it is not kept ("where")."""


def fold_gradients(outputs: tuple[Node, ...], cores: int) -> tuple[Node, ...]:
    """The outputs with each attention whose gradients are among them as two nodes, for so many
    cores."""
    order = list(toposort(outputs))
    users: dict[Node, list[Node]] = {}
    for n in order:
        for s in dict.fromkeys(n.srcs):
            users.setdefault(s, []).append(n)
    kept = set(outputs)
    found: dict[Node, Node] = {}
    without: dict[Node, Node] = {}
    for n in order:
        if n.op == "exp":
            match = _Match.of(n, users, kept)
            if match is not None:
                found.update(match.values(cores) or {})
                without.update(match.alone() or {})
    found |= without if found else {}
    return replaced(outputs, found) if found else outputs


def turned(x: Node) -> Node:
    """x with its last two axes exchanged, as one movement of what it is in another order."""
    below, perm = (x.srcs[0], x["perm"]) if x.op == "permute" else (x, range(len(x.shape)))
    *rest, a, b = perm
    wanted = (*rest, b, a)
    return below if wanted == tuple(range(len(wanted))) else g.permute(below, wanted)


@dataclass(slots=True)
class _Match:
    """What uses the powers of a softmax."""

    power: Node
    exponent: Node
    most: Node
    scores: Node
    total: Node | None = None
    sums: list[Node] = field(default_factory=list)
    """Other sums over keys."""
    products: list[tuple[Node, Node, bool, bool]] = field(default_factory=list)
    """(product, what is made of powers, whether that is turned, whether it is on the left)."""

    @staticmethod
    def of(power: Node, users: Users, kept: set[Node]) -> _Match | None:
        """The users of powers, if they are all known."""
        (below,) = power.srcs
        if below.op != "sub" or power.dtype not in (DType.F32, DType.F64):
            return None
        exponent, top = below.srcs
        last = (len(power.shape) - 1,)
        if top.op != "expand" or top.srcs[0].op != "reduce" or top.srcs[0].srcs != (exponent,):
            return None
        most = top.srcs[0]
        scores = scores_of(exponent, {n: len(users.get(n, ())) for n in _chain(exponent)})
        if (most["kind"], most["axes"]) != ("max", last) or scores is None:
            return None
        if not is_fixed(scores.srcs[0].shape[-1]):
            return None  # kernels divide their memory by widths
        match = _Match(power, exponent, most, scores)
        seen: set[tuple[Node, bool]] = set()
        stack = [(power, False)]
        while stack:
            n, is_turned = stack.pop()
            if (n, is_turned) in seen:
                continue
            seen.add((n, is_turned))
            if n in kept:
                return None
            for user in users.get(n, ()):
                following = match._use(user, n, is_turned, last)
                if following is None:
                    return None
                stack += following
        return match

    def _use(
        self, user: Node, n: Node, is_turned: bool, last: tuple[int, ...]
    ) -> list[tuple[Node, bool]] | None:
        """What of a user is of the square of the length, too; None where it is not known."""
        if user.op == "matmul":
            left, right = user.srcs
            if left is right:
                return None
            self.products.append((user, n, is_turned, left is n))
            return []
        if user.op == "permute":
            return [(user, not is_turned)] if user is turned(n) else None
        if is_turned:
            return [(user, True)] if user.op == "cast" else None
        if user.op == "reduce":
            if (user["kind"], user["axes"]) != ("sum", last):
                return None
            if n is self.power:
                self.total = user
            else:
                self.sums.append(user)
            return []
        return [(user, False)] if OPS[user.op].kind is OpKind.ELEMENTWISE else None

    def values(self, cores: int) -> dict[Node, Node] | None:
        """What takes the place of products and sums; None where these are not all an attention's
        and its gradients'."""
        if self.total is None or len(self.sums) != 1:
            return None
        (q, k), (sum,) = self.scores.srcs, self.sums
        factors = _factors(sum.srcs[0])
        others = [f for f in factors if f != ("mul", self.power) and f[1].op != "matmul"]
        rates = [f[1] for f in factors if f[0] == "mul" and f[1].op == "matmul"]
        if len(rates) != 1 or len(others) + 2 != len(factors):
            return None
        (rate,), over = rates, [f for f in others if not self._is_norm(f)]
        given, v = rate.srcs[0], turned(rate.srcs[1])
        if not is_fixed(v.shape[-1]) or max(q.shape[-1], v.shape[-1]) > MOST_COLUMNS:
            return None
        roles = []
        for product in self.products:
            role = self._role(*product, q, k, v, given, over)
            if role is None:
                return None
            roles.append(role)
        by_scores = {made for kind, made, _ in roles if kind in "qk"}
        weights = {made for kind, made, _ in roles if kind == "v"} or {self.power}
        if len(by_scores) != 1 or len(weights) != 1:
            return None
        made = _product(over, self.power)
        leaves = {self.scores: g.scores(self.scores.type), rate: g.score_gradients(rate.type)}
        exponent, factor = substitute((self.exponent, made), leaves)
        *batch, m, keys = self.power.shape
        d, n = q.shape[-1], v.shape[-1]
        saved = g.attention_saved(q, k, v, exponent, factor)
        part = self._part
        out = part(saved, 0, m, n)
        most, total = (g.cast(part(saved, m * n + i * m, m, 1), self.power.dtype) for i in (0, 1))
        taken = g.reduce("sum", g.mul(g.cast(given, out.dtype), out), len(batch) + 1)
        taken = g.cast(taken, self.power.dtype)
        values = {
            self.most: most,
            self.total: total,
            sum: taken if len(over) < len(others) else g.mul(total, taken),
        }
        rates_of, used = substitute((by_scores.pop(), weights.pop()), {**leaves, **values})
        if len(over_leaves((exponent, factor, rates_of, used))) > MOST_NODES:
            return None
        parts = max(1, min(-(-cores // hint(prod(batch))), hint(m) // ROWS_OF_PART))
        grads = g.attention_gradients(q, k, v, given, exponent, rates_of, used, parts)

        def summed(first: int, columns: int) -> Node:
            step = keys * (d + n)
            pieces = [part(grads, m * d + i * step + first, keys, columns) for i in range(parts)]
            return functools.reduce(g.add, pieces)

        results = {"o": out, "q": part(grads, 0, m, d), "k": summed(0, d), "v": summed(keys * d, n)}
        for (matmul, *_), (kind, _, is_turned) in zip(self.products, roles, strict=True):
            result = turned(results[kind]) if is_turned else results[kind]
            values[matmul] = g.cast(result, matmul.dtype)
        return values

    def alone(self) -> dict[Node, Node] | None:
        """What takes the place of the one product of weights where there are no gradients; None
        where there are, or it is no attention."""
        if self.total is None or self.sums or len(self.products) != 1:
            return None
        ((product, n, is_turned, is_left),) = self.products
        while n.op in ("cast", "permute"):
            n = n.srcs[0]
        factors = _factors(n)
        over = [f for f in factors if f != ("mul", self.power) and not self._is_norm(f)]
        (q, k), v = self.scores.srcs, product.srcs[1] if is_left else turned(product.srcs[0])
        if is_turned is is_left or ("mul", self.power) not in factors:
            return None
        if len(over) + 2 != len(factors) or not is_fixed(v.shape[-1]):
            return None
        if max(q.shape[-1], v.shape[-1]) > MOST_COLUMNS:
            return None
        leaf = {self.scores: g.scores(self.scores.type)}
        made = substitute((self.exponent, _product(over, self.power)), leaf)
        if len(over_leaves(made)) > MOST_NODES:
            return None
        saved = g.attention_saved(q, k, v, *made)
        out = self._part(saved, 0, self.power.shape[-2], v.shape[-1])
        return {product: g.cast(out if is_left else turned(out), product.dtype)}

    def _part(self, of: Node, first: int, rows: int, columns: int) -> Node:
        """A matrix for each head, of those that lie flat one after the other."""
        batch = self.power.shape[:-2]
        piece = g.slice_axis(of, len(batch), first, first + rows * columns)
        return g.reshape(piece, (*batch, rows, columns))

    def _role(
        self,
        product: Node,
        n: Node,
        is_turned: bool,
        is_left: bool,
        q: Node,
        k: Node,
        v: Node,
        given: Node,
        over: Sequence[Factor],
    ) -> tuple[str, Node, bool] | None:
        """What a product is: the result ("o") or the gradient by q, k turned or v, of what, and
        whether it is turned."""
        made = n
        while made.op in ("cast", "permute"):
            made = made.srcs[0]
        factors = _factors(made)
        if ("mul", self.power) not in factors:
            return None
        other = product.srcs[1] if is_left else product.srcs[0]
        if not is_left:
            # The product turned, with its operands the other way round.
            other, is_turned = turned(other), not is_turned
        if is_turned:
            if other is q:
                return "k", made, not is_left
            return ("v", made, not is_left) if other is given else None
        if other is turned(k):
            return "q", made, not is_left
        rest = [f for f in factors if f != ("mul", self.power) and not self._is_norm(f)]
        is_whole = len(rest) + 2 == len(factors) and Counter(rest) == Counter(over)
        return ("o", made, not is_left) if other is v and is_whole else None

    def _is_norm(self, f: Factor) -> bool:
        n = f[1]
        if f[0] != "mul" or n.op != "expand" or n.srcs[0].op != "recip":
            return False
        return n.srcs[0].srcs[0] is self.total


def _chain(n: Node) -> list[Node]:
    """The nodes of an expression near its end."""
    found, stack = {n: None}, [n]
    while stack and len(found) < MOST_NODES:
        for s in stack.pop().srcs:
            if s not in found:
                found[s] = None
                stack.append(s)
    return list(found)


def _factors(n: Node) -> list[Factor]:
    """What is multiplied, through casts and where something is kept or 0."""
    if n.op == "cast" and n.srcs[0].dtype.is_float:
        return _factors(n.srcs[0])
    if n.op == "mul":
        return [*_factors(n.srcs[0]), *_factors(n.srcs[1])]
    if n.op == "where" and _is_zero(n.srcs[2]):
        return [("where", n.srcs[0]), *_factors(n.srcs[1])]
    return [("mul", n)]


def _product(factors: Sequence[Factor], like: Node) -> Node:
    """Factors multiplied, as values like those of a node; the number one where there are none."""
    if not factors:
        return g.const(1, like.dtype)
    made = g.full_like(like, 1)
    for kind, n in factors:
        if kind == "where":
            made = g.where(n, made, g.full_like(like, 0))
        else:
            made = g.mul(made, g.cast(n, like.dtype))
    return made


def _is_zero(n: Node) -> bool:
    while n.op in ("expand", "reshape", "cast"):
        n = n.srcs[0]
    return n.op == "const" and n["value"] == 0
