"""Opened devices and kernels in OpenCL C."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import hal
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.values import (
    OPENCL_C,
    AllocOptions,
    Argument,
    Buffer,
    Grid,
    KernelSource,
    OpenOptions,
    Param,
    ParamKind,
)

WAIT_S = 60.0


def buffer(name: str, dtype: DType, writes: bool = False) -> Param:
    return Param(name, ParamKind.BUFFER, dtype, True, writes)


def scalar(name: str, dtype: DType) -> Param:
    return Param(name, ParamKind.SCALAR, dtype)


def source(text: str, *params: Param, entry: str = "f", **options: str) -> KernelSource:
    return KernelSource(OPENCL_C, text, entry, params, tuple(options.items()))


class Bench:
    """A device and short words for its use."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.timeline = device.create_timeline(False)

    def put(self, array: np.ndarray) -> Buffer:
        made = self.device.alloc(array.nbytes, AllocOptions())
        self.done(self.device.copy(made.region(), array.tobytes(), self.timeline, ()))
        return made

    def get(self, of: Buffer, dtype: type) -> np.ndarray:
        host = bytearray(of.nbytes)
        self.done(self.device.copy(host, of.region(), self.timeline, ()))
        return np.frombuffer(host, dtype)

    def run(self, program: KernelSource, *args: Argument, grid: Grid = (1, 1, 1)) -> None:
        launchable = self.device.bind(self.device.load(program), args)
        self.done(self.device.launch(launchable, grid, self.timeline, ()))

    def done(self, point: hal.Point) -> None:
        assert self.device.wait([point], WAIT_S, True)


@pytest.fixture
def open_bench() -> Iterator[Callable[..., Bench]]:
    """Open the first device with settings."""
    opened: list[Device] = []

    def opens(**settings: str) -> Bench:
        opened.append(hal.open("opencl:0", options=OpenOptions(settings=settings)))
        return Bench(opened[-1])

    yield opens
    for device in opened:
        device.close()


@pytest.fixture
def bench(open_bench: Callable[..., Bench]) -> Bench:
    return open_bench()
