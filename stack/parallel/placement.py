"""Where the elements of a value are among the ranks along one axis of a mesh."""

from __future__ import annotations

import math
from dataclasses import field

from hal.core.facts import dataclass
from hal.tile.node import Node, Type
from stack.framework.flat import ALIGNMENT


@dataclass(frozen=True, slots=True)
class Replicated:
    """Every rank has all of them."""

    def __str__(self) -> str:
        return "whole"


@dataclass(frozen=True, slots=True)
class Sharded:
    """Each rank has an equal part of an axis. The axis is seen as (major, ranks, part), of which a
    rank has its index of the middle: with `major` 1 a rank's part is in one piece.

    With `zigzag` it is seen as (major, 2 ranks, part), of which rank i has index i and, behind it,
    2 ranks - 1 - i: under a causal mask all ranks then have as much to do.
    """

    axis: int
    major: int = 1
    zigzag: bool = False

    def __str__(self) -> str:
        major = "" if self.major == 1 else f", {self.major}"
        return f"{'zigzag' if self.zigzag else 'shard'}({self.axis}{major})"

    def pieces(self, ranks: int) -> int:
        """In how many equal pieces each of the `major` blocks of the axis lies."""
        return ranks * (1 + self.zigzag)


@dataclass(frozen=True, slots=True)
class Partial:
    """Every rank has a value; combined by `by` (sum, prod, min or max) they are the value."""

    by: str = "sum"

    def __str__(self) -> str:
        return f"partial {self.by}"


@dataclass(frozen=True, slots=True)
class Row:
    """Each rank has an equal part of the elements in row-major order, behind which 0 follow up to
    `size` elements. So a value of any shape is divided."""

    size: int

    def __str__(self) -> str:
        return f"row({self.size})"


@dataclass(frozen=True, slots=True)
class Owned:
    """Rank `rank` alone has all of them; what the others have in their place does not count."""

    rank: int

    def __str__(self) -> str:
        return f"on rank {self.rank}"


@dataclass(frozen=True, slots=True)
class Part:
    """Elements of a flat array: `count` of them, then a gap up to `size`, placed as Replicated,
    Sharded along their one axis, Row of `size`, Owned or, in a loop's results, Partial. A rank has
    `local` of them, none of what another one owns."""

    count: int
    size: int
    placement: Placement
    local: int


@dataclass(frozen=True, slots=True)
class Packed:
    """Parts of a flat array one after the other, each with a placement of its own. What the gaps
    hold is not kept; it counts as 0."""

    parts: tuple[Part, ...]
    _hash: int = field(init=False, repr=False, compare=False)
    """Of all parts, once: costs are looked up by placements, a million times for a model."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.parts))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return f"packed({len(self.parts)} parts)"


@dataclass(frozen=True, slots=True)
class Routed:
    """Each row, along the first axis, is on the rank that has the matrix of its group, of which the
    ranks have equal parts: `groups` is the whole graph's node of the rows' groups, `count` how many
    groups there are. A rank has places for all rows, in which those are that came to it, and 0."""

    groups: Node
    count: int

    def __str__(self) -> str:
        return f"routed to {self.count} groups"


Placement = Replicated | Sharded | Partial | Row | Owned | Packed | Routed


@dataclass(frozen=True, slots=True)
class Shares:
    """Ranks that have unequal parts of what is sharded: of each of the equal pieces that an axis is
    cut into, rank i has `counts[i]` neighbours. `rank` is this one, whose graph is its own."""

    counts: tuple[int, ...]
    rank: int

    @property
    def pieces(self) -> int:
        return sum(self.counts)

    @property
    def first(self) -> int:
        """This rank's first piece."""
        return sum(self.counts[: self.rank])

    @property
    def own(self) -> int:
        """How many pieces this rank has."""
        return self.counts[self.rank]

    @property
    def most(self) -> int:
        """How many pieces the rank with the most has."""
        return max(self.counts)


WHOLE = Replicated()
SUM = Partial()


def plain(p: Placement) -> Placement:
    """A flat array whose parts are all whole is whole."""
    if isinstance(p, Packed) and all(part.placement == WHOLE for part in p.parts):
        return WHOLE
    return p


def aligned(count: int) -> int:
    """Elements with the gap behind them that a flat array has."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def part_of(count: int, size: int, placement: Placement, ranks: int) -> Part:
    """The part of a flat array with so many elements and so many with the gap."""
    if isinstance(placement, Sharded):
        return Part(count, size, placement, aligned(count // ranks))
    local = size // ranks if isinstance(placement, Row) else size
    return Part(count, size, placement, local)


def local_type(type: Type, placement: Placement, ranks: int) -> Type:
    """What a rank has of a value of this type."""
    match placement:
        case Sharded(axis):
            shape = [n // ranks if i == axis else n for i, n in enumerate(type.shape)]
            return type.with_shape(shape)
        case Row(size):
            return type.with_shape((size // ranks,))
        case Packed(parts):
            return type.with_shape((sum(part.local for part in parts),))
        case _:
            return type


def fits(type: Type, placement: Placement, ranks: int) -> bool:
    """Whether values of this type can be placed so."""
    match placement:
        case Sharded(axis, major):
            inside = 0 <= axis < len(type.shape) and type.shape[axis] > 0
            return inside and type.shape[axis] % (major * placement.pieces(ranks)) == 0
        case Row(size):
            return size % ranks == 0 and size >= type.size
        case Packed(parts):
            return type.shape == (sum(part.size for part in parts),)
        case Routed(groups, count):
            alike = type.shape[:1] == groups.shape and groups.shape[0] > 0
            return alike and groups.shape[0] % ranks == 0 and count % ranks == 0
        case _:
            return True


def single(part: Part) -> Placement:
    """The placement of one part as a flat value of `size` elements."""
    if not isinstance(part.placement, Sharded) or part.count == part.size:
        return part.placement
    return Packed((part,))


def elements(type: Type, placement: Placement) -> int:
    """The elements that are divided, with the gaps."""
    match placement:
        case Row(size):
            return size
        case Packed(parts):
            return sum(part.size for part in parts)
        case _:
            return math.prod(type.shape)
