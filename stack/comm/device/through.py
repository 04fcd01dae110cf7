"""Calls on device memory, run by a group's engine on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.values import Collective, CollectiveKind, Region
from hal.tile.numeric import NUMPY
from stack.comm.device.memory import Await, Staging, is_mapped, mapped
from stack.comm.device.pipeline import SLOTS, CopyPipeline, pieces_of
from stack.comm.group import Group
from stack.comm.messages import Messages, RankCall, sent_bytes

Array = NDArray[Any]
Kind = CollectiveKind
ELEMENTWISE = (Kind.ALL_REDUCE, Kind.REDUCE, Kind.BROADCAST)
"""Kinds in which element i of every destination follows from the elements i of the sources alone: a
call may be cut into calls of its pieces."""
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

    def run(self, call: RankCall, dst: Region, src: Region, elements: Region | None = None) -> int:
        """Until the call is done on this rank and its destination is written; gives the bytes that
        it sent, as `sent_bytes` counts them. Raises as the operations of `Group`, and what fails a
        copy."""
        rank, size = self._group.rank, self._group.size
        used = [r for r, n in zip((dst, src), self._elements(call), strict=True) if n]
        in_place = all(is_mapped(self._device, region.buffer) for region in used)
        if not in_place and Feature.MAP not in self._device.info.features:
            self._device.without(Feature.MAP, COPIED)
        if self._staged and isinstance(call, Collective) and call.kind in ELEMENTWISE:
            (self._mapped_pieces if in_place else self._staged_pieces)(call, dst, src)
            return sent_bytes(call, rank, size)
        counts = None if elements is None else self._counts(call, elements)
        (self._mapped if in_place else self._copied)(call, dst, src, counts)
        if counts is None:
            return sent_bytes(call, rank, size)
        return int(counts[rank].sum() - counts[rank, rank]) * call.dtype.nbytes

    def _elements(self, call: RankCall) -> tuple[int | None, int | None]:
        return call.elements(self._group.rank, self._group.size)

    def _counts(self, call: RankCall, elements: Region) -> Array:
        """How many elements each rank sends to each. Raises InvalidCall for those that it cannot
        have, on the rank that has brought them."""
        own = np.empty(self._group.size, np.int64)
        if is_mapped(self._device, elements.buffer):
            own[:] = mapped(self._device, elements, DType.I64)
        else:
            self._staging.wait(self._staging.fetch(own, elements))
        if own.min() < 0 or own.max() > call.count:
            where = f"{self._device.name} in group {self._group.key!r}, rank {self._group.rank}"
            raise InvalidCall(
                f"{where}: {call} has no parts of {own.tolist()} elements; 0 to {call.count} fit"
            )
        return self._group.all_gather(own)

    def _perform(self, call: RankCall, dst: Array, src: Array, counts: Array | None) -> None:
        if isinstance(call, Messages):
            # Send and receive what a rank has to.
            dest, source = call.to(self._group.rank), call.source(self._group.rank)
            if dest == self._group.rank:
                dst[...] = src
                return
            if dest is None:
                if source is not None:
                    self._group.receive(dst, source, call.tag)
                return
            begun = None if source is None else self._group.later.receive(dst, source, call.tag)
            self._group.send(src, dest, call.tag)
            if begun is not None:
                begun.finish()
        elif counts is None:
            self._group.run(call, dst, src)
        else:
            # An all-to-all in which counts[i, j] elements of the part go from rank i to rank j
            group = self._group
            to, of = dst.reshape(group.size, -1), src.reshape(group.size, -1)
            sent = np.concatenate(
                [part[:n] for part, n in zip(of, counts[group.rank], strict=True)]
            )
            came = group.all_to_all_v(sent, counts.tolist())
            ends = np.cumsum(counts[:, group.rank])
            for part, n, end in zip(to, counts[:, group.rank], ends, strict=True):
                part[:n] = came[end - n : end]

    def close(self) -> None:
        """No call is under way any more."""
        self._staging.close()

    def _mapped(self, call: RankCall, dst: Region, src: Region, counts: Array | None) -> None:
        self._perform(call, *self._arrays(call, dst, src), counts)

    def _arrays(self, call: RankCall, dst: Region, src: Region) -> tuple[Array, Array]:
        """Destination and source in place; one that the rank does not use is empty."""
        to, of = self._elements(call)
        none = np.empty(0, NUMPY[call.dtype])
        to_array = none if to is None else mapped(self._device, dst, call.dtype)
        if dst == src and to is not None:
            return to_array, to_array
        of_array = none if of is None else mapped(self._device, src, call.dtype)
        return to_array, of_array

    def _mapped_pieces(self, call: Collective, dst: Region, src: Region) -> None:
        to, of = self._arrays(call, dst, src)
        for begin, piece in pieces_of(call):
            end = begin + piece.count
            to_piece = to[begin:end]
            self._group.run(piece, to_piece, to_piece if to is of else of[begin:end])

    def _copied(self, call: RankCall, dst: Region, src: Region, counts: Array | None) -> None:
        """The whole source to the host, the whole destination back."""
        staging, dtype = self._staging, call.dtype
        to, of = self._elements(call)
        source = staging.room("source", of or 0, dtype)
        if of:
            staging.wait(staging.fetch(source, src))
        same = dst == src and to is not None and of is not None
        result = source if same else staging.room("destination", to or 0, dtype)
        if counts is not None and to:
            staging.wait(staging.fetch(result, dst))
        self._perform(call, result, source, counts)
        if to:
            staging.wait(staging.put(dst, result))

    def _staged_pieces(self, call: Collective, dst: Region, src: Region) -> None:
        to, of = self._elements(call)
        sends = call.kind is Kind.BROADCAST and of is not None
        gives = to is not None and not (sends and dst == src)
        pipeline = CopyPipeline(self._staging, call, dst if gives else None, src if of else None)
        for k in range(SLOTS - 1):
            pipeline.fetch(k)
        for k, (_, piece) in enumerate(pipeline.pieces):
            slot = pipeline.slot(k)
            self._group.run(piece, slot, slot)
            pipeline.put(k)
            pipeline.fetch(k + SLOTS - 1)
        pipeline.finish()
