"""A tile kernel as C text for slave cores: the grid's instances are dealt to them in runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hal.core.description import DeviceInfo, SpaceKind
from hal.core.values import KernelSource, Param, ParamKind
from hal.tile.kernel import Alloc, Kernel, Load, Memory
from hal.tile.node import Type, node
from hal.tile.walk import statements
from stack.compiler.c import casts, control
from stack.compiler.c.athread import ATHREAD
from stack.compiler.c.contraction import LOOPS
from stack.compiler.c.memory import pointer
from stack.compiler.c.scope import Scope, StatementRule
from stack.compiler.c.types import memory, register
from stack.compiler.c.writer import Writer
from stack.compiler.scratchpad import near
from stack.compiler.scratchpad.deal import COUNT, FIRST, Dealt, deal
from stack.compiler.scratchpad.transfer import Get, Put, Together, together, transfer
from stack.compiler.scratchpad.windows import windowed

STATEMENTS: Mapping[type, StatementRule] = {
    Get: transfer,
    Put: transfer,
    Together: together,
    Load: near.load,
}
"""What this lowering writes its own way."""

_RUN = """\
    const long *hal_grid = hal_raw;
    const long hal_all = hal_grid[0] * hal_grid[1] * hal_grid[2];
    const long hal_stop = hal_all * (_PEN + 1) / 64;
    for (long hal_at = hal_all * _PEN / 64, hal_count; hal_at < hal_stop; hal_at += hal_count) {{
        const long hal_first = hal_at % hal_grid[0], hal_rest = hal_at / hal_grid[0];
        const long hal_id1 = hal_rest % hal_grid[1], hal_id2 = hal_rest / hal_grid[1];
        hal_count = {most};
        if (hal_count > hal_stop - hal_at) hal_count = hal_stop - hal_at;
        if (hal_count > hal_grid[0] - hal_first) hal_count = hal_grid[0] - hal_first;
"""
_BOUND = """\
        if (hal_count > {0} - hal_first % {0}) hal_count = {0} - hal_first % {0};
"""


def render_athread(kernel: Kernel, info: DeviceInfo) -> KernelSource:
    """The kernel as slave-core C, program format athread-c/1."""
    out = Writer(ATHREAD)
    scope = Scope(out, LOOPS, STATEMENTS)
    scope.scalars.update({FIRST: "hal_first", COUNT: "hal_count"})
    for number, p in enumerate(kernel.params):
        parameter(scope, number, p)
    dealt = deal(kernel.body)
    found = windowed(dealt.loop, _room(kernel, info))
    control.block(scope, found.body)
    name = f"{kernel.name}_kernel"
    named = ", ".join(f"{p.kind.value} {p.dtype.short}" for p in kernel.params)
    parts = (
        ATHREAD.header,
        f'const char {name}_params[] = "{named}";',
        out.functions.text(),
        f"void {name}(void *hal_raw) {{",
        *(f"    {line}" for line in out.scratch),
        "".join(_run(dealt, found.most)) + out.text(),
        "    }\n}\n",
    )
    return KernelSource(ATHREAD.format, "\n".join(parts), name, kernel.params)


def _run(dealt: Dealt, most: int) -> Iterator[str]:
    yield _RUN.format(most=most)
    yield from (_BOUND.format(b) for b in dealt.bounds)


def _room(kernel: Kernel, info: DeviceInfo) -> int:
    """Bytes of the scratchpad for transfers: half of what the kernel's own arrays leave. The rest
    is for tiles."""
    space = info.space(SpaceKind.SCRATCHPAD)
    own = (s.memory for s in statements(kernel.body) if isinstance(s, Alloc))
    left = (space.nbytes if space else 0) - sum(m.size * m.dtype.nbytes for m in own)
    return max(0, left // 2)


def parameter(scope: Scope, number: int, p: Param) -> None:
    """The pointer or value of a parameter from its slot of 8 bytes."""
    out = scope.out
    slot = f"hal_grid + {3 + number}"
    if p.kind is ParamKind.BUFFER:
        kind = f"{memory(out.dialect, p.dtype)} *"
        out.do(f"{kind}{pointer(Memory(p.name, p.dtype))} = *({kind}const *)({slot});")
        return
    name, kind = out.name("t"), register(out.dialect, p.dtype)
    raw = f"*(const {memory(out.dialect, p.dtype)} *)({slot})"
    out.do(f"const {kind} {name} = {casts.from_memory(out, raw, p.dtype)};")
    scope.scalars[node("scalar", Type((), p.dtype), name=p.name)] = name
