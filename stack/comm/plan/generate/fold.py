"""Any number of ranks for algorithms that want a power of two.

With n ranks and 2^k the largest power of two that is not greater, the first 2 (n - 2^k) ranks work
in pairs: the even one gives all that it has to the odd one and later gets the result from it. The
odd ones and the rest are the 2^k members (Thakur, Rabenseifner and Gropp, 2005).
"""

from __future__ import annotations

from hal.core.facts import dataclass


@dataclass(frozen=True, slots=True)
class Fold:
    """`size` ranks as `core` members, of which the first `extra` stand for two ranks."""

    size: int

    @property
    def core(self) -> int:
        """The number of members, a power of two."""
        return 1 << (self.size.bit_length() - 1)

    @property
    def extra(self) -> int:
        """How many members stand for two ranks."""
        return self.size - self.core

    def rank(self, member: int) -> int:
        """The rank that works as this member."""
        return self.ranks(member, member + 1)[-1]

    def ranks(self, start: int, stop: int) -> list[int]:
        """The ranks for which the members [start, stop) stand; they are adjacent."""
        first, last = (2 * m if m < self.extra else m + self.extra for m in (start, stop))
        return list(range(first, last))

    def pairs(self) -> list[tuple[int, int]]:
        """(the rank that gives, the rank that works) of each pair."""
        return [(2 * m, 2 * m + 1) for m in range(self.extra)]

    def distances(self) -> list[int]:
        """1, 2, 4, ... below `core`."""
        return [1 << k for k in range(self.core.bit_length() - 1)]
