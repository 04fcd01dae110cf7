"""How an operator's parts are computed by several ranks: the rule of a row, for one axis of a mesh.

An operator says which axes of its operands and of its result are one axis (`Link`), and in which
operands it is linear. From that follow the ways to compute it: each rank a part of a linked axis;
or each rank a part of a sum that is still to be made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, Type, node
from stack import ops as g


@dataclass(frozen=True, slots=True)
class Link:
    """An axis of which each rank can compute a part: its number in each operand and in the result.

    None stands for an operand that every rank needs as a whole, "sum" for one that is a sum still
    to be made. Where the result has no such axis, the ranks' results are to be combined by `by`.
    `contiguous` says that a rank's part has to be without gaps.
    """

    operands: tuple[int | str | None, ...]
    axis: int | None
    by: str = ""
    contiguous: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of an axis a rank has. The axis of `whole` elements is seen as (major, ranks,
    part): the rank has index `rank`, a scalar i64 node, of the middle. With `zigzag` it is seen as
    (major, 2 ranks, part / 2), of which the rank has index `rank` and the one as far from the
    end. Where ranks have unequal parts, the axis is seen as (major, `size`, part), and this rank
    has `count` indices of the middle from `rank` on."""

    rank: Node
    size: int
    whole: int
    major: int
    zigzag: bool = False
    count: int = 1

    @property
    def part(self) -> int:
        return self.whole // self.size // self.major

    def positions(self) -> Node:
        """i64[whole / size * count], where the rank's elements are in the whole axis."""
        if self.zigzag:
            pieces = 2 * self.size
            last = g.sub(g.const(pieces - 1, DType.I64), self.rank)
            both = [Share(r, pieces, self.whole, self.major).positions() for r in (self.rank, last)]
            rows = [g.reshape(x, (self.major, self.part // 2)) for x in both]
            return g.reshape(g.concat(rows, 1), (self.major * self.part,))
        length = self.part * self.count
        own = g.arange(self.major * length)
        if self.major == 1:
            return g.add(own, _times(g.broadcast(self.rank, own.shape), self.part))
        before = g.broadcast(
            g.reshape(_times(g.arange(self.major), self.part * self.size), (self.major, 1)),
            (self.major, length),
        )
        inner = g.broadcast(g.arange(length), before.shape)
        here = _times(g.broadcast(self.rank, before.shape), self.part)
        return g.reshape(g.add(g.add(before, inner), here), own.shape)


def _times(x: Node, by: int) -> Node:
    return g.mul(x, g.full_like(x, by))


Local = Callable[[Node, tuple[Node, ...], Type, "Share | None"], Node]
"""(the whole node, a rank's operands, the type of its result, which part of the linked axis) to the
rank's node."""


def same_attributes(n: Node, srcs: tuple[Node, ...], type: Type, share: Share | None) -> Node:
    """The operator with the attributes of the whole."""
    return node(n.op, type, srcs, **dict(n.attrs))


@dataclass(frozen=True, slots=True, eq=False)
class Sharding:
    """The rule of a row. `linear` lists sets of operands: where those of one set are sums still to
    be made, and the others whole, so is the result."""

    links: Callable[[Node], Sequence[Link]]
    linear: Callable[[Node], Sequence[tuple[int, ...]]] = lambda n: ()
    local: Local = same_attributes
    regroups: bool = False
    """Whether elements keep their row-major order under another shape; `links` has nothing then."""
    pointwise: bool = False
    """Whether each element follows from those at the same place of all operands."""


def every_axis(n: Node) -> list[Link]:
    """All operands and the result have the same axes."""
    return [Link((axis,) * len(n.srcs), axis) for axis in range(len(n.shape))]


def unchanged_axes(n: Node) -> list[Link]:
    """The axes that are as long in the result as in all operands, one for one."""
    equal = [
        axis
        for axis, size in enumerate(n.shape)
        if all(len(s.shape) == len(n.shape) and s.shape[axis] == size for s in n.srcs)
    ]
    return [Link((axis,) * len(n.srcs), axis) for axis in equal]


def linear_in(*sets: tuple[int, ...]) -> Callable[[Node], Sequence[tuple[int, ...]]]:
    """Linear in these sets of operands if the element type has sums that round at least as finely
    as the operator itself: a float."""
    return lambda n: sets if n.dtype.is_float else ()


def elementwise(*sets: tuple[int, ...]) -> Sharding:
    """Of operators whose operands and result have one shape."""
    return Sharding(every_axis, linear_in(*sets), pointwise=True)


def outer_size(shape: Sequence[int], axis: int, major: int) -> int:
    """How many blocks lie before the ranks' parts in row-major order."""
    return math.prod(shape[:axis]) * major


def placed(shape: Sequence[int], outer: int, size: int) -> tuple[int, int] | None:
    """The (axis, major) of a shape at which parts lie behind `outer` blocks; None where no axis can
    be cut there in `size` parts."""
    before = 1
    for axis, length in enumerate(shape):
        if length > 1 and outer % before == 0:
            major = outer // before
            if major < length and length % major == 0 and (length // major) % size == 0:
                return axis, major
        before *= length
    return None


def is_wider(n: Node) -> bool:
    """Whether a cast keeps every value: sums can be made behind it."""
    a, b = n.srcs[0].dtype, n.dtype
    return a.is_float and b.is_float and b.bits >= a.bits and a is not DType.BOOL
