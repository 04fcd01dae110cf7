"""A program in the making: generators say what moves where, the order follows from the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from hal.core.facts import dataclass
from stack.comm.plan.error import PlanError
from stack.comm.plan.go_on import GoOn, always
from stack.comm.plan.memory import RankMemory, memory_of
from stack.comm.plan.program import (
    ChunkPlace,
    Op,
    PlanKind,
    Program,
    Span,
    Step,
    blocks,
)

Chunk = tuple[ChunkPlace, int]
"""A place and the number of a chunk in it."""


@dataclass(slots=True)
class _RankDraft:
    """A rank's steps so far, and by cell the last step that wrote it and those that read it since.

    `before[i]` is the set of steps, as bits, that are complete before step i ends, itself too.
    """

    memory: RankMemory
    chunk_of: dict[tuple[ChunkPlace, int], int]
    scratch: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    written: dict[int, int] = field(default_factory=dict)
    read: dict[int, list[int]] = field(default_factory=dict)
    given_reads: list[int] = field(default_factory=list)
    result_written: bool = False
    fence: int = 0


class Draft:
    """Steps of all ranks, added in an order in which one thread could run them.

    A step waits for the earlier steps of its rank that wrote what it reads or writes, and for those
    that read what it writes.
    """

    def __init__(
        self,
        name: str,
        kind: PlanKind,
        size: int,
        pieces: int = 1,
        root: int = 0,
        target: int = 0,
        in_place: bool = False,
        go_on: GoOn = always,
    ) -> None:
        if not 0 <= max(root, target) < size or min(root, target) < 0:
            raise PlanError(f"there is no rank {max(root, target)} among {size} ranks")
        empty: tuple[tuple[int, ...], ...] = ((),) * size
        self.shape = Program(name, kind, size, pieces, empty, ((),) * size, root, target, in_place)
        self.size = size
        self.root = root
        self._go_on = go_on
        places = (ChunkPlace.INPUT, ChunkPlace.OUTPUT)
        self._ranks = [
            _RankDraft(
                memory_of(self.shape, r),
                {(p, b): i for p in places for i, b in enumerate(blocks(self.shape, r, p))},
            )
            for r in range(size)
        ]

    def given(self, rank: int, block: int) -> Chunk:
        """The chunk of INPUT that holds the block."""
        return ChunkPlace.INPUT, self._ranks[rank].chunk_of[ChunkPlace.INPUT, block]

    def result(self, rank: int, block: int) -> Chunk:
        """The chunk of OUTPUT for the block."""
        return ChunkPlace.OUTPUT, self._ranks[rank].chunk_of[ChunkPlace.OUTPUT, block]

    def has_result(self, rank: int, block: int) -> bool:
        """Whether the block is of the rank's OUTPUT."""
        return (ChunkPlace.OUTPUT, block) in self._ranks[rank].chunk_of

    def scratch(self, rank: int, wanted: Sequence[int]) -> list[Chunk]:
        """New adjacent chunks of SCRATCH with the lengths of these blocks."""
        mine = self._ranks[rank].scratch
        mine.extend(wanted)
        return [(ChunkPlace.SCRATCH, i) for i in range(len(mine) - len(wanted), len(mine))]

    def block(self, rank: int, chunk: Chunk) -> int:
        """The block whose length the chunk has."""
        if chunk[0] is ChunkPlace.SCRATCH:
            return self._ranks[rank].scratch[chunk[1]]
        return blocks(self.shape, rank, chunk[0])[chunk[1]]

    def same(self, rank: int, a: Chunk, b: Chunk) -> bool:
        """Whether two chunks are the same memory."""
        cells = [self._ranks[rank].memory.cells(Span(*c)) for c in (a, b)]
        return list(cells[0]) == list(cells[1])

    def send(self, source: int, taken: Sequence[Chunk], dest: int, put: Sequence[Chunk]) -> None:
        """Chunks go from rank to rank, adjacent ones in one message."""
        for src, dst in runs(taken, put):
            self._add(source, Step(Op.SEND, dest, src=src))
            self._add(dest, Step(Op.RECV, source, dst=dst))

    def signal(self, source: int, dest: int) -> None:
        """A message of no elements."""
        self._add(source, Step(Op.SEND, dest))
        self._add(dest, Step(Op.RECV, source))

    def fence(self) -> None:
        """Let every later step wait for all earlier ones of its rank."""
        for mine in self._ranks:
            mine.fence = len(mine.steps)

    def send_reduce(
        self,
        source: int,
        taken: Sequence[Chunk],
        dest: int,
        put: Sequence[Chunk],
        plus: Sequence[Chunk],
        final: bool = False,
    ) -> None:
        """Chunks go to another rank, which writes their reduction with its `plus` to `put`."""
        for src, dst, own in runs(taken, put, plus):
            self._add(source, Step(Op.SEND, dest, src=src))
            self._add(dest, Step(Op.RECV_REDUCE, source, dst=dst, src=own, final=final))

    def copy(
        self, rank: int, taken: Sequence[Chunk], put: Sequence[Chunk], final: bool = False
    ) -> None:
        """Copy chunks inside a rank; what is the same memory already is left out."""
        pairs = [(t, p) for t, p in zip(taken, put, strict=True) if not self.same(rank, t, p)]
        for src, dst in runs([t for t, _ in pairs], [p for _, p in pairs]):
            self._add(rank, Step(Op.COPY, dst=dst, src=src, final=final))

    def reduce(
        self,
        rank: int,
        a: Sequence[Chunk],
        b: Sequence[Chunk],
        put: Sequence[Chunk],
        final: bool = False,
    ) -> None:
        """put = a + b inside a rank."""
        for src, other, dst in runs(a, b, put):
            self._add(rank, Step(Op.REDUCE, dst=dst, src=src, other=other, final=final))

    def send_packed(
        self, source: int, taken: Sequence[Chunk], dest: int, put: Sequence[Chunk]
    ) -> None:
        """Chunks go from rank to rank in one message, through scratch memory where needed."""
        wanted = [self.block(source, chunk) for chunk in taken]
        if len(runs(taken)) > 1:
            packed = self.scratch(source, wanted)
            self.copy(source, taken, packed)
            taken = packed
        landing = self.scratch(dest, wanted) if len(runs(put)) > 1 else list(put)
        self.send(source, taken, dest, landing)
        self.copy(dest, landing, put)

    def program(self) -> Program:
        """The program as it is now."""
        steps = tuple(tuple(r.steps) for r in self._ranks)
        scratch = tuple(tuple(r.scratch) for r in self._ranks)
        return replace(self.shape, steps=steps, scratch=scratch)

    def _add(self, rank: int, step: Step) -> None:
        self._go_on()
        mine = self._ranks[rank]
        index = len(mine.steps)
        waits = {*range(mine.fence), *_waits(mine, step)}
        kept, before = [], 1 << index
        for earlier in sorted(waits, reverse=True):
            if not before >> earlier & 1:
                kept.append(earlier)
                before |= mine.before[earlier]
        mine.before.append(before)
        mine.steps.append(replace(step, after=tuple(sorted(kept))))
        # Remember what a new step reads and writes
        for span in (step.src, step.other):
            for cell in mine.memory.cells(span):
                mine.read.setdefault(cell, []).append(index)
            if span.count and span.place is ChunkPlace.INPUT and mine.memory.smeared:
                mine.given_reads.append(index)
        for cell in mine.memory.cells(step.dst):
            mine.written[cell] = index
            mine.read[cell] = []
        if step.dst.count and step.dst.place is ChunkPlace.OUTPUT:
            mine.result_written = True


