"""A barrier that tells who did not come to it. It goes through torch's store, not through the
group: it works where a group hangs, and ends no group."""

from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist

_PAUSE_S = 0.002
_PASSED = "passed"


class MonitoredBarrier:
    """The monitored barriers of a process group, one after the other."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._number = 0

    def pass_through(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Block until all ranks have come. Raises RuntimeError on rank 0 that names the first one,
        with `wait_all_ranks` all, that did not come within `timeout`; and on those that had come.
        """
        number, self._number = self._number, self._number + 1
        if self._rank:
            self._store.set(f"{number}/{self._rank}", "here")
            # What rank 0 says.
            key = f"{number}/over"
            word = f"it said nothing within {_ms(timeout)} ms"
            if self._came(key, time.monotonic() + timeout.total_seconds()):
                word = self._store.get(key).decode()
            if word != _PASSED:
                raise RuntimeError(
                    f"Rank {self._rank} successfully reached monitoredBarrier, but received errors "
                    f"while waiting for send/recv from rank 0: {word}"
                )
            return
        said = self._watch(number, timeout, wait_all_ranks)
        self._store.set(f"{number}/over", said or _PASSED)
        if said:
            raise RuntimeError(said)
        if number:  # all have passed the last one
            for name in ("over", *range(1, self._size)):
                self._store.delete_key(f"{number - 1}/{name}")

    def _watch(self, number: int, timeout: timedelta, wait_all_ranks: bool) -> str:
        """Whom rank 0 has missed; "" for nobody."""
        if timeout <= timedelta(0):
            return f"Rank 0 timed out in monitoredBarrier after {_ms(timeout)} ms."
        until_s, missed = time.monotonic() + timeout.total_seconds(), list[int]()
        for rank in range(1, self._size):
            if not self._came(f"{number}/{rank}", until_s):
                missed.append(rank)
                if not wait_all_ranks:
                    break
        if not missed:
            return ""
        who = f"Rank{'s' if wait_all_ranks else ''} {', '.join(map(str, missed))}"
        return f"{who} failed to pass monitoredBarrier in {_ms(timeout)} ms"

    def _came(self, key: str, until_s: float) -> bool:
        while not (came := self._store.check([key])) and time.monotonic() < until_s:
            time.sleep(_PAUSE_S)
        return bool(came)


def _ms(time: timedelta) -> int:
    return round(time / timedelta(milliseconds=1))
