"""From a graph to calls of kernels in a format that the device takes: lower, then render."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from hal.core.description import DeviceInfo
from hal.core.errors import Unsupported, UnsupportedFormat
from hal.core.values import ATHREAD_C, HAL_TILE, LLVM_IR, OPENCL_C, KernelSource
from hal.tile.kernel import Kernel
from hal.tile.node import toposort
from hal.tile.printer import print_kernel
from stack.compiler import c, llvm, scratchpad, simt
from stack.compiler.emit import Part, TileExchange
from stack.compiler.lanes import in_groups
from stack.compiler.lower import TileProgram, lower_graph
from stack.compiler.mesh.render import is_together, render_together
from stack.compiler.program import (
    BufferRef,
    Call,
    CompiledGraph,
    CopyCall,
    ExchangeCall,
    GraphRequest,
    KernelCall,
)
from stack.compiler.schedule import NO_CHOICES, Choices
from stack.ir.record import OpRecord

Renderer = Callable[[Kernel, DeviceInfo], KernelSource]


def _print_tile(kernel: Kernel, info: DeviceInfo) -> KernelSource:
    """The kernel as it is."""
    return KernelSource(HAL_TILE, print_kernel(kernel), kernel.name, kernel.params)


def _print_opencl(kernel: Kernel, info: DeviceInfo) -> KernelSource:
    """The kernel for cores with vector registers, or for groups of lanes."""
    render = simt.render_opencl if in_groups(info) else c.render_opencl
    return render(kernel, info)


def _print_athread(kernel: Kernel, info: DeviceInfo) -> KernelSource:
    """The kernel for cores with scratchpads; all at the same step at once where that pays."""
    render = render_together if is_together(kernel, info) else scratchpad.render_athread
    return render(kernel, info)


RENDERERS: Mapping[str, Renderer] = {
    LLVM_IR: llvm.render,
    OPENCL_C: _print_opencl,
    ATHREAD_C: _print_athread,
    HAL_TILE: _print_tile,
}
"""The program formats that the compiler writes."""


def compile_graph(
    request: GraphRequest,
    info: DeviceInfo,
    records: Mapping[str, OpRecord],
    choices: Choices = NO_CHOICES,
) -> CompiledGraph:
    """Compile a request for the device; `choices` hold schedules that were measured for it.

    Raises UnsupportedFormat when the device takes no program format that the compiler writes,
    Unsupported when it does not compute in a type of the graph.
    """
    _check_types(request, info)
    write = renderer(info)
    program = lower_graph(request, info, records, choices)
    copies = (
        CopyCall(BufferRef("input", target, 0, nbytes), BufferRef("temp", temp, 0, nbytes))
        for target, temp, nbytes in program.copies
    )
    return CompiledGraph(
        inputs=tuple(n.type for n in request.inputs),
        outputs=tuple(n.type for n in request.outputs),
        updates=request.updates,
        temps=program.temps,
        calls=(*_rendered(program, write, info), *copies),
    )


def _rendered(program: TileProgram, write: Renderer, info: DeviceInfo) -> Iterator[Call]:
    """The calls of a program, with a source for each kernel, however often it is called."""
    sources: dict[Kernel, KernelSource] = {}
    for call in program.calls:
        if isinstance(call, TileExchange):
            (part,) = call.buffers
            yield ExchangeCall(call.group, call.name, call.reduce, call.dtype, _ref(part))
            continue
        if call.kernel not in sources:
            sources[call.kernel] = write(call.kernel, info)
        yield KernelCall(sources[call.kernel], call.grid, tuple(map(_ref, call.buffers)))


def _check_types(request: GraphRequest, info: DeviceInfo) -> None:
    for n in toposort(request.outputs):
        if n.dtype not in info.dtypes:
            has = ", ".join(d.short for d in info.dtypes)
            raise Unsupported(
                f"{info.name} does not compute in {n.dtype.short}, which {n.op} of the graph is; "
                f"cast to a type that it has ({has}) or take another device"
            )


def _ref(part: Part) -> BufferRef:
    return BufferRef(part.kind, part.index, part.offset, part.nbytes)


def renderer(info: DeviceInfo) -> Renderer:
    """The writer of the program format that the device likes best.

    Raises UnsupportedFormat when the compiler writes none that the device takes.
    """
    for accepted in info.formats:
        if accepted in RENDERERS:
            return RENDERERS[accepted]
    raise UnsupportedFormat(
        f"{info.name} takes programs in {', '.join(info.formats) or 'no format'}; "
        f"the compiler writes {', '.join(RENDERERS)}"
    )
