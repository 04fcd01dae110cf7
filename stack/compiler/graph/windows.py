"""What windows show to products, laid in memory as these read it best: with its edges, and with
neighbours along the depth that a matrix unit takes together side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import gcd, prod

from hal.core.facts import dataclass
from hal.tile.node import Node, node, rebuild
from hal.tile.size import hint, is_fixed
from stack import ops as build
from stack.compiler.graph.access import Affine, Axis, Materialise, Want, axis_index
from stack.compiler.graph.expr import MOVEMENT, Expr, Read, Walk
from stack.compiler.graph.roots import Home, below_views
from stack.compiler.graph.space import Group, Space, solved

NEAR = 4
"""The most elements from one to the next of a run."""

REPAID = 4
"""Elements that windows show for each one of the other operand from which on it pays to pack that
in the order of words, in which its neighbours lie apart."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How products read their operands on a kind of machine."""

    together: Callable[[Node], int]
    """How many neighbours along the depth lie side by side in a product's packed operands."""
    in_place: Callable[[Node, int, int], int]
    """in_place(product, run, columns): how many rows from the first of a run on are read where they
    are, of windows of which so many lie in a run, for so many columns; 0: they are packed."""


PACKED = Reading(lambda n: 1, lambda n, run, columns: 0)
"""One by one, and none in place."""


def overlap(offset: Affine, rows: Group, depth: Group) -> bool:
    """Whether rows see the same elements at different depths, as windows do; not where that depends
    on sizes that are data."""
    for a, r in product(depth, rows):
        x, y = (offset.coefficient(axis) for axis in (a, r))
        if x and y and all(map(is_fixed, (x, y, a.size, r.size))):
            span = abs(x) * (a.size - 1) + abs(y) * (r.size - 1)
            if span // gcd(x, y) + 1 < a.size * r.size:
                return True
    return False


def with_edges(n: Node, number: int, reading: Reading) -> Node:
    """A product that reads what its windows see from a copy with edges: where it is read in place,
    and where groups of elements are words, to leave some out of which takes longer than to copy
    all. Each product, told by its number, has a copy of its own, which is not kept from one to the
    next."""
    for side in (0, 1):
        n = _with_edges(n, side, f"edges {number}", reading)
    return n


def _with_edges(n: Node, side: int, tag: str, reading: Reading) -> Node:
    chain = _to_windows(n.srcs[side])
    if not chain:
        return n
    fixed = all(map(is_fixed, (*n.srcs[side].shape, *chain[-1].shape)))
    together, x, columns = reading.together(n), chain[-1], n.shape[-1 - side]
    order = _by_distance(x.srcs[0] if x.op == "pad" else x)
    copy = _Copy(x, order, tag)
    windows = _windows(_on(chain, copy.value), copy.memory, side) if fixed else None
    rows = reading.in_place(n, windows.run, hint(columns)) if windows and windows.near else 0
    if windows and rows:
        beyond = (rows - windows.run) * windows.step
        at = windows.channels(copy.memory.shape, together)
        if at is not None and together > 1 and _is_repaid(*n.srcs[:: 1 - 2 * side]):
            depth, axis = at
            words = _Copy(x, order, tag, beyond, order[axis], together)
            n = _with_operand(n, side, _on(chain, words.value))
            return _reordered(n, windows.depth, depth, together)
        if beyond and together == 1:
            return _with_operand(n, side, _on(chain, _Copy(x, order, tag, beyond).value))
    if x.op == "pad" and (rows or together > 1):
        return _with_operand(n, side, _on(chain, copy.value))
    return n


def _to_windows(x: Node) -> list[Node]:
    """The views from an operand down to what windows see, which is the last one: a value with edges
    where it has some. None where there are no windows."""
    chain, last = [x], 0
    while x.op in MOVEMENT and not (x.op == "pad" and last):
        shows = x.op == "window" and x["size"] > 1
        (x,) = x.srcs
        chain.append(x)
        last = len(chain) if shows else last
    return chain[: len(chain) if x.op == "pad" else last] if last else []


def _is_repaid(seen: Node, other: Node) -> bool:
    """Whether windows are so many that it pays to read what they are multiplied by in another
    order."""
    return hint(seen.type.size) >= REPAID * hint(below_views(other, {}).type.size)


def _on(chain: Sequence[Node], x: Node) -> Node:
    """The operand that has another value at the end of its chain of views."""
    for n in reversed(chain[:-1]):
        x = rebuild(n, (x,))
    return x


def _with_operand(n: Node, side: int, x: Node) -> Node:
    return rebuild(n, (x, n.srcs[1]) if side == 0 else (n.srcs[0], x))


