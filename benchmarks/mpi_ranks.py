"""Two ranks of an MPI on one host that make collectives or pass messages on when asked: `mpirun -n
2 python benchmarks/mpi_ranks.py PORT` connects each to the driver and reads a line "KIND NBYTES
REPEATS" for each measurement; rank 0 answers with the seconds of one call of that kind, which moves
arrays as `benchmarks.comm_ranks` says. It needs mpi4py and numpy alone.

Ranks wait in a socket, not in MPI, which would take their processors from who is measured next.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]

WAIT_S = 600.0


def touched(n: int) -> Any:
    """Zeros with pages of their own: those of np.zeros are one page until they are written."""
    array = np.empty(n, np.float32)
    array[:] = 0
    return array


def call_of(kind: str, nbytes: int) -> Callable[[], None]:
    """What is measured."""
    world = MPI.COMM_WORLD
    other = 1 - world.rank
    whole, result, part = (touched(n) for n in (nbytes // 4, nbytes // 4, nbytes // 8))
    roots = cycle((0, 1))

    def there_and_back() -> None:
        if world.rank == 0:
            world.Send(whole, other)
        world.Recv(whole, other)
        if world.rank == 1:
            world.Send(whole, other)

    calls: dict[str, Callable[[], None]] = {
        "all_reduce": lambda: world.Allreduce(MPI.IN_PLACE, whole),
        "all_gather": lambda: world.Allgather(part, whole),
        "reduce_scatter": lambda: world.Reduce_scatter_block(whole, part),
        "all_to_all": lambda: world.Alltoall(whole, result),
        "broadcast": lambda: world.Bcast(whole, next(roots)),
        "message": there_and_back,
    }
    return calls[kind]


def seconds(call: Callable[[], None], repeats: int) -> float:
    """The mean seconds of a call, begun together."""
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def main() -> None:
    calls: dict[tuple[str, str], Callable[[], None]] = {}
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), WAIT_S) as link:
        link.sendall(f"{MPI.COMM_WORLD.rank} {MPI.Get_library_version().split(',')[0]}\n".encode())
        for line in link.makefile():
            kind, nbytes, repeats = line.split()
            if (kind, nbytes) not in calls:
                calls.clear()  # large arrays are not kept for sizes that do not come again
                calls[kind, nbytes] = call_of(kind, int(nbytes))
            link.sendall(f"{seconds(calls[kind, nbytes], int(repeats))}\n".encode())


if __name__ == "__main__":
    main()
