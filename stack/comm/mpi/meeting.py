"""How ranks that MPI has started form a group: by a communicator of those who come."""

from __future__ import annotations

import json
import zlib

from hal.core.errors import DeadlineExceeded, InvalidCall
from stack.comm.engine.links import Deadline
from stack.comm.engine.meeting import MeetingPlace, say_met
from stack.comm.mpi.library import mpi
from stack.comm.mpi.member import MpiMember
from stack.comm.store import Hold, Store

_TAGS = 30_000


def join(
    place: MeetingPlace, rank: int, size: int, deadline_s: float
) -> tuple[MpiMember, tuple[int, ...], Hold]:
    """The membership, the lowest rank of each rank's host, and what this rank holds in the store.

    The ranks tell each other through the store which processes of MPI they are. Raises
    DeadlineExceeded that names the missing, InvalidCall without MPI, or when a process comes twice.
    """
    store, hold = place.table, place.table.hold()
    try:
        member, hosts = _member(place, store, hold, rank, size, deadline_s)
        say_met(store, size, Deadline(deadline_s))
    except BaseException:
        hold.release()
        raise
    return member, hosts, hold


def _member(
    place: MeetingPlace, store: Store, hold: Hold, rank: int, size: int, deadline_s: float
) -> tuple[MpiMember, tuple[int, ...]]:
    world = mpi().COMM_WORLD
    own = json.dumps([world.rank, world.size, mpi().Get_processor_name()])
    hold.set(f"mpi/{rank}", own.encode(), deadline_s)
    keys = [f"mpi/{r}" for r in range(size)]
    try:
        store.wait(keys, deadline_s)
    except DeadlineExceeded:
        missing = [r for r, key in enumerate(keys) if store.find(key, 5.0) is None]
        raise DeadlineExceeded(f"ranks {missing} did not come within {deadline_s:g} s") from None
    cards = [json.loads(store.get(key, deadline_s)) for key in keys]
    numbers, names = [card[0] for card in cards], [card[2] for card in cards]
    if len(set(numbers)) < size or len({card[1] for card in cards}) > 1:
        raise InvalidCall(
            f"ranks 0 to {size - 1} are the processes {numbers} of MPI: start them as one job, by "
            f"`mpirun -n {size} hal run --mpi SCRIPT`"
        )
    members = world.Get_group().Incl(numbers)
    comm = world.Create_group(members, zlib.crc32(place.key.encode()) % _TAGS)
    hosts = tuple(names.index(name) for name in names)
    return MpiMember(place.key, comm, deadline_s, place.line), hosts
