"""Which engine moves the data of a group."""

from __future__ import annotations

import os
from importlib import import_module

from hal.core.errors import InvalidCall
from stack.comm.engine.base import Engine
from stack.comm.engine.meeting import MeetingPlace, meet
from stack.comm.engine.member import Member
from stack.comm.store import Hold

ENGINE_VARIABLE = "HAL_COMM_ENGINE"
NATIVE, MPI = "native", "mpi"


def joined(
    place: MeetingPlace, rank: int, size: int, deadline_s: float
) -> tuple[Engine, tuple[int, ...], Hold]:
    """This rank's membership, the lowest rank of each rank's host, and what this rank holds in the
    store.

    $HAL_COMM_ENGINE says by which engine: "native", which it is without it, or "mpi". It is equal
    on all ranks. Raises as the meeting of that engine does, InvalidCall for another word.
    """
    engine = os.environ.get(ENGINE_VARIABLE) or NATIVE
    if engine == NATIVE:
        met = meet(place, rank, size, deadline_s)
        try:
            member = Member(place.key, rank, met, deadline_s, place.silent_s, place.line)
        except BaseException:
            met.hold.release()
            raise
        return member, met.hosts, met.hold
    if engine == MPI:
        made: tuple[Engine, tuple[int, ...], Hold]
        made = import_module("stack.comm.mpi.meeting").join(place, rank, size, deadline_s)
        return made
    raise InvalidCall(f"{ENGINE_VARIABLE} is {engine!r}; it is {NATIVE!r} or {MPI!r}")
