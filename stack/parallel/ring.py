"""Attention around a ring of ranks, each of which has a part of every sequence. Pure.

A rank keeps its queries, while keys and values go around (Liu et al., arXiv 2310.01889). Each row
has its greatest exponent so far, the sum of its powers, and the weighted sum of values, all in the
type that is computed in, which every block of keys corrects. The backward pass computes weights
again from the exponents' maxima and sums; the gradients of keys and values go around with them.

Parts are in zigzag order, as two chunks of a rank: of 2 n chunks rank i has chunk i and chunk
2 n - 1 - i. Under a causal mask two blocks of one chunk by one are computed for each rank's chunks
that come by, on every rank, and nothing that the mask leaves out, but half of the own two.

Keys and values that several heads share go around once for them, and so do their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import gcd, inf, prod

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.tile.node import Node, Type, node, substitute, toposort
from stack import ops as g
from stack.compiler.graph.trained import turned
from stack.ir.pattern import number_of
from stack.ops import OPS, is_exchange
from stack.ops.attention import LEAVES, SEALED, expressions, inside
from stack.ops.behind import behind
from stack.ops.operator import OpKind
from stack.ops.sharding import Share
from stack.parallel.convert import own_part
from stack.parallel.heads import folded, softmaxes
from stack.parallel.partition import Cut, Spread, partitioned
from stack.parallel.placement import WHOLE, Placement, Sharded, fits, local_type
from stack.parallel.way import Way
from stack.parallel.ways import ways

STANDS, INSIDE = 1 << 26, 1 << 27
"""The first slots of the inputs that stand for what rings compute, and of those of expressions."""


def ringed(
    outputs: Sequence[Node],
    spread: Spread,
    rank: Node,
    name: Callable[[str], str],
    only: Mapping[Node, Way],
    axis: str,
) -> Cut:
    """As `partitioned`, with every attention around the ring of the ranks. `axis` is what the mesh
    calls their axis. Raises InvalidCall for an attention that cannot go around it."""
    whole = folded(outputs)
    if left := list(softmaxes(whole)):
        raise InvalidCall(
            f"a softmax over products of shape {list(left[0].shape)} cannot go around the ring of "
            f"{axis!r}: something besides the product with values needs its weights, or heads have "
            "more than 256 columns; take `attention heads`"
        )
    given, attentions = _apart(whole)
    placed = {p: _zigzag(p) for a in attentions for p in a.results}
    wanted = [(n, p) for a in attentions for n, p in a.operands]
    for n, p in (*wanted, *placed.items()):
        if not fits(n.type, p, spread.size):
            raise InvalidCall(
                f"attention over sequences of {n.shape[-2]} cannot go around the ring of the "
                f"{spread.size} ranks along {axis!r}; take a multiple of {2 * spread.size}"
            )
    ends = [*spread.outputs, *(p for _, p in wanted)]
    more = replace(spread, inputs={**spread.inputs, **placed}, outputs=ends)
    every = [*given, *(n for n, _ in wanted)]
    fixed = {n["name"]: way for n, way in only.items()}  # of exchanges, which are other nodes now
    ways_of = {
        n: fixed[n["name"]] for n in toposort(every) if is_exchange(n) and n["name"] in fixed
    }
    cut = partitioned(every, more, rank, name, only=ways_of)
    local = cut.outputs[len(given) :]
    values: dict[Node, Node] = {}
    for a in attentions:
        own, local = substitute(local[: len(a.operands)], values), local[len(a.operands) :]
        line = _Line(rank, spread.size, spread.group, name)
        for stand, value in zip(a.results, a.around(line, own), strict=True):
            if stand in cut.inputs:
                values[cut.inputs[stand]] = value
    made = substitute([*cut.outputs[: len(given)], *cut.made.values()], values)
    inputs = {n: x for n, x in cut.inputs.items() if n not in placed}
    by_place = dict(zip(cut.made, made[len(given) :], strict=True))
    return Cut(made[: len(given)], inputs, rank, cut.whole, by_place, cut.said)


def _zigzag(n: Node) -> Sharded:
    """The rows of stacked matrices in zigzag order."""
    return Sharded(len(n.shape) - 2, 1, zigzag=True)


def _apart(outputs: Sequence[Node]) -> tuple[list[Node], list[_RingAttention]]:
    """The outputs with inputs in the place of what attentions compute, and these."""
    done: dict[Node, Node] = {}
    pieces: dict[Node, dict[int, Node]] = {}
    """Of each attention what stands for its results, by where they begin."""
    attentions: list[_RingAttention] = []
    slots = iter(range(STANDS, INSIDE))
    for n in toposort(outputs):
        srcs = tuple(done[s] for s in n.srcs)
        if n.op in SEALED:
            *batch, _ = n.shape if n.op != "attention" else n.shape[:-1]
            (m, d), (keys, columns) = n.srcs[0].shape[-2:], n.srcs[2].shape[-2:]
            sizes = {
                "attention": [(m, columns)],
                "attention_saved": [(m, columns), (m, 1), (m, 1)],
                "attention_gradients": [(m, d), (keys, d), (keys, columns)],
            }[n.op]
            begin, pieces[n] = 0, {}
            for rows, width in sizes:
                pieces[n][begin] = g.input(next(slots), Type((*batch, rows, width), n.dtype))
                begin += rows * width
            done[n] = node(n.op, n.type, srcs, **dict(n.attrs))
            attentions.append(_RingAttention.of(done[n], tuple(pieces[n].values())))
            if n.op == "attention":
                done[n] = pieces[n][0]
        elif n.op == "slice" and n.srcs[0] in pieces:
            piece = pieces[n.srcs[0]][n["start"][-1]]
            assert piece.type.size == n.type.size, "a part of a result"
            done[n] = g.reshape(piece, n.shape)
        else:
            done[n] = node(n.op, n.type, srcs, **dict(n.attrs))
    return [done[n] for n in outputs], attentions


@dataclass(frozen=True, slots=True)
class _Line:
    """The ranks of a ring: this one's number, how many, and how they exchange."""

    rank: Node
    size: int
    group: str
    name: Callable[[str], str]

    def shifted(self, x: Node, what: str, after: Sequence[Node] = ()) -> Node:
        """What the rank before this one has."""
        pairs = [(r, (r + 1) % self.size) for r in range(self.size)]
        called = self.name(f"{what} around the ring, {x.type}")
        return g.send_receive(x, pairs, self.group, called, after)

    def before(self, steps: int) -> Node:
        """The number of the rank so many steps before this one."""
        rank = self.rank
        back = g.sub(rank, g.const(steps, DType.I64))
        around = g.add(rank, g.const(self.size - steps, DType.I64))
        return g.where(g.lt(rank, g.const(steps, DType.I64)), around, back)


