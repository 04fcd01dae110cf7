"""A call in pieces through host memory, so that copying and reducing overlap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from hal.core.values import Collective, Point, Region
from stack.comm.device.memory import Staging

Array = NDArray[Any]
PIECE_NBYTES = 1 << 20
"""What a call moves at a time where a rank's memory is staged; equal on all ranks."""
SLOTS = 3
"""Pieces that are on their way at once: one comes, one is worked on, one goes."""


def pieces_of(call: Collective) -> list[tuple[int, Collective]]:
    """An elementwise call as calls of pieces, each with its first element; at least one."""
    unit = PIECE_NBYTES // call.dtype.nbytes
    return [
        (begin, replace(call, count=min(unit, call.count - begin)))
        for begin in range(0, max(call.count, 1), unit)
    ]


class CopyPipeline:
    """The slots through which the pieces of an elementwise call go: `fetch` brings piece k of the
    source, `slot` waits for it, `put` takes the slot's elements to the destination.

    A side that is None is not copied. One timeline copies, in order, so what comes into a slot
    comes after what has gone out of it.
    """

    def __init__(
        self, staging: Staging, call: Collective, dst: Region | None, src: Region | None
    ) -> None:
        self.pieces = pieces_of(call)
        self._staging = staging
        self._dst, self._src = dst, src
        self._nbytes = call.dtype.nbytes
        self._unit = self.pieces[0][1].count
        self._room = staging.room("pieces", SLOTS * self._unit, call.dtype)
        self._busy: list[Point | None] = [None] * SLOTS

    def fetch(self, k: int) -> None:
        """Begin to copy piece k of the source into its slot, if there is one."""
        if self._src is not None and k < len(self.pieces):
            part = self._part(self._src, k)
            self._busy[k % SLOTS] = self._staging.fetch(self._slot(k), part)

    def slot(self, k: int) -> Array:
        """The elements of piece k, which nothing copies any more."""
        self._settle(k % SLOTS)
        return self._slot(k)

    def put(self, k: int) -> None:
        """Begin to copy the slot of piece k to the destination."""
        if self._dst is not None:
            part = self._part(self._dst, k)
            self._busy[k % SLOTS] = self._staging.put(part, self._slot(k))

    def finish(self) -> None:
        """Until all that was begun is done; raises what has failed it."""
        for index in range(SLOTS):
            self._settle(index)

    def _settle(self, index: int) -> None:
        point, self._busy[index] = self._busy[index], None
        if point is not None:
            self._staging.wait(point)

    def _slot(self, k: int) -> Array:
        begin = (k % SLOTS) * self._unit
        return self._room[begin : begin + self.pieces[k][1].count]

    def _part(self, region: Region, k: int) -> Region:
        begin, piece = self.pieces[k]
        at = region.offset + begin * self._nbytes
        return Region(region.buffer, at, piece.count * self._nbytes)
