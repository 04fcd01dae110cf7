"""A tile kernel as C text: one work-item for each program instance."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.values import KernelSource, Param, ParamKind
from hal.tile.kernel import Kernel, Memory
from hal.tile.node import Type, node
from stack.compiler.text.c import casts, control, streamed
from stack.compiler.text.c.contraction import LOOPS
from stack.compiler.text.c.dialect import Dialect
from stack.compiler.text.c.memory import pointer
from stack.compiler.text.c.opencl import OPENCL
from stack.compiler.text.c.scope import Scope
from stack.compiler.text.c.types import register
from stack.compiler.text.c.writer import CWriter
from stack.compiler.text.primitive import computed_in
from stack.compiler.text.streamed import LEAST_VECTOR_NBYTES, found

_APART = "__attribute__((noinline)) void"
"""Stands before the function that is an instance. Drivers for processors make several functions of
a kernel, which differ in how they are called, and generate code for each: all of them call this.
It is not static: a driver crashed where it was, for a reason that is not known."""


def render_opencl(kernel: Kernel, info: DeviceInfo) -> KernelSource:
    """The kernel as OpenCL C, program format opencl-c/1."""
    kernel, out = computed_in(kernel), CWriter(OPENCL)
    large = found(kernel, lambda _: LEAST_VECTOR_NBYTES)
    scope = Scope(out, LOOPS, streamed.rules(out, large))
    for p in kernel.params:
        parameter(scope, p)
    control.block(scope, kernel.body)
    if large:
        streamed.end(out)
    name, instance, body = f"{kernel.name}_kernel", f"{kernel.name}_instance", out.text()
    kind = OPENCL.scratch_kernel if out.scratch else OPENCL.kernel
    given = [a for p in kernel.params for a in arguments(OPENCL, p)]
    arrays = [line.split("[")[0].rsplit(" ", 1) for line in out.scratch]
    places = {
        form.format(axis): f"(long){asked}({axis})"
        for form, asked in ((OPENCL.program, "get_global_id"), (OPENCL.grid, "get_global_size"))
        for axis in range(3)
    }
    places = {place: asked for place, asked in places.items() if re.search(rf"\b{place}\b", body)}
    taken = [*given, *(f"{of} *restrict {array}" for of, array in arrays)]
    passed = [*(a.split(" ")[-1].lstrip("*") for a in given), *(array for _, array in arrays)]
    lines = [
        f"{_APART} {instance}({', '.join([*taken, *(f'const long {p}' for p in places)])})\n{{",
        f"{body}\n}}\n",
        f"{kind} {name}({', '.join(given)})\n{{",
        *(f"    {line}" for line in out.scratch),
        f"    {instance}({', '.join([*passed, *places.values()])});\n}}\n",
    ]
    text = headed(OPENCL, out.functions.text(), "\n".join(lines))
    options = OPENCL.scratch_options if out.scratch else ()
    return KernelSource(OPENCL.format, text, name, kernel.params, options)


def headed(dialect: Dialect, functions: str, body: str) -> str:
    """A whole text: what the language wants first, the functions, the kernel."""
    double = dialect.registers[DType.F64]
    needed = dialect.double_header if double in functions + body else ""
    return "\n".join(part for part in (dialect.header, needed, functions, body) if part)


def arguments(dialect: Dialect, p: Param) -> Iterator[str]:
    """The kernel's arguments for a parameter."""
    if p.kind is ParamKind.BUFFER:
        yield f"{dialect.in_global} {dialect.words[8]} *{p.name}_base"
        yield f"{dialect.words[64]} {p.name}_offset"
    else:
        yield f"{register(dialect, p.dtype)} {p.name}_value"


def parameter(scope: Scope, p: Param) -> None:
    """The pointer or value of a parameter."""
    out = scope.out
    if p.kind is ParamKind.BUFFER:
        kind = f"{out.dialect.in_global} {register(out.dialect, p.dtype)} *"
        name = pointer(Memory(p.name, p.dtype))
        out.do(f"{kind}{name} = ({kind})({p.name}_base + {p.name}_offset);")
        return
    name, kind = out.name("t"), register(out.dialect, p.dtype)
    out.do(f"const {kind} {name} = {casts.from_memory(f'{p.name}_value', p.dtype)};")
    scope.scalars[node("scalar", Type((), p.dtype), name=p.name)] = name
