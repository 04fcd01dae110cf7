"""Whether each step of a program, seen alone, can be done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stack.comm.plan.error import PlanError
from stack.comm.plan.go_on import GoOn
from stack.comm.plan.memory import RankMemory, memory_of
from stack.comm.plan.program import (
    REDUCING,
    ChunkPlace,
    Op,
    Program,
    Span,
    Step,
    blocks,
    extent_count,
)
from stack.comm.plan.text import MESSAGES, OPERANDS, print_span

_ADDS = (Op.RECV_REDUCE, Op.REDUCE)

MOST_BLOCKS = 1 << 20
"""More would only fill the memory of who checks them."""


def check_header(program: Program) -> None:
    """Raise PlanError for a size, a root or lists of ranks that cannot be."""
    size, known = program.size, extent_count(program.kind, program.size) * program.pieces
    if size < 1 or program.pieces < 1:
        raise PlanError(f"size and pieces are 1 or more, are {size} and {program.pieces}")
    if known > MOST_BLOCKS:
        raise PlanError(f"there are {known} blocks; a program may have {MOST_BLOCKS}")
    for what, rank in (("root", program.root), ("target", program.target)):
        if not 0 <= rank < size:
            raise PlanError(f"{what} is one of the {size} ranks, is {rank}")
    for what, given in (("steps", len(program.steps)), ("scratch", len(program.scratch))):
        if given != size:
            raise PlanError(f"{what} are listed for {given} ranks, the size is {size}")
    for rank, scratch in enumerate(program.scratch):
        if wrong := [b for b in scratch if not 0 <= b < known]:
            raise PlanError(f"scratch of block {wrong[0]}, there are {known} blocks", rank)


def check_steps(program: Program, go_on: GoOn) -> list[RankMemory]:
    """Raise PlanError for a step that cannot be done; gives the memory of each rank."""
    memories = [memory_of(program, rank) for rank in range(program.size)]
    for rank, steps in enumerate(program.steps):
        sizes = {place: blocks(program, rank, place) for place in ChunkPlace}
        for index, step in enumerate(steps):
            go_on()
            for reason, chunk in _faults(program, rank, index, step, sizes, memories[rank]):
                raise PlanError(reason, rank, index, chunk)
    return memories


def _faults(
    program: Program,
    rank: int,
    index: int,
    step: Step,
    sizes: dict[ChunkPlace, tuple[int, ...]],
    memory: RankMemory,
) -> Iterator[tuple[str, str]]:
    """What is wrong with a step: reason and chunk. The first fault may bring forth the others."""
    if step.op not in MESSAGES:
        if step.peer != -1:
            yield f"a {step.op.value} has no peer, is given {step.peer}", ""
    elif not 0 <= step.peer < program.size or step.peer == rank:
        yield f"the peer is another of the {program.size} ranks, is {step.peer}", ""
    for earlier in step.after:
        if not 0 <= earlier < index:
            yield f"it waits for step {earlier}, which is not an earlier one", ""
    if step.op in _ADDS and program.kind not in REDUCING:
        yield f"nothing is added in kind {program.kind.value}", ""
    if step.final and (program.kind not in REDUCING or step.op in (Op.SEND, Op.RECV)):
        yield f"a {step.op.value} in kind {program.kind.value} finishes no sum", ""
    names = OPERANDS[step.op]
    counts = {name: getattr(step, name).count for name in ("dst", "src", "other")}
    for name, count in counts.items():
        if name not in names and count:
            yield f"a {step.op.value} has no operand '{name}'", ""
        if name in names and count < 1 and (step.op not in MESSAGES or any(counts.values())):
            yield f"the operand '{name}' has no chunk", ""
    spans: list[Span] = [getattr(step, name) for name in names if counts[name]]
    for span in spans:
        known = len(sizes[span.place])
        if span.start < 0 or span.start + span.count > known:
            yield f"the place has {known} chunks on this rank", print_span(span)
    if step.dst.count and step.dst.place is ChunkPlace.INPUT:
        yield "a step writes to the caller's source", print_span(step.dst)
    lengths = [sizes[span.place][span.start : span.start + span.count] for span in spans]
    for other, these in zip(spans[1:], lengths[1:], strict=True):
        if these != lengths[0]:
            yield (
                f"the operands are blocks {_list(lengths[0])} and {_list(these)}",
                print_span(other),
            )
    written = list(memory.cells(step.dst))
    for operand in (step.src, step.other):
        read = list(memory.cells(operand))
        # in place, in a kind whose OUTPUT overlaps INPUT anywhere, and from one to the other
        places = step.dst.place is ChunkPlace.OUTPUT and operand.place is ChunkPlace.INPUT
        smeared = memory.smeared and places and step.dst.count > 0 and operand.count > 0
        if not set(read) & set(written) and not smeared:
            continue
        if step.op not in _ADDS or read != written:
            yield "it reads and writes the same memory, shifted or in a copy", print_span(operand)


def _list(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers)) or "none"
