"""From a graph to calls of kernels in a format that the device takes: lower, then render."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hal.core.description import DeviceInfo
from hal.core.errors import Unsupported
from hal.core.values import KernelSource
from hal.tile.kernel import Kernel
from hal.tile.node import Node, toposort
from stack.compiler.kernels import TileCalls, TileLoop, folded, lower_graph
from stack.compiler.program import (
    BufferRef,
    Call,
    CompiledGraph,
    CopyCall,
    ExchangeCall,
    GraphRequest,
    KernelCall,
)
from stack.compiler.targets import choose
from stack.compiler.targets.target import Writer
from stack.compiler.templates.schedule import NO_CHOICES, Choices


def compile_graph(
    request: GraphRequest,
    info: DeviceInfo,
    choices: Choices = NO_CHOICES,
) -> CompiledGraph:
    """Compile a request for the device; `choices` hold schedules that were measured for it.

    Raises UnsupportedFormat when the device takes no program format that the compiler writes,
    Unsupported when it does not compute in a type of the graph.
    """
    _check_types(request.outputs, info)
    target = choose(info)
    write = target.writer(info)
    program = lower_graph(request, info, target.templates, choices)
    copies = (
        CopyCall(BufferRef("input", target, 0, nbytes), BufferRef("temp", temp, 0, nbytes))
        for target, temp, nbytes in program.copies
    )
    return CompiledGraph(
        inputs=tuple(n.type for n in request.inputs),
        outputs=tuple(n.type for n in request.outputs),
        updates=request.updates,
        temps=program.temps,
        calls=(*_rendered(program.calls, write, info, {}), *copies),
    )


def folded_graph(request: GraphRequest, info: DeviceInfo) -> GraphRequest:
    """The request as it is compiled for the device, before anything is chosen: what is computed by
    one kernel, as attention is, is one operator."""
    return folded(request, info, choose(info).templates)


def _rendered(
    calls: TileCalls, write: Writer, info: DeviceInfo, sources: dict[Kernel, KernelSource]
) -> Iterator[Call]:
    """The calls of a program, with a source for each kernel, however often it is called. Kernels
    that differ in their name alone, as those of one size and of another may, have that of the
    first."""
    for call in calls:
        if isinstance(call, ExchangeCall):
            yield call
            continue
        if isinstance(call, TileLoop):
            inner = tuple(_rendered(call.calls, write, info, sources))
            yield replace(call.loop, body=replace(call.loop.body, calls=inner))
            continue
        nameless = replace(call.kernel, name="")
        if nameless not in sources:
            sources[nameless] = write(call.kernel, info)
        yield KernelCall(sources[nameless], call.grid, (*call.buffers, *call.sizes))


def _check_types(outputs: Sequence[Node], info: DeviceInfo) -> None:
    for n in toposort(outputs):
        if n.op == "loop":
            _check_types(n["body"].outputs, info)
        if n.dtype not in info.dtypes:
            has = ", ".join(d.short for d in info.dtypes)
            raise Unsupported(
                f"{info.name} does not compute in {n.dtype.short}, which {n.op} of the graph is; "
                f"cast to a type that it has ({has}) or take another device"
            )
