"""Expressions as tiles: the meeting point of index arithmetic and tile IR.

`Tiles` evaluates expressions where some loop axes are tile dimensions (the element becomes a block
of neighbours) and the others have scalar values. Low-precision floats are computed in float32, and
each operation's result is rounded to its type, whether it is stored or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from hal.core.dtypes import DType
from hal.tile.build import (
    add,
    arange,
    binary,
    bitcast,
    broadcast,
    cast,
    const,
    mul,
    reshape,
    sub,
    where,
)
from hal.tile.kernel import Memory
from hal.tile.node import Node
from hal.tile.numeric import constant, convert, quiet
from hal.tile.size import divides, equal, is_fixed
from stack.compiler.graph.access import Affine, Axis, Guard
from stack.compiler.graph.expr import (
    Apply,
    Constant,
    Expr,
    Iota,
    Read,
    Select,
    below,
    reads,
    uncast,
)
from stack.compiler.templates.emission import Emission, Position, TileAxis, Work, compute_dtype
from stack.compiler.templates.instances import decompose
from stack.ops import OPS

I64 = DType.I64
I32 = DType.I32


def is_even(factors: Sequence[int], axes: Sequence[Axis]) -> bool:
    """Whether steps along axes that count as one are all the same."""
    pairs = zip(factors, factors[1:], axes[1:], strict=False)
    return all(equal(outer, inner * axis.size) for outer, inner, axis in pairs)


_HELD = frozenset(
    {"neg", "abs", "min", "max", "where", "floor", "ceil", "round", "trunc", "cast", "bitcast"}
)
"""Operations whose results a type holds that holds the operands, or that round themselves."""


def rounded(value: Node, dtype: DType) -> Node:
    """A value of a narrow float as that type holds it, in the type that it is computed in."""
    return cast(cast(value, dtype), value.dtype) if dtype.is_narrow else value


def applied(n: Node, operands: tuple[Node, ...]) -> Node:
    """The value of an elementwise operation."""
    lower = OPS[n.op].lower
    if lower is None:
        raise AssertionError(f"{n.op} has no elementwise lowering")
    value = lower(n, operands)
    return value if n.op in _HELD else rounded(value, n.dtype)


def _stored(value: Node, dtype: DType) -> Node:
    """A value in the type in which it is stored; what was rounded to it is not rounded again."""
    if value.op == "broadcast":
        return broadcast(_stored(value.srcs[0], dtype), value.shape)
    if value.op == "cast" and dtype.is_narrow and value.srcs[0].dtype is dtype:
        return value.srcs[0]
    if dtype is DType.BF16 and value.dtype is DType.F32 and _is_exact(value, dtype):
        # Its bits are the upper half of the wider one's.
        upper = binary("shr", bitcast(value, DType.U32), 16)
        return bitcast(cast(upper, DType.U16), dtype)
    return cast(value, dtype)


_CHOSEN: Mapping[str, slice] = {
    **dict.fromkeys(("neg", "abs", "min", "max", "broadcast", "reshape", "transpose"), slice(None)),
    "where": slice(1, None),
}
"""Operations whose results are of their operands, but for a sign, and of which of them."""


def _is_exact(value: Node, dtype: DType) -> bool:
    """Whether all that a value may be are values of a narrow type, as far as operations on what was
    loaded in that type tell."""
    stack, seen = [value], {value}
    while stack:
        n = stack.pop()
        if n.op == "cast" and n.srcs[0].dtype is dtype:
            continue
        if n.op == "const":
            with quiet():
                number = constant(n["value"], n.dtype)
                if number == convert(convert(number, dtype), n.dtype):
                    continue
            return False
        if n.op not in _CHOSEN:
            return False
        fresh = [x for x in n.srcs[_CHOSEN[n.op]] if x not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return True


def _grown(x: Node, more: tuple[int, ...]) -> Node:
    return reshape(x, x.shape + more) if x.shape else x


class Tiles:
    """One scope: axis values, tile dimensions, and what is already computed. Scopes nest as loops
    do."""

    def __init__(
        self,
        emission: Emission,
        values: Mapping[Axis, Node],
        tile_axes: tuple[TileAxis, ...] = (),
        parent: Tiles | None = None,
    ) -> None:
        self.emission = emission
        self.b = emission.b
        self.tile_axes = tile_axes
        self.values: dict[Axis, Node] = {**(parent.values if parent else {}), **values}
        self.local: dict[Node, Node] = dict(parent.local) if parent else {}
        self._memo: dict[int, Node] = dict(parent._memo) if parent else {}
        above = parent.tile_axes if parent else ()
        if above and len(above) < len(tile_axes) and tile_axes[: len(above)] == above:
            # What is known of tiles has one element along further axes.
            more = (1,) * (len(tile_axes) - len(above))
            self.local = {n: _grown(x, more) for n, x in self.local.items()}
            self._memo = {e: _grown(x, more) for e, x in self._memo.items()}
        self.holding: frozenset[Guard] = parent.holding if parent else frozenset()
        """Guards that hold for every element."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(t.width for t in self.tile_axes)

    def bound(self) -> frozenset[Axis]:
        """The axes whose elements this scope knows."""
        return frozenset(self.values) | {a for t in self.tile_axes for a in t.axes}

    def hoist(self, exprs: Iterable[Expr]) -> None:
        """Load now what the loops inside would load again and again."""
        bound = self.bound()
        stack, seen = list(exprs), set()
        while stack:
            e = stack.pop()
            if id(e) in seen:
                continue
            seen.add(id(e))
            # Whether neither the element nor its index has to be computed by this kernel first.
            if (
                isinstance(e, Read)
                and e.axes <= bound
                and self.emission.own.isdisjoint(r.root for r in reads(e))
            ):
                self.tile(e)
            stack.extend(below(e))

    def tile(self, e: Expr) -> Node:
        """The expression's value; shape () or one that broadcasts to the scope's."""
        if isinstance(e, Read) and e.root in self.local:
            return self.local[e.root]
        found = self._memo.get(id(e))
        if found is None:
            found = self._memo[id(e)] = self._evaluate(e)
        return found

    def _evaluate(self, e: Expr) -> Node:
        match e:
            case Read():
                memory, start = self.emission.memory(self.emission.homes[e.root], e.offset)
                at = self.position(e.offset.shift(-start))
                guards = [self.position(g.value) for g in self._open(e.guards)]
                varying = at.dynamic is not None or any(self._varies(g) for g in guards)
                if varying or any(t.skip is not None for t in self.tile_axes):
                    mask = self.mask(e.guards)
                    for t in self.tile_axes:
                        if t.limit is not None or t.skip is not None:
                            mask = binary("and", mask, self.valid(t))
                    index = self._spread(at)
                    shape = broadcast(mask, self.shape).shape if mask.shape else index.shape
                    loaded = self.b.gather(memory, broadcast(index, shape), broadcast(mask, shape))
                else:
                    loaded = self._block(e, at, memory)
                return cast(loaded, compute_dtype(e.dtype))
            case Constant():
                number = const(e.value, compute_dtype(e.dtype))
                # Plain numbers are rounded in the graph, those that are data only here.
                return number if number.op == "const" else rounded(number, e.dtype)
            case Iota():
                low, high = e.value.bounds()
                narrow = I32 if low >= -(1 << 31) and high < 1 << 31 else I64
                # A leaf's value is one of its element type: rounded, where that is narrow.
                exact = cast(self._spread(self.position(e.value), narrow), e.dtype)
                return cast(exact, compute_dtype(e.dtype))
            case Select():
                kept = self.tile(e.value)
                if not self._open(e.guards) or self._is_zero_outside(e):
                    return kept
                return where(self.mask(e.guards), kept, const(e.fill, kept.dtype))
            case Apply():
                return applied(e.node, tuple(self.tile(a) for a in e.args))
        raise AssertionError(f"unknown expression {e!r}")

    def root(self, root: Node, work: Work) -> Node:
        """A root's value: computed, or another root's that it is moved from."""
        moved = work.nest.moved.get(root)
        return self.local[moved.source] if moved else self.tile(work.nest.exprs[root])

    def hold(self, root: Node, value: Node) -> None:
        """Let this scope read that value of a root, rounded to its type."""
        self.local[root] = rounded(value, root.dtype)

    def give(self, e: Expr, value: Node) -> None:
        """Let this scope take that value where the expression is read."""
        self._memo[id(e)] = value

    def keep(self, root: Node, work: Work) -> None:
        """Write the root's value of this scope to its home if something reads it there."""
        if root in work.stored:
            kept = work.nest.kept.get(root, ())
            self.store(root, work.nest.own[root], self.local[root], kept)

    def stored(self, root: Node, offset: Affine) -> Node:
        """The scope's elements of a root as they are in its home now."""
        memory, start = self.emission.memory(self.emission.homes[root], offset)
        at = self.position(offset.shift(-start))
        limits = tuple(t.limit for t in self.tile_axes)
        return self.b.load(memory, at.scalar, self.shape, at.steps, limits)

    def store(
        self, root: Node, offset: Affine, value: Node, guards: tuple[Guard, ...] = ()
    ) -> None:
        """Write the scope's elements of a root to its home, where the guards hold."""
        memory, start = self.emission.memory(self.emission.homes[root], offset)
        at = self.position(offset.shift(-start))
        stored = broadcast(_stored(value, root.dtype), self.shape)
        held = None if not guards else self.mask(guards)
        if at.dynamic is None and (held is None or not held.shape):
            limits = [t.limit for t in self.tile_axes]
            if held is not None:
                first = limits[0] or const(self.tile_axes[0].width, I64)
                limits[0] = where(held, first, 0)
            self.b.store(memory, at.scalar, stored, at.steps, limits)
            return
        index = broadcast(self._spread(at), self.shape)
        valid = self._all_valid() if held is None else binary("and", self._all_valid(), held)
        self.b.scatter(memory, index, stored, broadcast(valid, self.shape))

    # index arithmetic

    def position(self, affine: Affine) -> Position:
        """An affine value in this scope."""
        scalar, steps, dynamic = const(affine.const, I64), [0] * len(self.tile_axes), None
        by_axis = {a: i for i, t in enumerate(self.tile_axes) for a in t.axes}
        done: set[int] = set()
        for axis, c in affine.terms:
            if axis not in by_axis:
                value = (
                    self.values[axis] if axis.source is None else cast(self.tile(axis.source), I64)
                )
                terms = [mul(value, c) if not value.shape else binary("mul", value, c)]
            else:
                i = by_axis[axis]
                if i in done:
                    continue
                done.add(i)
                # The step along a tile dimension, and what else its axes add: scalars, or tiles
                # where neighbours are apart in more than one way
                t = self.tile_axes[i]
                factors = [affine.coefficient(a) for a in t.axes]
                if is_even(factors, t.axes):
                    steps[i], terms = factors[-1], [mul(t.base, factors[-1])]
                elif t.at:
                    steps[i] = factors[-1]
                    terms = [mul(at, c) for at, c in zip(t.at, factors, strict=True) if c]
                elif t.skip is not None:
                    at = decompose(add(t.base, t.skip), t.axes)
                    at[t.axis] = sub(at[t.axis], t.skip)
                    steps[i] = factors[-1]
                    terms = [mul(at[a], c) for a, c in zip(t.axes, factors, strict=True) if c]
                else:
                    within = t.within or divides(t.width, t.axis.size)
                    first = t.base
                    if not within:
                        shape = tuple(t.width if i == k else 1 for k in range(len(self.tile_axes)))
                        first = binary("add", reshape(arange(t.width, I64), shape), t.base)
                    if t.limit is not None:
                        # What is beyond the limit is not used, but must be somewhere.
                        first = binary("min", first, prod(a.size for a in t.axes) - 1)
                    at = decompose(first, t.axes)
                    terms = [
                        binary("mul", at[a], c) for a, c in zip(t.axes, factors, strict=True) if c
                    ]
                    steps[i] = factors[-1] if within else 0
            for term in terms:
                if term.shape:
                    dynamic = term if dynamic is None else binary("add", dynamic, term)
                else:
                    scalar = add(scalar, term)
        return Position(scalar, tuple(steps), dynamic)

    def _spread(self, at: Position, dtype: DType = I64) -> Node:
        """The position of every element of the scope's tile; () where it does not vary."""
        total = cast(at.scalar, dtype)
        for i, step in enumerate(at.steps):
            if step and self.tile_axes[i].width > 1:
                shape = tuple(t.width if i == k else 1 for k, t in enumerate(self.tile_axes))
                ramp = reshape(arange(self.tile_axes[i].width, dtype), shape)
                total = binary("add", total, ramp if step == 1 else binary("mul", ramp, step))
        return total if at.dynamic is None else binary("add", total, cast(at.dynamic, dtype))

    def _open(self, guards: Iterable[Guard]) -> tuple[Guard, ...]:
        """The guards that may not hold everywhere."""
        return tuple(g for g in guards if g not in self.holding)

    def _is_zero_outside(self, e: Select) -> bool:
        """Whether what is chosen is read under the same guards, which gives zero where they do not
        hold, and nothing else is wanted there."""
        read = e.value
        if not isinstance(read, Read) or read.root in self.local:
            return False
        return e.fill == 0 and str(e.fill)[0] != "-" and {*self._open(e.guards)} <= {*read.guards}

    def mask(self, guards: tuple[Guard, ...]) -> Node:
        """Where every guard holds."""
        held: Node | None = None
        for guard in self._open(guards):
            at = self._spread(self.position(guard.value))
            inside = binary(
                "and", binary("le", const(guard.lo, I64), at), binary("lt", at, guard.hi)
            )
            held = inside if held is None else binary("and", held, inside)
        return held if held is not None else const(True, DType.BOOL)

    def all_hold(self, guards: tuple[Guard, ...]) -> Node | None:
        """Whether every guard holds for all of the tile, as a scalar; None where elements lie too
        unevenly to tell."""
        held = const(True, DType.BOOL)
        for guard in guards:
            at = self.position(guard.value)
            if at.dynamic is not None or not all(map(is_fixed, at.steps)):
                return None
            ends = [step * (t.width - 1) for step, t in zip(at.steps, self.tile_axes, strict=True)]
            low = add(at.scalar, sum(min(0, end) for end in ends))
            high = add(at.scalar, sum(max(0, end) for end in ends))
            for met in (binary("le", const(guard.lo, I64), low), binary("lt", high, guard.hi)):
                held = binary("and", held, met)
        return held

    def valid(self, t: TileAxis) -> Node:
        """Which positions along a tile dimension are within its limit."""
        one = Position(const(0, I64), tuple(int(t is other) for other in self.tile_axes), None)
        at = self._spread(one)
        within = binary("lt", at, t.limit if t.limit is not None else t.width)
        return within if t.skip is None else binary("and", within, binary("le", t.skip, at))

    # loads

    def _varies(self, at: Position) -> bool:
        """Whether a value is not the same for the whole tile."""
        wide = (step for step, t in zip(at.steps, self.tile_axes, strict=True) if t.width > 1)
        return at.dynamic is not None or any(wide)

    def _all_valid(self) -> Node:
        """Which elements of the tile are within all limits."""
        mask = const(True, DType.BOOL)
        for t in self.tile_axes:
            if t.limit is not None or t.skip is not None:
                mask = binary("and", mask, self.valid(t))
        return mask

    def _block(self, e: Read, at: Position, memory: Memory) -> Node:
        """A strided block, of width 1 along tile dimensions in which the element does not vary."""
        widths = tuple(t.width if s else 1 for t, s in zip(self.tile_axes, at.steps, strict=True))
        limits = tuple(
            t.limit if s else None for t, s in zip(self.tile_axes, at.steps, strict=True)
        )
        if not any(at.steps):
            if not self._open(e.guards):
                return self.b.load(memory, at.scalar)
            limit = where(self.mask(e.guards), const(1, I64), 0)
            return reshape(self.b.load(memory, at.scalar, (1,), (1,), (limit,)), ())
        if self._open(e.guards):
            first = next(i for i, s in enumerate(at.steps) if s)
            whole = limits[first] or const(widths[first], I64)
            guarded = where(self.mask(e.guards), whole, 0)
            limits = (*limits[:first], guarded, *limits[first + 1 :])
        return self.b.load(memory, at.scalar, widths, at.steps, limits)


def zero_beyond(scope: Tiles, e: Expr) -> Node:
    """The operand's tile, zero from the limits on; a masked load gives zero there by itself."""
    value = scope.tile(e)
    is_read = isinstance(uncast(e), Read)
    for t in scope.tile_axes:
        limited = t.limit is not None or t.skip is not None
        if limited and not (is_read and t.axis in e.axes):
            value = where(scope.valid(t), value, 0)
    return value
