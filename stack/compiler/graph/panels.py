"""Matrices that every step of a loop multiplies by, laid out once in the panels in which products
pack them: a step then reads them where they are."""

from __future__ import annotations

from collections.abc import Callable

from hal.tile.node import Node, node, substitute, toposort
from hal.tile.size import hint, is_fixed, is_one
from stack import ops as build
from stack.compiler.graph.expr import MOVEMENT
from stack.ops import UNBOUNDED, LoopBody

STEPS = 4
"""Of a loop for which laying a matrix out anew pays."""
ROWS = 128
"""The most rows of a product's other operand: with many, packing takes a small part of the time."""
DEPTH = 16
"""What divides the depth of products, however deep the steps are in which they are computed."""


def with_panels(outputs: tuple[Node, ...], width: Callable[[Node], int]) -> tuple[Node, ...]:
    """The outputs, with such matrices as constants of their loops. `width` is that of the panels
    for a product; 0: it reads none."""
    if all(n.op != "loop" for n in toposort(outputs)):
        return outputs
    done: dict[Node, Node] = {}
    for n in toposort(outputs):
        srcs = tuple(done[s] for s in n.srcs)
        attrs = dict(n.attrs)
        if n.op == "loop":
            attrs, srcs = _with_panels(attrs, srcs, width)
        done[n] = node(n.op, n.type, srcs, **attrs) if srcs != n.srcs else n
    return tuple(done[n] for n in outputs)


def _with_panels(
    attrs: dict[str, object], srcs: tuple[Node, ...], width: Callable[[Node], int]
) -> tuple[dict[str, object], tuple[Node, ...]]:
    body, count, steps = attrs["body"], attrs["consts"], attrs["steps"]
    assert isinstance(body, LoopBody)
    assert isinstance(count, int)
    assert isinstance(steps, int)
    if not STEPS <= steps < UNBOUNDED:
        return attrs, srcs
    fixed = dict(zip(body.inputs[:count], srcs, strict=False))
    wide: dict[Node, int] = {}
    for x in toposort(body.outputs):
        if x.op == "matmul" and (n := width(x)) and _serves(x, n) and _source(x.srcs[1]) in fixed:
            wide.setdefault(x.srcs[1], n)
    if not wide:
        return attrs, srcs
    panels = [_in_panels(substitute((b,), fixed)[0], n) for b, n in wide.items()]
    given = [*body.inputs[:count], *(build.input(-1 - i, p.type) for i, p in enumerate(panels))]
    inner = dict(zip(wide, map(_matrix, given[count:]), strict=True))
    made = substitute(body.outputs, inner)
    inputs = [*given, *body.inputs[count:]]
    slots = {x: build.input(i, x.type) for i, x in enumerate(inputs)}
    attrs["body"] = LoopBody(tuple(slots.values()), substitute(made, slots))
    attrs["consts"] = count + len(panels)
    return attrs, (*srcs[:count], *panels, *srcs[count:])


def _serves(x: Node, width: int) -> bool:
    """Whether a product reads its right operand in whole panels, and often enough."""
    a, b = x.srcs
    if len(b.shape) != 2 or not all(map(is_fixed, b.shape)) or is_one(a.shape[-2]):
        return False
    k, n = b.shape
    return k > 0 and k % DEPTH == 0 and n % width == 0 and hint(a.shape[-2]) <= ROWS


def _source(x: Node) -> Node:
    """What a node is a view of."""
    while x.op in MOVEMENT:
        (x,) = x.srcs
    return x


def _in_panels(b: Node, width: int) -> Node:
    """A matrix [k, n] as [n / width, k, width]."""
    k, n = b.shape
    return build.contiguous(build.permute(build.reshape(b, (k, n // width, width)), (1, 0, 2)))


def _matrix(panels: Node) -> Node:
    """The matrix of which these are the panels."""
    count, k, width = panels.shape
    return build.reshape(build.permute(panels, (1, 0, 2)), (k, count * width))
