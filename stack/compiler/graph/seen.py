"""Which keys some rows of an attention see at all: what its masks say in terms of positions.

A causal mask or a window is `where(a <= b, x, -inf)` with positions a and b. Blocks of keys that no
row of a block sees are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from hal.core.facts import dataclass
from stack.compiler.graph.access import Affine
from stack.compiler.graph.attention import Attention
from stack.compiler.graph.expr import Apply, Constant, Expr, Iota


@dataclass(frozen=True, slots=True)
class Quotient:
    """(row * step + const) / by, with `step` at least 0 and `by` more than 0."""

    step: int
    const: int
    by: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A row sees keys up to each of `ends`, and from each of `starts` on; there are so many
    rows."""

    rows: int
    ends: tuple[Quotient, ...]
    starts: tuple[Quotient, ...]


def seen_keys(a: Attention) -> Seen:
    """What an attention's exponents say of the keys that rows see."""
    ends, starts = [], []
    for least in _conditions(a.exponent):
        m, j = least.coefficient(a.m), least.coefficient(a.keys)
        if {axis for axis, _ in least.terms} - {a.m, a.keys}:
            continue
        # least >= 0, with keys * j on the other side
        if j < 0 <= m:
            ends.append(Quotient(m, least.const, -j))
        elif j > 0 >= m:
            starts.append(Quotient(-m, -least.const, j))
    return Seen(a.m.size, tuple(ends), tuple(starts))


def _conditions(e: Expr) -> Iterator[Affine]:
    """Values that are at least 0 wherever an exponent is not minus infinity."""
    if not isinstance(e, Apply):
        return
    if e.node.op in ("add", "mul", "cast"):
        # What is minus infinity stays that, or is no number, when it is added to or scaled.
        for arg in e.args:
            if e.node.op != "mul" or any(isinstance(a, Constant) and a.value > 0 for a in e.args):
                yield from _conditions(arg)
    elif e.node.op == "where":
        condition, kept, other = e.args
        if isinstance(other, Constant) and other.value == -inf:
            yield from _held(condition)
            yield from _conditions(kept)


def _held(e: Expr) -> Iterator[Affine]:
    """Values that are at least 0 where a condition holds."""
    if not isinstance(e, Apply):
        return
    if e.node.op == "and":
        for arg in e.args:
            yield from _held(arg)
    if e.node.op in ("le", "lt") and all(isinstance(arg, Iota) for arg in e.args):
        low, high = (arg.value for arg in e.args if isinstance(arg, Iota))
        yield high.plus(low.times(-1)).shift(-(e.node.op == "lt"))
