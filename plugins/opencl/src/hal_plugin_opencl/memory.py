"""Memory objects: the driver's own, or memory of the host that the device computes in."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyopencl as cl

from hal.core.errors import InvalidCall
from hal.hosted.slab import Slab

_ADDRESS = struct.Struct("P")


@dataclass(eq=False, slots=True)
class Memory:
    """A memory object, over the host's memory `slab` if there is one; `handle` are the bytes of a
    kernel argument that name it."""

    buffer: cl.Buffer | None
    handle: bytes
    slab: Slab | None = None

    @property
    def host(self) -> Slab:
        """The host's memory that it is."""
        assert self.slab is not None, "declared with slabs alone"
        return self.slab

    def release(self) -> None:
        if self.buffer is not None:
            self.buffer.release()
        if self.slab is not None:
            self.slab.release()


def of_driver(context: cl.Context, nbytes: int) -> Memory:
    """Memory that the driver allocates. Raises cl.Error."""
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, max(nbytes, 1))
    return Memory(buffer, _ADDRESS.pack(buffer.int_ptr))


def adopted(context: cl.Context, slab: Slab) -> Memory:
    """Memory of the host. Raises InvalidCall when it cannot be written."""
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    view = slab.view() if slab.array.size else memoryview(bytearray(1))
    try:
        buffer = cl.Buffer(context, flags, hostbuf=view)
    except (BufferError, cl.Error) as error:
        raise InvalidCall(f"the device cannot use this memory of the host: {error}") from error
    return Memory(buffer, _ADDRESS.pack(buffer.int_ptr), slab)
