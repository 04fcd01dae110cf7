"""A tile kernel with products as C for slave cores: instance number i is that of core
i modulo the cores, so that all of a mesh are at the same product at the same time."""

from __future__ import annotations

from math import prod
from typing import Any

from hal.core.description import DeviceInfo
from hal.core.errors import CompileError
from hal.core.values import KernelSource
from hal.tile.kernel import Alloc, Kernel
from stack.compiler.lower import scratchpad
from stack.compiler.lower.mesh import dot, stream
from stack.compiler.lower.mesh.loop import ProductLoop, products
from stack.compiler.lower.mesh.stream import Stream, streams
from stack.compiler.lower.mesh.text import Text
from stack.compiler.lower.scratchpad.render import (
    FRAME_NBYTES,
    STATEMENTS,
    parameter,
    program,
    scratchpad_nbytes,
)
from stack.compiler.templates.mesh_block import RESERVE_NBYTES
from stack.compiler.text.c import control
from stack.compiler.text.c.athread import ATHREAD
from stack.compiler.text.c.contraction import LOOPS
from stack.compiler.text.c.scope import Scope, StatementRule
from stack.compiler.text.c.writer import CWriter
from stack.compiler.text.primitive import computed_in

_DEALT = """\
    const long *hal_grid = hal_raw;
    const long hal_count = hal_grid[0] * hal_grid[1] * hal_grid[2];
    for (long hal_at = _PEN; hal_at < hal_count; hal_at += $cores) {
        const long hal_id0 = hal_at % hal_grid[0], hal_rest = hal_at / hal_grid[0];
        const long hal_id1 = hal_rest % hal_grid[1], hal_id2 = hal_rest / hal_grid[1];
"""


_ROOMS = (RESERVE_NBYTES // 2, RESERVE_NBYTES // 8, 0)
"""Bytes for transfers beside those of products and streams, from what is best."""

Together = ProductLoop | Stream


def render_athread(kernel: Kernel, info: DeviceInfo) -> KernelSource:
    """The kernel as slave-core C, program format athread-c/1: all cores at the same step at once
    where there is something in it that they do together. Raises CompileError as both ways do."""
    kernel = computed_in(kernel)
    together = _found(kernel, info, 0)
    return render_together(kernel, info) if together else scratchpad.render_athread(kernel, info)


def _found(kernel: Kernel, info: DeviceInfo, room_nbytes: int) -> dict[int, Together]:
    """What cores can do together, by the number of the statement of the kernel's body."""
    return {**streams(kernel, info, room_nbytes), **products(kernel, info)}


def render_together(kernel: Kernel, info: DeviceInfo) -> KernelSource:
    """The kernel as slave-core C, program format athread-c/1.

    Transfers have less room where tiles need more. Raises CompileError where these alone do not fit
    into a scratchpad.
    """
    most, needed = scratchpad_nbytes(info), 0
    for room in _ROOMS:
        source, needed = _written(kernel, info, room)
        if needed <= most:
            return source
    text = f"its tiles take {needed} bytes of a scratchpad of {most}"
    raise CompileError(f"{kernel.name}: {text}; make them smaller", text)


def _written(kernel: Kernel, info: DeviceInfo, room_nbytes: int) -> tuple[KernelSource, int]:
    """The text with so many bytes for transfers, and what it takes of the scratchpad in all."""
    out, vector = CWriter(ATHREAD), info.limits.vector_nbytes

    def product(scope: Scope, p: ProductLoop) -> None:
        Text(scope, p, vector).write()

    rules: dict[type, StatementRule] = {ProductLoop: product, Stream: stream.write}
    scope = Scope(out, {**LOOPS, "dot": dot.rule(vector)}, {**STATEMENTS, **rules})
    for number, p in enumerate(kernel.params):
        parameter(scope, number, p)
    scope.scalars[stream.ONCE] = "0L"
    found = _found(kernel, info, room_nbytes)
    panels = {
        x.load.source.memory
        for p in found.values()
        if isinstance(p, ProductLoop)
        for x in (p.a, p.b)
    }
    body: list[Any] = [
        found.get(i, s)
        for i, s in enumerate(kernel.body)
        if not (isinstance(s, Alloc) and s.memory in panels)
    ]
    control.block(scope, stream.moved(tuple(body), "all", room_nbytes))
    needed = out.fixed_nbytes + out.most_nbytes + FRAME_NBYTES
    dealt = _DEALT.replace("$cores", str(prod(info.limits.mesh)))
    return program(kernel, out, dealt), needed
