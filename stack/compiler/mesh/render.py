"""A tile kernel with products as C for slave cores: instance number i is core i % 64's, so that all
cores of a mesh are at the same product at the same time."""

from __future__ import annotations

from collections.abc import Mapping

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.values import KernelSource
from hal.tile.build import const
from hal.tile.kernel import For, Kernel, Statement
from hal.tile.node import Type, node
from stack.compiler.c import control
from stack.compiler.c.athread import ATHREAD
from stack.compiler.c.contraction import LOOPS
from stack.compiler.c.scope import Scope
from stack.compiler.c.writer import Writer
from stack.compiler.mesh.block import RESERVE_NBYTES
from stack.compiler.mesh import dot, stream
from stack.compiler.mesh.loop import Product, products
from stack.compiler.mesh.stream import Stream, streams
from stack.compiler.mesh.text import CORES, Text
from stack.compiler.scratchpad.render import STATEMENTS, parameter
from stack.compiler.scratchpad.windows import windowed

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


def render_together(kernel: Kernel, info: DeviceInfo, found: Mapping[int, Together]) -> KernelSource:
    """The kernel as slave-core C, program format athread-c/1; `found` is what cores do together."""
    out, vector = Writer(ATHREAD), info.limits.vector_nbytes

    def product(scope: Scope, p: Product) -> None:
        Text(scope, p, vector).write()

    rules = {**STATEMENTS, Product: product, Stream: stream.write}
    scope = Scope(out, {**LOOPS, "dot": dot.rule(vector)}, rules)
    for number, p in enumerate(kernel.params):
        parameter(scope, number, p)
    control.block(scope, _moved(kernel, found))
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


def _moved(kernel: Kernel, found: Mapping[int, Together]) -> tuple[Statement, ...]:
    """The body with its products, and with transfers for what else touches main memory."""
    body: list[Statement] = [found.get(i, s) for i, s in enumerate(kernel.body)]  # type: ignore[misc]
    zero, one = (const(n, DType.I64) for n in (0, 1))
    once = For(node("var", Type((), DType.I64), id="once"), zero, one, one, (), tuple(body))
    return windowed(once, RESERVE_NBYTES // 2).body
