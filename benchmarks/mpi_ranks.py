"""Two ranks of an MPI on one host that add up arrays when asked: `mpirun -n 2 python
benchmarks/mpi_ranks.py PORT` connects each to the driver and reads a line "NBYTES REPEATS" for each
measurement; rank 0 answers with the seconds of one all-reduce. It needs mpi4py and numpy alone.

Ranks wait in a socket, not in MPI, which would take their processors from who is measured next.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]

WAIT_S = 600.0


def seconds(array: Any, repeats: int) -> float:
    """The mean seconds of an all-reduce in place, begun together."""
    world = MPI.COMM_WORLD
    world.Barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        world.Allreduce(MPI.IN_PLACE, array)
    return (time.perf_counter() - start) / repeats


def main() -> None:
    arrays: dict[int, Any] = {}
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), WAIT_S) as link:
        link.sendall(f"{MPI.COMM_WORLD.rank} {MPI.Get_library_version().split(',')[0]}\n".encode())
        for line in link.makefile():
            nbytes, repeats = map(int, line.split())
            array = arrays.setdefault(nbytes, np.zeros(nbytes // 4, np.float32))
            link.sendall(f"{seconds(array, repeats)}\n".encode())


if __name__ == "__main__":
    main()
