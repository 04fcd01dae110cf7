"""How the members of a group find each other in the process, and the calls that they share."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from hal.core.dtypes import DType
from hal.core.errors import DeadlineExceeded, Failure, FailureKind, InvalidCall, Scope
from hal.core.values import Collective, CollectiveKind, GroupSpec, ReduceKind
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.session import Session

# The native runtime numbers these as the contract lists them.
_DTYPES = tuple(DType)
_KINDS = tuple(CollectiveKind)
_REDUCES = tuple(ReduceKind)


@dataclass(eq=False, slots=True)
class SharedCall:
    """One call of a circle: the native call, its description by the first member, and who joined
    so far.

    `mismatch` is the text of a disagreement.
    """

    number: int
    call: Collective
    native: Any
    joined: list[int]
    mismatch: str = ""


@dataclass(eq=False, slots=True)
class Member:
    """A device's part in a group: the payload of its `Group`. `error` is the first failure of the
    group here."""

    session: Session
    spec: GroupSpec
    circle: Circle
    next_call: int = 0
    error: Failure | None = None
    left: bool = False
    outstanding: list[SharedCall] = field(default_factory=list)

    def fail(self, failure: Failure) -> None:
        """Fail the unfinished calls of this member and all later ones. The first failure stays."""
        self.error = self.error or failure
        number = self.session.failures.number(failure)
        for shared in self.outstanding:
            lib.hc_call_fail(self.session.native, shared.native, self.spec.rank, number)


class Circle:
    """The members of one group, by rank, and the calls that not all of them have joined."""

    def __init__(self, peers: tuple[str, ...]) -> None:
        self.peers = peers
        self.changed = threading.Condition()
        self.members: dict[int, Member] = {}
        self.disagreement = ""
        self._calls: dict[int, SharedCall] = {}

    def join(self, member: Member, call: Collective) -> SharedCall:
        """The shared call that is the member's next one. A disagreement fails it on everyone who
        joined."""
        with self.changed:
            shared = self._calls.setdefault(member.next_call, self._shared(member.next_call, call))
            member.next_call += 1
            shared.joined.append(member.spec.rank)
            if len(shared.joined) == len(self.peers):
                del self._calls[shared.number]
            if shared.call != call and not shared.mismatch:
                self._disagree(shared, member.spec.rank, call)
            member.outstanding = [
                s for s in member.outstanding if not lib.hc_call_done(s.native, member.spec.rank)
            ]
            member.outstanding.append(shared)
            return shared

    def _shared(self, number: int, call: Collective) -> SharedCall:
        native = lib.hc_call_new(
            len(self.peers),
            _KINDS.index(call.kind),
            _DTYPES.index(call.dtype),
            _REDUCES.index(call.reduce),
            call.root,
            call.count,
        )
        return SharedCall(number, call, ffi.gc(native, lib.hc_call_release), [])

    def _disagree(self, shared: SharedCall, rank: int, call: Collective) -> None:
        first = shared.joined[0]
        known, new = _said(shared.call), _said(call)
        text = f"call {shared.number} is {known} on rank {first} but {new} on rank {rank}"
        shared.mismatch = text
        for joined in shared.joined[:-1]:
            member = self.members[joined]
            member.fail(mismatch_failure(member, shared.mismatch))


def mismatch_failure(member: Member, text: str) -> Failure:
    """The failure of a call on which members disagree."""
    return Failure(FailureKind.ABORTED, Scope.PEER, member.session.name, "collective", text)


_meeting = threading.Condition()
_open: dict[str, Circle] = {}


def meet(session: Session, spec: GroupSpec) -> Member:
    """Wait until every rank of the group has called this.

    Raises DeadlineExceeded that names the missing ranks; InvalidCall when members disagree.
    """
    with _meeting:
        circle = _open.setdefault(spec.key, Circle(spec.peers))
        member = Member(session, spec, circle)
        _enter(circle, member)
        until_s = time.monotonic() + spec.timeout_s
        while len(circle.members) < len(spec.peers) and not circle.disagreement:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise _missing(circle, member)
            _meeting.wait(left_s)
        if circle.disagreement:
            raise InvalidCall(circle.disagreement)
    return member


def _enter(circle: Circle, member: Member) -> None:
    spec = member.spec
    if spec.peers != circle.peers:
        theirs = f"rank {spec.rank} names the peers {spec.peers}, others {circle.peers}"
        circle.disagreement = f"group {spec.key!r}: {theirs}"
    elif spec.rank in circle.members:
        raise InvalidCall(f"group {spec.key!r}: rank {spec.rank} has joined already")
    else:
        circle.members[spec.rank] = member
    if circle.disagreement or len(circle.members) == len(circle.peers):
        del _open[spec.key]
    _meeting.notify_all()


def _missing(circle: Circle, member: Member) -> DeadlineExceeded:
    spec = member.spec
    missing = [rank for rank in range(len(spec.peers)) if rank not in circle.members]
    del circle.members[spec.rank]
    if not circle.members:
        del _open[spec.key]
    return DeadlineExceeded(
        f"group {spec.key!r}: ranks {missing} did not join in {spec.timeout_s} s"
    )


def _said(call: Collective) -> str:
    how = f"{call.reduce.value}, root {call.root}"
    return f"{call.kind.value} of {call.count} {call.dtype.short} ({how})"
