"""What the ranks tell their launcher of how far they are."""

from __future__ import annotations

from contextlib import closing

from stack.comm.store import Store
from stack.comm.world import World

STEP = "hal/step"
"""The key of the job's store with the last step that is on disk, in decimals."""


def kept(step: int) -> None:
    """Tell the launcher that all up to this step is on disk, on one rank. A failure that comes back
    after a step that was kept meanwhile is another one, and the job is started again.

    Does nothing in a process that `hal run` has not started. Raises as `Store.set` does.
    """
    if world := World.present():
        with closing(Store.of(world)) as store:
            store.set(STEP, str(step).encode())
