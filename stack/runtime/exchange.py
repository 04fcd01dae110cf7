"""Exchanges with other ranks: which of them what comes later waits for, and how they begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hal.core.errors import InvalidCall
from hal.core.values import Collective, CollectiveKind, Point, Region, Waits
from stack.comm.engine.names import learn
from stack.compiler.program import ExchangeCall
from stack.runtime.hazards import Access, dependencies
from stack.runtime.placement import Place
from stack.runtime.segments import Regions, region_of
from stack.runtime.stream import Stream


class RankGroup(Protocol):
    """What a plan needs of a group of ranks; see `stack.comm.device`."""

    def start(
        self, collective: Collective, dst: Region, src: Region, waits: Waits, *, name: str
    ) -> Point: ...


class Exchange:
    """Elements that the ranks of a group combine in place, behind everything submitted before.

    It runs beside what comes next: whoever needs its result waits for the point that it gives.
    """

    def __init__(
        self, groups: Mapping[str, RankGroup], call: ExchangeCall, buffer: Place | Region
    ) -> None:
        self._groups = groups
        self._group, self._name = call.group, call.name
        learn(call.name)  # another rank may begin it first
        self._buffer = buffer
        count = call.buffer.nbytes // call.dtype.nbytes
        self._call = Collective(CollectiveKind.ALL_REDUCE, call.dtype, count, call.reduce)

    def start(self, stream: Stream, regions: Regions, waits: Waits) -> Point:
        """Raises InvalidCall for a group that the engine is not in."""
        group = self._groups.get(self._group)
        if group is None:
            raise InvalidCall(
                f"{stream.device.name}: a plan combines values with the ranks of "
                f"{self._group!r}, a group that this engine has not joined or has left"
            )
        at = region_of(self._buffer, regions) if isinstance(self._buffer, Place) else self._buffer
        return group.start(self._call, at, at, (*stream.newest, *waits), name=self._name)


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