def _waits(mine: _RankDraft, step: Step) -> set[int]:
    """The steps that a new step has to wait for."""
    waits: set[int] = set()
    for span in (step.src, step.other):
        if (
            span.count
            and span.place is ChunkPlace.INPUT
            and mine.memory.smeared
            and mine.result_written
        ):
            raise PlanError("a program reads INPUT after OUTPUT, the same memory, was written")
        waits.update(mine.written[c] for c in mine.memory.cells(span) if c in mine.written)
    for cell in mine.memory.cells(step.dst):
        waits.update(mine.read.get(cell, ()))
        waits.update([mine.written[cell]] if cell in mine.written else [])
    if mine.memory.smeared and step.dst.count and step.dst.place is ChunkPlace.OUTPUT:
        waits.update(mine.given_reads)
    return waits


def runs(*lists: Sequence[Chunk]) -> list[tuple[Span, ...]]:
    """Lists of chunks, which go together one by one, as spans: as few as there can be."""
    found: list[list[Span]] = []
    for chunks in zip(*lists, strict=True):
        if found and all(
            chunk == (s.place, s.start + s.count)
            for s, chunk in zip(found[-1], chunks, strict=True)
        ):
            found[-1] = [Span(s.place, s.start, s.count + 1) for s in found[-1]]
        else:
            found.append([Span(place, index) for place, index in chunks])
    return [tuple(spans) for spans in found]
