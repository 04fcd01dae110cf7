"""A tile kernel as C text for slave cores: the grid's instances are dealt to them in runs."""

from __future__ import annotations

from collections.abc import Mapping

from hal.core.description import DeviceInfo, SpaceKind
from hal.core.errors import CompileError
from hal.core.values import KernelSource, Param, ParamKind
from hal.tile.kernel import (
    Alloc,
    Atomic,
    Copy,
    Gather,
    Kernel,
    Load,
    Memory,
    Scatter,
    Store,
    Wait,
)
from hal.tile.node import Type, node
from hal.tile.walk import statements
from stack.compiler.lower.scratchpad import near
from stack.compiler.lower.scratchpad.deal import deal
from stack.compiler.lower.scratchpad.pipeline import RUN, WindowPipeline
from stack.compiler.lower.scratchpad.transfer import Get, Put, Together, together, transfer
from stack.compiler.lower.scratchpad.windows import windowed
from stack.compiler.text.c import casts
from stack.compiler.text.c.athread import ATHREAD
from stack.compiler.text.c.contraction import LOOPS
from stack.compiler.text.c.memory import pointer
from stack.compiler.text.c.scope import Scope, StatementRule
from stack.compiler.text.c.types import register
from stack.compiler.text.c.writer import CWriter
from stack.compiler.text.primitive import computed_in

STATEMENTS: Mapping[type, StatementRule] = {
    Get: transfer,
    Put: transfer,
    Together: together,
    Load: near.load,
    Store: near.store,
    Gather: near.gather,
    Scatter: near.scatter,
    Atomic: near.atomic,
    Copy: near.copy,
    Wait: near.wait,
}
"""What this lowering writes its own way."""

FRAME_NBYTES = 4 << 10
"""What a compiler keeps beside the arrays."""
_LEAST_ROOM = 256
_REGISTERS_NBYTES = 1 << 10
"""Tiles that a compiler keeps in registers: a kernel may have all of a scratchpad as its own."""


def render_athread(kernel: Kernel, info: DeviceInfo) -> KernelSource:
    """The kernel as slave-core C, program format athread-c/1.

    Transfers take what its tiles leave of the scratchpad. Raises CompileError where these alone do
    not fit.
    """
    most = scratchpad_nbytes(info)
    # Bytes for transfers at first: what the kernel's own arrays leave.
    own = (s.memory for s in statements(kernel.body) if isinstance(s, Alloc))
    room = max(0, most - FRAME_NBYTES - sum(m.dtype.nbytes_of(m.size) for m in own))
    while True:
        source, needed = written(kernel, info, room)
        if needed <= most:
            return source
        if not room and needed <= most + FRAME_NBYTES + _REGISTERS_NBYTES:
            return source
        if not room:
            text = f"its tiles take {needed} bytes of a scratchpad of {most}"
            raise CompileError(f"{kernel.name}: {text}; make them smaller", text)
        room = room // 2 if room > _LEAST_ROOM else 0


def written(kernel: Kernel, info: DeviceInfo, room_nbytes: int) -> tuple[KernelSource, int]:
    """The text with so many bytes for transfers, and what it takes of the scratchpad in all."""
    kernel, out = computed_in(kernel), CWriter(ATHREAD)
    scope = Scope(out, LOOPS, STATEMENTS)
    for number, p in enumerate(kernel.params):
        parameter(scope, number, p)
    dealt = deal(kernel.body)
    WindowPipeline(scope, windowed(dealt.loop, room_nbytes // 2), dealt.bounds).write()
    run = RUN.replace("$cores", str(info.limits.instances))
    return program(kernel, out, run, ""), out.fixed_nbytes + out.most_nbytes + FRAME_NBYTES


def program(kernel: Kernel, out: CWriter, head: str, tail: str = "}") -> KernelSource:
    """The whole text of a kernel whose body is written; `head` stands before it, and `tail` ends
    the blocks that it opens."""
    name = f"{kernel.name}_kernel"
    named = ", ".join(f"{p.kind.value} {p.dtype.short}" for p in kernel.params)
    parts = (
        ATHREAD.header,
        f'const char {name}_params[] = "{named}";',
        out.functions.text(),
        f"void {name}(void *hal_raw) {{",
        *(f"    {line}" for line in out.scratch),
        head + out.text(),
        f"{tail}}}\n",
    )
    return KernelSource(ATHREAD.format, "\n".join(parts), name, kernel.params)


def scratchpad_nbytes(info: DeviceInfo) -> int:
    """What a core has."""
    space = info.space(SpaceKind.SCRATCHPAD)
    return space.nbytes if space else 0


def parameter(scope: Scope, number: int, p: Param) -> None:
    """The pointer or value of a parameter from its slot of 8 bytes."""
    out = scope.out
    slot = f"hal_grid + {3 + number}"
    if p.kind is ParamKind.BUFFER:
        kind = f"{register(out.dialect, p.dtype)} *"
        out.do(f"{kind}{pointer(Memory(p.name, p.dtype))} = *({kind}const *)({slot});")
        return
    name, kind = out.name("t"), register(out.dialect, p.dtype)
    raw = f"*(const {register(out.dialect, p.dtype)} *)({slot})"
    out.do(f"const {kind} {name} = {casts.from_memory(raw, p.dtype)};")
    scope.scalars[node("scalar", Type((), p.dtype), name=p.name)] = name
