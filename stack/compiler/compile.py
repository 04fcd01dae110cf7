"""From a graph to calls of kernels in a format that the device takes: lower, then render."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hal.core.description import DeviceInfo
from hal.core.errors import Unsupported
from hal.core.values import OPENCL_C, KernelSource
from hal.tile.kernel import Kernel
from hal.tile.node import Node, toposort
from stack.compiler.kernels import TileCalls, TileLoop, folded, lower_graph
from stack.compiler.known import Known
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
from stack.compiler.templates.schedule import NO_CHOICES, Choices

Found = Callable[[KernelSource], None]

_TOGETHER = frozenset({OPENCL_C})
"""Formats of which a device builds programs together, once it knows all of them."""


def compile_graph(
    request: GraphRequest,
    info: DeviceInfo,
    choices: Choices = NO_CHOICES,
    found: Found = lambda source: None,
    known: Known | None = None,
) -> CompiledGraph:
    """Compile a request for the device; `choices` hold schedules that were measured for it. `found`
    is given each source as soon as it is written, if a device may build it before it knows the
    others. What is `known` of the same device and choices is not made anew.

    Raises UnsupportedFormat when the device takes no program format that the compiler writes,
    Unsupported when it does not compute in a type of the graph.
    """
    _check_types(request.outputs, info)
    target = choose(info)
    write = target.writer(info)
    known = known or Known()
    sources: dict[Kernel, KernelSource] = {}

    def source_of(kernel: Kernel) -> KernelSource:
        """Its source. Kernels that differ in their name alone, as those of one size and of another
        may, have that of the first."""
        nameless = replace(kernel, name="")
        if nameless not in sources:
            # What a graph is compiled to, names too, does not follow from what was compiled before.
            source = known.sources.get(kernel)
            if source is None:
                source = write(kernel, info)
                known.sources.put(kernel, source)
            sources[nameless] = source
            if source.format not in _TOGETHER:
                found(source)
        return sources[nameless]

    program = lower_graph(request, info, target.templates, choices, source_of, known)
    copies = (
        CopyCall(BufferRef("input", target, 0, nbytes), BufferRef("temp", temp, 0, nbytes))
        for target, temp, nbytes in program.copies
    )
    return CompiledGraph(
        inputs=tuple(n.type for n in request.inputs),
        outputs=tuple(n.type for n in request.outputs),
        updates=request.updates,
        temps=program.temps,
        calls=(*_rendered(program.calls, source_of), *copies),
    )


def folded_graph(request: GraphRequest, info: DeviceInfo) -> GraphRequest:
    """The request as it is compiled for the device, before anything is chosen: what is computed by
    one kernel, as attention is, is one operator."""
    return folded(request, info, choose(info).templates)


def _rendered(calls: TileCalls, source_of: Callable[[Kernel], KernelSource]) -> Iterator[Call]:
    """The calls of a program, with the source of each kernel."""
    for call in calls:
        if isinstance(call, ExchangeCall):
            yield call
        elif isinstance(call, TileLoop):
            inner = tuple(_rendered(call.calls, source_of))
            yield replace(call.loop, body=replace(call.loop.body, calls=inner))
        else:
            source = source_of(call.kernel)
            yield KernelCall(source, call.grid, (*call.buffers, *call.sizes))


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
