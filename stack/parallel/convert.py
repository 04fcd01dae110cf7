"""Changing the placement of a value: what a rank computes and exchanges for it, and what it
sends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, Type
from stack import ops as g
from stack.ir.pattern import number_of
from stack.ops.sharding import Share
from stack.parallel.buckets import buckets
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
    Shares,
    elements,
    local_type,
)


@dataclass(frozen=True, slots=True)
class Line:
    """The ranks along an axis of a mesh: how many, what their devices' engines call them, and a
    node for the number of this one, a scalar i64. `name` gives each exchange what all ranks call
    it. `at` is the number itself where ranks have graphs of their own, as those of a pipeline
    have."""

    size: int
    group: str
    rank: Node
    name: Callable[[str], str]
    at: int | None = None
    shares: Shares | None = None
    """What the ranks have of sharded values, where that is not the same for all."""
    shadows: int = 0
    """Of how many groups each rank computes its own rows (`shadowed.Shadowed`)."""
    parts: int = 1
    """In how many parts routed rows travel (`routed.routes`)."""

    @property
    def pieces(self) -> int:
        """The equal pieces of which ranks have one or, by `shares`, several."""
        return self.size if self.shares is None else self.shares.pieces

    def part(self, type: Type, placement: Placement) -> Type:
        """What this rank has of a value of this type."""
        found = local_type(type, placement, self.pieces)
        if self.shares is None or not isinstance(placement, Sharded):
            return found
        at = placement.axis
        shape = (*found.shape[:at], found.shape[at] * self.shares.own, *found.shape[at + 1 :])
        return found.with_shape(shape)

    def local(self, part: Part) -> int:
        """How many elements of a part of a flat value this rank has, with its gap."""
        if self.shares is None or not isinstance(part.placement, Sharded):
            return part.local
        return part.count // self.pieces * self.shares.own

    def share(self, whole: int, major: int, zigzag: bool = False) -> Share:
        """Which part of a sharded axis this rank has."""
        if self.shares is None:
            return Share(self.rank, self.size, whole, major, zigzag)
        first = g.const(self.shares.first, DType.I64)
        return Share(first, self.pieces, whole, major, zigzag, self.shares.own)

    def has(self, placement: Placement) -> bool:
        """Whether this rank has anything of a value."""
        return not isinstance(placement, Owned) or placement.rank == self.at


Step = tuple[str, int]
"""A kind of exchange, and the bytes that a rank sends in it."""


def route(
    type: Type, a: Placement, b: Placement, ranks: int, shadows: int = 0
) -> tuple[Step, ...] | None:
    """What is exchanged to change a placement; None where it is no use to try. Rows of so many
    groups as `shadows` says stay where they are.

    Bytes are those of the algorithms that send least: of S bytes among n ranks (n - 1) / n * S for
    a gather or a scatter, twice that for a reduction, and an nth part of it for an all-to-all.
    """
    if a == b or (isinstance(a, Replicated) and not isinstance(b, Routed)):
        return ()
    nbytes = elements(type, a if isinstance(b, Replicated | Partial) else b) * type.dtype.nbytes
    share = nbytes * (ranks - 1) // ranks
    match a, b:
        case (Routed(count=count), _) | (_, Routed(count=count)):
            # Rows travel from and to equal parts of them: as many as if groups had equally many
            rows = ("all_to_all", share // ranks * (count - min(shadows, count)) // count)
            if {a, b} & {Sharded(0)} or isinstance(a, Replicated):
                return (rows,)
            return (rows, ("all_gather", share)) if isinstance(b, Replicated) else None
        case Partial(), Replicated():
            return (("all_reduce", 2 * share),)
        case Partial(), Sharded() | Row():
            return (("reduce_scatter", share),)
        case Partial(), Owned():
            return (("reduce", share),)
        case Owned(), Replicated():
            return (("broadcast", share),)
        case Owned(), Partial("sum"):
            return ()
        case Partial("sum"), Packed(parts):
            return tuple(
                step
                for first, last in _stretches(parts)
                for step in route(
                    Type((sum(part.size for part in parts[first:last]),), type.dtype),
                    a,
                    Sharded(0)
                    if isinstance(parts[first].placement, Row)
                    else parts[first].placement,
                    ranks,
                )
                or ()
            )
        case Sharded() | Row(), Replicated():
            return (("all_gather", share),)
        case Sharded(), Sharded() if a.axis == b.axis:
            return (("all_gather", share),)
        case Sharded(), Sharded():
            return (("all_to_all", share // ranks),)
        case Packed(parts), Replicated():
            return tuple(
                step
                for part in parts
                for step in route(Type((part.size,), type.dtype), part.placement, b, ranks) or ()
            )
        case _:
            first = route(type, a, WHOLE, ranks)
            return first if b != SUM and not isinstance(a, Partial) else None


def converted(n: Node, type: Type, a: Placement, b: Placement, line: Line) -> Node:
    """A rank's node of placement b, given that of placement a; `type` is that of the whole."""
    if a == b:
        return n
    match a, b:
        case Replicated(), Owned():
            return n if line.has(b) else absent(n)
        case Owned(rank), Replicated():
            return g.broadcast_from(n, rank, line.group, _called("whole", n, line))
        case Owned(), Partial("sum"):
            return n if line.has(a) else absent(n)
        case Partial(by), Owned(rank):
            return g.reduce_to(by, n, rank, line.group, _called("sum", n, line))
        case Replicated(), Partial():
            return _on_first(n, line)
        case Replicated(), Sharded():
            return _own(n, b, line)
        case Replicated(), Row(size):
            return own_part(_padded(n, size), Sharded(0), line.rank, line.size)
        case Replicated(), Packed(parts):
            cut = _cut(n, [part.size for part in parts])
            pieces = [
                _packed_part(x, part, line)
                for x, part in zip(cut, parts, strict=True)
                if line.has(part.placement)
            ]
            return joined(pieces, n)
        case Partial(by), Replicated():
            return _summed(n, by, line)
        case Partial(by), Sharded():
            return _scattered(n, by, b, line)
        case Partial(by), Row(size):
            return _scattered(_padded(n, size), by, Sharded(0), line)
        case Partial(by), Packed(parts):
            return _packed(n, by, parts, line)
        case Sharded(), Replicated():
            return _gathered(n, a, line)
        case Row(), Replicated():
            flat = g.slice_axis(_gathered(n, Sharded(0), line), 0, 0, type.size)
            return g.reshape(flat, type.shape)
        case Sharded(), Sharded():
            return _exchanged(n, a, b, line)
        case Packed(parts), Replicated():
            return _unpacked(n, parts, line)
        case _:
            whole = converted(n, type, a, WHOLE, line)
            return converted(whole, type, WHOLE, b, line)


