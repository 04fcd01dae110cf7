"""A program run with symbols: a chunk holds a term, which is what a rank contributed, or the sum of
two terms.

Terms are compared up to the order of the operands of a sum, in which arithmetic is commutative bit
by bit, and not up to association, in which it is not.
"""

from __future__ import annotations

from dataclasses import field

from hal.core.facts import dataclass
from stack.comm.plan.check_order import StepOrder
from stack.comm.plan.error import PlanError
from stack.comm.plan.go_on import GoOn
from stack.comm.plan.memory import RankMemory
from stack.comm.plan.program import (
    REDUCING,
    ChunkPlace,
    Op,
    Program,
    Span,
    Step,
    blocks,
)
from stack.comm.plan.text import print_span


def ranks_of(mask: int) -> list[int]:
    """The ranks whose bits are set."""
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


@dataclass(frozen=True, slots=True)
class _Term:
    """What a chunk holds: `ranks` contributed to it, as bits; `tree` is equal for equal sums;
    `final` terms are finished."""

    ranks: int
    tree: int
    final: bool = False


@dataclass(slots=True)
class _ChunkState:
    """A chunk's memory: what it holds, the node that wrote it, and the nodes that read it since, as
    bits."""

    term: _Term | None = None
    writer: int = -1
    readers: int = 0