@dataclass(frozen=True, slots=True)
class _RingBlock:
    """One chunk of rows by one of keys: which of the rank's two chunks of each, or one of two by a
    condition, and their numbers among all chunks."""

    rows: tuple[int, int]
    keys: tuple[int, int]
    row_chunk: Node
    key_chunk: Node
    condition: Node | None = None

    def pick(self, both: Sequence[Node], which: tuple[int, int]) -> Node:
        if self.condition is None:
            return both[which[0]]
        a, b = (both[i] for i in which)
        return g.where(g.broadcast(self.condition, a.shape), a, b)

    def put(self, both: list[Node], value: Node, add: bool) -> None:
        """Give the chunk of rows a value, or add to it."""
        self._give(both, self.rows, value, add)

    def add_to_keys(self, both: list[Node], value: Node) -> None:
        self._give(both, self.keys, value, True)

    def _give(self, both: list[Node], which: tuple[int, int], value: Node, add: bool) -> None:
        if self.condition is None:
            i = which[0]
            both[i] = g.add(both[i], value) if add else value
            return
        kept = g.broadcast(self.condition, value.shape)
        for i in dict.fromkeys(which):
            own = g.add(both[i], value) if add else value
            if which[0] != which[1]:
                own = g.where(kept, *((own, both[i]) if i == which[0] else (both[i], own)))
            both[i] = own


