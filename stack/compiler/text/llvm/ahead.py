"""Rows that a processor is asked for while it computes another one.

A kernel that goes over a row several times waits for memory the first time and for arithmetic
later, since what processors fetch ahead by themselves ends with a page, as rows do. So the second
time, if it is not the one that writes, asks for the row of the instance that follows.

A loop in which there is much to compute from what it reads asks for what comes a page later, too:
no processor looks ahead past so many operations.

A load of neighbours that nothing uses says the same of its place: it is asked for, and not loaded.
That is of a block that comes later, so the second cache is where it waits.

And a tile of a product touches results, and what they are made of, behind its loop alone: those
rows are asked for before it, since they lie far apart, and nobody else would fetch them meanwhile.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from math import prod

from hal.core.facts import dataclass
from hal.tile.kernel import GLOBAL, Access, For, If, Kernel, Load, Statement, Store
from hal.tile.node import Node, rebuild, toposort
from hal.tile.ops import ELEMENTWISE, TRANSCENDENTAL
from stack.compiler.text.indices import constant_of, step_of
from stack.compiler.text.llvm.contents import nested, operands

LINE_NBYTES = 64
"""What comes from memory at once."""

LEAST_NBYTES = 1 << 12
"""How far ahead at least: of short rows the next one would be needed before it has come."""

MANY, OF_A_FUNCTION = 16, 16
"""Operations for each tile that a loop reads from which on it asks ahead, and those that a function
counts as. Measured on Zen 3 with GELU and dropout of 16 MB, which take 0.93 of the time then, and
GELU of 128 MB, which takes 0.87."""


def found(kernel: Kernel) -> Mapping[Load, int]:
    """The loads of what an earlier loop has read, in loops that write nothing, with the bytes to
    where an instance behind reads; and those of loops that compute much, with the bytes of a
    page."""
    apart: dict[Load, int] = {}
    fixed = {p.name for p in kernel.params if p.reads and not p.writes}
    read, asked = set[_Row](), set[_Row]()
    for loop in (s for s in kernel.body if isinstance(s, For)):
        here = {x: _row(x, loop) for x in _rows([loop]) if x.source.memory.name in fixed}
        for load, row in ({} if _writes(loop) else here).items():
            step = (step_of(load.source.offset) or 0) * load.source.memory.dtype.nbytes
            if row in read - asked and step > 0:
                apart[load] = step * -(-LEAST_NBYTES // step)
        for inner in (s for s in nested([loop]) if isinstance(s, For)):
            along = [x for x in inner.body if isinstance(x, Load) and x in here and x not in apart]
            first = [x for x in along if here[x] not in read and _is_along(x, inner)]
            if first and _operations(inner) >= MANY * len(first):
                apart.update(dict.fromkeys(first, LEAST_NBYTES))
        asked |= {here[x] for x in apart if x in here}
        read |= set(here.values())
    return apart


_Row = tuple[str, Node]
"""The name of a memory, and where in it a loop begins to read: instances may have several rows."""


def _row(load: Load, loop: For) -> _Row:
    """The row that a load in a loop is of."""
    inside = {s.index: s.start for s in nested([loop]) if isinstance(s, For)}
    done: dict[Node, Node] = {}
    for n in toposort([load.source.offset]):
        done[n] = inside.get(n) or rebuild(n, tuple([done[s] for s in n.srcs]))
    return load.source.memory.name, done[load.source.offset]


def _is_along(load: Load, loop: For) -> bool:
    """Whether a loop goes along what a load reads."""
    return loop.index in toposort([load.source.offset])


def _operations(loop: For) -> int:
    """The elementwise operations on tiles that a loop's own steps make; none where they multiply
    matrices, whose operands are near."""
    if multiplies(loop):
        return 0
    nodes = toposort([n for s in loop.body if not isinstance(s, For) for n in operands(s)])
    computed = [n.op for n in nodes if n.shape and n.op in ELEMENTWISE]
    return sum(OF_A_FUNCTION if op in TRANSCENDENTAL else 1 for op in computed)


def unused(kernel: Kernel) -> frozenset[Load]:
    """The loads of neighbours from memory that nothing uses."""
    used = set(toposort([n for s in nested(kernel.body) for n in operands(s)]))
    return frozenset(x for x in _rows(kernel.body) if x.result not in used)


@dataclass(frozen=True, slots=True)
class Behind:
    """What is read or written behind a loop, and the conditions under which it is."""

    conditions: tuple[Node, ...]
    access: Access
    shape: tuple[int, ...]
    statement: Load | Store


def multiplies(s: Statement) -> bool:
    """Whether a statement is a loop that adds up products of tiles."""
    if not (isinstance(s, For) and any(c.var.shape for c in s.carried)):
        return False
    return any(n.op == "dot" for n in toposort([n for x in nested([s]) for n in operands(x)]))


def behind(
    block: Sequence[Statement], known: Container[Node], conditions: tuple[Node, ...] = ()
) -> Iterator[Behind]:
    """The rows of neighbours in memory that a block touches once, at places that follow from what
    is known before it."""
    for s in block:
        if isinstance(s, If):
            yield from behind(s.then, known, (*conditions, s.condition))
        if not isinstance(s, Load | Store):
            continue
        access, shape = (
            (s.source, s.result.shape) if isinstance(s, Load) else (s.target, s.value.shape)
        )
        if access.memory.space != GLOBAL or not shape or constant_of(access.strides[-1]) != 1:
            continue
        used = toposort([access.offset, *access.strides, *conditions])
        if all(n.op != "var" or n in known for n in used):
            yield Behind(conditions, access, shape, s)


def _rows(block: Sequence[Statement]) -> Iterator[Load]:
    """The loads of neighbours from memory."""
    for s in nested(block):
        if not isinstance(s, Load) or s.source.memory.space != GLOBAL:
            continue
        if prod(s.result.shape) > 1 and constant_of(s.source.strides[-1]) == 1:
            yield s


def _writes(loop: For) -> bool:
    """Whether memory has enough to do in a loop: with what it writes, to ask for more took an RMS
    norm of 16 MB an eighth longer on Zen 3."""
    stores = (s for s in nested([loop]) if isinstance(s, Store))
    return any(s.target.memory.space == GLOBAL for s in stores)
