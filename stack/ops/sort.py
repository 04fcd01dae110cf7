"""The order of the elements along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.ops.numeric import highest, lowest
from stack.ops.operator import Attrs, NDArray, OpKind
from stack.ops.rules import axis_of, need, need_axis
from stack.ops.sharding import Link, Sharding
from stack.ops.table import ALL, define, widened

I64 = DType.I64
RUN = 64
"""Elements that are put in order by comparing all pairs; runs are then merged."""
MERGES_WRITTEN_OUT = 2
"""Merges at most that are written out and not a loop."""
STRIDE = 16
"""Merged elements of which one is found among whole runs, and the others from there on."""
AT_ONCE = 4
"""Elements that a kernel merges one after the other. Of all of a stride it took twice as long to
compile, and of one each it wrote as much beside as it merged."""
SOUGHT = 8
"""Elements of given ranks that are sought one by one at most."""
BLOCK = 64
"""Neighbours of which the first elements are sought by their least one, at most."""


def _reference(n: Node, xs: tuple[NDArray, ...]) -> NDArray:
    """By ranks, which are integers, so that a descending order is stable as well."""
    x, axis = widened(xs[0]), n["axis"]
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape).astype(np.int64)
    if x.dtype.kind == "f" and x.size:
        ranks[np.isnan(x)] = ranks.max() + 1  # all NaN are one, the greatest
    return np.argsort(-ranks if n["descending"] else ranks, axis, kind="stable")


def _type(srcs: Sequence[Type], attrs: Attrs, asked: Type | None) -> Type:
    need_axis(attrs["axis"], len(srcs[0].shape))
    need(isinstance(attrs["descending"], bool), "descending is True or False")
    return srcs[0].with_dtype(I64)


def _rowwise(x: Node, axis: int) -> tuple[Node, tuple[int, ...]]:
    """x as [rows, size], and the order of x's axes in which the rows lie."""
    order = (*(i for i in range(len(x.shape)) if i != axis), axis)
    size = x.shape[axis]
    return g.reshape(g.permute(x, order), (x.type.size // size, size)), order


def _keys(x: Node, descending: bool) -> Node:
    """Integers with a sign in the order of x: of floats their bits, with those below the sign
    turned around in negative numbers."""
    if x.dtype is DType.BOOL or (x.dtype.is_int and x.dtype.bits < 32):
        keys = g.cast(x, DType.I32)
    elif x.dtype.is_float:
        wide = g.cast(x, x.dtype.computed_in)
        bits = I64 if wide.dtype is DType.F64 else DType.I32
        zero = g.full_like(wide, 0)
        keys = g.bitcast(g.where(g.eq(wide, zero), zero, wide), bits)
        turned = g.xor(keys, g.full_like(keys, int(highest(bits))))
        keys = g.where(g.lt(keys, g.full_like(keys, 0)), turned, keys)
        keys = g.where(g.ne(wide, wide), g.full_like(keys, int(highest(bits))), keys)
    elif x.dtype.kind == "u":
        bits = I64 if x.dtype.bits == 64 else DType.I32
        keys = g.xor(g.bitcast(x, bits), g.full(x.shape, int(lowest(bits)), bits))
    else:
        keys = x
    return g.not_(keys) if descending else keys


def _from_rows(places: Node, x: Node, order: tuple[int, ...]) -> Node:
    """i64 places in rows where they belong along x's axis."""
    shape = (*(x.shape[i] for i in order[:-1]), places.shape[1])
    found = g.reshape(g.cast(places, I64), shape)
    return g.permute(found, np.argsort(order).tolist())


def _sorted(n: Node) -> Node:
    """Runs by rank, merged in pairs until one is left. Only reads at computed places: every element
    of every step is found by itself."""
    (x,) = n.srcs
    moved, order = _rowwise(x, n["axis"])
    keys = _keys(moved, n["descending"])
    size = keys.shape[1]
    run = min(RUN, size)
    whole = run
    while whole < size:
        whole *= 2
    keys = g.pad(keys, (0, 0), (0, whole - size), int(highest(keys.dtype)))
    keys, places = _runs(keys, run)
    count = (whole // run).bit_length() - 1
    if count > MERGES_WRITTEN_OUT:
        keys, places = _in_loop(keys, places, run, count)
    else:
        for level in range(count):
            keys, places = _merged(keys, places, run << level)
    return _from_rows(g.slice_axis(places, 1, 0, size), x, order)


def _index_dtype(size: int) -> DType:
    """What holds positions of an axis and twice them: the narrow one has twice the lanes."""
    return DType.I32 if size < 1 << 30 else I64


def _runs(keys: Node, run: int) -> tuple[Node, Node]:
    """Each run of neighbours in order, and where its elements were."""
    rows, whole = keys.shape
    dtype = _index_dtype(whole)
    shape = (rows, whole // run, run)
    start = g.mul(g.arange(shape[1], dtype), g.full((shape[1],), run, dtype))
    start = g.expand(g.reshape(start, (1, shape[1], 1)), shape)
    places = g.add(_places(g.reshape(keys, shape), run, dtype), start)
    places = g.reshape(places, (rows, whole))
    return g.gather(keys, places, 1, batch=True), places


def _places(keys: Node, count: int, dtype: DType) -> Node:
    """[rows, runs, count]: the places of the first elements of short runs in order, by how many
    others of the run are before each one."""
    *lead, run = keys.shape
    mine, other = ((*lead, run, 1), (*lead, 1, run))
    square = (*lead, run, run)
    a, b = (g.expand(g.reshape(keys, s), square) for s in (mine, other))
    line = g.arange(run, dtype)
    i, j = (g.expand(g.reshape(line, s), square) for s in ((1, 1, run, 1), (1, 1, 1, run)))
    before = g.or_(g.lt(b, a), g.and_(g.eq(b, a), g.lt(j, i)))
    ranks = g.reduce("sum", g.cast(before, dtype), 3)
    asked = (*lead, count, run)
    at = g.expand(g.reshape(ranks, other), asked)
    i, j = (g.slice(v, (0, 0, 0, 0), asked) for v in (i, j))
    hit = g.eq(at, i)  # whether the element j belongs at place i
    return g.reshape(g.reduce("sum", g.where(hit, j, g.full_like(j, 0)), 3), (*lead, count))


def _in_loop(keys: Node, places: Node, run: int, count: int) -> tuple[Node, Node]:
    """Runs merged `count` times, by a loop to which their length is data: it is compiled once."""
    dtype = _index_dtype(keys.shape[1])
    lengths = g.shl(g.full((count,), run, dtype), g.arange(count, dtype))
    given = [g.input(0, keys.type), g.input(1, places.type), g.input(2, Type((), dtype))]
    body = g.LoopBody(tuple(given), _merged(*given))
    keys, places = g.loop(body, count, [], [keys, places], [lengths])
    return keys, places


def _merged(keys: Node, places: Node, run: int | Node) -> tuple[Node, Node]:
    """Neighbouring runs merged: before every STRIDE-th element of a pair are i of the one run and
    the others of the other, where i is found by bisection (merge path, Odeh et al., 2012); from
    there on the lesser of the next two elements comes first."""
    rows, whole = keys.shape
    k, first = _pair(keys.shape, run, STRIDE)
    length = _length(run, k)
    second = g.add(first, length)
    end = g.add(second, length)
    begin = g.contiguous(g.add(first, _path(keys, run)))

    def step(keys: Node, second: Node, end: Node, mine: Node, both: Node) -> list[Node]:
        found = list[Node]()
        for _ in range(AT_ONCE):
            other = g.sub(both, mine)
            is_less = g.le(_key(keys, mine), _key(keys, other))
            is_mine = g.and_(g.lt(mine, second), g.or_(g.le(end, other), is_less))
            found.append(g.reshape(g.where(is_mine, mine, other), (*mine.shape, 1)))
            mine = g.add(mine, g.cast(is_mine, mine.dtype))
            both = g.add(both, g.full_like(both, 1))
        return [mine, both, g.concat(found, 2)]

    both = g.add(g.add(first, second), k)
    *_, sources = _repeated(STRIDE // AT_ONCE, step, [keys, second, end], [begin, both])
    source = g.contiguous(g.reshape(g.permute(sources, (1, 2, 0, 3)), (rows, whole)))
    return _key(keys, source), _key(places, source)


def _repeated(
    count: int,
    step: Callable[..., Sequence[Node]],
    consts: Sequence[Node],
    carried: Sequence[Node],
) -> tuple[Node, ...]:
    """The carried values after a loop, then what its steps give: of few operations however often
    they are made, it is compiled in little time."""
    given = [g.input(i, n.type) for i, n in enumerate((*consts, *carried))]
    return g.loop(g.LoopBody(tuple(given), tuple(step(*given))), count, consts, carried, [])


def _key(keys: Node, at: Node) -> Node:
    return g.gather(keys, at, 1, batch=True)


def _length(run: int | Node, like: Node) -> Node:
    """The length of a run, beside what a node has of each element."""
    if isinstance(run, int):
        return g.full_like(like, run)
    return g.expand(g.reshape(run, (1,) * len(like.shape)), like.shape)


def _pair(shape: tuple[int, ...], run: int | Node, step: int) -> tuple[Node, Node]:
    """Of each step-th element of rows its place in its pair of runs, and where the pair begins."""
    rows, whole = shape
    dtype = _index_dtype(whole)
    at = (rows, whole // step)
    places = g.mul(g.arange(at[1], dtype), g.full((at[1],), step, dtype))
    place = g.expand(g.reshape(places, (1, at[1])), at)
    length = _length(run, place)
    k = g.and_(place, g.sub(g.add(length, length), g.full_like(place, 1)))
    return k, g.sub(place, k)


def _path(keys: Node, run: int | Node) -> Node:
    """How many elements of the first run of its pair are before each STRIDE-th element."""
    k, first = _pair(keys.shape, run, STRIDE)
    length = _length(run, k)
    zero, one = (g.full_like(k, n) for n in (0, 1))

    def step(keys: Node, k: Node, first: Node, length: Node, low: Node, high: Node) -> list[Node]:
        second, last = g.add(first, length), g.sub(length, one)
        middle = g.shr(g.add(low, high), one)
        left = _key(keys, g.add(first, g.minimum(middle, last)))
        right = g.sub(g.sub(k, one), middle)
        right = _key(keys, g.add(second, g.maximum(zero, g.minimum(right, last))))
        more = g.and_(g.lt(low, high), g.le(left, right))
        less = g.and_(g.lt(low, high), g.lt(right, left))
        return [g.where(more, g.add(middle, one), low), g.where(less, middle, high)]

    most = int(run if isinstance(run, int) else keys.shape[1] // 2)
    bounds = [g.maximum(zero, g.sub(k, length)), g.minimum(k, length)]
    return _repeated(most.bit_length(), step, [keys, k, first, length], bounds)[0]


def _first(x: Node, key: Callable[[Node], Node], count: int) -> Node:
    """The i64 places of the first elements of rows by their keys, in order. They lie in the blocks
    whose least elements come first: before an element of another block come the least ones of
    `count` blocks."""
    rows, size = x.shape
    block = BLOCK
    while block > 1 and 4 * block * count > size:
        block //= 2
    if block < 4:
        keys = key(x)
        if size > RUN:
            return g.slice_axis(argsort(keys, 1), 1, 0, count)
        found = _places(g.reshape(keys, (rows, 1, size)), count, _index_dtype(size))
        return g.cast(g.reshape(found, (rows, count)), I64)
    blocks = -(-size // block)
    if size % block:  # a copy is made in any case
        keys = key(x)
        x = g.pad(keys, (0, 0), (0, blocks * block - size), int(highest(keys.dtype)))
        key = _same
    x = g.reshape(x, (rows, blocks, block))
    least = g.contiguous(g.reduce("min", key(x), 2))
    chosen = _first(g.reshape(least, (rows, blocks)), _same, count)
    chosen = g.gather(chosen, argsort(chosen, 1), 1, batch=True)  # equal elements stay in order
    found = g.contiguous(key(g.gather(x, chosen, 1, batch=True)))
    among = _first(g.reshape(found, (rows, count * block)), _same, count)
    length = g.full_like(among, block)
    within = g.and_(among, g.full_like(among, block - 1))
    which = g.gather(
        chosen, g.shr(among, g.full_like(among, block.bit_length() - 1)), 1, batch=True
    )
    return g.add(g.mul(which, length), within)


def _same(keys: Node) -> Node:
    return keys


def _at_ranks(keys: Node, ranks: Node) -> Node:
    """The places of the elements of these ranks of each row. Bit after bit the greatest key is
    found below which there are no more elements; then, among equal ones, the place."""
    rows, size = keys.shape
    count, bits = ranks.shape[1], keys.dtype.bits
    shape = (rows, count, size)
    low = g.full((rows, count), int(lowest(keys.dtype)), keys.dtype)
    one = g.full((bits,), 1, keys.dtype)
    each = g.shl(one, g.sub(g.full((bits,), bits - 1, keys.dtype), g.arange(bits, keys.dtype)))
    types = keys.type, ranks.type, low.type, Type((), keys.dtype)
    of, wanted, found, bit = given = [g.input(i, t) for i, t in enumerate(types)]
    more = g.xor(found, g.expand(g.reshape(bit, (1, 1)), found.shape))
    is_below = g.le(_number(g.lt(_beside(of, shape), _each(more, shape)), wanted.dtype), wanted)
    body = g.LoopBody(tuple(given), (g.where(is_below, more, found),))
    (key,) = g.loop(body, bits, [keys, ranks], [low], [each])
    every, key = _beside(keys, shape), _each(key, shape)
    left = g.sub(ranks, _number(g.lt(every, key), ranks.dtype))
    seen = g.scan("sum", g.cast(g.eq(every, key), ranks.dtype), 2)
    return _number(g.le(seen, _each(left, shape)), ranks.dtype)


def _beside(keys: Node, shape: tuple[int, ...]) -> Node:
    """Rows, once for each of several ranks."""
    return g.expand(g.reshape(keys, (shape[0], 1, shape[2])), shape)


def _each(x: Node, shape: tuple[int, ...]) -> Node:
    """What there is of each rank, beside every element."""
    return g.expand(g.reshape(x, (*shape[:2], 1)), shape)


def _number(hit: Node, dtype: DType) -> Node:
    """How many are true along the last of three axes."""
    return g.reshape(g.reduce("sum", g.cast(hit, dtype), 2), hit.shape[:2])


_ARGSORT = define(
    "argsort",
    OpKind.INDEX,
    ALL,
    "i64 positions that put x in order along an axis, equal elements in the order that they have; "
    "NaN counts as greatest",
    1,
    _type,
    _reference,
    attrs=frozenset({"axis", "descending"}),
    decompose=_sorted,
    sharding=Sharding(lambda n: [Link((i,), i) for i in range(len(n.shape)) if i != n["axis"]]),
)

__all__ = ["argsort", "argsort_at", "argsort_first"]


def argsort(x: Node, axis: int, descending: bool = False) -> Node:
    """The i64 positions that put x in order along an axis; a stable order, NaN greatest."""
    return _ARGSORT(x, axis=axis_of(axis, len(x.shape)), descending=descending)


def argsort_at(x: Node, axis: int, ranks: Node) -> Node:
    """What argsort's positions have at i64 ranks along an axis, counted from 0; `ranks` has the
    shape of x but along that axis. For few of them nothing is put in order."""
    axis = axis_of(axis, len(x.shape))
    if not x.type.size or not ranks.type.size:
        return ranks
    moved, order = _rowwise(x, axis)
    keys = _keys(moved, False)
    rows, size = keys.shape
    at = g.reshape(g.permute(ranks, order), (rows, ranks.shape[axis]))
    if size <= RUN or at.shape[1] > SOUGHT:
        places = g.gather(argsort(keys, 1), at, 1, batch=True)
    else:
        places = _at_ranks(keys, g.cast(at, _index_dtype(size)))
    return _from_rows(places, ranks, order)


def argsort_first(x: Node, axis: int, count: int, descending: bool = False) -> Node:
    """The first `count` of argsort's positions along an axis; where they are few of many, all
    elements are read but only some put in order."""
    axis = axis_of(axis, len(x.shape))
    if not x.type.size or not count:
        return g.slice_axis(argsort(x, axis, descending), axis, 0, count)
    moved, order = _rowwise(x, axis)
    key = partial(_keys, descending=descending)
    if axis < len(x.shape) - 1:  # a copy is made in any case
        return _from_rows(_first(key(moved), _same, count), x, order)
    return _from_rows(_first(moved, key, count), x, order)
