"""How ranks that MPI has started form a group: by a communicator of those who come."""

from __future__ import annotations

import json
import zlib

from hal.core.errors import DeadlineExceeded, InvalidCall
from stack.comm.engine.meeting import Place
from stack.comm.mpi.library import mpi
from stack.comm.mpi.member import MpiMember

_TAGS = 30_000


def join(
    place: Place, rank: int, size: int, deadline_s: float
) -> tuple[MpiMember, tuple[int, ...]]:
    """The membership, and the lowest rank of each rank's host.

    The ranks tell each other through the store which processes of MPI they are. Raises
    DeadlineExceeded that names the missing, InvalidCall without MPI, or when a process comes twice.
    """
    world, store = mpi().COMM_WORLD, place.table
    own = json.dumps([world.rank, world.size, mpi().Get_processor_name()])
    store.set(f"mpi/{rank}", own.encode(), deadline_s)
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
    return MpiMember(place.key, comm, deadline_s), hosts
