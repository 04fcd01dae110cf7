"""Who looks after groups: deadlines of calls, and members that are lost."""

from __future__ import annotations

import os
import threading
import time

from hal_plugin_cpu.communicator import Member

_LOOK_S = 0.02
"""How often members with unfinished calls are looked at."""

_IDLE_S = 2.0
"""The watching thread ends after this time without anything to watch."""


class Watch:
    """The members of this process with unfinished calls, and the thread that looks after them."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: in a forked child the thread does not exist and the lock may be held for
        ever."""
        self._news = threading.Condition()
        self._members: set[Member] = set()
        self._running = False

    def add(self, member: Member) -> None:
        """Look after the member until it has nothing unfinished."""
        with self._news:
            self._members.add(member)
            if not self._running:
                threading.Thread(target=self._run, name="cpu collectives", daemon=True).start()
                self._running = True
            self._news.notify()

    def _run(self) -> None:
        while members := self._next():
            for member in members:
                with member.communicator.changed:
                    member.prune()
                    failure = member.communicator.trouble(member)
                    if failure is not None:
                        member.fail(failure)
                    if not member.outstanding:
                        # Inside the other lock: a call that comes adds the member again.
                        with self._news:
                            self._members.discard(member)

    def _next(self) -> list[Member]:
        """Whom to look at, after the time between two looks; nobody when the thread shall end."""
        time.sleep(_LOOK_S)
        with self._news:
            self._running = self._news.wait_for(lambda: bool(self._members), _IDLE_S)
            return list(self._members)


WATCH = Watch()


os.register_at_fork(after_in_child=WATCH.forget)
