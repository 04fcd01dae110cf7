"""Arrays on a device."""

from __future__ import annotations

from hal.core.errors import Failure, HalError, InvalidCall, StaleHandle
from hal.core.values import Region, Waits
from hal.tile.node import Type
from stack.memory.pool import Pool, PoolBlock


class Array:
    """A contiguous row-major array in an engine's memory; its bytes go back to the pool with it.

    Make one with `Engine.put`, `Engine.empty` or `Plan.run`. Its value may still be being computed.
    `failure` says why it has no value: an operation that owed it failed. `Engine.write` gives it
    one again. `pool` is the memory that it is in, and tells engines apart.
    """

    __slots__ = ("__weakref__", "block", "failure", "pool", "readers", "region", "type", "written")

    region: Region
    """Where the bytes are. Missing while `failure` is set, so that no plan can read what is not
    there."""

    def __init__(self, pool: Pool, type: Type, block: PoolBlock, region: Region) -> None:
        self.pool = pool
        self.type = type
        self.block = block
        self.region = region
        self.written = 0  # the point of the engine's timeline at which the newest value is there
        self.readers: Waits = ()  # of other timelines; the next write in place waits for them
        self.failure: Failure | None = None

    @property
    def nbytes(self) -> int:
        return self.type.nbytes

    def poison(self, failure: Failure) -> None:
        """Take the value away: the operation that owed it failed."""
        self.failure = failure
        if hasattr(self, "region"):
            del self.region

    def revive(self) -> None:
        """Make the array writable again after `poison`; its bytes are undefined until written."""
        self.failure = None
        self.region = self.pool.region(self.block, self.nbytes)

    def __repr__(self) -> str:
        state = f" failed: {self.failure}" if self.failure else ""
        return f"<Array {self.type} on {self.pool.device.name}{state}>"


def refusal(array: Array, engine: str) -> HalError:
    """Why an engine, in words, does not take an array that is not its own."""
    if array.pool.device.ended:
        return StaleHandle(
            f"{array!r} is out of reach: {array.pool.device.ended}. A forked process can use numpy "
            "arrays that were made before the fork, and random numbers after `manual_seed`"
        )
    return InvalidCall(f"{array!r} does not belong to {engine}")
