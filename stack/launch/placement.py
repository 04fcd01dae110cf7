"""Which hosts hold copies of which hosts' state, and how probable it is that none is lost (GEMINI,
Wang et al., SOSP 2023): purely."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import comb

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """Hosts of a group hold the state of all in it; a host of the `ring` holds its own, and the
    `copies` - 1 behind it do."""

    groups: tuple[tuple[int, ...], ...]
    ring: tuple[int, ...]
    copies: int

    def holders(self, host: int) -> tuple[int, ...]:
        """The hosts that hold this one's state, itself first."""
        for circle in (*self.groups, self.ring):
            if host in circle:
                at = circle.index(host)
                return tuple(circle[(at + i) % len(circle)] for i in range(self.copies))
        raise InvalidCall(f"host {host} is not among those that hold copies")

    def survives(self, lost: int) -> float:
        """The probability that each host's state is left when `lost` hosts, any with the same
        probability, are lost at once."""
        size = sum(map(len, self.groups)) + len(self.ring)
        if not 0 <= lost <= size:
            raise InvalidCall(f"{lost} of {size} hosts cannot be lost")
        # In how many ways 0, 1, ... of its hosts can be lost, and one is left.
        of_one = [comb(self.copies, gone) for gone in range(self.copies)]
        ways = [of_one] * len(self.groups)
        if self.ring:
            ways.append(_ways_of_ring(len(self.ring), self.copies))
        counts = reduce(_together, ways, [1])
        return counts[lost] / comb(size, lost) if lost < len(counts) else 0.0


def grouped(hosts: Sequence[int], copies: int) -> Placement:
    """Groups of `copies` hosts, the best where these divide the hosts; of the others, and as many
    as make a group, a ring (the paper's mixed placement, algorithm 1). Raises InvalidCall."""
    _check(hosts, copies)
    whole = len(hosts) // copies - (len(hosts) % copies > 0)
    cut = whole * copies
    groups = tuple(tuple(hosts[at : at + copies]) for at in range(0, cut, copies))
    return Placement(groups, tuple(hosts[cut:]), copies)


def ringed(hosts: Sequence[int], copies: int) -> Placement:
    """All hosts in one ring."""
    _check(hosts, copies)
    return Placement((), tuple(hosts), copies)


def _check(hosts: Sequence[int], copies: int) -> None:
    if not 1 <= copies <= len(hosts):
        raise InvalidCall(f"{copies} copies are for {copies} hosts or more, not {len(hosts)}")


def _together(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """In how many ways 0, 1, ... hosts of two groups can be lost: a product of polynomials. Without
    numpy, which takes half the time that a launcher takes to start."""
    ways = [0] * (len(one) + len(other) - 1)
    for i, a in enumerate(one):
        for j, b in enumerate(other, i):
            ways[j] += a * b
    return ways


def _ways_of_ring(size: int, copies: int) -> list[int]:
    """In how many ways 0, 1, ... hosts of a ring can be lost, and never `copies` neighbours: the
    gaps between hosts that are left have less than that each, and a turn of the ring is counted
    once for each host that is left."""
    short = [1] * copies  # a gap of 0, 1, ..., copies - 1
    gaps, ways = [1], [0] * size
    for left in range(1, size + 1):
        gaps = _together(gaps, short)
        lost = size - left
        if lost < len(gaps):
            ways[lost] = size * gaps[lost] // left
    return ways
