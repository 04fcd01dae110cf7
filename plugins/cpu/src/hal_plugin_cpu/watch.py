"""Who looks after groups: deadlines of calls, members that are lost, processes that end."""

from __future__ import annotations

import os
import select
import threading

from hal_plugin_cpu.calls import Member
from hal_plugin_cpu.wire import Wire

_LOOK_S = 0.02
"""How often members with unfinished calls are looked at."""

_IDLE_S = 2.0
"""The watching thread ends after this time without anything to watch."""


class Watch:
    """The members of this process with unfinished calls or with peers in other processes, and the
    thread that looks after them."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._members: set[Member] = set()
        self._running = self._dozing = self._fresh = False
        self._bell = -1

    def add(self, member: Member) -> None:
        """Look after the member until it has nothing unfinished and no peer elsewhere."""
        with self._lock:
            self._members.add(member)
            self._fresh = True
            if not self._running:
                self._running = True
                self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                threading.Thread(target=self._run, name="cpu collectives", daemon=True).start()
            elif self._dozing:
                self._dozing = False
                os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        busy = idle = False
        while (turn := self._next(busy, idle)) is not None:
            members, timeout_s = turn
            ready = self._listen(members, timeout_s)
            busy, idle = False, not members
            for member in members:
                busy = self._look(member, ready) or busy

    def _next(self, busy: bool, idle: bool) -> tuple[list[Member], float] | None:
        """Whom to look at next, and after what time at the latest; None when the thread shall
        end."""
        with self._lock:
            if idle and not self._members:
                self._running = self._dozing = False
                os.close(self._bell)
                return None
            self._dozing = not busy and not self._fresh
            self._fresh = False
            return list(self._members), _IDLE_S if self._dozing else _LOOK_S

    def _listen(self, members: list[Member], timeout_s: float) -> set[int]:
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        for member in members:
            for descriptor in _descriptors(member):
                poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(1000 * timeout_s)}
        if self._bell in ready:
            os.eventfd_read(self._bell)
        return ready

    def _look(self, member: Member, ready: set[int]) -> bool:
        """Fail what has to fail; True while calls of the member are not done."""
        with member.bond.changed:
            if isinstance(member.bond, Wire):
                member.bond.hear(member, ready)
            member.prune()
            failure = member.bond.trouble(member)
            if failure is not None:
                member.fail(failure)
            if member.outstanding:
                return True
            if member.left:
                member.bond.part()
            if member.left or not isinstance(member.bond, Wire):
                self._drop(member)
        return False

    def _drop(self, member: Member) -> None:
        """Needs the bond's lock, so that a call that comes meanwhile adds the member again."""
        with self._lock:
            self._members.discard(member)

    def forget_parent(self) -> None:
        """In a forked child the thread does not exist and the lock may be held for ever."""
        if self._bell >= 0 and self._running:
            os.close(self._bell)
        self._begin()


def _descriptors(member: Member) -> list[int]:
    if not isinstance(member.bond, Wire):
        return []
    with member.bond.changed:
        return list(member.bond.descriptors())


WATCH = Watch()


os.register_at_fork(after_in_child=WATCH.forget_parent)
