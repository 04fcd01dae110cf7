"""How the members of a group find each other, in one process or between processes of a host."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hal.core.errors import DeadlineExceeded, HalError, InvalidCall, PluginError
from hal.core.values import GroupSpec
from hal_plugin_cpu.calls import Member
from hal_plugin_cpu.circle import Circle
from hal_plugin_cpu.rendezvous import Rendezvous
from hal_plugin_cpu.session import Session
from hal_plugin_cpu.wire import Wire


class Table:
    """The members of one key that wait in this process. It is settled once all ranks sit here, or
    two disagree."""

    def __init__(self, peers: tuple[str, ...]) -> None:
        self.circle = Circle(peers)
        self.disagreement = ""
        self.wakers: dict[int, int] = {}

    @property
    def settled(self) -> bool:
        return bool(self.disagreement) or len(self.circle.members) == len(self.circle.peers)

    def wake_all(self) -> None:
        """Make every member that waits here look again."""
        for descriptor in self.wakers.values():
            os.eventfd_write(descriptor, 1)


_lock = threading.Lock()
_tables: dict[str, Table] = {}


def meet(session: Session, spec: GroupSpec) -> Member:
    """Wait until every rank of the group has called this, here or in another process of the host.

    Raises DeadlineExceeded that names the missing ranks; InvalidCall when members disagree;
    PluginError when the system gives no descriptors or memory.
    """
    try:
        return _meet(session, spec)
    except HalError:
        raise
    except OSError as error:
        raise PluginError(f"group {spec.key!r}: the system refuses: {error}") from error


def _meet(session: Session, spec: GroupSpec) -> Member:
    until_s = time.monotonic() + spec.timeout_s
    with _seat(session, spec) as (table, member):
        if not table.settled:
            wire = _wire(session, table, spec, until_s)
            if wire is not None:
                return Member(session, spec, wire)
        if table.disagreement:
            raise InvalidCall(table.disagreement)
        return member


def _wire(session: Session, table: Table, spec: GroupSpec, until_s: float) -> Wire | None:
    """Meet members of other processes; None once all have turned out to be in this one."""
    with Rendezvous(spec) as others:
        while not table.settled:
            if others.complete:
                return Wire(session, spec, *others.take())
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise DeadlineExceeded(others.missing())
            others.turn(min(left_s, 1.0), table.wakers[spec.rank])
    return None


@contextmanager
def _seat(session: Session, spec: GroupSpec) -> Iterator[tuple[Table, Member]]:
    """A seat at the table of the group's key, until the member has met the others or gives up."""
    with _lock:
        table = _tables.setdefault(spec.key, Table(spec.peers))
        member = Member(session, spec, table.circle)
        _sit(table, member)
    try:
        yield table, member
    finally:
        with _lock:
            os.close(table.wakers.pop(spec.rank))
            if not table.settled:
                del table.circle.members[spec.rank]
                if not table.circle.members:
                    del _tables[spec.key]


def _sit(table: Table, member: Member) -> None:
    spec, circle = member.spec, table.circle
    if spec.rank in table.wakers:
        raise InvalidCall(f"group {spec.key!r}: rank {spec.rank} has joined already")
    if spec.peers != circle.peers:
        theirs = f"rank {spec.rank} names the peers {spec.peers}, others {circle.peers}"
        table.disagreement = f"group {spec.key!r}: {theirs}"
    else:
        circle.members[spec.rank] = member
    table.wakers[spec.rank] = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    if table.settled:
        del _tables[spec.key]
        table.wake_all()


def _forget_parent() -> None:
    """In a forked child nobody waits, and the lock may be held for ever."""
    global _lock
    _lock = threading.Lock()
    _tables.clear()


os.register_at_fork(after_in_child=_forget_parent)
