"""The ways in which ranks along one axis can compute an operator together, by the rule of its
row."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack.ops import OPS
from stack.ops.operator import OpKind
from stack.ops.sharding import Link, outer_size, placed
from stack.parallel.loops import divided_steps, operands_of, result_of
from stack.parallel.placement import (
    SUM,
    WHOLE,
    Owned,
    Packed,
    Part,
    Partial,
    Placement,
    Replicated,
    Routed,
    Row,
    Sharded,
    aligned,
    fits,
    single,
)
from stack.parallel.way import Candidates, Way


def ways(n: Node, known: Candidates, ranks: int) -> list[Way]:
    """All ways to compute a node that is no input, given what is thought of for its operands and
    itself; the first one is that every rank computes the whole."""
    found = dict.fromkeys([Way((WHOLE,) * len(n.srcs), WHOLE)])
    if n.srcs and OPS[n.op].kind is not OpKind.EXCHANGE:
        alone = [p for x in (*n.srcs, n) for p in known[x] if isinstance(p, Owned)]
        found |= dict.fromkeys(Way((p,) * len(n.srcs), p) for p in alone)
    if n.op == "loop":
        steps = divided_steps(n, known, ranks, ways)
        found |= dict.fromkeys(Way(operands_of(n, s), result_of(n, s, ranks)) for s in steps)
    rule = OPS[n.op].sharding
    if rule is None or not all(x.type.size for x in (*n.srcs, n)):
        return list(found)  # no elements, no parts
    for link in rule.links(n):
        found |= dict.fromkeys(_linked(n, link, known, ranks))
    for together in rule.linear(n):
        sums = tuple(SUM if i in together else WHOLE for i in range(len(n.srcs)))
        found |= dict.fromkeys([Way(sums, SUM)])
    if rule.pointwise and all(s.shape == n.shape for s in n.srcs):
        every = [p for x in (*n.srcs, n) for p in known[x] if isinstance(p, Row | Packed | Routed)]
        found |= dict.fromkeys(Way((p,) * len(n.srcs), p) for p in every)
    if rule.regroups:
        found |= dict.fromkeys(_regrouped(n, known, ranks))
    if n.op in _OWN:
        found |= dict.fromkeys(_OWN[n.op](n, known, ranks))
    return [
        way
        for way in found
        if not any(
            x.dtype is DType.BOOL and isinstance(p, Partial)  # which nothing combines
            for x, p in zip((*n.srcs, n), (*way.operands, way.result), strict=True)
        )
    ]


def known_ways(n: Node, known: Candidates, ranks: int) -> list[Way]:
    """The ways of which all placements are thought of."""
    return [
        way
        for way in ways(n, known, ranks)
        if way.result in known[n]
        and all(p in known[s] for s, p in zip(n.srcs, way.operands, strict=True))
    ]


def _linked(n: Node, link: Link, known: Candidates, ranks: int) -> Iterator[Way]:
    sides = [(s, axis) for s, axis in zip(n.srcs, link.operands, strict=True) if type(axis) is int]
    if link.axis is not None:
        sides.append((n, link.axis))
    length = sides[0][0].shape[sides[0][1]]
    orders = {Sharded(0): None} | {
        replace(p, axis=0): None
        for x, axis in sides
        for p in known[x]
        if isinstance(p, Sharded) and p.axis == axis
    }
    for order in orders:
        if length % (order.major * order.pieces(ranks)) or not length:
            continue
        if link.contiguous and order != Sharded(0):
            continue
        operands = tuple(
            SUM if axis == "sum" else WHOLE if axis is None else replace(order, axis=int(axis))
            for axis in link.operands
        )
        result = Partial(link.by) if link.axis is None else replace(order, axis=link.axis)
        yield Way(operands, result, (length, order.major, order.zigzag))


def _regrouped(n: Node, known: Candidates, ranks: int) -> Iterator[Way]:
    (x,) = n.srcs
    for p in (*known[x], *known[n]):
        if isinstance(p, Row):
            yield Way((p,), p)
    for p in known[x]:
        if isinstance(p, Sharded):
            at = placed(n.shape, outer_size(x.shape, p.axis, p.major), p.pieces(ranks))
            if at is not None:
                yield Way((p,), Sharded(*at, p.zigzag))
    for p in known[n]:
        if isinstance(p, Sharded):
            at = placed(x.shape, outer_size(n.shape, p.axis, p.major), p.pieces(ranks))
            if at is not None:
                yield Way((Sharded(*at, p.zigzag),), p)


# flat arrays


def _expanded(n: Node, known: Candidates, ranks: int) -> Iterator[Way]:
    if n.srcs[0].type.size == 1:
        yield from (Way((WHOLE,), p) for p in known[n] if isinstance(p, Row | Packed | Routed))


def _counted(n: Node, known: Candidates, ranks: int) -> Iterator[Way]:
    yield from (Way((), p) for p in known[n] if isinstance(p, Row | Packed))


def _reduced(n: Node, known: Candidates, ranks: int) -> Iterator[Way]:
    (x,) = n.srcs
    if n["kind"] == "sum" and n["axes"] == tuple(range(len(x.shape))):
        yield from (Way((p,), SUM) for p in known[x] if isinstance(p, Row | Packed))


def _padded(n: Node, known: Candidates, ranks: int) -> Iterator[Way]:
    (x,) = n.srcs
    if len(n.shape) != 1 or n["lo"] != (0,) or n["value"] != 0:
        return
    for p in (*known[x], *known[n]):
        if isinstance(p, Row) and p.size == n.shape[0]:
            yield Way((p,), p)
    for p in known[x]:
        if isinstance(p, Sharded):
            part = Part(x.shape[0], n.shape[0], p, aligned(x.shape[0] // ranks))
            yield Way((p,), Packed((part,)))
    for p in known[n]:
        if isinstance(p, Packed) and len(p.parts) == 1 and p.parts[0].count == x.shape[0]:
            yield Way((p.parts[0].placement,), p)


def _sliced(n: Node, known: Candidates, ranks: int) -> Iterator[Way]:
    """One part of a flat array, without its gap or with it; or several."""
    (x,) = n.srcs
    for p in known[x]:
        if isinstance(p, Packed):
            cut = cut_parts(p, n["start"][0], n["stop"][0])
            if cut is not None:
                yield Way((p,), cut[2])


def cut_parts(p: Packed, start: int, stop: int) -> tuple[int, int, Placement] | None:
    """Where a rank has a slice of a flat array, and what it is; None for one within a part."""
    begin = local = 0
    inside: list[Part] = []
    before = 0
    for part in p.parts:
        if begin >= start and begin + part.count <= stop:
            if not inside:
                before = local
                if begin != start:
                    return None
            inside.append(part)
        begin += part.size
        local += part.local
    if not inside:
        return None
    sizes = sum(part.size for part in inside)
    if len(inside) == 1:
        part = inside[0]
        if stop - start not in (part.count, part.size):
            return None
        if isinstance(part.placement, Sharded) and stop - start == part.count:
            return before, part.count, part.placement
        if isinstance(part.placement, Owned | Replicated):
            return before, stop - start, part.placement
        return before, part.local, single(part)
    if sizes != stop - start:
        return None
    return before, sum(part.local for part in inside), Packed(tuple(inside))


def _joined(n: Node, known: Candidates, ranks: int) -> Iterator[Way]:
    for p in known[n]:
        if isinstance(p, Packed):
            cut = divided(p, [s.shape[0] for s in n.srcs])
            if cut is not None:
                yield Way(tuple(single(c[0]) if len(c) == 1 else Packed(c) for c in cut), p)


def divided(p: Packed, sizes: Sequence[int]) -> list[tuple[Part, ...]] | None:
    """The parts of pieces of a flat array with these sizes; None where a piece ends within a
    part."""
    found: list[tuple[Part, ...]] = []
    parts = list(p.parts)
    for size in sizes:
        own: list[Part] = []
        while sum(part.size for part in own) < size and parts:
            own.append(parts.pop(0))
        if sum(part.size for part in own) != size:
            return None
        found.append(tuple(own))
    return None if parts else found


# rows of groups


def _multiplied(n: Node, known: Candidates, ranks: int) -> Iterator[Way]:
    there = Routed(n.srcs[2], n.srcs[1].shape[0])
    if fits(n.type, there, ranks):
        yield Way((there, Sharded(0), there), there)


def _summed(n: Node, known: Candidates, ranks: int) -> Iterator[Way]:
    there = Routed(n.srcs[2], n["groups"])
    if fits(n.srcs[0].type, there, ranks):
        yield Way((there, there, there), Sharded(0))


_OWN = {
    "grouped_matmul": _multiplied,
    "grouped_outer": _summed,
    "expand": _expanded,
    "arange": _counted,
    "reduce": _reduced,
    "pad": _padded,
    "slice": _sliced,
    "concat": _joined,
}


def candidates(
    order: Sequence[Node],
    fixed: Mapping[Node, Placement],
    wanted: Mapping[Node, Placement],
    flats: Collection[int],
    ranks: int,
    divides: bool = True,
) -> dict[Node, dict[Placement, None]]:
    """The placements that are thought of for each value: whole, every axis that can be divided if
    any is (`divides`), and what follows from those of inputs and outputs by the rules, in both
    directions.

    Flat arrays of so many elements as `flats` has are not divided otherwise: their parts would be
    torn.
    """
    known: dict[Node, dict[Placement, None]] = {}
    for n in order:
        own: dict[Placement, None] = {WHOLE: None}
        if divides and not _is_flat(n, flats):
            axes = [axis for axis, size in enumerate(n.shape) if size > 1 and size % ranks == 0]
            own |= dict.fromkeys(Sharded(axis) for axis in axes)
        known[n] = own | ({fixed[n]: None} if n in fixed else {})
    for n, p in wanted.items():
        known[n][p] = None
    # Each value's placements come from its neighbours'; a graph is a few dozen rewrites wide.
    changed = set(order)
    users: dict[Node, list[Node]] = {n: [] for n in order}
    for n in order:
        for s in n.srcs:
            users[s].append(n)
    while changed:
        again: set[Node] = set()
        for n in order:
            if n not in changed or n.op == "input":
                continue
            for way in ways(n, known, ranks):
                for x, p in ((n, way.result), *zip(n.srcs, way.operands, strict=True)):
                    if p in known[x] or len(known[x]) >= MOST:
                        continue
                    if isinstance(p, Sharded) and (not divides or _is_flat(x, flats)):
                        continue
                    if fits(x.type, p, ranks):
                        known[x][p] = None
                        again |= {x, *users[x]}
        changed = again
    return known


def _is_flat(n: Node, flats: Collection[int]) -> bool:
    return len(n.shape) == 1 and n.shape[0] in flats


MOST = 14
"""Placements that are thought of for one value, at most."""


def work(n: Node, way: Way, ranks: int) -> float:
    """What a rank computes: floating-point operations of a product, bytes of everything else."""
    shares = way.share is not None or isinstance(
        way.result, Row | Packed | Sharded | Owned | Routed
    )
    part = ranks if shares else 1
    if n.op == "matmul":
        return 2.0 * n.type.size * n.srcs[0].shape[-1] / part
    if OPS[n.op].kind in (OpKind.MOVEMENT, OpKind.LEAF):
        return 0.0
    read = sum(s.type.nbytes for s in n.srcs) if math.prod(n.shape) == 1 else 0
    return (n.type.nbytes + read) / part
