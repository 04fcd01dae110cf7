"""Graph rewrites that leave only what the lowering knows, in the form in which it is fast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import lru_cache, partial, reduce
from math import isqrt, prod

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, node, rebuild, toposort
from hal.tile.size import hint, is_fixed, is_one, known_divisor
from stack import ops as build
from stack.compiler.graph.contract import fold_sums
from stack.compiler.graph.expr import MOVEMENT
from stack.compiler.graph.roots import WHOLE, base, uses
from stack.compiler.graph.turns import numbered
from stack.compiler.graph.windows import PACKED, Reading, with_edges
from stack.compiler.pairs import SERIAL
from stack.compiler.program import GraphRequest
from stack.ir.pattern import capture
from stack.ir.rewrite import Rows, rewrite
from stack.ir.simplify import simplify
from stack.ops import OPS
from stack.ops.attention import SEALED
from stack.ops.movement import cropped_overlap, overlaps_by_strides
from stack.ops.numeric import identity

FEW = 512
"""A long reduction to fewer results than this is done in two steps, the first with more parallel
work."""
LONG = 1 << 14
"""Elements from which on two steps pay."""
EACH, NEAR = 8, 1 << 16
"""Rows of neighbours for each core that are enough work in one step, and elements of such a row at
most: the second cache keeps it for what else is computed of it. Measured on Zen 3 with one thread:
cross-entropy of 64 rows of 50,000 takes 0.7 of the time of two steps, its gradient 0.8, a group
norm's 0.8."""
FEW_COLUMNS, PAST_CACHES = 4 * FEW, 1 << 23
"""And so are sums down fewer columns than this, of as many elements as no cache keeps: cores that
share the columns would each read a part of every row, at half of memory's pace on Zen 3."""
LARGE = 1 << 16
"""Elements of a matrix from which on a row by it may be a product: of fewer it takes no less time,
and a reduction is computed along with what is around it."""
DEEP = 256
"""Elements of one result from which on two steps pay."""
LONG_SCAN, MANY = 1 << 16, 8
"""A scan of so many elements runs in parts where it has fewer rows."""
WINDOW = 16
"""Elements of a window from which on the edges of what it shows are laid in memory."""
PART = SERIAL
"""Elements that the first step combines at least."""


@dataclass(frozen=True, slots=True)
class Across:
    """The matrices along their rows by which a row is multiplied as a product, and not as a
    reduction: at most so deep, and of so many columns at least."""

    deepest: int
    least: int


NOWHERE = Across(0, 0)


def _reduce(n: Node, cores: int) -> Node | None:
    (x,) = n.srcs
    axes: tuple[int, ...] = n["axes"]
    if x.type.size == 0:
        return build.full(n.shape, identity(n["kind"], n.dtype), n.dtype)
    long = [a for a in axes if not is_one(x.shape[a])]
    if len(long) < len(axes):  # rows above make reductions of one element
        return build.reduce(n["kind"], x, long) if long else x
    if x.dtype is DType.BOOL:
        return build.cast(build.reduce(n["kind"], build.cast(x, DType.U8), axes), DType.BOOL)
    # A long reduction to few results, split so that the first step has parallel work. The first
    # step of a low-precision sum keeps float32, so that the result is rounded once.
    results, elements = hint(n.type.size), hint(x.type.size)
    down = elements >= PAST_CACHES and axes[-1] < len(x.shape) - 1
    most = FEW_COLUMNS if down else FEW
    if axes == (len(x.shape) - 1,) and elements // results < NEAR:
        most = min(most, EACH * cores)
    if results >= most or elements // results < DEEP or elements < LONG:
        return None
    # x with its first reduced axes as one, where they are neighbours: sums over the rows of a
    # batch are the same whether it has them along one axis or two.
    count = next((i for i, a in enumerate(axes) if a != axes[0] + i), len(axes))
    begin, end = axes[0], axes[0] + count
    merged = (*x.shape[:begin], prod(x.shape[begin:end]), *x.shape[end:])
    x, axes = build.reshape(x, merged), (begin, *(a - count + 1 for a in axes[count:]))
    axis = max(axes, key=lambda a: hint(x.shape[a]))
    parts = _parts(
        known_divisor(x.shape[axis]), FEW if results == 1 else max(2, 8 * FEW // results)
    )
    if parts < 2:
        return None
    wide = build.cast(x, x.dtype.computed_in)
    split = build.reshape(
        wide, (*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :])
    )
    moved = tuple(a if a < axis else a + 1 for a in axes)
    first = build.reduce(n["kind"], split, moved)
    second = build.reduce(n["kind"], first, (axis,))
    return build.cast(build.reshape(second, n.shape), n.dtype)