def _blocks(line: _Line, step: int, is_causal: bool) -> list[_RingBlock]:
    """What is computed when the chunks of the rank so many steps before this one are here."""
    last = g.const(2 * line.size - 1, DType.I64)
    source = line.before(step) if step else line.rank
    rows = (line.rank, g.sub(last, line.rank))
    keys = (source, g.sub(last, source))

    def block(i: int, j: int) -> _RingBlock:
        return _RingBlock((i, i), (j, j), rows[i], keys[j])

    if not is_causal:
        return [block(i, j) for i in range(2) for j in range(2)]
    if not step:
        return [block(0, 0), block(1, 0), block(1, 1)]
    is_before = g.lt(source, line.rank)
    row, key = (g.where(is_before, *both) for both in (rows, keys))
    return [block(1, 0), _RingBlock((0, 1), (0, 1), row, key, is_before)]


@dataclass(frozen=True, slots=True)
class Alike:
    """Of stacked matrices each `count` behind one another along `axis` are equal: those of heads
    that share keys and values."""

    axis: int
    count: int

    @staticmethod
    def of(k: Node, v: Node) -> Alike:
        """What is so of both."""
        each = (Alike(i, gcd(repeated(k, i), repeated(v, i))) for i in range(len(k.shape) - 2))
        return max(each, key=lambda alike: alike.count, default=Alike(0, 1))

    def _grouped(self, x: Node, members: int) -> Node:
        at, (*shape,) = self.axis, x.shape
        return g.reshape(x, (*shape[:at], shape[at] // members, members, *shape[at + 1 :]))

    def _stacked(self, x: Node) -> Node:
        at, (*shape,) = self.axis, x.shape
        return g.reshape(x, (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]))

    def first(self, x: Node) -> Node:
        """The first one of equal ones."""
        if self.count == 1:
            return x
        return self._stacked(g.slice_axis(self._grouped(x, self.count), self.axis + 1, 0, 1))

    def every(self, x: Node) -> Node:
        """All of them, of the first ones."""
        if self.count == 1:
            return x
        apart = self._grouped(x, 1)
        shape = list(apart.shape)
        shape[self.axis + 1] = self.count
        return self._stacked(g.expand(apart, tuple(shape)))

    def summed(self, x: Node) -> Node:
        """The sums over those that belong to equal ones."""
        if self.count == 1:
            return x
        return self._stacked(g.reduce("sum", self._grouped(x, self.count), self.axis + 1))

    def at_first(self, x: Node) -> Node:
        """Values whose sums over those that belong to equal ones are x: x and zeros."""
        if self.count == 1:
            return x
        apart = self._grouped(x, 1)
        shape = list(apart.shape)
        shape[self.axis + 1] = self.count - 1
        return self._stacked(g.concat([apart, g.full(tuple(shape), 0, x.dtype)], self.axis + 1))


def repeated(n: Node, axis: int) -> int:
    """How many values behind one another along an axis are equal by what they are made of; at
    least 1, and a divisor of the axis."""
    size = n.shape[axis]
    if not n.srcs:
        return size if n.op in ("const", "full") else 1
    source = n.srcs[0]
    if n.op == "permute":
        return repeated(source, n["perm"][axis])
    if n.op == "expand":
        return size if source.shape[axis] == 1 else repeated(source, axis)
    if n.op == "reshape":
        # The source's axes that this one is made of, the innermost one first.
        inner, found, left = prod(n.shape[axis + 1 :]), 1, size
        for i in reversed(range(len(source.shape))):
            if inner > 1:
                if inner % source.shape[i]:
                    return 1
                inner //= source.shape[i]
                continue
            if left == 1 or left % source.shape[i]:
                return found
            left //= source.shape[i]
            own = repeated(source, i)
            found *= own
            if own < source.shape[i]:
                return found
        return found
    if OPS[n.op].kind is OpKind.ELEMENTWISE or n.op == "contiguous":
        return gcd(*(repeated(s, axis) for s in n.srcs))
    return 1


@dataclass(frozen=True, slots=True)
class _RingAttention:
    """An attention, or one's gradients: `node`, what stands for its results, its matrices with q
    first, and its expressions with what they read."""

    node: Node
    results: tuple[Node, ...]
    matrices: tuple[Node, ...]
    read: tuple[tuple[Node, Placement], ...]
    alike: Alike

    @staticmethod
    def of(n: Node, results: tuple[Node, ...]) -> _RingAttention:
        q, k, v, *rest = n.srcs
        matrices = (q, turned(k), v, *rest[: n.op == "attention_gradients"])
        exprs = expressions(n)
        scores = (*q.shape[:-1], k.shape[-1])
        read = []
        for x in _read(exprs, prod(scores)):
            of_rows = len(x.shape) == len(scores) and x.shape[-2] == scores[-2] > 1
            read.append((x, _zigzag(x) if of_rows else WHOLE))
        return _RingAttention(n, results, matrices, tuple(read), Alike.of(*matrices[1:3]))

    @property
    def operands(self) -> list[tuple[Node, Placement]]:
        """What is needed of other values, and where."""
        return [*((x, _zigzag(x)) for x in self.matrices), *self.read]

    def around(self, line: _Line, given: Sequence[Node]) -> list[Node]:
        """The results, given the rank's operands."""
        count = len(self.matrices)
        block = _Expressions(self, 2 * line.size)
        if self.node.op == "attention_gradients":
            return self._gradients(line, block, given[:count], given[count:])
        matrices = given[:count]
        rows, columns = _halves(matrices[0]), matrices[2].shape[-1]
        wide = block.exprs[0].dtype.computed_in
        of_row = [self._of_rows(x, p) for x, (_, p) in zip(given[count:], self.read, strict=True)]
        shape = rows[0].shape[:-1]
        most = [g.full((*shape, 1), -inf, wide)] * 2
        total = [g.full((*shape, 1), 0, wide)] * 2
        result = [g.full((*shape, columns), 0, wide)] * 2
        around = self.alike.first(_together(*matrices[1:3]))
        for step in range(line.size):
            depth = matrices[1].shape[-1]
            keys, values = (_halves(x) for x in _apart_columns(self.alike.every(around), depth))
            for b in _blocks(line, step, self.is_causal):
                q, k, v = b.pick(rows, b.rows), b.pick(keys, b.keys), b.pick(values, b.keys)
                own = [b.pick(x, b.rows) if len(x) == 2 else x[0] for x in of_row]
                x, *factor = block.at(b, own, [g.matmul(q, g.transpose(k), block.exprs[0].dtype)])
                x = g.cast(x, wide)
                before = b.pick(most, b.rows)
                top = g.maximum(before, g.reduce("max", x, len(shape)))
                least = g.full_like(top, -inf)
                down = g.where(g.eq(top, least), g.full_like(top, 0), top)
                power = g.exp(g.sub(x, g.expand(down, x.shape)))
                kept = g.exp(g.sub(before, down))
                added = g.reduce("sum", power, len(shape))
                if factor:
                    power = g.mul(power, g.broadcast(g.cast(factor[0], wide), x.shape))
                product = g.matmul(power, g.cast(v, wide))
                old = b.pick(result, b.rows)
                b.put(result, g.add(g.mul(old, g.expand(kept, old.shape)), product), False)
                b.put(total, g.add(g.mul(b.pick(total, b.rows), kept), added), False)
                b.put(most, top, False)
            if step + 1 < line.size:
                around = line.shifted(around, "keys and values")
        whole = [
            g.mul(o, g.expand(g.recip(t), o.shape)) for o, t in zip(result, total, strict=True)
        ]
        found = [g.concat(x, len(shape) - 1) for x in (whole, most, total)]
        return [g.cast(x, self.node.dtype) for x in found[: len(self.results)]]

    @property
    def is_causal(self) -> bool:
        # Whether no row sees a key behind its own place: `where(key <= row, ..., -inf)`.
        exponent = expressions(self.node)[0]
        while exponent.op in ("where", "cast"):
            if exponent.op == "where":
                condition, _, other = exponent.srcs
                if number_of(other) == -inf and _is_up_to_row(condition):
                    return True
            exponent = exponent.srcs[exponent.op == "where"]
        return False

    def _gradients(
        self, line: _Line, block: _Expressions, matrices: Sequence[Node], read: Sequence[Node]
    ) -> list[Node]:
        q, k, v, given = matrices
        dtype, depth = self.node.dtype, k.shape[-1]
        rows, arrived = _halves(behind(q, given)), _halves(given)
        of_row = [self._of_rows(x, p) for x, (_, p) in zip(read, self.read, strict=True)]
        by_rows = [g.full(rows[0].shape, 0, dtype)] * 2
        around = self.alike.first(_together(k, v))
        by_keys = [g.full(x.shape, 0, dtype) for x in _halves(around)]
        for step in range(line.size):
            keys, values = (_halves(x) for x in _apart_columns(self.alike.every(around), depth))
            for b in _blocks(line, step, self.is_causal):
                x, d = b.pick(rows, b.rows), b.pick(arrived, b.rows)
                y, z = b.pick(keys, b.keys), b.pick(values, b.keys)
                own = [b.pick(o, b.rows) if len(o) == 2 else o[0] for o in of_row]
                wanted = block.exprs[0].dtype
                pairs = ((x, y), (d, z))
                products = [g.matmul(a, g.transpose(c), wanted) for a, c in pairs]
                _, rates, weights = (g.cast(e, dtype) for e in block.at(b, own, products))
                x, y, d = (g.cast(e, dtype) for e in (x, y, d))
                b.put(by_rows, g.matmul(rates, y), True)
                of_keys = [g.matmul(g.transpose(rates), x), g.matmul(g.transpose(weights), d)]
                b.add_to_keys(by_keys, self.alike.summed(_together(*of_keys)))
            if step + 1 < line.size:
                around = line.shifted(around, "keys and values again", (given,) * (not step))
            both = line.shifted(g.concat(by_keys, len(k.shape) - 2), "gradients of keys and values")
            by_keys = _halves(both)
        axis = len(k.shape) - 2
        home = self.alike.at_first(g.concat(by_keys, axis))
        return [g.concat(by_rows, axis), *_apart_columns(home, depth)]

    def _of_rows(self, x: Node, p: Placement) -> list[Node]:
        """The two chunks of what belongs to rows; the value alone of what does not."""
        return [x] if p == WHOLE else _halves(x)


def _halves(x: Node) -> list[Node]:
    axis = len(x.shape) - 2
    half = x.shape[axis] // 2
    return [g.slice_axis(x, axis, i * half, (i + 1) * half) for i in range(2)]


def _together(k: Node, v: Node) -> Node:
    """Keys and values in one message; their other axes stay, for other axes of the mesh."""
    return g.concat([k, v], len(k.shape) - 1)


def _apart_columns(x: Node, first: int) -> tuple[Node, Node]:
    axis, end = len(x.shape) - 1, x.shape[-1]
    return g.slice_axis(x, axis, 0, first), g.slice_axis(x, axis, first, end)


def _is_up_to_row(condition: Node) -> bool:
    while condition.op in ("expand", "reshape"):
        condition = condition.srcs[0]
    return (
        condition.op in ("le", "lt")
        and len(condition.shape) == 2
        and [_counts_along(s) for s in condition.srcs] == [1, 0]
    )


def _counts_along(n: Node) -> int | None:
    """The axis of a matrix along which its elements are 0, 1, 2, ...; None for other values."""
    if n.op != "expand" or n.srcs[0].op != "reshape" or n.srcs[0].srcs[0].op != "arange":
        return None
    shape = n.srcs[0].shape
    return next((i for i in range(2) if shape[i] == n.shape[i] and shape[1 - i] == 1), None)


# expressions


def _read(exprs: Iterable[Node], size: int) -> list[Node]:
    """What expressions read: values of less than `size` elements, or which no operation on single
    elements gives. What is made of constants alone is theirs."""
    found: dict[Node, None] = {}
    order = inside(list(exprs))
    plain: set[Node] = set()  # made of constants
    for n in order:
        if n.op not in ("input", *LEAVES) and plain.issuperset(n.srcs) and n.op not in SEALED:
            plain.add(n)
    over = set(LEAVES)
    stack, seen = list(exprs), set[Node]()
    while stack:
        n = stack.pop()
        if n in seen or n in plain or n.op in over:
            continue
        seen.add(n)
        is_inner = OPS[n.op].kind in (OpKind.ELEMENTWISE, OpKind.MOVEMENT)
        if n.type.size >= size and is_inner:
            stack += n.srcs
        else:
            found[n] = None
    return list(found)


class _Expressions:
    """An attention's expressions for one chunk of rows and one of keys, of so many."""

    def __init__(self, a: _RingAttention, chunks: int) -> None:
        self.exprs = expressions(a.node)
        slots = iter(range(INSIDE, INSIDE + 2 + 2 * len(a.read)))
        self._row, self._key = (g.input(next(slots), Type((), DType.I64)) for _ in range(2))
        whole: dict[Node, Node] = {}
        given: dict[tuple[Node, Placement], Node] = {}
        self._read: list[Node] = []
        for x, p in a.read:
            stand = whole[x] = g.input(next(slots), x.type)
            own = stand
            if isinstance(p, Sharded):
                of_rows = Sharded(p.axis)
                own = g.input(next(slots), local_type(x.type, of_rows, chunks))
                given[stand, of_rows] = own
            self._read.append(own)
        exprs = substitute(self.exprs, whole)
        for axis, number in ((-2, self._row), (-1, self._key)):
            known = dict(given)  # of this axis: rows and keys may be counted by one node
            for leaf in (n for n in inside(exprs) if n.op in LEAVES):
                p = Sharded(len(leaf.shape) + axis)
                known[leaf, p] = node(leaf.op, local_type(leaf.type, p, chunks), ())
            exprs = tuple(_part(x, axis, number, chunks, known) for x in exprs)
        self._parts = exprs
        self._leaves = [n for n in inside(exprs) if n.op in LEAVES]

    def at(
        self, block: _RingBlock, read: Sequence[Node], products: Sequence[Node]
    ) -> tuple[Node, ...]:
        """The expressions of a block, given what they read and the products of its leaves."""
        of = {"scores": products[0], "score_gradients": products[-1]}
        leaves = {n: g.cast(of[n.op], n.dtype) for n in self._leaves}
        values = dict(zip(self._read, read, strict=True))
        numbers = {self._row: block.row_chunk, self._key: block.key_chunk}
        return substitute(self._parts, {**values, **numbers, **leaves})


def _part(
    root: Node,
    axis: int,
    number: Node,
    chunks: int,
    given: dict[tuple[Node, Placement], Node],
) -> Node:
    """Chunk `number` of an axis of an expression, computed of chunks of what it is made of."""

    def at(n: Node, p: Placement) -> Node:
        if not isinstance(p, Sharded):
            return n
        if (n, p) not in given:
            known: dict[Node, dict[Placement, None]] = {s: {WHOLE: None} for s in n.srcs}
            known[n] = {p: None}
            possible = (w for w in ways(n, known, chunks) if w.result == p)
            if n.op == "input" or (way := next(possible, None)) is None:
                given[n, p] = own_part(n, p, number, chunks)
            else:
                srcs = tuple(at(s, q) for s, q in zip(n.srcs, way.operands, strict=True))
                share = None if way.share is None else Share(number, chunks, *way.share)
                row = OPS[n.op].sharding
                assert row is not None, "it has ways"
                given[n, p] = row.local(n, srcs, local_type(n.type, p, chunks), share)
        return given[n, p]

    return at(root, Sharded(len(root.shape) + axis)) if root.shape else root
