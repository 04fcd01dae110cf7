"""Collectives on the memory of the ranks' devices."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

import hal
from hal.core.dtypes import DType
from hal.core.errors import DeadlineExceeded
from hal.core.values import AllocOptions, Buffer, Collective, CollectiveKind
from stack.bench.comm.times import counts_of
from stack.comm.device.group import DeviceGroup
from stack.comm.group import Group

Kind = CollectiveKind
LONG_SOURCE = (Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.SCATTER)
LONG_RESULT = (Kind.ALL_GATHER, Kind.ALL_TO_ALL, Kind.GATHER)


class DeviceMemory:
    """Buffers of this rank's device, `shared` as `DeviceGroup.alloc` makes them. Use it in a `with`
    statement, in which nobody else calls operations of the group."""

    def __init__(self, group: Group, name: str, shared: bool) -> None:
        self._device = hal.open(name, wrappers=())
        self._group = DeviceGroup(group, self._device)
        names = ", ".join(dict.fromkeys(peer.device for peer in self._group.peers))
        self.memory = f"{'shared ' if shared else ''}{names}"
        self._shared = shared
        self._buffers: list[Buffer] = []

    @property
    def way(self) -> str:
        return self._group.way

    def call(self, kind: CollectiveKind, nbytes: int) -> Callable[[], None]:
        self._free()
        one, whole = counts_of(kind, nbytes, self._group.size)
        sizes = [whole if kind in long else one for long in (LONG_RESULT, LONG_SOURCE)]
        dst, src = (self._alloc(count * DType.F32.nbytes).region() for count in sizes)
        wanted = Collective(kind, DType.F32, one)

        def run() -> None:
            point = self._group.start(wanted, dst, src)
            if not self._device.wait((point,), self._group.group.deadline_s, True):
                raise DeadlineExceeded(f"{kind.value} of {nbytes} bytes did not end in time")

        return run

    def _alloc(self, nbytes: int) -> Buffer:
        if self._shared:
            made = self._group.alloc(nbytes)
        else:
            made = self._device.alloc(nbytes, AllocOptions(zero=True))
        self._buffers.append(made)
        return made

    def _free(self) -> None:
        for buffer in self._buffers:
            self._device.free(buffer)
        self._buffers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._group.close()
        self._free()
        self._device.close()