class _Copy:
    """A value in a buffer of its own, whose axes follow one another in this order; of one of them
    some neighbours side by side. Rows end with zeros for so many elements that are read beyond."""

    def __init__(
        self,
        x: Node,
        order: Sequence[int],
        tag: str,
        beyond: int = 0,
        axis: int = 0,
        together: int = 1,
    ) -> None:
        shape = x.shape
        wide = _longer(x, order[-1], beyond)
        apart = [
            *wide.shape[:axis],
            wide.shape[axis] // together,
            together,
            *wide.shape[axis + 1 :],
        ]
        lying = [*(i + (i > axis) for i in order), axis + 1]
        inner = build.permute(build.reshape(wide, apart), lying)
        self.memory = node("contiguous", inner.type, (inner,), tag=tag)
        back = build.permute(self.memory, [lying.index(i) for i in range(len(apart))])
        back = build.reshape(back, wide.shape)
        self.value = build.slice_axis(back, order[-1], 0, shape[order[-1]])


def _longer(x: Node, axis: int, more: int) -> Node:
    """A value with so many zeros more behind an axis."""
    if not more:
        return x
    hi = [more * (i == axis) for i in range(len(x.shape))]
    if x.op == "pad" and x["value"] == 0:
        before = [a + b for a, b in zip(x["hi"], hi, strict=True)]
        return build.pad(x.srcs[0], x["lo"], before)
    return build.pad(x, [0] * len(hi), hi)


@dataclass(frozen=True, slots=True)
class _Windows:
    """How a product sees a copy: the offset of its rows and depth in it."""

    seen: Group
    depth: Group
    offset: Affine

    @property
    def run(self) -> int:
        return self.seen[-1].size

    @property
    def step(self) -> int:
        return abs(self.offset.coefficient(self.seen[-1]))

    @property
    def near(self) -> bool:
        """Whether runs of rows are of neighbours, and longer than those of the depth, which
        overlap."""
        along = abs(self.offset.coefficient(self.depth[-1]))
        deep = self.depth[-1].size if 0 < along <= NEAR else 0
        return (
            0 < self.step <= NEAR
            and self.run >= deep
            and overlap(self.offset, self.seen, self.depth)
        )

    def channels(self, shape: tuple[int, ...], together: int) -> tuple[int, int] | None:
        """Which axis of the depth, and which of a copy of that shape, is one that windows do not
        lie along, whose neighbours can be words."""
        for i, axis in enumerate(self.depth):
            for at, size in enumerate(shape[:-2]):
                step = prod(shape[at + 1 :])
                fits = axis.size == size and size % together == 0
                if fits and self.offset.coefficient(axis) == step:
                    return i, at
        return None


def _windows(operand: Node, memory: Node, side: int) -> _Windows | None:
    size = memory.type.size

    def read(space: Space) -> tuple[Space, Expr] | Want:
        walk = Walk({memory: Home("temp", 0, 0, size, size)})
        element = walk.operand(operand, axis_index(space.axes))
        return walk.first or (space, element)

    found = solved(Space.over((Axis(size),) for size in operand.shape), read)
    if isinstance(found, Materialise):
        return None
    space, element = found
    if not isinstance(element, Read) or element.guards:
        return None
    *_, first, second = space.groups
    seen, depth = (second, first) if side else (first, second)
    return _Windows(seen, depth, element.offset) if seen and depth else None


def _reordered(n: Node, depth: Group, at: int, together: int) -> Node:
    """A product whose depth has so many neighbours along one of its axes innermost."""
    before, size, after = (
        prod(a.size for a in part) for part in (depth[:at], depth[at : at + 1], depth[at + 1 :])
    )

    def turned(x: Node, axis: int) -> Node:
        lead, tail = x.shape[:axis], x.shape[axis + 1 :]
        apart = (*lead, before, size // together, together, after, *tail)
        order = list(range(len(apart)))
        order[axis + 2], order[axis + 3] = axis + 3, axis + 2
        return build.reshape(build.permute(build.reshape(x, apart), order), x.shape)

    left, right = n.srcs
    rank = len(n.shape)
    return rebuild(n, (turned(left, rank - 1), turned(right, rank - 2)))


def _by_distance(x: Node) -> tuple[int, ...]:
    """The axes of a view in the order in which they follow one another in memory."""
    below, axes = below_views(x, {}), tuple(Axis(size) for size in x.shape)
    walk = Walk({below: Home("temp", 0, 0, below.type.size, below.type.size)})
    read = walk.operand(x, axis_index(axes))
    if walk.first is not None or not isinstance(read, Read):
        return tuple(range(len(axes)))
    steps = [abs(hint(read.offset.coefficient(a))) for a in axes]
    return tuple(sorted(range(len(axes)), key=lambda i: -steps[i]))
