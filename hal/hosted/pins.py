"""Pages of the host's memory that a device reaches where they lie: each is registered with the
driver once, however many buffers have a part of it."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from itertools import pairwise
from threading import RLock

Run = tuple[int, int]
"""Pages from an address to another."""


class Pins:
    """`register(start, end)` gives pages to the driver, `unregister(start)` takes them back. The
    first and the last page of a memory are pages of their own, as they may be another's, too."""

    def __init__(
        self, register: Callable[[int, int], object], unregister: Callable[[int], object]
    ) -> None:
        self._register, self._unregister = register, unregister
        self._counts: dict[Run, int] = {}
        self._turn = RLock()

    def add(self, address: int, nbytes: int) -> list[Run]:
        """Register what is not yet, for `drop`. Whatever `register` raises undoes it."""
        page, runs = mmap.PAGESIZE, list[Run]()
        first, end = address // page * page, -(-(address + nbytes) // page) * page
        with self._turn:
            try:
                for wanted in pairwise(sorted({first, first + page, end - page, end})):
                    over = (r for r in self._counts if r[0] <= wanted[0] and wanted[1] <= r[1])
                    run = next(over, wanted)
                    if run not in self._counts:
                        self._register(*run)
                    self._counts[run] = self._counts.get(run, 0) + 1
                    runs.append(run)
            except BaseException:
                self.drop(runs)
                raise
        return runs

    def drop(self, runs: list[Run]) -> None:
        """Nobody uses what `add` gave."""
        with self._turn:
            for run in runs:
                self._counts[run] -= 1
                if not self._counts[run]:
                    del self._counts[run]
                    self._unregister(run[0])
