"""Recorded graphs, which keep the buffers and programs that they name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

from hal.core.errors import StaleHandle
from hal.core.facts import dataclass
from hal.core.values import Command, Graph
from hal.hosted.lock import LOCK
from hal.hosted.queues import Resource
from hal.hosted.session import Session


@dataclass(eq=False, slots=True)
class Keeper:
    """A graph's payload. It keeps its buffers and programs until it is freed and nothing replays
    it."""

    keeps: tuple[Resource, ...]
    holds: int = field(default=1, kw_only=True)

    def check(self, hook: str) -> None:
        if not self.holds:
            raise StaleHandle(f"{hook}: the graph was freed")

    def hold(self) -> None:
        self.holds += 1

    def let_go(self) -> None:
        self.holds -= 1
        if not self.holds:
            for kept in self.keeps:
                kept.let_go()


class Graphs:
    """The graphs of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._live: set[Keeper] = set()

    def kept(self, named: Iterable[Resource]) -> tuple[Resource, ...]:
        """Hold what commands name. Raises StaleHandle, and then holds nothing."""
        with LOCK:
            self._session.check_usable("record")
            keeps = tuple(named)
            for one in keeps:
                one.check("record")
            for one in keeps:
                one.hold()
        return keeps

    def graph(self, payload: Keeper, commands: Sequence[Command], slots: Iterable[int]) -> Graph:
        """The handle of a payload whose commands take the arguments `slots`."""
        self._live.add(payload)
        count = max(slots, default=-1) + 1
        return Graph(self._session.name, self._session.epoch, payload, len(commands), count)

    def free(self, graph: Graph) -> None:
        """The graph's owner needs it no longer (with the lock held)."""
        self._live.discard(graph.native)
        graph.native.let_go()

    def free_all(self) -> None:
        """Nobody needs any graph: the session or its epoch ended (with the lock held)."""
        live, self._live = self._live, set()
        for payload in live:
            payload.let_go()
