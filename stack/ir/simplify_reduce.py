"""Simplifications of reductions and scans. The order of a sum is open, so sums may be regrouped."""

from __future__ import annotations

from hal.tile.node import Node
from stack import ops as g
from stack.ir.pattern import capture, op
from stack.ir.rewrite import Rows
from stack.ops.error import GraphError
from stack.ops.numeric import canonical

X = capture("x")


def _short_axes(n: Node, x: Node) -> Node | None:
    """An axis of size 1 has nothing to combine."""
    long = [a for a in n["axes"] if x.shape[a] != 1]
    return g.reduce(n["kind"], x, long) if len(long) < len(n["axes"]) else None


def _reduce_chain(n: Node, x: Node, inner: Node) -> Node | None:
    """Narrow floats stay in two steps for sums and products, because the first step rounds."""
    rounds = n.dtype.is_narrow and n["kind"] in ("sum", "prod")
    if n["kind"] != inner["kind"] or rounds:
        return None
    return g.reduce(n["kind"], x, sorted({*n["axes"], *inner["axes"]}))


def _sum_of_pad(n: Node, x: Node, inner: Node) -> Node | None:
    """Zeros add nothing; axes that are not summed are padded afterwards."""
    if inner["value"] != 0:
        return None
    lo, hi = ([0 if i in n["axes"] else w for i, w in enumerate(inner[k])] for k in ("lo", "hi"))
    return g.pad(g.reduce("sum", x, n["axes"]), lo, hi, 0)


def _of_expand(n: Node, x: Node, inner: Node) -> Node | None:
    """The extreme of repeated values is the value; their sum is a product, if the type holds the
    count."""
    grown = [a for a in n["axes"] if x.shape[a] != inner.shape[a]]
    count = 1
    for a in grown:
        count *= inner.shape[a]
    if not grown or count == 0 or n["kind"] == "prod":
        return None
    rest = g.expand(x, [x.shape[i] if i in grown else m for i, m in enumerate(inner.shape)])
    reduced = g.reduce(n["kind"], rest, n["axes"])
    if n["kind"] in ("min", "max"):
        return reduced
    return _times(reduced, count) if len(grown) == len(n["axes"]) else None


def _times(x: Node, count: int) -> Node | None:
    try:
        held = canonical(count, x.dtype)
    except GraphError:
        return None
    return g.mul(x, g.full_like(x, held)) if held == count else None


REDUCTIONS: Rows = (
    (op("reduce", X, name="n"), _short_axes),
    (op("reduce", op("reduce", X, name="inner"), name="n"), _reduce_chain),
    (op("reduce", op("pad", X, name="inner"), name="n", kind="sum"), _sum_of_pad),
    (op("reduce", op("expand", X, name="inner"), name="n"), _of_expand),
    (op("scan", X, name="n"), lambda n, x: x if x.shape[n["axis"]] == 1 else None),
    (
        op(("argmax", "argmin"), X, name="n"),
        lambda n, x: g.full_like(n, 0) if x.shape[n["axis"]] == 1 else None,
    ),
)
"""Reductions."""
