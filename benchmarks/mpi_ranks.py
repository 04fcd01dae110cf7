"""Two ranks of an MPI on one host that add up arrays or pass them on when asked: `mpirun -n 2
python benchmarks/mpi_ranks.py PORT` connects each to the driver and reads a line "KIND NBYTES
REPEATS" for each measurement; rank 0 answers with the seconds of one all-reduce (KIND
"all-reduce"), or of a message there and back ("message"). It needs mpi4py and numpy alone.

Ranks wait in a socket, not in MPI, which would take their processors from who is measured next.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]

WAIT_S = 600.0


def call_of(kind: str, array: Any) -> Callable[[], None]:
    """What is measured."""
    world = MPI.COMM_WORLD
    other = 1 - world.rank

    def there_and_back() -> None:
        if world.rank == 0:
            world.Send(array, other)
        world.Recv(array, other)
        if world.rank == 1:
            world.Send(array, other)

    def add_up() -> None:
        world.Allreduce(MPI.IN_PLACE, array)

    return there_and_back if kind == "message" else add_up


def seconds(call: Callable[[], None], repeats: int) -> float:
    """The mean seconds of a call, begun together."""
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def main() -> None:
    arrays: dict[int, Any] = {}
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), WAIT_S) as link:
        link.sendall(f"{MPI.COMM_WORLD.rank} {MPI.Get_library_version().split(',')[0]}\n".encode())
        for line in link.makefile():
            kind, nbytes, repeats = line.split()
            array = arrays.setdefault(int(nbytes), np.zeros(int(nbytes) // 4, np.float32))
            link.sendall(f"{seconds(call_of(kind, array), int(repeats))}\n".encode())


if __name__ == "__main__":
    main()
