"""Which calls must wait for which, from the bytes that each one reads and writes. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import field

from hal.core.facts import dataclass


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [begin, end) of a memory."""

    memory: Hashable
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Access:
    """What a call reads and writes."""

    reads: tuple[ByteRange, ...]
    writes: tuple[ByteRange, ...]


def dependencies(calls: Sequence[Access]) -> list[tuple[int, ...]]:
    """For each call the earlier calls that it must wait for.

    A call waits for the last writer of what it reads or writes, and for the readers of what it
    writes. Calls that another one in the list waits for anyway are left out.
    """
    memories: dict[Hashable, _History] = defaultdict(_History)
    after: list[tuple[int, ...]] = []
    ancestors: list[int] = []  # as bit sets
    for index, call in enumerate(calls):
        found: set[int] = set()
        for part in (*call.reads, *call.writes):
            writers = (p.writer for p in memories[part.memory].touched(part))
            found.update(w for w in writers if w is not None)
        for part in call.writes:
            for piece in memories[part.memory].touched(part):
                found.update(piece.readers)
        kept, covered = _reduced(found, ancestors)
        after.append(kept)
        ancestors.append(covered)
        for span in call.reads:
            memories[span.memory].read(span, index)
        for span in call.writes:
            memories[span.memory].write(span, index)
    return after


@dataclass(slots=True)
class _Piece:
    """Bytes with one history: the last call that wrote them, and those that read them since."""

    begin: int
    end: int
    writer: int | None = None
    readers: list[int] = field(default_factory=list)

    def part(self, begin: int, end: int) -> _Piece:
        return _Piece(begin, end, self.writer, list(self.readers))


class _History:
    """The history of one memory: disjoint pieces by their begin, none for bytes never touched."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._pieces: list[_Piece] = []

    def touched(self, span: ByteRange) -> list[_Piece]:
        low, high = self._range(span)
        return self._pieces[low:high]

    def read(self, span: ByteRange, index: int) -> None:
        if span.begin == span.end:
            return
        for piece in self._cut(span):
            piece.readers.append(index)

    def write(self, span: ByteRange, index: int) -> None:
        if span.begin < span.end:
            self._cut(span)
            self._replace(*self._range(span), [_Piece(span.begin, span.end, index)])

    def _range(self, span: ByteRange) -> tuple[int, int]:
        """The indices of the pieces that share a byte with the span."""
        if span.begin == span.end:
            return 0, 0
        low = bisect_right(self._begins, span.begin)
        if low and self._pieces[low - 1].end > span.begin:
            low -= 1
        return low, bisect_left(self._begins, span.end)

    def _replace(self, low: int, high: int, new: list[_Piece]) -> None:
        self._pieces[low:high] = new
        self._begins[low:high] = [p.begin for p in new]

    def _cut(self, span: ByteRange) -> list[_Piece]:
        """Cut pieces at the span's ends; give those that make up the span, filling its holes."""
        low, high = self._range(span)
        old = self._pieces[low:high]
        if len(old) == 1 and old[0].begin == span.begin and old[0].end == span.end:
            return old
        before = [p.part(p.begin, span.begin) for p in old[:1] if p.begin < span.begin]
        behind = [p.part(span.end, p.end) for p in old[-1:] if p.end > span.end]
        inside = [p.part(max(p.begin, span.begin), min(p.end, span.end)) for p in old]
        pieces, at = [], span.begin
        for piece in inside:
            if piece.begin > at:
                pieces.append(_Piece(at, piece.begin))
            pieces.append(piece)
            at = piece.end
        if at < span.end:
            pieces.append(_Piece(at, span.end))
        new = [*before, *pieces, *behind]
        self._replace(low, high, new)
        return new[len(before) : len(new) - len(behind)]


def _reduced(found: set[int], ancestors: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """The calls that none of the others waits for, and all that they wait for with them."""
    kept, covered = [], 0
    for index in sorted(found, reverse=True):
        if not covered >> index & 1:
            kept.append(index)
            covered |= ancestors[index] | 1 << index
    return tuple(reversed(kept)), covered
