"""Statements that this lowering adds to a kernel's: transfers between main memory and arrays in the
scratchpad, which are done when the statement is."""

from __future__ import annotations

from dataclasses import dataclass
from string import Template

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


@dataclass(frozen=True, slots=True)
class Together:
    """Transfers that go at the same time."""

    parts: tuple[Transfer, ...]


_REPLIES = """\
static __thread_local athread_rply_t hal_reply = 0;
static __thread_local int hal_sent = 0;
static void hal_arrive(void) {
    if (hal_sent) athread_dma_wait_value(&hal_reply, hal_sent);
    hal_reply = hal_sent = 0;
}
"""

_TEXT = """\
static void hal_$i$verb(char *near, char *far, long nbytes, long blocks, long pitch) {
    if (nbytes <= 0 || blocks <= 0) return;
    if (blocks == 1 || pitch == nbytes) nbytes *= blocks, pitch = nbytes, blocks = 1;
    if (!(((long)near | (long)far | nbytes | (pitch - nbytes)) & 3)) {
        const long all = nbytes * blocks;
        if (blocks == 1) athread_dma_$i$verb($to, $from, all$reply);
        else athread_dma_$i${verb}_stride($to, $from, all, nbytes, pitch - nbytes$reply);
        $sent
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


def mover(scope: Scope, verb: str, waits: bool = True) -> str:
    """Define the function that moves blocks that may lie anywhere: its verb is get or put. One that
    does not wait counts replies."""
    to, source = ("near", "far") if verb == "get" else ("far", "near")
    words = {"verb": verb, "to": to, "from": source, "i": "", "reply": "", "sent": ""}
    if not waits:
        scope.out.functions.define("hal_arrive", _REPLIES)
        words |= {"i": "i", "reply": ", &hal_reply", "sent": "hal_sent++;"}
    name = f"hal_{words['i']}{verb}"
    return scope.out.functions.define(name, Template(_TEXT).substitute(words))


def transfer(scope: Scope, s: Transfer) -> None:
    """Write the calls that move the runs."""
    together(scope, Together((s,)))


def together(scope: Scope, s: Together) -> None:
    """Write the calls that start all, then the wait for them. A call alone waits itself."""
    waits = len(s.parts) == 1 and len(_runs(s.parts[0])) == 2
    for part in s.parts:
        _call(scope, part, waits)
    if not waits:
        scope.out.do("hal_arrive();")


def _runs(s: Transfer) -> tuple[Run, ...]:
    """The runs with elements side by side in the first, and a second."""
    runs = s.runs if s.runs and s.runs[0].stride == 1 else (Run(1, 1, 1), *s.runs)
    return runs if len(runs) > 1 else (*runs, Run(runs[0].count, 1, 1))


def _call(scope: Scope, s: Transfer, waits: bool) -> None:
    out, nbytes = scope.out, s.main.dtype.nbytes
    call = mover(scope, "get" if isinstance(s, Get) else "put", waits)
    inner, blocks, *outer = _runs(s)
    row, count = _text(scope, inner.length), _text(scope, blocks.length)
    near = f"(char *){pointer(s.local)}"
    far = f"(char *)({pointer(s.main)} + {memory.scalar(scope, s.offset)})"
    dense, heads = f"{row} * {count}", ""
    for r in outer:
        i, n = out.name("n"), _text(scope, r.length)
        heads = f"for (long {i} = 0; {i} < {n}; {i}++) " + heads
        near += f" + {i} * {dense} * {nbytes}"
        far += f" + {i} * {r.stride * nbytes}L"
        dense += f" * {n}"
    out.do(f"{heads}{call}({near}, {far}, {row} * {nbytes}, {count}, {blocks.stride * nbytes}L);")


def _text(scope: Scope, x: Operand) -> str:
    return memory.scalar(scope, index(x))
