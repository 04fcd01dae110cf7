"""A tile kernel as C text for slave cores: the grid's instances are dealt to them in runs."""

from __future__ import annotations

from collections.abc import Iterator

from hal.core.description import DeviceInfo
from hal.core.values import KernelSource, Param, ParamKind
from hal.tile.kernel import Kernel, Memory
from hal.tile.node import Type, node
from stack.compiler.c import casts, control
from stack.compiler.c.athread import ATHREAD
from stack.compiler.c.contraction import LOOPS
from stack.compiler.c.memory import pointer
from stack.compiler.c.scope import Scope
from stack.compiler.c.types import memory, register
from stack.compiler.c.writer import Writer

_DEALT = """\
    const long *hal_grid = hal_raw;
    const long hal_count = hal_grid[0] * hal_grid[1] * hal_grid[2];
    const long hal_stop = hal_count * (_PEN + 1) / 64;
    for (long hal_at = hal_count * _PEN / 64; hal_at < hal_stop; hal_at++) {
        const long hal_id0 = hal_at % hal_grid[0], hal_rest = hal_at / hal_grid[0];
        const long hal_id1 = hal_rest % hal_grid[1], hal_id2 = hal_rest / hal_grid[1];
"""


def render_athread(kernel: Kernel, info: DeviceInfo) -> KernelSource:
    """The kernel as slave-core C, program format athread-c/1."""
    out = Writer(ATHREAD)
    scope = Scope(out, LOOPS)
    for number, p in enumerate(kernel.params):
        parameter(scope, number, p)
    control.block(scope, kernel.body)
    name = f"{kernel.name}_kernel"
    head = [f"void {name}(void *hal_raw) {{", *_scratch(out), _DEALT]
    named = ", ".join(f"{p.kind.value} {p.dtype.short}" for p in kernel.params)
    parts = (
        ATHREAD.header,
        f'const char {name}_params[] = "{named}";',
        out.functions.text(),
        "\n".join(head) + out.text(),
        "    }\n}\n",
    )
    return KernelSource(ATHREAD.format, "\n".join(parts), name, kernel.params)


def _scratch(out: Writer) -> Iterator[str]:
    yield from (f"    {line}" for line in out.scratch)


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