def _parts(size: int, most: int) -> int:
    """The greatest divisor that is at most `most` and leaves parts of at least PART, but a power of
    two where that is not much less, so that the sums are those of halves (pairs.py)."""
    most = min(most, size // PART, max(1, isqrt(size) * 4))
    best = next((d for d in range(most, 1, -1) if size % d == 0), 1)
    halves = min(size & -size, 1 << max(0, most.bit_length() - 1))
    return halves if 4 * halves >= best else best


def _matmul(n: Node, cores: int, across: Across) -> Node | None:
    a, b = n.srcs
    if a.shape[-1] == 0:
        return build.full(n.shape, 0, n.dtype)
    if is_one(a.shape[-2]):
        return None if _lies_across(n, cores, across) else _of_vector(n, a, b)
    if is_one(b.shape[-1]):
        return _of_vector(n, _turned(b), _turned(a))
    return None


def _lies_across(n: Node, cores: int, across: Across) -> bool:
    """Whether a product is one of a row by a matrix that lies, as it is given, along rows that are
    long. The row is one of features: products over a batch add up in pairs. And cores do not share
    few columns of what no cache keeps, as in sums: 16384 by 1024 of float32 take two cores of Zen 4
    1.2 times as long so, of bfloat16 0.93."""
    row, matrix = (_below(s, ("cast", "reshape")) for s in n.srcs)
    *batch, depth, columns = n.srcs[1].shape
    if not (n.dtype.is_float and is_fixed(n.srcs[1].type.size)):
        return False
    stored = all(s.op in ("input", "contiguous") for s in (row, matrix))
    even = prod(batch) == 1 and (row.shape[-1:], matrix.shape[-1:]) == ((depth,), (columns,))
    fits = SERIAL <= depth <= across.deepest and columns >= across.least
    shared = cores > 1 and columns < FEW_COLUMNS and depth * columns >= PAST_CACHES
    return stored and even and fits and depth * columns >= LARGE and not shared


def _below(n: Node, ops: Container[str]) -> Node:
    """What is below operations of these kinds."""
    while n.op in ops:
        n = n.srcs[0]
    return n


def _of_vector(n: Node, row: Node, matrix: Node) -> Node:
    """The product of a row [*B, 1, K] and a matrix [*B, K, N]: it uses each element of the matrix
    once, so that nothing is worth packing, and is a reduction over products. These go along the
    axis along which the matrix lies."""
    wide = n.dtype.computed_in
    if _below(row, (*MOVEMENT, "cast")).op not in ("input", "contiguous"):
        row = build.contiguous(row)  # computed once and not for each column
    along_k = matrix.op == "permute" and matrix["perm"][-1] != len(matrix.shape) - 1
    rows, axis = (_turned(matrix), len(n.shape) - 1) if along_k else (matrix, len(n.shape) - 2)
    factor = build.expand(row if along_k else _turned(row), rows.shape)
    total = build.reduce(
        "sum", build.mul(build.cast(factor, wide), build.cast(rows, wide)), (axis,)
    )
    return build.cast(build.reshape(total, n.shape), n.dtype)


def _turned(x: Node) -> Node:
    """x with its last two axes exchanged; of what is that already, what it is of."""
    count = len(x.shape)
    perm = (*range(count - 2), count - 1, count - 2)
    if x.op == "permute" and x["perm"] == perm:
        return x.srcs[0]
    return build.permute(x, perm)


def _concat(n: Node) -> Node | None:
    pieces = [s for s in n.srcs if s.type.size]
    if len(pieces) == len(n.srcs):
        return None
    return build.concat(pieces, n["axis"]) if len(pieces) > 1 else pieces[0]


def _scatter(n: Node) -> Node | None:
    to, where, updates = n.srcs
    if updates.type.size == 0:
        return to
    wide = DType.U8 if n.dtype is DType.BOOL else n.dtype.computed_in
    if wide is n.dtype:
        return None
    at = (n["axis"], n["batch"])
    found = build.scatter(n["kind"], build.cast(to, wide), where, build.cast(updates, wide), *at)
    return build.cast(found, n.dtype)


def _scan(n: Node) -> Node | None:
    (x,) = n.srcs
    if n.dtype.is_narrow:
        wide = build.cast(x, n.dtype.computed_in)
        return build.cast(build.scan(n["kind"], wide, n["axis"]), n.dtype)
    return _scan_of_parts(n, x) if n["kind"] in _COMBINE else None


def _scan_of_parts(n: Node, x: Node) -> Node | None:
    """A long scan of few rows, in parts that run in parallel: each begins with the total of those
    before it (Blelloch, "Prefix sums and their applications", 1990).

    Not of products, of which a part may overflow behind one that is zero.
    """
    kind, axis = n["kind"], n["axis"]
    size, rows = x.shape[axis], hint(n.type.size) // max(1, hint(x.shape[axis]))
    if rows >= MANY or hint(n.type.size) < LONG_SCAN:
        return None
    parts = _parts(known_divisor(size), max(2, FEW // rows))
    if parts < 2:
        return None
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    split = build.reshape(x, (*before, parts, size // parts, *after))
    own = build.reshape(build.reduce(kind, split, (axis + 1,)), (*before, parts, *after))
    totals = build.slice_axis(build.scan(kind, own, axis), axis, 0, parts - 1)
    none = (0,) * len(x.shape)
    lo = (*none[:axis], 1, *none[axis + 1 :])
    earlier = build.pad(totals, lo, none, identity(kind, n.dtype))
    given = build.reshape(earlier, (*before, parts, 1, *after))
    line = (*(1 for _ in before), 1, size // parts, *(1 for _ in after))
    place = build.reshape(build.arange(size // parts), line)
    is_first = build.expand(build.eq(place, build.full_like(place, 0)), split.shape)
    begun = _COMBINE[kind](build.expand(given, split.shape), split)
    done = build.scan(kind, build.where(is_first, begun, split), axis + 1)
    return build.reshape(done, n.shape)


_COMBINE = {"sum": build.add, "max": build.maximum, "min": build.minimum}


def _add(n: Node) -> Node | None:
    """Zero-padded neighbours among what is added up are a concatenation: the gradient of a split.
    Elements of one meet zeros of the other, so that the order of the sum does not matter."""
    total, last = n.srcs
    if not _is_zero_padded(last):
        return None
    others = [total]
    while others[0].op == "add":
        others[:1] = others[0].srcs
    for i, x in enumerate(others):
        joined = (_joined(n, x, last) or _joined(n, last, x)) if _is_zero_padded(x) else None
        if joined is not None:
            return reduce(build.add, [*others[:i], *others[i + 1 :], joined])
    return None


def _is_zero_padded(n: Node) -> bool:
    return n.op == "pad" and n["value"] == 0


def _joined(n: Node, a: Node, b: Node) -> Node | None:
    """pad(a) + pad(b) where b's piece begins where a's ends along one axis and both fill the other
    axes alike."""
    x, y = a.srcs[0], b.srcs[0]
    differ = [
        i for i in range(len(n.shape)) if (a["lo"][i], a["hi"][i]) != (b["lo"][i], b["hi"][i])
    ]
    if len(differ) != 1:
        return None
    axis = differ[0]
    if a["lo"][axis] + x.shape[axis] != b["lo"][axis]:
        return None
    hi = tuple(b["hi"][i] if i == axis else h for i, h in enumerate(a["hi"]))
    pieces = (*_pieces(x, axis), *_pieces(y, axis))
    return build.pad(build.concat(pieces, axis), a["lo"], hi, 0)


def _pieces(n: Node, axis: int) -> tuple[Node, ...]:
    return n.srcs if n.op == "concat" and n["axis"] == axis else (n,)


def _decomposed(n: Node) -> Node | None:
    """What an operator is put together of."""
    made = OPS[n.op].decompose
    return made(n) if made else None


_ROWS: dict[str, Callable[[Node], Node | None]] = {
    "concat": _concat,
    "pad": lambda n: build.full(n.shape, n["value"], n.dtype) if n.srcs[0].type.size == 0 else None,
    "gather": lambda n: build.full(n.shape, 0, n.dtype) if n.srcs[0].type.size == 0 else None,
    "scatter": _scatter,
    "scan": _scan,
    "add": _add,
    "overlap_add": _decomposed,
}


def _is_composed(n: Node) -> bool:
    return n.type.size > 0 and OPS[n.op].decompose is not None and n.op not in _ROWS


_COMPOSED: Rows = ((capture("n", when=_is_composed), _decomposed),)
_COMPOSED_UNSEALED: Rows = (
    (capture("n", when=lambda n: n.op not in SEALED and _is_composed(n)), _decomposed),
)


@lru_cache
def _lowerable(cores: int, across: Across) -> Rows:
    return (
        (
            capture("n", when=lambda n: n.type.size > 0 and n.op == "matmul"),
            lambda n: _matmul(n, cores, across),
        ),
        (capture("n", when=lambda n: n.type.size > 0 and n.op in _ROWS), lambda n: _ROWS[n.op](n)),
        (
            capture("n", when=lambda n: n.type.size > 0 and n.op == "reduce"),
            lambda n: _reduce(n, cores),
        ),
    )


def decomposed(outputs: tuple[Node, ...]) -> tuple[Node, ...]:
    """The outputs without operators that are others, put together, but those that `fold_sums`
    reads."""
    return rewrite(outputs, _COMPOSED)


def decomposed_but_sealed(outputs: tuple[Node, ...]) -> tuple[Node, ...]:
    """The same, where attention that was found before stays as it is."""
    return rewrite(outputs, _COMPOSED_UNSEALED)


def _cropped(n: Node) -> Node | None:
    """Windows that are added up where only a part of the result is wanted, along their own axis and
    others: strides of it then begin where that part does, and nothing else is computed."""
    (x,), lo, hi = n.srcs, n["start"], n["stop"]
    if x.op != "overlap_add" or set(n["step"]) != {1} or not overlaps_by_strides(x):
        return None
    (windows,), axis = x.srcs, x["axis"]
    if not (is_fixed(lo[axis]) and is_fixed(hi[axis] % x["stride"])):
        return None
    pair = windows.shape[axis : axis + 2]
    part = build.slice(
        windows, (*lo[:axis], 0, 0, *lo[axis + 1 :]), (*hi[:axis], *pair, *hi[axis + 1 :])
    )
    part = (_cropped(part) if part.op == "slice" else None) or part
    whole = build.overlap_add(part, axis, x["length"], x["stride"])
    return cropped_overlap(whole, lo[axis], hi[axis])


_CROPPED: Rows = ((capture("n", when=lambda n: n.op == "slice"), _cropped),)


def cropped(outputs: tuple[Node, ...]) -> tuple[Node, ...]:
    """The outputs without sums of windows of which only a part is used."""
    return rewrite(outputs, _CROPPED)


def gathered(outputs: tuple[Node, ...]) -> tuple[Node, ...]:
    """The outputs in which slices of one value that are put together along an axis, only to be put
    together along later ones, are read from where they are: of padding by reflection or the like
    along several axes the last one alone is written."""
    order, users = list(toposort(outputs)), dict[Node, list[Node]]()
    for n in order:
        for s in n.srcs:
            users.setdefault(s, []).append(n)
    kept, done = set(outputs), dict[Node, Node]()

    def is_put_together(n: Node, axis: int) -> bool:
        """Whether all that reads it does so along later axes."""
        return n not in kept and all(
            u["axis"] > axis if u.op == "concat" else u.op in _CUTS and is_put_together(u, axis)
            for u in users[n]
        )

    for n in order:
        found = None
        if n.op == "concat" and is_put_together(n, n["axis"]):
            found = _places_in_one(n)
        if found is None:
            done[n] = rebuild(n, tuple(done[s] for s in n.srcs))
        else:
            done[n] = build.gather(done[found[0]], found[1], n["axis"])
    return tuple(done[o] for o in outputs)


_CUTS = ("slice", "flip", "expand")


def _places_in_one(n: Node) -> tuple[Node, Node] | None:
    """The value of which a concatenation's pieces are slices along its axis, and the places in it
    of what the concatenation has."""
    axis, size = n["axis"], n.shape[n["axis"]]
    sources = {_cut_of(piece, axis)[0] for piece in n.srcs}
    if len(sources) > 1 or not all(map(is_fixed, n.shape)) or not n.type.size:
        return None
    line = build.arange(size)

    def number(i: int) -> Node:
        return build.full((size,), i, DType.I64)

    at, end = line, size
    for piece in reversed(n.srcs):
        begin = end - piece.shape[axis]
        _, first, step = _cut_of(piece, axis)
        own = build.add(build.mul(line, number(step)), number(first - step * begin))
        at = own if end == size else build.where(build.lt(line, number(end)), own, at)
        end = begin
    return sources.pop(), at


def _cut_of(n: Node, axis: int) -> tuple[Node, int, int]:
    """The value of which this is a slice along an axis, and where that begins and goes on."""
    if n.op not in _CUTS:
        return n, 0, 1
    (x,) = n.srcs
    others = [i for i in range(len(n.shape)) if i != axis]
    if n.op == "flip" and n["axes"] == (axis,):
        below, first, step = _cut_of(x, axis)
        return below, first + step * (n.shape[axis] - 1), -step
    if any(n.shape[i] != x.shape[i] for i in others) or n.op == "flip":
        return n, 0, 1
    below, first, step = _cut_of(x, axis)
    if n.op == "expand":
        return below, first, step if n.shape[axis] == x.shape[axis] else 0
    return below, first + step * n["start"][axis], step * n["step"][axis]


def padded(outputs: tuple[Node, ...], reading: Reading = PACKED) -> tuple[Node, ...]:
    """The outputs in which what large windows show of a padded value is padded first, in memory:
    each of its elements is read by many windows, and each would ask whether it is there. And so is
    what windows show to products, as these read it."""
    nodes = list(toposort(outputs))
    kept = _edges_below([n.srcs[0] for n in nodes if n.op == "reduce"])
    done = dict[Node, Node]()
    for number, n in enumerate(nodes):
        made = rebuild(n, tuple(done[s] for s in n.srcs))
        if n.op == "matmul":
            made = with_edges(made, number, reading)
        done[n] = build.contiguous(made) if n in kept else made
    return tuple(done[o] for o in outputs)


def _edges_below(reduced: Sequence[Node]) -> set[Node]:
    """The paddings that are read by large windows of what is reduced."""
    found, seen, stack = set[Node](), set[tuple[Node, int]](), [(x, 1) for x in reduced]
    while stack:
        n, taps = stack.pop()
        if (n, taps) in seen:
            continue
        seen.add((n, taps))
        if n.op == "pad" and taps >= WINDOW:
            found.add(n)
        elif n.op in MOVEMENT or OPS[n.op].lower is not None:
            more = n["size"] if n.op == "window" else 1
            stack += [(s, taps * more) for s in n.srcs]
    return found


def lowerable(
    outputs: tuple[Node, ...], cores: int = FEW, across: Across = NOWHERE
) -> tuple[Node, ...]:
    """The outputs without cases that the lowering does not know, for so many cores."""
    return rewrite(outputs, _lowerable(cores, across))


def own_buffers(outputs: tuple[Node, ...]) -> tuple[Node, ...]:
    """Give a copy to every output and every piece of a concatenation that cannot be computed in its
    place."""
    order, users = list(toposort(outputs)), uses(outputs)
    places = _Places()
    done: dict[Node, Node] = {}
    for n in order:
        srcs = tuple(done[s] for s in n.srcs)
        if n.op == "concat":
            srcs = places.pieces(n, srcs, users)
        if n.op == "overwrite":
            srcs = (srcs[0], places.part(n, base(srcs[0]), srcs[1], users))
        done[n] = rebuild(n, srcs)
    owned = [places.claim(done[o], f"output{i}") for i, o in enumerate(outputs)]
    return tuple(owned)


class _Places:
    """Which nodes are computed right where they are wanted: each in one place."""

    def __init__(self) -> None:
        self._taken: set[Node] = set()
        self._concats = self._parts = 0

    def claim(self, n: Node, tag: str, awkward: bool = False) -> Node:
        """The node, or a copy of it if its place is another one; an empty one needs none."""
        below = base(n)
        if n.type.size and (below in self._taken or below.op == "input" or awkward):
            n = below = node("contiguous", n.type, (n,), tag=tag)
        self._taken.add(below)
        return n

    def part(self, whole: Node, before: Node, part: Node, users: Counter[Node]) -> Node:
        """What overwrites a part of what was `before`, which can be computed there."""
        self._parts += 1
        old = whole.srcs[1]
        self._taken.add(before)  # it lies where the whole does
        strided = prod(old.shape) > old.shape[-1]
        return self.claim(part, f"part{self._parts}", _is_awkward(old, strided, users))

    def pieces(self, concat: Node, srcs: Sequence[Node], users: Counter[Node]) -> tuple[Node, ...]:
        """A concatenation's operands, each of which can be computed in it."""
        self._concats += 1
        strided = prod(concat.shape[: concat["axis"]]) > 1
        return tuple(
            self.claim(new, f"piece{self._concats}.{i}", _is_awkward(old, strided, users))
            for i, (old, new) in enumerate(zip(concat.srcs, srcs, strict=True))
        )


def _is_awkward(piece: Node, strided: bool, users: Counter[Node]) -> bool:
    """Whether a piece of a concatenation is better copied there than computed there."""
    below = base(piece)
    if below.op in ("concat", "overwrite", "scan", "scatter"):
        return True
    if strided and below.op in WHOLE:
        return True
    return strided and (users[below] > 1 or (below.op == "matmul" and below is not piece))


Pass = Callable[[tuple[Node, ...]], tuple[Node, ...]]
"""A rewrite of a whole graph, given as its outputs: a valid one to a valid one of the same
meaning."""


def first_passes(*folds: Pass) -> tuple[Pass, ...]:
    """What comes first of all, in order; `folds` find what is more than a product in its parts, and
    leave what they have found as it is."""
    return (numbered, simplify, decomposed_but_sealed if folds else decomposed, *folds)


def passes(
    *folds: Pass,
    last: Sequence[Pass] = (),
    cores: int = FEW,
    across: Across = NOWHERE,
    reading: Reading = PACKED,
) -> tuple[Pass, ...]:
    """What comes before fusion for so many cores, in order: folds before sums of products, which
    may be among what they look for, become deeper products; `last` comes before places are given.
    `reading` says how products read their operands."""
    lower: Pass = partial(lowerable, cores=cores, across=across)
    pad: Pass = partial(padded, reading=reading)
    found = (*first_passes(*folds), fold_sums, cropped, gathered, lower, pad)
    return (*found, *last, own_buffers)


PASSES = passes()


def prepare(request: GraphRequest, passes: Sequence[Pass] = PASSES) -> GraphRequest:
    """The same computation in the form that the lowering takes."""
    outputs = request.outputs
    for run in passes:
        outputs = run(outputs)
    return replace(request, outputs=outputs)
