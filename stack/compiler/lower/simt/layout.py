"""Which element of a tile lies on which lane, in which of its registers: plain values.

A group has a power of two of lanes. A tile's layout says for each of its axes how the positions
along it are dealt out. An element lies on at least one lane; where an axis uses none of the bits of
the lane's number that other axes leave, lanes that differ in them hold the same elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from hal.core.facts import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """How the positions along one axis are held: `own` neighbours by a lane, the next by the next
    of `lanes` lanes, whose numbers are `every` apart, and so on in turns until `size`. Where there
    are several `sets` of such lanes, whose numbers are `apart` apart, the axis is first cut into as
    many equal shares.

    Positions from `size` on are held too where the turns do not end with it: they are nobody's.
    """

    size: int
    own: int = 1
    lanes: int = 1
    every: int = 1
    sets: int = 1
    apart: int = 1

    @property
    def share(self) -> int:
        """The positions of a set of lanes."""
        return self.size // self.sets

    @property
    def registers(self) -> int:
        """The positions that one lane holds."""
        return -(-self.share // (self.own * self.lanes)) * self.own

    @property
    def covered(self) -> int:
        """The positions that all lanes hold, at least `size`."""
        return self.registers * self.lanes * self.sets

    @property
    def mask(self) -> int:
        """The bits of a lane's number by which its positions differ."""
        return (self.lanes - 1) * self.every | (self.sets - 1) * self.apart

    def position(self, lane: int, register: int) -> int:
        """The position that a lane holds in a register."""
        turn, part = divmod(register, self.own)
        place, own_set = lane // self.every % self.lanes, lane // self.apart % self.sets
        return own_set * self.share + (turn * self.lanes + place) * self.own + part


Layout = tuple[Spread, ...]
"""One spread for each axis of a tile."""


def registers(layout: Layout) -> tuple[int, ...]:
    """The shape of what one lane holds."""
    return tuple(s.registers for s in layout)


def bits(layout: Layout) -> int:
    """The bits of a lane's number by which its elements differ from those of other lanes."""
    return sum(s.mask for s in layout)


def element(layout: Layout, lane: int, held: Sequence[int]) -> tuple[int, ...] | None:
    """The element that a lane holds in a register of each axis; None where there is none."""
    at = tuple(s.position(lane, r) for s, r in zip(layout, held, strict=True))
    inside = all(i < s.size for i, s in zip(at, layout, strict=True))
    return at if inside else None


def power(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def coalesced(
    shape: tuple[int, ...], lanes: int, order: Iterable[int] | None = None, together: int = 1
) -> Layout:
    """Neighbouring lanes hold neighbours along the first axis of `order` (the last of the tile),
    then along the next: what lies in memory in that order is reached by few wide accesses. A lane
    holds up to `together` neighbours along the first axis, as many as leave no lane without."""
    layout = [Spread(size) for size in shape]
    every = 1
    for axis in reversed(range(len(shape))) if order is None else order:
        own = 1
        while (
            2 * own <= together and shape[axis] % (2 * own) == 0 and prod(shape) >= 2 * own * lanes
        ):
            own *= 2
        here = min(power(shape[axis] // own), lanes // every)
        layout[axis] = Spread(shape[axis], own, here, every if here > 1 else 1)
        every *= here
        together = together if shape[axis] == 1 else 1
    return tuple(layout)


def in_line(shape: tuple[int, ...], lanes: int, axis: int) -> Layout:
    """For what goes along an axis in order: a lane holds one run of neighbours along it, and lanes
    share a line only as far as there are more lanes than lines."""
    others = [i for i in reversed(range(len(shape))) if i != axis]
    across = coalesced(tuple(1 if i == axis else d for i, d in enumerate(shape)), lanes, others)
    every = prod(s.lanes for s in across)
    here = min(power(shape[axis]), lanes // every)
    along = Spread(shape[axis], -(-shape[axis] // here), here, every if here > 1 else 1)
    return (*across[:axis], along, *across[axis + 1 :])


def blocked(shape: tuple[int, int], lanes: int) -> Layout:
    """For the sums of a matrix product: every lane has a block of rows and columns as square as can
    be, so that few operands give many products, in runs of neighbours."""
    rows, columns = shape
    splits = []
    across = 1
    while across <= min(power(columns), lanes):
        down = min(power(rows), lanes // across)
        high, wide = -(-rows // down), -(-columns // across)
        splits.append((high * wide, high + wide, across, down))
        across *= 2
    _, _, across, down = min(splits)
    return (_runs(rows, down, across), _runs(columns, across, 1))


def fragments(
    shape: tuple[int, int], lanes: int, *, whole_rows: bool = False, subgroup: int = 32
) -> Layout:
    """For the sums of a matrix unit, as PTX lays out those of `mma.m16n8`: in a subgroup four lanes
    share eight columns, two neighbours each, and eight lanes eight rows, of which a unit takes two
    turns. Subgroups share rows and columns so that each reads as few of both as can be; with
    `whole_rows` the rows alone, so that what goes along a row stays in a subgroup."""
    rows, columns = shape
    downs = [n for n in _POWERS if rows % (16 * n) == 0]
    ways = [
        (down, across)
        for down in downs
        for across in _POWERS
        if columns % (8 * across) == 0 and down * across <= lanes // subgroup
        if across == 1 or not whole_rows
    ]
    down, across = min(ways, key=lambda way: (-way[0] * way[1], rows // way[0] + columns // way[1]))
    apart = subgroup * down if across > 1 else 1
    return (
        Spread(rows, 1, 8, 4, down, subgroup if down > 1 else 1),
        Spread(columns, 2, 4, 1, across, apart),
    )


_POWERS = (1, 2, 4, 8, 16, 32)
"""How many subgroups may share an axis."""


def _runs(size: int, lanes: int, every: int) -> Spread:
    share = -(-size // lanes)
    own = next(n for n in (4, 2, 1) if share % n == 0)
    return Spread(size, own, lanes, every if lanes > 1 else 1)


def without(layout: Layout, axis: int) -> Layout:
    """The layout of a tile that has lost an axis."""
    return layout[:axis] + layout[axis + 1 :]
