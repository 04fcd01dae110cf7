"""Statements that this lowering adds to a kernel's: transfers between main memory and arrays in the
scratchpad, which are done when the statement is."""

from __future__ import annotations

from dataclasses import dataclass

from hal.tile.build import Operand, index
from hal.tile.kernel import Memory
from hal.tile.node import Node
from stack.compiler.c import memory
from stack.compiler.c.memory import pointer
from stack.compiler.c.scope import Scope
from stack.compiler.scratchpad.footprint import Run


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copy the elements of `runs` (the innermost first) that begin at `offset` in main memory to or
    from the beginning of an array, where they lie densely."""

    local: Memory
    main: Memory
    offset: Node
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Get(Transfer):
    """From main memory."""


@dataclass(frozen=True, slots=True)
class Put(Transfer):
    """To main memory."""


_WORDS = 4
"""Bytes of which addresses and sizes of DMA are multiples."""

_TEXT = """\
static void hal_$verb(char *near, char *far, long nbytes, long blocks, long pitch) {
    if (nbytes <= 0 || blocks <= 0) return;
    if (blocks == 1 || pitch == nbytes) nbytes *= blocks, pitch = nbytes, blocks = 1;
    if (!(((long)near | (long)far | nbytes | (pitch - nbytes)) & 3)) {
        if (blocks == 1) athread_dma_$verb($to, $from, nbytes);
        else athread_dma_${verb}_stride($to, $from, nbytes * blocks, nbytes, pitch - nbytes);
        return;
    }
    for (long i = 0; i < blocks; i++) {
        const long head = -(long)far & 3, rest = nbytes - head;
        const long whole = rest > 0 && !((long)(near - far) & 3) ? rest / 4 * 4 : 0;
        for (long k = 0; k < nbytes; k++)
            if (!whole || k < head || k >= head + whole) $to[k] = $from[k];
        HAL_DIRECT(nbytes - whole);
        near += head, far += head;
        if (whole) athread_dma_$verb($to, $from, whole);
        near += nbytes - head, far += pitch - head;
    }
}
"""
"""Bytes that are no whole words, or lie otherwise in words on both sides, go one by one."""


def mover(scope: Scope, verb: str) -> str:
    """Define the function that moves blocks that may lie anywhere: its verb is get or put."""
    to, source = ("near", "far") if verb == "get" else ("far", "near")
    text = _TEXT.replace("${verb}", verb).replace("$verb", verb)
    text = text.replace("$to", to).replace("$from", source)
    return scope.out.functions.define(f"hal_{verb}", text)


def transfer(scope: Scope, s: Transfer) -> None:
    """Write the calls that move the runs."""
    out, nbytes = scope.out, s.main.dtype.nbytes
    call = mover(scope, "get" if isinstance(s, Get) else "put")
    runs = s.runs if s.runs and s.runs[0].stride == 1 else (Run(1, 1, 1), *s.runs)
    if len(runs) == 1:
        runs = (*runs, Run(runs[0].count, 1, 1))
    inner, blocks, *outer = runs
    row = _text(scope, inner.length)
    near = f"(char *){pointer(s.local)}"
    far = f"(char *)({pointer(s.main)} + {memory.scalar(scope, s.offset)})"
    dense = f"{row} * {_text(scope, blocks.length)}"
    with out.block():
        heads, depth = [], ""
        for r in outer:
            i, n = out.name("n"), _text(scope, r.length)
            heads.append(f"for (long {i} = 0; {i} < {n}; {i}++)")
            near += f" + {i} * {dense} * {nbytes}"
            far += f" + {i} * {r.stride * nbytes}L"
            dense += f" * {n}"
        line = f"{call}({near}, {far}, {row} * {nbytes}, "
        line += f"{_text(scope, blocks.length)}, {blocks.stride * nbytes}L);"
        out.do(" ".join([*reversed(heads), depth + line]).replace("  ", " "))


def _text(scope: Scope, x: Operand) -> str:
    return memory.scalar(scope, index(x))
