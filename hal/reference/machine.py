"""The device's memory and programs: arrays of bytes, and kernels that are interpreted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hal.core.errors import CompileError
from hal.core.values import AllocOptions, Grid, KernelSource, SharedHandle
from hal.hosted.machine import Machine, Part
from hal.hosted.slab import Slab
from hal.reference.slab import SLABS, allocated, released
from hal.tile.errors import TileError, TileTextError
from hal.tile.interpret import interpret
from hal.tile.kernel import Kernel
from hal.tile.numeric import NUMPY, Array
from hal.tile.parser import parse_kernel
from hal.tile.verify import verify


class ReferenceMachine(Machine):
    """Runs the instances of a grid in an order that follows from the seed."""

    def __init__(self, seed: int) -> None:
        self._seeds = itertools.count(seed)

    def allocate(self, nbytes: int, options: AllocOptions) -> Slab:
        return allocated(nbytes, options)

    def release(self, memory: Slab) -> None:
        released(memory)

    def read(self, memory: Slab, offset: int, nbytes: int) -> bytes:
        return memory.array[offset : offset + nbytes].tobytes()

    def write(self, memory: Slab, offset: int, data: bytes | memoryview) -> None:
        memory.view()[offset : offset + len(data)] = data

    def map(self, memory: Slab) -> memoryview:
        return memory.view()

    def adopt(self, memory: memoryview) -> Slab:
        return SLABS.adopted(memory)

    def share(self, memory: Slab, nbytes: int) -> SharedHandle:
        return SLABS.handle(memory, nbytes)

    def attach(self, shared: SharedHandle) -> Slab:
        return SLABS.attached(shared)

    def compile(self, source: KernelSource) -> Kernel:
        if source.options:
            raise CompileError(f"{source.format} has no build options, got {dict(source.options)}")
        kernel = _parsed(source.text)
        if (kernel.name, kernel.params) != (source.entry, source.params):
            text = f"the text is kernel {kernel.name} with {kernel.params}"
            raise CompileError(f"{text}; asked was {source.entry} with {source.params}", text)
        return kernel

    def run(self, program: Kernel, args: Sequence[Part | float], grid: Grid) -> None:
        buffers: dict[str, Array] = {}
        scalars: dict[str, float] = {}
        for param, arg in zip(program.params, args, strict=True):
            if isinstance(arg, Part):
                size = arg.nbytes // param.dtype.nbytes * param.dtype.nbytes
                part = arg.memory.array[arg.offset : arg.offset + size]
                buffers[param.name] = part.view(NUMPY[param.dtype])
            else:
                scalars[param.name] = arg
        interpret(program, grid, buffers, scalars, next(self._seeds), self._beat)

    def _beat(self) -> None:
        self.beats += 1


def _parsed(text: str) -> Kernel:
    try:
        kernel = parse_kernel(text)
        verify(kernel)
    except TileTextError as error:
        raise CompileError(f"not a kernel: {error}", str(error), error.line) from error
    except (TileError, RecursionError) as error:
        raise CompileError(f"not a kernel: {error}", str(error)) from error
    return kernel
