"""Where the ranks of `hal run` meet when torch is told nothing of it: in the job's own store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers

from hal.core.errors import DeadlineExceeded
from stack.comm.store import Store
from stack.comm.world import World

Rendezvous = Callable[..., Iterator[tuple[dist.Store, int, int]]]
"""What torch calls for a URL: gives a store, this rank and how many there are."""

_ADDRESS = "MASTER_ADDR"
_met: list[JobStore] = []
"""Where this process met the others, as often on all ranks of a program. torch holds the part of a
store that is not Python, and needs the other one."""


def meet_in_job(world: World) -> None:
    """Let torch's ranks meet in the job's store where no address is set, and tell this rank's place
    by the variables that scripts read; if one of them is set, another launcher has spoken."""
    place = {
        "RANK": world.rank,
        "WORLD_SIZE": world.size,
        "LOCAL_RANK": world.local_rank,
        "LOCAL_WORLD_SIZE": world.local_size,
    }
    if not {_ADDRESS, *place} & os.environ.keys():
        os.environ.update({name: str(value) for name, value in place.items()})
    # It is what init_process_group takes by default, and torch has no name for replacing it.
    _rendezvous_handlers["env"] = _of(world, _rendezvous_handlers["env"])


def _of(world: World, otherwise: Rendezvous) -> Rendezvous:
    def meet(url: str, **how: Any) -> Iterator[tuple[dist.Store, int, int]]:
        if _ADDRESS in os.environ:
            yield from otherwise(url, **how)
            return
        given = parse_qs(urlsplit(url).query)
        rank, size = given.get("rank", [world.rank]), given.get("world_size", [world.size])
        _met.append(JobStore(world, f"torch/{len(_met)}/"))
        yield _met[-1], int(rank[0]), int(size[0])

    return meet


class JobStore(dist.Store):
    """A part of a job's store under the names of torch's. It outlives every rank."""

    def __init__(self, world: World, prefix: str) -> None:
        super().__init__()
        self._store = Store.of(world).under(prefix)
        self._deadline_s = world.deadline_s

    def set_timeout(self, timeout: timedelta) -> None:
        """How long a call waits for a key."""
        self._deadline_s = timeout.total_seconds()

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(key, _bytes(value))

    def get(self, key: str) -> bytes:
        """The key's value, once it has one. Raises DistStoreError when that takes too long."""
        with _torch_errors():
            return self._store.get(key, self._deadline_s)

    def add(self, key: str, amount: int) -> int:
        return self._store.add(key, amount)

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._store.find(key) is not None for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have a value. Raises DistStoreError when that takes too long."""
        with _torch_errors():
            deadline_s = self._deadline_s if timeout is None else timeout.total_seconds()
            self._store.wait(keys, deadline_s)

    def compare_set(self, key: str, expected: str | bytes, value: str | bytes) -> bytes:
        """As torch's: an empty expected value is none."""
        found = self._store.compare_set(key, _bytes(expected) or None, _bytes(value))
        return _bytes(expected) if found is None else found

    def delete_key(self, key: str) -> bool:
        return self._store.delete(key)


@contextmanager
def _torch_errors() -> Iterator[None]:
    try:
        yield
    except DeadlineExceeded as error:
        raise dist.DistStoreError(str(error)) from error


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)
