"""Addresses as sums: what does not change with a loop's variable, and how fast the rest does."""

from __future__ import annotations

from collections.abc import Mapping

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.build import add, const, mul, sub
from hal.tile.node import Node, toposort

I64 = DType.I64


@dataclass(frozen=True, slots=True)
class LinearForm:
    """`rest` plus each variable times its coefficient."""

    rest: Node
    terms: Mapping[Node, int]

    def of(self, variable: Node) -> int:
        """The coefficient of a variable."""
        return self.terms.get(variable, 0)

    def at(self, values: Mapping[Node, Node]) -> Node:
        """The sum with values in place of some variables; the others stand for themselves."""
        total = self.rest
        for v, c in self.terms.items():
            total = add(total, mul(values.get(v, v), c))
        return total


def linear(n: Node, variables: frozenset[Node]) -> LinearForm:
    """An i64 scalar as a sum over variables. What is no sum of them is part of the rest."""
    found: dict[Node, LinearForm] = {}
    for m in toposort([n]):
        found[m] = _sum(m, variables, found)
    return found[n]


def _sum(n: Node, variables: frozenset[Node], found: Mapping[Node, LinearForm]) -> LinearForm:
    if n in variables:
        return LinearForm(const(0, I64), {n: 1})
    if n.dtype is I64 and not n.shape and n.op in ("add", "sub", "mul"):
        a, b = (found[s] for s in n.srcs)
        if n.op == "add":
            return LinearForm(add(a.rest, b.rest), _together(a.terms, b.terms, 1))
        if n.op == "sub":
            return LinearForm(sub(a.rest, b.rest), _together(a.terms, b.terms, -1))
        for x, factor in ((a, n.srcs[1]), (b, n.srcs[0])):
            if factor.op == "const":
                c = int(factor["value"])
                return LinearForm(mul(x.rest, c), {v: k * c for v, k in x.terms.items()})
    return LinearForm(n, {})


def _together(a: Mapping[Node, int], b: Mapping[Node, int], sign: int) -> Mapping[Node, int]:
    return {v: a.get(v, 0) + sign * b.get(v, 0) for v in {**a, **b}}


def variables_of(n: Node) -> frozenset[Node]:
    """The variables that an expression uses."""
    return frozenset(m for m in toposort([n]) if m.op == "var")
