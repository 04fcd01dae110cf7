"""The device's memory and programs: arrays of bytes, and kernels that are interpreted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hal.core.values import AllocOptions, Grid, KernelSource, SharedHandle
from hal.hosted.machine import Machine, Part
from hal.hosted.slab import Slab
from hal.reference.slab import SLABS, allocated, released
from hal.tile.interpret import interpret_bytes
from hal.tile.kernel import Kernel
from hal.tile.source import kernel_of


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
        return kernel_of(source)

    def run(self, program: Kernel, args: Sequence[Part | float], grid: Grid) -> None:
        values = [
            arg.memory.array[arg.offset : arg.offset + arg.nbytes] if isinstance(arg, Part) else arg
            for arg in args
        ]
        interpret_bytes(program, grid, values, next(self._seeds), self._beat)

    def _beat(self) -> None:
        self.beats += 1
