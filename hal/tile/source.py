"""From the source of a program to its kernel, as a device that takes hal-tile/1 loads it."""

from __future__ import annotations

from hal.core.errors import CompileError
from hal.core.values import KernelSource
from hal.tile.errors import TileError, TileTextError
from hal.tile.kernel import Kernel
from hal.tile.parser import parse_kernel
from hal.tile.verify import verify


def kernel_of(source: KernelSource) -> Kernel:
    """The kernel of a source in hal-tile/1. Raises CompileError with the line for a text that is
    none, for build options, and where entry or parameters are others than the source says."""
    if source.options:
        raise CompileError(f"{source.format} has no build options, got {dict(source.options)}")
    try:
        kernel = parse_kernel(source.text)
        verify(kernel)
    except TileTextError as error:
        raise CompileError(f"not a kernel: {error}", str(error), error.line) from error
    except (TileError, RecursionError) as error:
        raise CompileError(f"not a kernel: {error}", str(error)) from error
    if (kernel.name, kernel.params) != (source.entry, source.params):
        text = f"the text is kernel {kernel.name} with {kernel.params}"
        raise CompileError(f"{text}; asked was {source.entry} with {source.params}", text)
    return kernel
