"""When plain FIFO would have started each job: who came first starts first, and nobody passes.

That start is a job's fair start time (Sabin and Sadayappan, "Unfairness metrics for space-sharing
parallel job schedulers", JSSPP 2005, there for any policy without those who came later). Devices
are counted by kind, wherever they are; quotas and domains are left out, so it is never later for
them. How long a job runs is known once it has ended in truth."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import field
from math import inf
from typing import Any

from hal.core.facts import dataclass


@dataclass(slots=True, eq=False)
class Line:
    """The jobs of one kind. `waiting` are jobs with their devices, in order; `ends` those that run
    here until a time that is known; `open` those that run in truth, too, with their start here and
    devices."""

    devices: int = 0
    free: int = 0
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    ends: list[tuple[float, int, int]] = field(default_factory=list)
    open: dict[int, tuple[float, int]] = field(default_factory=dict)


class PlainFifo:
    """FIFO on devices that are `speed` times as fast as the true ones."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._lines: dict[str, Line] = {}
        self._kinds: dict[int, str] = {}
        self._over_s: dict[int, float] = {}
        """Seconds for which jobs ran that wait here still."""

    def counted(self, kind: str, devices: int) -> None:
        """There are so many more devices of a kind, or fewer."""
        line = self._lines.setdefault(kind, Line())
        line.devices += devices
        line.free += devices

    def submitted(self, job: int, kind: str, devices: int) -> None:
        """A job came that needs so many devices, as it is then."""
        self._kinds[job] = kind
        self._lines.setdefault(kind, Line()).waiting.append((job, devices))

    def over(self, job: int, seconds: float, now: float) -> None:
        """A job has run in truth, for so many seconds of all its ranks, and is gone."""
        line = self._lines[self._kinds.pop(job)]
        if job in line.open:
            start, devices = line.open.pop(job)
            heapq.heappush(line.ends, (max(start + seconds / self._speed, now), job, devices))
        else:
            self._over_s[job] = seconds

    def until(self, now: float) -> Iterator[int]:
        """The jobs that start up to a time, since this was asked last; it is to be asked before
        anything is told of that time, and after."""
        for line in self._lines.values():
            yield from self._start(line, now)
            while line.ends and line.ends[0][0] <= now:
                at, _, devices = heapq.heappop(line.ends)
                line.free += devices
                yield from self._start(line, at)

    def _start(self, line: Line, at: float) -> Iterator[int]:
        while line.waiting and min(line.waiting[0][1], line.devices) <= line.free:
            job, devices = line.waiting.popleft()
            line.free -= devices
            seconds = self._over_s.pop(job, None)
            if seconds is None:
                line.open[job] = at, devices
            else:
                heapq.heappush(line.ends, (at + seconds / self._speed, job, devices))
            yield job

    @property
    def next_at(self) -> float:
        """When jobs may start next, if nothing else happens; infinity: never."""
        lines = self._lines.values()
        return min((line.ends[0][0] for line in lines if line.ends and line.waiting), default=inf)

    def data(self) -> dict[str, Any]:
        """All that it knows, as plain data."""
        return {
            "kinds": [[job, kind] for job, kind in self._kinds.items()],
            "over": [[job, seconds] for job, seconds in self._over_s.items()],
            "lines": {
                kind: {
                    "free": line.free,
                    "waiting": [list(entry) for entry in line.waiting],
                    "ends": [list(entry) for entry in line.ends],
                    "open": [[job, *entry] for job, entry in line.open.items()],
                }
                for kind, line in self._lines.items()
            },
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Take what `data` gave; the devices are counted before."""
        self._kinds, self._over_s = dict(data["kinds"]), dict(data["over"])
        for kind, entry in data["lines"].items():
            line = self._lines[kind]
            line.free = entry["free"]
            line.waiting = deque((job, devices) for job, devices in entry["waiting"])
            line.ends = [(end, job, devices) for end, job, devices in entry["ends"]]
            line.open = {job: (start, devices) for job, start, devices in entry["open"]}
