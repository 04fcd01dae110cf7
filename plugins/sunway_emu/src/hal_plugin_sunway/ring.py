"""The whole chip: six core groups and six memory controllers on a ring, as queues.

A request of a core group goes along the ring to a controller, waits there, is served, and its data
come back. What may go wrong is what Zheng and others (Big Data, 2024) name for the real chip, and
so are the four remedies: the shorter way round, a controller that picks from its queue, sources
that send no more than the queue takes, and small requests that are merged.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

from hal.core.errors import InvalidCall
from hal_plugin_sunway.chip import Chip

HEADER_NBYTES = 16
_MOST_DOUBLINGS = 4


@dataclass(frozen=True, slots=True)
class Remedies:
    """Which of the remedies are on."""

    shortest_path: bool = True
    scheduling: bool = True
    flow_control: bool = True
    merging: bool = True


def without(names: str) -> Remedies:
    """All remedies but those of a text "name,name". Raises InvalidCall."""
    off = [name.strip() for name in names.split(",") if name.strip()]
    known = [field.name for field in fields(Remedies)]
    if unknown := sorted(set(off) - set(known)):
        raise InvalidCall(f"the ring has no remedies {unknown}; it has {', '.join(known)}")
    return replace(Remedies(), **dict.fromkeys(off, False))


@dataclass(frozen=True, slots=True)
class Request:
    """`nbytes` that core group `source` wants from controller `target`."""

    source: int
    target: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Flow:
    """What a run took: CPE cycles, the bytes that moved, and requests that found a full queue."""

    cycles: float
    nbytes: int
    refused: int

    @property
    def nbytes_cycle(self) -> float:
        """Bytes per cycle of the whole chip."""
        return self.nbytes / self.cycles


@dataclass(slots=True)
class _Controller:
    waiting: deque[Request] = field(default_factory=deque)
    busy_until: float = 0.0
    serving: bool = False
    last_source: int = -1


@dataclass(slots=True)
class _Source:
    todo: deque[Request]
    under_way: dict[int, int] = field(default_factory=dict)


def flow(
    chip: Chip, traffic: Sequence[Sequence[Request]], remedies: Remedies, window: int = 64
) -> Flow:
    """Serve the requests of each core group, of which each has at most `window` under way."""
    return _Ring(chip, traffic, remedies, window).run()


def to_one(groups: int, count: int, nbytes: int, target: int = 0) -> list[list[Request]]:
    """Every core group wants everything from one controller."""
    return [[Request(g, target, nbytes)] * count for g in range(groups)]


def interleaved(groups: int, count: int, nbytes: int) -> list[list[Request]]:
    """Every core group goes round the controllers, each from another one on."""
    return [[Request(g, (g + i) % groups, nbytes) for i in range(count)] for g in range(groups)]


def own(groups: int, count: int, nbytes: int, shift: int = 0) -> list[list[Request]]:
    """Every core group wants everything from its own controller, or the one `shift` before it."""
    return [[Request(g, (g - shift) % groups, nbytes)] * count for g in range(groups)]


def merged(requests: Sequence[Request], most: int) -> list[Request]:
    """Neighbours for the same controller as one request of at most `most` bytes."""
    out: list[Request] = []
    for r in requests:
        if out and out[-1].target == r.target and out[-1].nbytes + r.nbytes <= most:
            r = Request(r.source, r.target, out.pop().nbytes + r.nbytes)
        out.append(r)
    return out


class _Ring:
    def __init__(
        self, chip: Chip, traffic: Sequence[Sequence[Request]], remedies: Remedies, window: int
    ) -> None:
        self._chip, self._remedies, self._window = chip, remedies, window
        burst = chip.count("burst_lines") * chip.count("line_nbytes")
        lists = [merged(t, burst) if remedies.merging else list(t) for t in traffic]
        self._sources = [_Source(deque(requests)) for requests in lists]
        self._groups = len(lists)
        self._controllers = [_Controller() for _ in lists]
        self._link_free = {(way, i): 0.0 for way in (1, -1) for i in range(self._groups)}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._nbytes, self._refused, self._end = 0, 0, 0.0

    def run(self) -> Flow:
        for source in self._sources:
            self._send(source, 0.0)
        while self._events:
            when, _, act = heapq.heappop(self._events)
            act(when)
        return Flow(self._end, self._nbytes, self._refused)

    def _at(self, when: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), act))

    def _send(self, source: _Source, now: float) -> None:
        """Send what may be sent. A source goes on in the order of its requests."""
        while source.todo and sum(source.under_way.values()) < self._window:
            request = source.todo[0]
            # How many requests a source may have at one controller.
            fair = max(self._chip.count("queue_requests") // self._groups, 1)
            if source.under_way.get(request.target, 0) >= (
                fair if self._remedies.flow_control else self._window
            ):
                return
            source.todo.popleft()
            source.under_way[request.target] = source.under_way.get(request.target, 0) + 1
            self._ask(request, now)

    def _ask(self, request: Request, now: float, tries: int = 0) -> None:
        there = self._travel(now, request.source, request.target, HEADER_NBYTES)
        self._at(there, lambda when: self._arrive(request, when, tries))

    def _arrive(self, request: Request, now: float, tries: int) -> None:
        controller = self._controllers[request.target]
        if len(controller.waiting) >= self._chip["queue_requests"]:
            self._refused += 1
            lost = self._chip["retry_cycles"]
            controller.busy_until = max(controller.busy_until, now) + lost
            wait = self._chip["retry_wait_cycles"] * 2.0 ** min(tries, _MOST_DOUBLINGS)
            self._at(now + wait, lambda when: self._ask(request, when, tries + 1))
            return
        controller.waiting.append(request)
        self._serve(controller, now)

    def _serve(self, controller: _Controller, now: float) -> None:
        if controller.serving or not controller.waiting:
            return
        request = self._picked(controller)
        switch = request.source != controller.last_source
        controller.last_source, controller.serving = request.source, True
        rate = self._chip["memory_nbytes_s"] / self._chip["cpe_hz"] * (1 - self._chip["lost_share"])
        cycles = self._chip["request_cycles"] + request.nbytes / rate
        cycles += self._chip["row_switch_cycles"] if switch else 0.0
        end = max(now, controller.busy_until) + cycles
        self._at(end, lambda when: self._served(controller, request, when))

    def _picked(self, controller: _Controller) -> Request:
        """The oldest request; with scheduling the oldest of the source whose row is open."""
        if self._remedies.scheduling:
            for request in controller.waiting:
                if request.source == controller.last_source:
                    controller.waiting.remove(request)
                    return request
        return controller.waiting.popleft()

    def _served(self, controller: _Controller, request: Request, now: float) -> None:
        controller.serving = False
        back = self._travel(now, request.target, request.source, request.nbytes)
        self._at(back, lambda when: self._returned(request, when))
        self._serve(controller, now)

    def _returned(self, request: Request, now: float) -> None:
        source = self._sources[request.source]
        source.under_way[request.target] -= 1
        self._nbytes += request.nbytes
        self._end = max(self._end, now)
        self._send(source, now)

    def _travel(self, now: float, begin: int, end: int, nbytes: int) -> float:
        """When `nbytes` that leave at `now` are there; each link takes one after the other."""
        length = nbytes / self._chip["link_nbytes_cycle"]
        clockwise = (end - begin) % self._groups
        way, hops = 1, clockwise
        if self._remedies.shortest_path and clockwise > self._groups // 2:
            way, hops = -1, self._groups - clockwise
        place = begin
        for _ in range(hops):
            start = max(now, self._link_free[way, place])
            self._link_free[way, place] = start + length
            now, place = start + self._chip["hop_cycles"], (place + way) % self._groups
        return now + (length if hops else 0.0)
