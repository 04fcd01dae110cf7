"""Statements that this lowering adds to a kernel's: transfers between main memory and arrays in the
scratchpad, which are done when the statement is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from string import Template

from hal.core.facts import dataclass
from hal.tile.build import Operand, binary, index
from hal.tile.kernel import Copy, Memory
from hal.tile.node import Node
from stack.compiler.lower.scratchpad.footprint import Run
from stack.compiler.text.c import memory
from stack.compiler.text.c.memory import pointer
from stack.compiler.text.c.scope import Scope


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
static __thread_local athread_rply_t hal_${verb}_reply = 0;
static __thread_local int hal_${verb}_sent = 0;
static void hal_${verb}_arrive(void) {
    if (hal_${verb}_sent) athread_dma_wait_value(&hal_${verb}_reply, hal_${verb}_sent);
    hal_${verb}_reply = hal_${verb}_sent = 0;
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
        athread_work_direct(nbytes - whole);
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
        _replies(scope, verb)
        words |= {"i": "i", "reply": f", &hal_{verb}_reply", "sent": f"hal_{verb}_sent++;"}
    name = f"hal_{words['i']}{verb}"
    return scope.out.functions.define(name, Template(_TEXT).substitute(words))


def transfer(scope: Scope, s: Transfer) -> None:
    """Write the calls that move the runs."""
    together(scope, Together((s,)))


def together(scope: Scope, s: Together) -> None:
    """Write the calls that start all, then the wait for them. A call alone waits itself."""
    if len(s.parts) == 1 and len(_runs(s.parts[0])) == 2:
        _call(scope, s.parts[0], waits=True)
        return
    start(scope, s.parts)
    for verb in dict.fromkeys(map(_verb, s.parts)):
        arrive(scope, verb)


def start(scope: Scope, transfers: Sequence[Transfer]) -> None:
    """Write the calls that start transfers, for which the program is to wait."""
    for t in transfers:
        _call(scope, t, waits=False)


def start_copy(scope: Scope, s: Copy) -> None:
    """Write the calls that start a copy of rows into the scratchpad, where a row's elements lie
    side by side: all rows at once where the copy has no gaps and rows do not overlap."""
    out, nbytes = scope.out, s.source.memory.dtype.nbytes
    call = mover(scope, "get", waits=False)
    near, far = (out.name("p") for _ in range(2))
    for name, a in ((near, s.target), (far, s.source)):
        start = f"{pointer(a.memory)} + {memory.scalar(scope, a.offset)}"
        out.do(f"char *const {name} = (char *)({start});")
    counts = []
    for size, *limits in zip(s.shape, s.target.limits, s.source.limits, strict=True):
        least = reduce(partial(binary, "min"), (x for x in limits if x is not None), index(size))
        counts.append(out.name("n"))
        out.do(f"const long {counts[-1]} = {memory.scalar(scope, least)};")
    rows, columns = counts
    down, across = (int(n["value"]) * nbytes for n in s.source.strides)
    pitch, otherwise = int(s.target.strides[0]["value"]), ""
    if across == nbytes and down >= pitch * nbytes:
        dense = f"{call}({near}, {far}, {columns} * {nbytes}, {rows}, {down}L);"
        out.do(f"if ({columns} == {pitch}) {dense}")
        otherwise = "else "
    i, j = out.name("n"), out.name("n")
    there = f"{near} + {i} * {pitch * nbytes}L"
    from_ = f"{far} + {i} * {down}L"
    loops = f"{otherwise}for (long {i} = 0; {i} < {rows}; {i}++) "
    if across == nbytes:
        out.do(f"{loops}{call}({there}, {from_}, {columns} * {nbytes}, 1, 0);")
    elif across > nbytes:
        out.do(f"{loops}{call}({there}, {from_}, {nbytes}, {columns}, {across}L);")
    else:
        each = f"for (long {j} = 0; {j} < {columns}; {j}++) "
        one = f"{there} + {j} * {nbytes}, {from_} + {j} * {across}L, {nbytes}, 1, 0"
        out.do(f"{loops}{each}{call}({one});")


def arrive(scope: Scope, verb: str) -> None:
    """Write the wait for all gets, or all puts, that have started."""
    scope.out.do(f"{_replies(scope, verb)}();")


def _replies(scope: Scope, verb: str) -> str:
    text = Template(_REPLIES).substitute(verb=verb)
    return scope.out.functions.define(f"hal_{verb}_arrive", text)


def _verb(s: Transfer) -> str:
    return "get" if isinstance(s, Get) else "put"


def _runs(s: Transfer) -> tuple[Run, ...]:
    """The runs with elements side by side in the first, and a second."""
    runs = s.runs if s.runs and s.runs[0].stride == 1 else (Run(1, 1, 1), *s.runs)
    return runs if len(runs) > 1 else (*runs, Run(runs[0].count, 1, 1))


def _call(scope: Scope, s: Transfer, waits: bool) -> None:
    out, nbytes = scope.out, s.main.dtype.nbytes
    call = mover(scope, _verb(s), waits)
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
