"""Random kernels changed so that lanes that run apart have one right result.

Elements are written once by a statement, and floats are combined to what is the same in any order.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from hal.core.dtypes import DType
from hal.tile.build import add, arange, binary, broadcast, const, mul, reduce, reshape, where
from hal.tile.kernel import Access, Atomic, Copy, For, If, Kernel, Scatter, Statement, Store
from hal.tile.node import Node, rebuild, toposort
from hal.tile.walk import map_nodes
from tests.compiler.c.tame import SIZE, small, tamed


def settled(kernel: Kernel) -> Kernel:
    """The kernel that can run, on buffers of SIZE elements."""
    calm = map_nodes(tamed(kernel), _exact)
    return Kernel(calm.name, calm.params, tuple(map(_statement, calm.body)))


def _statement(s: Statement) -> Statement:
    match s:
        case Store():
            return replace(s, target=_once(s.target, s.value.shape))
        case Copy():
            return replace(s, target=_once(s.target, s.shape))
        case Scatter() | Atomic():
            return replace(s, index=_different(s.index))
        case For():
            return replace(s, body=tuple(map(_statement, s.body)))
        case If():
            then, orelse = (tuple(map(_statement, b)) for b in (s.then, s.orelse))
            return replace(s, then=then, orelse=orelse)
    return s


def _once(a: Access, shape: tuple[int, ...]) -> Access:
    """The block with other steps: 15 + 2 * 23 is inside, and no two elements are in one place.
    Matrices lie by columns."""
    order = range(len(shape)) if len(shape) == 2 else reversed(range(len(shape)))
    steps, step = {}, 1 if prod(shape) == SIZE else 2
    for axis in order:
        steps[axis] = const(step, DType.I64)
        step *= shape[axis]
    return replace(a, strides=tuple(steps[axis] for axis in range(len(shape))))


def _different(index: Node) -> Node:
    """As many different indices, from one on that depends on the data."""
    first = index
    for _ in index.shape:
        first = reduce("max", first, 0)
    if not index.shape:
        return index
    number = reshape(arange(index.type.size, index.dtype), index.shape)
    places = add(mul(number, 5), broadcast(first, index.shape))
    return binary("and", places, const(SIZE - 1, index.dtype, index.shape))


def _exact(root: Node) -> Node:
    known: dict[Node, Node] = {}
    for n in toposort([root]):
        known[n] = _combined(rebuild(n, tuple(known[s] for s in n.srcs)))
    return known[root]


def _combined(n: Node) -> Node:
    if n.op not in ("reduce", "scan") or not n.dtype.is_float:
        return n
    (x,) = n.srcs
    if n["kind"] == "sum":
        return rebuild(n, (small(x),))
    if n["kind"] == "prod":
        return rebuild(n, (where(binary("lt", x, 0.0), const(-1, x.dtype), const(1, x.dtype)),))
    return n
