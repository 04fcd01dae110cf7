"""What a call finds of a device's memory on the host: the memory itself, or a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.description import Feature, SpaceKind
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import OperationFailed
from hal.core.values import Buffer, Point, Region, Timeline
from hal.tile.numeric import NUMPY
from stack.comm.group import Group

Array = NDArray[Any]
CLOSE_S = 5.0
"""How long a copy that was begun may take after its call has failed."""
_USED: list[object] = []

Await = Callable[[Sequence[Point]], None]
"""Waits for points; raises what has failed them, or what has ended the group."""


def is_mapped(device: Device, buffer: Buffer) -> bool:
    """Whether the host sees the bytes of a buffer in place, ordered by `wait` alone."""
    space = next(s for s in device.info.spaces if s.name == buffer.space)
    return Feature.MAP in device.info.features and space.host_visible and space.coherent


def is_open(device: Device) -> bool:
    """Whether that holds for what the device allocates by default."""
    space = device.info.space(SpaceKind.GLOBAL)
    visible = space is not None and space.host_visible and space.coherent
    return visible and Feature.MAP in device.info.features


def mapped(device: Device, region: Region, dtype: DType) -> Array:
    """The elements of a region, in place."""
    if not region.nbytes:
        return np.empty(0, NUMPY[dtype])
    return np.frombuffer(device.map(region, True), NUMPY[dtype])


class Staging:
    """Host memory of a group through which calls of a device go that the host cannot see.

    The memory is mapped by all ranks of this host, so what is in it goes no further way than once
    to the host and once back. One call uses it at a time.
    """

    def __init__(self, group: Group, device: Device, wait: Await) -> None:
        self._group = group
        self._device = device
        self._await = wait
        self._timeline: Timeline | None = None
        self._newest: Point | None = None
        self._memory: dict[str, Array] = {}

    def room(self, name: str, count: int, dtype: DType) -> Array:
        """`count` elements of the memory of that name, which keeps its bytes until the next call of
        this with the name."""
        nbytes = dtype.nbytes_of(count)
        found = self._memory.get(name)
        if found is None or found.size < nbytes:
            self._memory.pop(name, None)
            found = self._memory[name] = self._group.empty(nbytes, np.uint8)
        return found[:nbytes].view(NUMPY[dtype])

    def fetch(self, array: Array, region: Region) -> Point:
        """Begin to copy a region to the host."""
        return self._noted(self._device.copy(_bytes(array), region, self._order(), ()))

    def put(self, region: Region, array: Array) -> Point:
        """Begin to copy to a region. The array stays as it is until the point."""
        return self._noted(self._device.copy(region, _bytes(array), self._order(), ()))

    def wait(self, *points: Point) -> None:
        """Until these copies are done; raises what has failed them."""
        self._await(points)

    def close(self) -> None:
        """Give everything back, but for memory that a copy uses which does not end."""
        if not self._idle():
            _USED.append(self._memory)
        if self._timeline is not None:
            self._device.free(self._timeline)
        self._timeline, self._newest, self._memory = None, None, {}

    def _idle(self) -> bool:
        try:
            return self._newest is None or self._device.wait([self._newest], CLOSE_S, True)
        except OperationFailed:
            return True

    def _noted(self, point: Point) -> Point:
        self._newest = point
        return point

    def _order(self) -> Timeline:
        if self._timeline is None:
            self._timeline = self._device.create_timeline(False)
        return self._timeline


def _bytes(array: Array) -> memoryview:
    return array.view(np.uint8).data
