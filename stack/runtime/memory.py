"""An engine's memory: arrays, and the arena in which plans keep their temporaries."""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

import numpy as np

from hal.core.description import SpaceKind
from hal.core.device import Device
from hal.core.errors import Failure, OutOfMemory
from hal.core.values import Region
from hal.tile.node import Type
from stack.memory.pool import Pool, PoolBlock
from stack.runtime.array import Array

OUTGROWN_NBYTES = 1 << 20
"""From which size on an arena that became too small is given back."""


class Arena:
    """Memory for the temporaries of plans. Plans share one, since they run one after the other."""

    __slots__ = ("__weakref__", "block", "nbytes", "region")

    def __init__(self, pool: Pool, nbytes: int) -> None:
        self.nbytes = nbytes
        self.block: PoolBlock = pool.allocate(nbytes, "temporaries of plans")
        self.region: Region = pool.region(self.block, nbytes)
        # At exit the device goes away as a whole; only a living program needs its memory back.
        weakref.finalize(self, pool.release, self.block).atexit = False


class HostArena:
    """Memory of the host for temporaries of plans that wait there."""

    __slots__ = ("__weakref__", "memory", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = np.empty(nbytes, np.uint8).data


class Tenant(Protocol):
    """Who holds an arena."""

    def let_go(self) -> None:
        """Hold it no more."""
        ...


class Life(weakref.ref[Array]):
    """A weak reference to an array, with the block to give back when the array is gone.

    `weakref.finalize` does the same and more, but costs more than all else that makes an array.
    """

    __slots__ = ("block",)

    block: PoolBlock


class ArrayMemory:
    """The pool with the arrays and the arena in it. `reclaim` is as in `Pool`."""

    def __init__(self, device: Device, reclaim: Callable[[], None]) -> None:
        space = device.info.space(SpaceKind.GLOBAL)
        assert space is not None, "every device has a global memory space"
        self._capacity = space.nbytes
        self.default_host_nbytes = 0 if space.host_visible else sys.maxsize
        """How much of the host's memory may be used where nobody says: none where the device's is
        the host's."""
        self.alignment = math.lcm(space.granularity, 64)
        self.pool = Pool(device, self.alignment, reclaim)
        self._lives: dict[int, Life] = {}
        self._arena: Callable[[], Arena | None] = lambda: None
        self._tenants: weakref.WeakSet[Tenant] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._host_arena: Callable[[], HostArena | None] = lambda: None

    def allocate(self, type: Type, label: str, nbytes: int | None = None) -> Array:
        """A new array with undefined values, of `type.nbytes` (given where they are known already);
        `label` names it in out-of-memory reports."""
        pool = self.pool
        if nbytes is None:
            nbytes = type.nbytes
        block = pool.allocate(nbytes, label)
        array = Array(pool, type, block, pool.region(block, nbytes))
        life = Life(array, self._ended)
        life.block = block
        self._lives[id(life)] = life
        return array

    def check_fits(self, type: Type, label: str) -> None:
        """Raise OutOfMemory for an array that the device cannot hold even if it is empty, before
        anything is computed for it."""
        nbytes = type.nbytes
        if nbytes > self._capacity:
            name = self.pool.device.name
            raise OutOfMemory(
                f"{name}: {label} takes {nbytes:,} bytes; the device has {self._capacity:,}",
                nbytes,
                self._capacity,
            )

    def arena(self, nbytes: int) -> Arena:
        """Memory for a plan's temporaries, shared with other plans where it is large enough."""
        found = self._arena()
        if found is None or found.nbytes < nbytes:
            found = Arena(self.pool, nbytes)
            self._arena = weakref.ref(found)
        return found

    def add_tenant(self, tenant: Tenant) -> None:
        """It holds the arena until it is told to let it go."""
        with self._lock:
            self._tenants.add(tenant)

    def outgrow(self, nbytes: int) -> bool:
        """Let everybody go an arena that has not so many bytes; whether that was so. Small ones
        stay: to record launches again takes longer than they are worth."""
        found = self._arena()
        if found is None or not OUTGROWN_NBYTES <= found.nbytes < nbytes:
            return False
        with self._lock:
            tenants = list(self._tenants)
        for tenant in tenants:
            tenant.let_go()
        return True

    def host_arena(self, nbytes: int) -> HostArena:
        """The same in the host's memory."""
        found = self._host_arena()
        if found is None or found.nbytes < nbytes:
            found = HostArena(nbytes)
            self._host_arena = weakref.ref(found)
        return found

    def poison(self, failure: Failure, was_reached: Callable[[int], bool]) -> None:
        """Keep what was computed before a failure; everything still owed has failed with it."""
        for array in [life() for life in list(self._lives.values())]:
            if array is None:
                continue
            if array.written and not was_reached(array.written):
                array.poison(failure)
            array.written = 0

    def _ended(self, life: weakref.ref[Array]) -> None:
        """Runs inside the garbage collection of an array, so it must not wait for anything."""
        assert isinstance(life, Life)
        del self._lives[id(life)]
        self.pool.release(life.block)
