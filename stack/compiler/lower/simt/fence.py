"""Barriers where lanes touch what others have touched.

An instance means its statements one after another, but its lanes run apart. A barrier is needed
between two accesses to a memory, one of them a write, unless every lane reaches the elements that
it reached before: then its own order is enough. Scratch memory and what is written to a parameter
and read from another, which may begin elsewhere in the same buffer, are treated likewise.

Barriers are written where all lanes come by: conditions and bounds of loops are scalars, which are
equal on all lanes as long as no other instance writes what they are loaded from.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import field

from hal.core.facts import dataclass
from hal.tile.kernel import GLOBAL, For, Memory
from hal.tile.walk import accesses, statements
from stack.compiler.lower.simt.apart import steps_apart
from stack.compiler.lower.simt.dialect import SimtDialect
from stack.compiler.text.c.writer import CWriter

Pattern = Hashable | None
"""Which lane reaches which element: equal patterns reach alike. None is like nothing."""

_EARLIER = ("an earlier step",)
"""The pattern of what other steps of a loop may have done."""


@dataclass(slots=True)
class _Open:
    """Accesses since the last barrier, by memory."""

    reads: dict[Memory, set[Pattern]] = field(default_factory=dict)
    writes: dict[Memory, set[Pattern]] = field(default_factory=dict)
    staged: bool = False

    def copy(self) -> _Open:
        reads, writes = ({m: set(p) for m, p in x.items()} for x in (self.reads, self.writes))
        return _Open(reads, writes, self.staged)

    def merge(self, other: _Open) -> None:
        for mine, theirs in ((self.reads, other.reads), (self.writes, other.writes)):
            for memory, patterns in theirs.items():
                mine.setdefault(memory, set()).update(patterns)
        self.staged |= other.staged


class Fence:
    """Writes barriers before the accesses that need them."""

    def __init__(self, out: CWriter, groups: SimtDialect, written: Iterable[Memory]) -> None:
        self._out, self._groups = out, groups
        self.written = frozenset(written)
        self._open = _Open()

    def barrier(self) -> None:
        """Every lane has done what stands before."""
        touched = (*self._open.reads, *self._open.writes)
        far = any(m.space == GLOBAL for m in touched)
        self._out.do(self._groups.global_barrier if far else self._groups.barrier)
        self._open = _Open()

    def read(self, memory: Memory, pattern: Pattern) -> None:
        """A memory is about to be read."""
        if self._differs(self._open.writes, memory, pattern) or self._elsewhere(memory):
            self.barrier()
        if memory in self.written:
            self._open.reads.setdefault(memory, set()).add(pattern)

    def write(self, memory: Memory, pattern: Pattern) -> None:
        """A memory is about to be written."""
        uses = (self._open.writes, self._open.reads)
        if any(self._differs(use, memory, pattern) for use in uses):
            self.barrier()
        self._open.writes.setdefault(memory, set()).add(pattern)

    def _differs(self, use: dict[Memory, set[Pattern]], memory: Memory, pattern: Pattern) -> bool:
        return memory in use and (pattern is None or use[memory] != {pattern})

    def _elsewhere(self, memory: Memory) -> bool:
        """Whether this step has written another parameter, in which the memory may lie too."""
        return memory.space == GLOBAL and any(
            m.space == GLOBAL and m != memory and patterns != {_EARLIER}
            for m, patterns in self._open.writes.items()
        )

    def _awaits(self, memory: Memory, reads: bool, writes: bool) -> bool:
        """Whether an access by whatever lane has to wait for one before."""
        known = memory in self._open.writes or (writes and memory in self._open.reads)
        return known or (reads and self._elsewhere(memory))

    # the staging area

    def stage(self) -> None:
        """The staging area is about to be written."""
        if self._open.staged:
            self.barrier()

    def unstage(self) -> None:
        """The staging area has been read."""
        self._open.staged = True

    # blocks

    def loop(self, s: For) -> _Open:
        """A loop begins. Gives what is open before it, for `join`."""
        touched = [a for inner in statements(s.body) for a in accesses(inner)]
        if any(self._awaits(*access) for access in touched):
            self.barrier()
        before = self._open.copy()
        for m, _, writes in touched:
            if m in self.written and not steps_apart(s, m):
                use = self._open.writes if writes else self._open.reads
                use.setdefault(m, set()).add(_EARLIER)
        self._open.staged = True
        return before

    def branch(self) -> _Open:
        """A branch begins. Gives what is open before it."""
        return self._open.copy()

    def other(self, before: _Open) -> _Open:
        """The other branch begins. Gives what the first one left open."""
        left, self._open = self._open, before.copy()
        return left

    def join(self, other: _Open) -> None:
        """Here other ways to this place come in, with what they left open."""
        self._open.merge(other)
