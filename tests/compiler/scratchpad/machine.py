"""Runs kernels as text for slave cores on an emulated core group, opened for the tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import hal
from hal.core.values import AllocOptions, KernelSource, OpenOptions, ParamKind
from hal.tile.interpret import interpret
from hal.tile.kernel import Kernel
from hal.tile.numeric import NUMPY, quiet
from stack.compiler.lower.scratchpad.render import render_athread, written
from tests.compiler.llvm.agreement import assert_close

pytest.importorskip("hal_plugin_sunway", reason="the tests of athread-c need its emulator")

MARGIN = 256
"""Bytes of a buffer before and behind what a kernel is given, which stay as they are."""


@contextmanager
def opened() -> Iterator[hal.Device]:
    """A core group with little memory."""
    options = OpenOptions(settings={"memory_nbytes": str(64 << 20)})
    with hal.open("sunway:0", options=options) as device:
        yield device


def run(
    device: hal.Device,
    kernel: Kernel,
    grid: tuple[int, ...],
    buffers: Mapping[str, np.ndarray],
    scalars: Mapping[str, Any] | None = None,
    *,
    room_nbytes: int = 0,
) -> None:
    """Run a kernel over a grid, changing the buffers. With `room_nbytes` its transfers have no
    more of the scratchpad."""
    source = render_athread(kernel, device.info)
    if room_nbytes:
        source, _ = written(kernel, device.info, room_nbytes)
    launch(device, source, grid, buffers, scalars or {})


def launch(
    device: hal.Device,
    source: KernelSource,
    grid: tuple[int, ...],
    buffers: Mapping[str, np.ndarray],
    scalars: Mapping[str, Any],
) -> None:
    """Run a program over a grid, changing the buffers and nothing beside them."""
    queue = device.create_timeline(host_driven=False)
    held, arguments = {}, []
    for p in source.params:
        if p.kind is ParamKind.BUFFER:
            held[p.name] = device.alloc(2 * MARGIN + buffers[p.name].nbytes, AllocOptions())
            device.copy(held[p.name].region(), padded(buffers[p.name]), queue, [])
            arguments.append(held[p.name].region(MARGIN, buffers[p.name].nbytes))
        else:
            with quiet():
                value = np.asarray(scalars[p.name]).astype(NUMPY[p.dtype])
            arguments.append(value.astype(np.float64).item() if p.dtype.is_float else value.item())
    program = device.load(source)
    whole = (*grid, 1, 1)[:3]
    launchable = device.bind(program, arguments)
    device.launch(launchable, whole, queue, [])
    for name, buffer in held.items():
        raw = np.empty(buffer.nbytes, np.uint8)
        device.wait([device.copy(memoryview(raw), buffer.region(), queue, [])], 60, True)
        edges = raw[:MARGIN], raw[-MARGIN:]
        assert all((edge == 0xA5).all() for edge in edges), f"{name} is written outside"
        buffers[name].view(np.uint8).reshape(-1)[:] = raw[MARGIN:-MARGIN]
    for handle in (launchable, program, *held.values(), queue):
        device.free(handle)


def agree(
    device: hal.Device,
    kernel: Kernel,
    grid: tuple[int, ...],
    buffers: Mapping[str, np.ndarray],
    scalars: Mapping[str, Any] | None = None,
    *,
    room_nbytes: int = 0,
    ulp: float = 0,
) -> None:
    """Compare every buffer with what the interpreter leaves in it."""
    wanted = {name: a.copy() for name, a in buffers.items()}
    got = {name: a.copy() for name, a in buffers.items()}
    interpret(kernel, grid, wanted, scalars or {})
    run(device, kernel, grid, got, scalars, room_nbytes=room_nbytes)
    with quiet():
        for name in buffers:
            assert_close(got[name], wanted[name], ulp)


def padded(array: np.ndarray) -> bytes:
    edge = b"\xa5" * MARGIN
    return edge + array.tobytes() + edge
