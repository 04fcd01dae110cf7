"""Which calls must wait for which, from the bytes that each one reads and writes. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [begin, end) of a memory."""

    memory: Hashable
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Access:
    """What a call reads and writes."""

    reads: tuple[Span, ...]
    writes: tuple[Span, ...]


@dataclass(slots=True)
class _Piece:
    """Bytes with one history: the last call that wrote them, and the calls that read them since."""

    begin: int
    end: int
    writer: int | None = None
    readers: list[int] = field(default_factory=list)


def dependencies(calls: Sequence[Access]) -> list[tuple[int, ...]]:
    """For each call the earlier calls that it must wait for.

    A call waits for the last writer of what it reads or writes, and for the readers of what it
    writes. Calls that another one in the list waits for anyway are left out.
    """
    memories: dict[Hashable, list[_Piece]] = {}
    after: list[tuple[int, ...]] = []
    ancestors: list[int] = []  # as bit sets
    for index, call in enumerate(calls):
        found = _conflicts(memories, call)
        _note(memories, call, index)
        kept, covered = _reduced(found, ancestors)
        after.append(kept)
        ancestors.append(covered)
    return after


def _conflicts(memories: dict[Hashable, list[_Piece]], call: Access) -> set[int]:
    found: set[int] = set()
    for span in call.reads:
        for piece in _touched(memories, span):
            if piece.writer is not None:
                found.add(piece.writer)
    for span in call.writes:
        for piece in _touched(memories, span):
            found.update(piece.readers)
            if piece.writer is not None:
                found.add(piece.writer)
    return found


def _touched(memories: dict[Hashable, list[_Piece]], span: Span) -> Iterable[_Piece]:
    pieces = memories.get(span.memory, ())
    return [p for p in pieces if p.begin < span.end and span.begin < p.end]


def _note(memories: dict[Hashable, list[_Piece]], call: Access, index: int) -> None:
    for span in call.reads:
        if span.begin < span.end:
            for piece in _cover(memories, span):
                piece.readers.append(index)
    for span in call.writes:
        if span.begin < span.end:
            _overwrite(memories, span, index)


def _overwrite(memories: dict[Hashable, list[_Piece]], span: Span, index: int) -> None:
    inside = {id(p) for p in _cover(memories, span)}
    rest = [p for p in memories[span.memory] if id(p) not in inside]
    memories[span.memory] = [*rest, _Piece(span.begin, span.end, index)]


def _cover(memories: dict[Hashable, list[_Piece]], span: Span) -> list[_Piece]:
    """Pieces that make up the span exactly, cut out of those there are, new where there are
    none."""
    pieces: list[_Piece] = []
    inside: list[_Piece] = []
    for piece in memories.get(span.memory, ()):
        if piece.end <= span.begin or span.end <= piece.begin:
            pieces.append(piece)
        else:
            inside.append(_cut(piece, span, pieces))
    inside += _holes(inside, span)
    memories[span.memory] = pieces + inside
    return inside


def _cut(piece: _Piece, span: Span, rest: list[_Piece]) -> _Piece:
    """The part of the piece inside the span; what is outside goes to `rest`."""
    if piece.begin < span.begin:
        rest.append(_Piece(piece.begin, span.begin, piece.writer, list(piece.readers)))
    if piece.end > span.end:
        rest.append(_Piece(span.end, piece.end, piece.writer, list(piece.readers)))
    begin, end = max(piece.begin, span.begin), min(piece.end, span.end)
    return _Piece(begin, end, piece.writer, piece.readers)


def _holes(inside: Sequence[_Piece], span: Span) -> list[_Piece]:
    holes, at = [], span.begin
    for piece in sorted(inside, key=lambda p: p.begin):
        if piece.begin > at:
            holes.append(_Piece(at, piece.begin))
        at = piece.end
    if at < span.end:
        holes.append(_Piece(at, span.end))
    return holes


def _reduced(found: set[int], ancestors: Sequence[int]) -> tuple[tuple[int, ...], int]:
    kept, covered = [], 0
    for index in sorted(found, reverse=True):
        if not covered >> index & 1:
            kept.append(index)
            covered |= ancestors[index] | 1 << index
    return tuple(reversed(kept)), covered