@dataclass(slots=True)
class SymbolicRun:
    """The symbolic run. `before[n]` is the set of nodes, as bits, that are over once n is."""

    program: Program
    order: StepOrder
    memories: list[RankMemory]
    go_on: GoOn
    cells: list[dict[int, _ChunkState]] = field(init=False)
    before: list[int] = field(init=False)
    given_reads: list[int] = field(init=False)
    clobbered: list[int] = field(init=False)
    trees: dict[object, int] = field(default_factory=dict)
    wide: bool = True

    def __post_init__(self) -> None:
        size = self.program.size
        self.cells = [{} for _ in range(size)]
        self.before = [0] * len(self.order.partner)
        self.given_reads = [0] * size
        self.clobbered = [-1] * size
        for rank, memory in enumerate(self.memories):
            given = blocks(self.program, rank, ChunkPlace.INPUT)
            for cell, block in zip(
                memory.cells(Span(ChunkPlace.INPUT, 0, len(given))), given, strict=True
            ):
                self.cells[rank][cell] = _ChunkState(_Term(1 << rank, self._tree((rank, block))))

    def _tree(self, key: object) -> int:
        return self.trees.setdefault(key, len(self.trees))

    def all_steps(self) -> None:
        """Run every step; raise PlanError at the first that goes wrong."""
        message: list[_Term] = []
        for node in self.order.nodes:
            self.go_on()
            rank, index, step = self.order.step(self.program, node)
            first, before = self.order.first[rank], 1 << node
            for earlier in step.after:
                before |= self.before[first + earlier]
            if step.op in (Op.RECV, Op.RECV_REDUCE):
                before |= self.before[self.order.partner[node]]
            self.before[node] = before
            message = self._do(node, rank, index, step, message)

    def _do(
        self, node: int, rank: int, index: int, step: Step, message: list[_Term]
    ) -> list[_Term]:
        """One step; gives what it sends."""
        src, other = (self._read(node, rank, index, span) for span in (step.src, step.other))
        match step.op:
            case Op.SEND:
                return src
            case Op.RECV:
                given = message
            case Op.COPY:
                given = src
            case Op.RECV_REDUCE:
                given = self._add(rank, index, step, src, message)
            case Op.REDUCE:
                given = self._add(rank, index, step, src, other)
        if step.final:
            given = [self._finish(rank, index, step, term) for term in given]
        numbers = self.memories[rank].cells(step.dst)
        for offset, (number, term) in enumerate(zip(numbers, given, strict=True)):
            chunk = Span(step.dst.place, step.dst.start + offset)
            cell = self.cells[rank].setdefault(number, _ChunkState())
            self._ordered(node, rank, index, chunk, cell.writer, "writes", "writes")
            self._after_readers(node, rank, index, chunk, cell.readers & ~(1 << node))
            cell.term, cell.writer, cell.readers = term, node, 0
        if step.dst.count and step.dst.place is ChunkPlace.OUTPUT:
            if self.memories[rank].smeared:
                self._after_readers(node, rank, index, step.dst, self.given_reads[rank])
                self.clobbered[rank] = max(self.clobbered[rank], node)
            partial = (term.ranks & (term.ranks - 1) and not term.final for term in given)
            self.wide = self.wide and not any(partial)
        return []

    def _read(self, node: int, rank: int, index: int, span: Span) -> list[_Term]:
        terms = []
        for offset, number in enumerate(self.memories[rank].cells(span)):
            chunk = Span(span.place, span.start + offset)
            cell = self.cells[rank].get(number)
            if cell is None or cell.term is None:
                raise PlanError("it reads what nobody wrote", rank, index, print_span(chunk))
            self._ordered(node, rank, index, chunk, cell.writer, "reads", "writes")
            cell.readers |= 1 << node
            terms.append(cell.term)
        if self.memories[rank].smeared and span.count and span.place is ChunkPlace.INPUT:
            # In place with overlap: INPUT is gone once OUTPUT was written
            writer = self.clobbered[rank]
            self._ordered(node, rank, index, span, writer, "reads", "overwrites in place")
            if writer >= 0:
                step = writer - self.order.first[rank]
                reason = f"it reads the source, which step {step} overwrites in place"
                raise PlanError(reason, rank, index, print_span(span))
            self.given_reads[rank] |= 1 << node
        return terms

    def _ordered(
        self, node: int, rank: int, index: int, chunk: Span, other: int, does: str, did: str
    ) -> None:
        if other >= 0 and not self.before[node] >> other & 1:
            self._hazard(rank, index, chunk, does, other, did)

    def _after_readers(self, node: int, rank: int, index: int, chunk: Span, readers: int) -> None:
        if left := readers & ~self.before[node]:
            self._hazard(rank, index, chunk, "writes", left.bit_length() - 1, "reads")

    def _hazard(self, rank: int, index: int, chunk: Span, does: str, other: int, did: str) -> None:
        step = other - self.order.first[rank]
        reason = f"hazard: it {does} what step {step} {did}, and neither waits for the other"
        raise PlanError(reason, rank, index, print_span(chunk))

    def _add(
        self, rank: int, index: int, step: Step, these: list[_Term], those: list[_Term]
    ) -> list[_Term]:
        sums = []
        for offset, (a, b) in enumerate(zip(these, those, strict=True)):
            chunk = print_span(Span(step.dst.place, step.dst.start + offset))
            if twice := ranks_of(a.ranks & b.ranks):
                reason = f"what rank {twice[0]} contributed is added twice"
                raise PlanError(reason, rank, index, chunk)
            sums.append(_Term(a.ranks | b.ranks, self._tree(tuple(sorted((a.tree, b.tree))))))
        return sums

    def _finish(self, rank: int, index: int, step: Step, term: _Term) -> _Term:
        if missing := ranks_of(~term.ranks & (1 << self.program.size) - 1):
            reason = f"a sum is finished without what rank {missing[0]} contributed"
            raise PlanError(reason, rank, index, print_span(step.dst))
        if term.final:
            raise PlanError("a sum is finished twice", rank, index, print_span(step.dst))
        return _Term(term.ranks, term.tree, True)

    def check_results(self) -> None:
        """Raise PlanError unless OUTPUT of every rank holds what the kind promises."""
        trees: dict[int, tuple[int, int]] = {}
        for rank, memory in enumerate(self.memories):
            wanted = blocks(self.program, rank, ChunkPlace.OUTPUT)
            for i, number in enumerate(memory.cells(Span(ChunkPlace.OUTPUT, 0, len(wanted)))):
                cell, chunk = self.cells[rank].get(number), print_span(Span(ChunkPlace.OUTPUT, i))
                if cell is None or cell.term is None:
                    raise PlanError("nothing is written here", rank, chunk=chunk)
                if self.program.kind in REDUCING:
                    if missing := ranks_of((1 << self.program.size) - 1 & ~cell.term.ranks):
                        why = f"what rank {missing[0]} contributed is missing"
                        raise PlanError(why, rank, chunk=chunk)
                    if not cell.term.final and self.program.size > 1:
                        raise PlanError("no step finishes the sum ('final')", rank, chunk=chunk)
                first, tree = trees.setdefault(wanted[i], (rank, cell.term.tree))
                if tree != cell.term.tree:
                    reason = f"it is added up in another order than on rank {first}"
                    raise PlanError(reason, rank, chunk=chunk)
