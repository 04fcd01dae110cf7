"""Deadlines of collective calls: a member that does not come fails the call on those that wait for
it."""

from __future__ import annotations

import os
import threading
import time

from hal.core.errors import Failure, FailureKind, Scope
from hal_plugin_cpu._native import lib
from hal_plugin_cpu.meeting import Member, SharedCall

_LOOK_S = 0.02
_IDLE_S = 2.0
"""The watching thread ends after this time without anything to watch."""


class Watch:
    """The members of this process with unfinished calls, and the thread that looks after them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._members: set[Member] = set()
        self._running = False

    def add(self, member: Member) -> None:
        """Look after the member's calls until they are done."""
        with self._changed:
            self._members.add(member)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="cpu collectives", daemon=True).start()
            self._changed.notify()

    def _run(self) -> None:
        while self._look():
            time.sleep(_LOOK_S)

    def _look(self) -> bool:
        with self._changed:
            if not self._members and not self._changed.wait_for(lambda: self._members, _IDLE_S):
                self._running = False
                return False
            members = tuple(self._members)
        for member in members:
            if not _unfinished(member):
                with self._changed:
                    self._members.discard(member)
        return True


def _unfinished(member: Member) -> bool:
    """Fail the member's overdue calls; True while some are not done."""
    with member.circle.changed:
        rank = member.spec.rank
        member.outstanding = [s for s in member.outstanding if not lib.hc_call_done(s.native, rank)]
        for shared in member.outstanding:
            if member.error is None and _overdue(member, shared):
                member.fail(_late(member, shared))
        return bool(member.outstanding) and not member.left


def _overdue(member: Member, shared: SharedCall) -> bool:
    arrived_ns = lib.hc_call_arrived_ns(shared.native, member.spec.rank)
    return bool(arrived_ns and time.monotonic_ns() - arrived_ns > member.spec.timeout_s * 1e9)


def _late(member: Member, shared: SharedCall) -> Failure:
    ranks = range(len(member.spec.peers))
    missing = [rank for rank in ranks if not lib.hc_call_arrived_ns(shared.native, rank)]
    text = f"call {shared.number}: ranks {missing} did not come in {member.spec.timeout_s} s"
    name = f"collective {shared.call.kind.value}"
    return Failure(FailureKind.PEER_LOST, Scope.PEER, member.session.name, name, text)


WATCH = Watch()


def _forget_parent() -> None:
    """In a forked child the thread does not exist and the lock may be held for ever."""
    WATCH.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget_parent)
