"""A tile kernel with products as C for slave cores: instance number i is core i % 64's, so that all
cores of a mesh are at the same product at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hal.core.description import DeviceInfo
from hal.core.values import KernelSource
from hal.tile.kernel import Kernel
from stack.compiler.c import control
from stack.compiler.c.athread import ATHREAD
from stack.compiler.c.contraction import LOOPS
from stack.compiler.c.scope import Scope, StatementRule
from stack.compiler.c.writer import Writer
from stack.compiler.mesh import dot, stream
from stack.compiler.mesh.loop import CORES, Product, products
from stack.compiler.mesh.stream import Stream, streams
from stack.compiler.mesh.text import Text
from stack.compiler.scratchpad.render import STATEMENTS, parameter

_DEALT = f"""\
    const long *hal_grid = hal_raw;
    const long hal_count = hal_grid[0] * hal_grid[1] * hal_grid[2];
    for (long hal_at = _PEN; hal_at < hal_count; hal_at += {CORES}) {{
        const long hal_id0 = hal_at % hal_grid[0], hal_rest = hal_at / hal_grid[0];
        const long hal_id1 = hal_rest % hal_grid[1], hal_id2 = hal_rest / hal_grid[1];
"""


Together = Product | Stream


def found_in(kernel: Kernel, info: DeviceInfo) -> dict[int, Together]:
    """What cores can do together in a kernel, by the number of the statement of its body."""
    return {**streams(kernel, info), **products(kernel, info)}


def render_together(
    kernel: Kernel, info: DeviceInfo, found: Mapping[int, Together]
) -> KernelSource:
    """The kernel as slave-core C, program format athread-c/1; `found` is what cores do together."""
    out, vector = Writer(ATHREAD), info.limits.vector_nbytes

    def product(scope: Scope, p: Product) -> None:
        Text(scope, p, vector).write()

    rules: dict[type, StatementRule] = {Product: product, Stream: stream.write}
    scope = Scope(out, {**LOOPS, "dot": dot.rule(vector)}, {**STATEMENTS, **rules})
    for number, p in enumerate(kernel.params):
        parameter(scope, number, p)
    scope.scalars[stream.ONCE] = "0L"
    body: list[Any] = [found.get(i, s) for i, s in enumerate(kernel.body)]
    control.block(scope, stream.moved(tuple(body), "all"))
    name = f"{kernel.name}_kernel"
    named = ", ".join(f"{p.kind.value} {p.dtype.short}" for p in kernel.params)
    parts = (
        ATHREAD.header,
        f'const char {name}_params[] = "{named}";',
        out.functions.text(),
        f"void {name}(void *hal_raw) {{",
        *(f"    {line}" for line in out.scratch),
        _DEALT + out.text(),
        "    }\n}\n",
    )
    return KernelSource(ATHREAD.format, "\n".join(parts), name, kernel.params)
