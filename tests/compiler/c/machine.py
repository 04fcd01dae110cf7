"""Runs OpenCL C text through pyopencl, as a device that takes `opencl-c/1` does."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from hal.core.values import KernelSource, ParamKind
from hal.tile.kernel import Kernel
from hal.tile.numeric import NUMPY, quiet
from stack.compiler.text.c import render_opencl
from tests.compiler.lowered import SIMD

cl = pytest.importorskip("pyopencl", reason="the tests of OpenCL C need pyopencl and a device")


@cache
def queue() -> Any:
    """A queue of the first device that computes in f64."""
    found = [d for p in cl.get_platforms() for d in p.get_devices() if d.double_fp_config]
    if not found:
        pytest.skip("no OpenCL device computes in f64; pip install pocl-binary-distribution")
    return cl.CommandQueue(cl.Context(found[:1]))


def compiled(source: KernelSource) -> Any:
    """The kernel; what the device's compiler remarks is not of interest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        program = cl.Program(queue().context, source.text).build(cache_dir=False)
        return cl.Kernel(program, source.entry)


def run(
    kernel: Kernel,
    grid: tuple[int, ...],
    buffers: Mapping[str, np.ndarray],
    scalars: Mapping[str, Any] | None = None,
) -> None:
    """Run a kernel over a grid, changing the buffers."""
    launch(render_opencl(kernel, SIMD), grid, buffers, scalars)


def launch(
    source: KernelSource,
    grid: tuple[int, ...],
    buffers: Mapping[str, np.ndarray],
    scalars: Mapping[str, Any] | None = None,
) -> None:
    """Run a program over a grid, changing the buffers; each lies 64 bytes inside its memory."""
    if 0 in grid:
        return
    lanes = int(dict(source.options).get("lanes", 1))
    function, memories, arguments = compiled(source), {}, []
    for p in source.params:
        if p.kind is ParamKind.BUFFER:
            raw = np.concatenate([np.zeros(64, np.uint8), buffers[p.name].view(np.uint8)])
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
            memories[p.name] = cl.Buffer(queue().context, flags, hostbuf=raw)
            arguments += [memories[p.name], np.uint64(64)]
        else:
            with quiet():
                word = np.asarray((scalars or {})[p.name]).astype(NUMPY[p.dtype])
            arguments.append(_word(word))
    across, *others = (*grid, 1, 1)[:3]
    function(queue(), (across * lanes, *others), (lanes, 1, 1), *arguments)
    for name, memory in memories.items():
        raw = np.empty(64 + buffers[name].nbytes, np.uint8)
        cl.enqueue_copy(queue(), raw, memory)
        buffers[name].view(np.uint8)[:] = raw[64:]


def _word(value: np.ndarray) -> Any:
    """A scalar as pyopencl passes it on: narrow floats and bools are their bits."""
    if value.dtype.kind in "iu" or value.dtype in (np.float32, np.float64):
        return value[()]
    return value.view({1: np.uint8, 2: np.uint16}[value.dtype.itemsize])[()]
