"""A rank that MPI has started: `mpirun -n 4 hal run --mpi script.py`.

MPI's launcher has started the ranks, and ends them all when one fails. Rank 0 serves the store in
which they meet; groups move their data by MPI.
"""

from __future__ import annotations

import os
import runpy
import secrets
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hal.core.errors import DeadlineExceeded, InvalidCall
from stack.comm.engine.choice import ENGINE_VARIABLE, MPI
from stack.comm.mpi.library import mpi
from stack.comm.store import StoreServer
from stack.comm.world import World

_LOOK_S = 0.01


def run_as_rank(
    target: str, arguments: Sequence[str], module: bool, devices: Sequence[str], deadline_s: float
) -> int:
    """Run the script in this process, as the rank that MPI says. Gives 0; a failure ends the job.

    Ranks of a host take the devices in turn. Raises InvalidCall without MPI, or for no script.
    """
    if not module and not Path(target).is_file():
        raise InvalidCall(f"there is no script {target!r}; for a module use `hal run --mpi -m`")
    comm = mpi().COMM_WORLD
    with ExitStack() as stack:
        near = comm.Split_type(mpi().COMM_TYPE_SHARED)
        told = None
        if comm.rank == 0:
            token, alone = secrets.token_hex(16), near.size == comm.size
            host = "127.0.0.1" if alone else socket.gethostbyname(socket.gethostname())
            server = stack.enter_context(StoreServer(token, host))
            told = (f"{host}:{server.port}", token, secrets.token_hex(4))
        store, token, job = comm.bcast(told)
        world = World(
            comm.rank,
            comm.size,
            near.rank,
            near.size,
            socket.gethostname(),
            devices[near.rank % len(devices)],
            store,
            token,
            job,
            deadline_s,
            process=os.getpid(),
        )
        os.environ.update({**world.environment(), ENGINE_VARIABLE: MPI})
        try:
            sys.argv = [target, *arguments]
            if module:
                sys.path.insert(0, "")
                runpy.run_module(target, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(Path(target).parent))
                runpy.run_path(target, run_name="__main__")
        except BaseException as error:  # noqa: BLE001 - whatever the script raises ends the job
            _end_all(comm, error)
        # Others may still need the store, which ends with rank 0
        request, until_s = comm.Ibarrier(), time.monotonic() + deadline_s
        while not request.Test():
            if time.monotonic() > until_s:
                raise DeadlineExceeded(
                    f"the other ranks have not ended {deadline_s:g} s after this one"
                )
            time.sleep(_LOOK_S)
    return 0


def _end_all(comm: Any, error: BaseException) -> None:
    """End every rank, unless the script has ended well by sys.exit."""
    code = 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if code == 0:
            return
    if not isinstance(error, SystemExit) or isinstance(error.code, str):
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    comm.Abort(code)