def absent(n: Node) -> Node:
    """What stands for a value that another rank owns."""
    return g.full_like(n, 0)


def joined(pieces: Sequence[Node], like: Node) -> Node:
    """A rank's pieces of a flat value, one after the other; it may have none."""
    return g.concat(pieces, 0) if pieces else g.full((0,), 0, like.dtype)


def _called(what: str, x: Node, line: Line) -> str:
    return line.name(f"{what} of {x.type}")


def _on_first(n: Node, line: Line) -> Node:
    """The value on rank 0, and 0 on the others."""
    zero = g.full_like(n, 0)
    if n is zero:
        return n
    first = g.eq(line.rank, g.const(0, DType.I64))
    return g.where(g.broadcast(first, n.shape), n, zero)


def own_part(n: Node, p: Sharded, rank: Node, ranks: int) -> Node:
    """The part of a whole value that rank `rank` of `ranks` has."""
    shape = (*n.shape[: p.axis], n.shape[p.axis] // ranks, *n.shape[p.axis + 1 :])
    value = number_of(n)
    if value is not None:
        return g.full(shape, value, n.dtype)  # taken from an array, it would need to be in one
    mine = g.gather(_split(n, p, ranks), g.reshape(rank, (1,)), p.axis + 1)
    return g.reshape(mine, shape)


def _own(n: Node, p: Sharded, line: Line) -> Node:
    """The part of a whole value that this rank has."""
    if line.shares is None:
        return own_part(n, p, line.rank, line.size)
    return _pieces(n, p, line.pieces, line.shares.first, line.shares.own)


def _pieces(n: Node, p: Sharded, pieces: int, first: int, count: int) -> Node:
    """Neighbours among the equal pieces of each of the `major` blocks of an axis."""
    split, at = _split(n, p, pieces), p.axis + 1
    found = g.slice_axis(split, at, first, first + count)
    length = n.shape[p.axis] // pieces * count
    return g.reshape(found, (*n.shape[: p.axis], length, *n.shape[p.axis + 1 :]))


def _filled(n: Node, p: Sharded, pieces: int, most: int) -> Node:
    """So many pieces of each of the `major` blocks of an axis, with 0 behind them as `most`."""
    split, at = _split(n, p, pieces), p.axis + 1
    before = (0,) * len(split.shape)
    behind = tuple(most - pieces if i == at else 0 for i in range(len(split.shape)))
    length = n.shape[p.axis] // pieces * most
    shape = (*n.shape[: p.axis], length, *n.shape[p.axis + 1 :])
    return g.reshape(g.pad(split, before, behind), shape)


def _spaced(n: Node, p: Sharded, shares: Shares) -> Node:
    """A whole value in equal parts for the ranks, which have theirs and 0 behind it."""
    split, at, begin, found = _split(n, p, shares.pieces), p.axis + 1, 0, []
    before = (0,) * len(split.shape)
    for count in shares.counts:
        own = g.slice_axis(split, at, begin, begin + count)
        behind = tuple(shares.most - count if i == at else 0 for i in range(len(split.shape)))
        found.append(g.pad(own, before, behind))
        begin += count
    length = n.shape[p.axis] // shares.pieces * shares.most * len(shares.counts)
    return g.reshape(g.concat(found, at), (*n.shape[: p.axis], length, *n.shape[p.axis + 1 :]))


def _closed(n: Node, p: Sharded, shares: Shares) -> Node:
    """The whole value that lies so in equal parts."""
    ranks = len(shares.counts)
    split, at = _split(n, p, shares.most * ranks), p.axis + 1
    found = [
        g.slice_axis(split, at, rank * shares.most, rank * shares.most + count)
        for rank, count in enumerate(shares.counts)
    ]
    length = n.shape[p.axis] // (shares.most * ranks) * shares.pieces
    return g.reshape(g.concat(found, at), (*n.shape[: p.axis], length, *n.shape[p.axis + 1 :]))


def _split(n: Node, p: Sharded, ranks: int) -> Node:
    """The axis as (major, ranks, part)."""
    before, after = n.shape[: p.axis], n.shape[p.axis + 1 :]
    part = n.shape[p.axis] // p.major // ranks
    if not p.zigzag:
        return g.reshape(n, (*before, p.major, ranks, part, *after))
    at = p.axis + 1  # of the two halves, of which the second one runs back
    halves = g.reshape(n, (*before, p.major, 2, ranks, part // 2, *after))
    first, second = (g.slice_axis(halves, at, i, i + 1) for i in range(2))
    both = g.concat([first, g.flip(second, at + 1)], at)
    return g.reshape(_swapped(both, at), (*before, p.major, ranks, part, *after))


def _swapped(n: Node, axis: int) -> Node:
    """Two neighbouring axes exchanged."""
    order = list(range(len(n.shape)))
    order[axis : axis + 2] = axis + 1, axis
    return g.permute(n, order)


def _padded(n: Node, size: int) -> Node:
    flat = g.reshape(n, (n.type.size,))
    return g.pad(flat, (0,), (size - n.type.size,))


def _cut(n: Node, sizes: Sequence[int]) -> list[Node]:
    """A flat value in pieces."""
    found, begin = [], 0
    for size in sizes:
        found.append(g.slice_axis(n, 0, begin, begin + size))
        begin += size
    return found


def _packed_part(x: Node, part: Part, line: Line) -> Node:
    """What a rank has of a part, of which x is the whole."""
    if isinstance(part.placement, Sharded):
        used = g.slice_axis(x, 0, 0, part.count)
        x = own_part(used, part.placement, line.rank, line.size)
        return _padded(x, part.local)
    return converted(x, x.type, WHOLE, part.placement, line)


def _summed(n: Node, by: str, line: Line) -> Node:
    """A concatenation in buckets, so that the first gradients travel while others are computed; at
    once where ranks have graphs of their own, which would be cut otherwise."""
    if n.op != "concat" or line.at is not None:
        return g.all_reduce(by, n, line.group, _called(by, n, line))
    pieces = []
    for bucket in buckets(n.srcs):
        x = g.concat([n.srcs[i] for i in bucket], n["axis"])
        pieces.append(g.all_reduce(by, x, line.group, _called("bucket", x, line)))
    return g.concat(pieces, n["axis"])


def _parts(n: Node, p: Sharded, line: Line) -> Node:
    """The ranks' parts along a first axis; of unequal ones equal ones that have them."""
    if line.shares is not None:
        n = _spaced(n, p, line.shares)
    split = _split(n, p, line.size)
    order = (p.axis + 1, *(i for i in range(len(split.shape)) if i != p.axis + 1))
    part = n.shape[p.axis] // line.size
    shape = (line.size, *n.shape[: p.axis], part, *n.shape[p.axis + 1 :])
    return g.reshape(g.permute(split, order), shape)


def _scattered(n: Node, by: str, p: Sharded, line: Line) -> Node:
    """The rank's part of the combined value."""
    own = g.reduce_scatter(by, _parts(n, p, line), line.group, _called("part", n, line))
    return _used(own, p, line)


def _used(n: Node, p: Sharded, line: Line) -> Node:
    """What a rank has of a part that is as long as the longest one."""
    if line.shares is None:
        return n
    return _pieces(n, p, line.shares.most, 0, line.shares.own)


def _gathered(n: Node, p: Sharded, line: Line) -> Node:
    if line.shares is not None:
        n = _filled(n, p, line.shares.own, line.shares.most)
    every = g.all_gather(n, line.size, line.group, _called("whole", n, line))
    return _together(every, p, line)


def _together(every: Node, p: Sharded, line: Line) -> Node:
    """The whole value of parts that lie along a first axis."""
    whole = _joined(every, p)
    return whole if line.shares is None else _closed(whole, p, line.shares)


def _joined(every: Node, p: Sharded) -> Node:
    """Parts of an axis, which lie along a first axis, in their order."""
    size, *shape = every.shape
    part = shape[p.axis] // p.major
    split = g.reshape(every, (size, *shape[: p.axis], p.major, part, *shape[p.axis + 1 :]))
    order = list(range(1, len(split.shape)))
    order.insert(p.axis + 1, 0)
    # What is split as by `_split`, whole.
    n = g.permute(split, order)
    before, after = n.shape[: p.axis], n.shape[p.axis + 3 :]
    major, ranks, part = n.shape[p.axis : p.axis + 3]
    if p.zigzag:
        at = p.axis + 1
        both = _swapped(g.reshape(n, (*before, major, ranks, 2, part // 2, *after)), at)
        first, second = (g.slice_axis(both, at, i, i + 1) for i in range(2))
        n = g.concat([first, g.flip(second, at + 1)], at)
    return g.reshape(n, (*before, major * ranks * part, *after))


def _exchanged(n: Node, a: Sharded, b: Sharded, line: Line) -> Node:
    """Parts along one axis for parts along another one."""
    if a.axis == b.axis:
        return _own(_gathered(n, a, line), b, line)
    if line.shares is not None:
        n = _filled(n, a, line.shares.own, line.shares.most)
    every = g.all_to_all(_parts(n, b, line), line.group, _called("parts", n, line))
    return _used(_together(every, a, line), b, line)


def _packed(n: Node, by: str, parts: Sequence[Part], line: Line) -> Node:
    """Each rank's pieces of the sum of a flat value: neighbours that are divided in rows by one
    exchange for a bucket of them."""
    sources = (
        n.srcs
        if n.op == "concat" and [s.shape[0] for s in n.srcs] == [part.size for part in parts]
        else ()
    )
    pieces = list(sources or _cut(n, [part.size for part in parts]))
    found: list[Node] = []
    for first, last in _stretches(parts):
        own = pieces[first:last]
        if isinstance(parts[first].placement, Row):
            for bucket in buckets(own):
                rows = [
                    g.reshape(own[i], (line.size, own[i].shape[0] // line.size)) for i in bucket
                ]
                x = g.concat(rows, 1)
                found.append(g.reduce_scatter(by, x, line.group, _called("part", x, line)))
        elif isinstance(parts[first].placement, Replicated):
            x = g.concat(own, 0)
            found.append(g.all_reduce(by, x, line.group, _called("sum", x, line)))
        elif isinstance(parts[first].placement, Owned):
            for x, part in zip(own, parts[first:last], strict=True):
                x = converted(x, x.type, SUM, part.placement, line)
                found += [x] * line.has(part.placement)
        else:
            for x, part in zip(own, parts[first:last], strict=True):
                assert isinstance(part.placement, Sharded)
                x = _scattered(g.slice_axis(x, 0, 0, part.count), by, part.placement, line)
                found.append(_padded(x, part.local))
    return joined(found, n)


def _stretches(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """Neighbours whose placements are of one kind."""
    found, first = [], 0
    for i in range(1, len(parts) + 1):
        if i == len(parts) or type(parts[i].placement) is not type(parts[first].placement):
            found.append((first, i))
            first = i
    return found


def _unpacked(n: Node, parts: Sequence[Part], line: Line) -> Node:
    """The whole of a flat value."""
    pieces = _cut(n, [line.local(part) for part in parts])
    found: list[Node] = []
    for first, last in _stretches(parts):
        own = pieces[first:last]
        if isinstance(parts[first].placement, Row):
            for bucket in buckets(own):
                x = g.concat([own[i] for i in bucket], 0)
                every = g.all_gather(x, line.size, line.group, _called("whole", x, line))
                begin = 0
                for i in bucket:
                    width = own[i].shape[0]
                    rows = g.slice_axis(every, 1, begin, begin + width)
                    found.append(g.reshape(rows, (line.size * width,)))
                    begin += width
        else:
            for x, part in zip(own, parts[first:last], strict=True):
                if isinstance(part.placement, Partial):
                    found.append(_summed(x, part.placement.by, line))
                elif isinstance(part.placement, Sharded):
                    used = line.part(x.type.with_shape((part.count,)), part.placement).size
                    whole = _gathered(g.slice_axis(x, 0, 0, used), part.placement, line)
                    found.append(_padded(whole, part.size))
                elif isinstance(part.placement, Owned):
                    x = x if part.local else g.full((part.size,), 0, n.dtype)
                    found.append(converted(x, x.type, part.placement, WHOLE, line))
                else:
                    found.append(x)
    return g.concat(found, 0)


def sum_of_own(n: Node, placement: Row | Packed, type: Type, line: Line) -> Node:
    """What a rank adds to the sum of a flat value over all ranks: gaps do not count, and whole
    parts on rank 0 alone."""
    if isinstance(placement, Packed) and n.shape[0] and not _has_gaps(placement, line):
        parts = placement.parts
        # In rows that count or do not: what says which is short, so that no kernels fill an array
        # with it, one for each size of a part.
        unit = math.gcd(*(part.local for part in parts))
        n = g.reduce("sum", g.reshape(n, (n.shape[0] // unit, unit)), 1)
        at, end, whole = g.arange(n.shape[0]), 0, None
        for first, last in _stretches(parts):
            begin, end = end, end + sum(part.local for part in parts[first:last]) // unit
            if isinstance(parts[first].placement, Replicated):
                inside = g.ne(*(g.lt(at, g.full_like(at, i)) for i in (begin, end)))
                whole = inside if whole is None else g.or_(whole, inside)
        if whole is not None:
            again = g.ne(line.rank, g.const(0, DType.I64))
            left_out = g.reshape(g.and_(whole, g.broadcast(again, whole.shape)), n.shape)
            n = g.where(left_out, g.full_like(n, 0), n)
        return g.reduce("sum", n)
    kept = _kept_elements(n, placement, type, line)
    if kept is not None:
        n = g.where(kept, n, g.full_like(n, 0))
    return g.reduce("sum", n)


def _has_gaps(placement: Packed, line: Line) -> bool:
    """Whether a rank's parts have elements that do not count on any rank."""
    return any(
        part.local * line.size > part.count
        if isinstance(part.placement, Sharded)
        else part.size > part.count
        for part in placement.parts
    )


def _kept_elements(n: Node, placement: Row | Packed, type: Type, line: Line) -> Node | None:
    """bool of a rank's shape: which of its elements count. None where all do."""
    first = g.eq(line.rank, g.const(0, DType.I64))
    # Whether ranks have elements of a part that do not count: gaps, or what others have, too.
    match placement:
        case Row(size) if size > type.size:
            return _before(n.shape[0], type.size, line)
        case Packed(parts) if any(
            part.count < part.size or isinstance(part.placement, Replicated) for part in parts
        ):
            pieces = []
            for part in parts:
                if isinstance(part.placement, Replicated):
                    inside = g.lt(
                        g.arange(part.local), g.full((part.local,), part.count, DType.I64)
                    )
                    pieces.append(g.and_(inside, g.broadcast(first, (part.local,))))
                elif isinstance(part.placement, Row):
                    pieces.append(_before(part.local, part.count, line))
                elif part.local:
                    is_owned = isinstance(part.placement, Owned)
                    count = part.count if is_owned else part.count // line.size
                    pieces.append(
                        g.lt(g.arange(part.local), g.full((part.local,), count, DType.I64))
                    )
            return g.concat(pieces, 0) if pieces else None
        case _:
            return None


def _before(local: int, count: int, line: Line) -> Node:
    return g.lt(row_positions(local, line), g.full((local,), count, DType.I64))


def row_positions(local: int, line: Line) -> Node:
    """i64, where a rank's elements are among those of a row."""
    begin = g.mul(line.rank, g.const(local, DType.I64))
    return g.add(g.arange(local), g.broadcast(begin, (local,)))


def packed_positions(parts: Sequence[Part], line: Line) -> Node:
    """i64, where a rank's elements are in the flat array."""
    pieces, begin = [], 0
    for part in parts:
        if isinstance(part.placement, Row):
            own = row_positions(part.local, line)
        elif isinstance(part.placement, Sharded):
            major = part.placement.major
            own = _padded(line.share(part.count, major).positions(), part.local)
        else:
            own = g.arange(part.local)
        if not part.local:
            begin += part.size
            continue
        pieces.append(g.add(own, g.full_like(own, begin)))
        begin += part.size
    return joined(pieces, line.rank)


def sent(steps: Sequence[Step]) -> int:
    """The bytes of all exchanges."""
    return sum(nbytes for _, nbytes in steps)
