"""Calls on device memory, run by a group's engine on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.values import CollectiveKind, Region
from hal.tile.numeric import NUMPY
from stack.comm.device.call import ELEMENTWISE, Call, perform
from stack.comm.device.memory import Await, Staging, is_mapped, mapped
from stack.comm.device.pipeline import SLOTS, Pipeline, pieces_of
from stack.comm.group import Group

Array = NDArray[Any]
COPIED = "collectives through copies on the host"


class Through:
    """Runs calls of a rank, one after the other. Memory that the host sees is worked on in place;
    other memory is copied to the host and back.

    `staged` says, equally on all ranks, that some rank copies: then calls whose elements have
    nothing to do with each other run in pieces, so that copying and reducing overlap.
    """

    def __init__(self, group: Group, device: Device, staged: bool, wait: Await) -> None:
        self._group = group
        self._device = device
        self._staged = staged
        self._staging = Staging(group, device, wait)

    def run(self, call: Call, dst: Region, src: Region) -> None:
        """Until the call is done on this rank and its destination is written. Raises as the
        operations of `Group`, and what fails a copy."""
        needs = call.needs(self._group.rank, self._group.size)
        used = [r for r, n in zip((dst, src), needs, strict=True) if n]
        in_place = all(is_mapped(self._device, region.buffer) for region in used)
        if not in_place and Feature.MAP not in self._device.info.features:
            self._device.without(Feature.MAP, COPIED)
        if self._staged and call.collective.kind in ELEMENTWISE:
            run = self._mapped_pieces if in_place else self._staged_pieces
        else:
            run = self._mapped if in_place else self._copied
        run(call, dst, src)

    def close(self) -> None:
        """No call is under way any more."""
        self._staging.close()

    def _mapped(self, call: Call, dst: Region, src: Region) -> None:
        perform(self._group, call, *self._arrays(call, dst, src))

    def _arrays(self, call: Call, dst: Region, src: Region) -> tuple[Array, Array]:
        """Destination and source in place; one that the rank does not use is empty."""
        to, of = call.needs(self._group.rank, self._group.size)
        none = np.empty(0, NUMPY[call.collective.dtype])
        to_array = none if to is None else mapped(self._device, dst, call.collective.dtype)
        if dst == src and to is not None:
            return to_array, to_array
        of_array = none if of is None else mapped(self._device, src, call.collective.dtype)
        return to_array, of_array

    def _mapped_pieces(self, call: Call, dst: Region, src: Region) -> None:
        to, of = self._arrays(call, dst, src)
        for begin, piece in pieces_of(call):
            end = begin + piece.collective.count
            to_piece = to[begin:end]
            perform(self._group, piece, to_piece, to_piece if to is of else of[begin:end])

    def _copied(self, call: Call, dst: Region, src: Region) -> None:
        """The whole source to the host, the whole destination back."""
        staging, dtype = self._staging, call.collective.dtype
        to, of = call.needs(self._group.rank, self._group.size)
        source = staging.room("source", of or 0, dtype)
        if of:
            staging.wait(staging.fetch(source, src))
        same = dst == src and to is not None and of is not None
        result = source if same else staging.room("destination", to or 0, dtype)
        perform(self._group, call, result, source)
        if to:
            staging.wait(staging.put(dst, result))

    def _staged_pieces(self, call: Call, dst: Region, src: Region) -> None:
        to, of = call.needs(self._group.rank, self._group.size)
        sends = call.collective.kind is CollectiveKind.BROADCAST and of is not None
        gives = to is not None and not (sends and dst == src)
        pipeline = Pipeline(self._staging, call, dst if gives else None, src if of else None)
        for k in range(SLOTS - 1):
            pipeline.fetch(k)
        for k, (_, piece) in enumerate(pipeline.pieces):
            slot = pipeline.slot(k)
            perform(self._group, piece, slot, slot)
            pipeline.put(k)
            pipeline.fetch(k + SLOTS - 1)
        pipeline.finish()
