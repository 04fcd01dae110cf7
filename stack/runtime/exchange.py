"""Exchanges with other ranks: which of them what comes later waits for, and how they begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hal.core.errors import InvalidCall
from hal.core.values import Point, Region, Waits
from stack.comm.engine.names import learn
from stack.comm.messages import RankCall
from stack.compiler.program import ExchangeCall
from stack.runtime.hazards import Access, dependencies
from stack.runtime.placement import BufferRange
from stack.runtime.segments import Regions, region_of
from stack.runtime.stream import Stream


class RankGroup(Protocol):
    """What a plan needs of a group of ranks; see `stack.comm.device`."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def start(
        self, call: RankCall, dst: Region, src: Region, waits: Waits, elements: Region | None
    ) -> Point: ...


class Exchange:
    """A call of the ranks of a group, behind everything submitted before.

    It runs beside what comes next: whoever needs its result waits for the point that it gives.
    """

    def __init__(
        self, groups: Mapping[str, RankGroup], call: ExchangeCall, *sides: BufferRange | Region
    ) -> None:
        """`sides` are where destination, source and numbers of elements are."""
        self._groups = groups
        self._group, self._call = call.group, call.call
        self._sides = sides
        self._is_partial = call.elements is not None
        learn(self._call.name)  # another rank may begin it first

    def start(self, stream: Stream, regions: Regions, waits: Waits) -> Point:
        """Raises InvalidCall for a group that the engine is not in."""
        group = self._groups.get(self._group)
        if group is None:
            raise InvalidCall(
                f"{stream.device.name}: a plan makes a call with the ranks of {self._group!r}, a "
                "group that this engine has not joined or has left"
            )
        dst, src, *elements = (
            region_of(side, regions) if isinstance(side, BufferRange) else side
            for side in self._sides
        )
        gives, takes = self._call.elements(group.rank, group.size)
        if self._is_partial or gives is None:
            zeros = stream.device.fill(dst, b"\0", stream.timeline, waits)
            stream.submitted(zeros)
            if gives is None and takes is None:
                return zeros
        return group.start(
            self._call, dst, src, (*stream.newest, *waits), elements[0] if elements else None
        )


def joined(accesses: Sequence[Access]) -> Access:
    """What several calls read and write."""
    return Access(
        tuple(span for a in accesses for span in a.reads),
        tuple(span for a in accesses for span in a.writes),
    )


def needs(accesses: Sequence[Access], exchanges: Sequence[bool]) -> list[tuple[int, ...]]:
    """For each part of a plan the exchanges, by number, that it must wait for, given what each
    part accesses and which of them are exchanges. Pure.

    All other parts run in order, one after the other, so each exchange is waited for once; an
    exchange comes behind all parts before it.
    """
    number = {i: k for k, i in enumerate(i for i, is_one in enumerate(exchanges) if is_one)}
    waited: set[int] = set()
    found = []
    for part, before in enumerate(dependencies(accesses)):
        own = [number[i] for i in before if i in number and number[i] not in waited]
        if not exchanges[part]:
            waited.update(own)
        found.append(tuple(own))
    return found
