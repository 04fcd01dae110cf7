"""The members of a group, the calls that they share, and what those fail with.

All members are in this process: between processes the stack makes groups of any devices.
"""

from __future__ import annotations

import threading
import time
from dataclasses import field
from typing import Any

from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, PluginError, Scope
from hal.core.facts import dataclass
from hal.core.values import Collective, CollectiveKind, GroupSpec, ReduceKind
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.session import Session

# The native runtime numbers these as the contract lists them.
DTYPES = tuple(DType)
KINDS = tuple(CollectiveKind)
REDUCES = tuple(ReduceKind)


@dataclass(eq=False, slots=True)
class SharedCall:
    """One call of a group: the native call, its description by the first member, and who joined so
    far.

    `mismatch` is the text of a disagreement.
    """

    number: int
    call: Collective
    native: Any
    joined: list[int]
    mismatch: str = ""


class Communicator:
    """The members of one group, by rank, and the calls that not all of them have joined."""

    def __init__(self, peers: tuple[str, ...]) -> None:
        self.peers = peers
        self.changed = threading.Lock()
        self.members: dict[int, Member] = {}
        self._calls: dict[int, SharedCall] = {}

    def join(self, member: Member, call: Collective) -> SharedCall:
        """The shared call that is the member's next one. A disagreement fails it on everyone who
        joined. Needs `changed`."""
        number = member.next_call
        shared = self._calls.get(number)
        if shared is None:
            size = len(self.peers)
            cells = [cell for row in call.counts for cell in row]
            native = lib.hc_call_new(
                size, KINDS.index(call.kind), DTYPES.index(call.dtype), REDUCES.index(call.reduce),
                call.root, call.count, ffi.new("int64_t[]", cells) if cells else ffi.NULL,
            )  # fmt: skip
            if native == ffi.NULL:
                raise PluginError(
                    "collective: the system has no memory left for the native runtime"
                )
            native = ffi.gc(native, lib.hc_call_release)
            shared = self._calls[number] = SharedCall(number, call, native, [])
        shared.joined.append(member.spec.rank)
        if len(shared.joined) == len(self.peers):
            del self._calls[number]
        if shared.call != call and not shared.mismatch:
            self._disagree(shared, member.spec.rank, call)
        return shared

    def trouble(self, member: Member) -> Failure | None:
        """What the member's unfinished calls fail with now: who of the others will not come, or has
        not come in time. Needs `changed`."""
        for shared in member.outstanding:
            if lib.hc_call_stage(shared.native, member.spec.rank) == lib.HC_MOVING:
                continue
            failure = self._lost(member, shared) or self._late(member, shared)
            if failure is not None:
                return failure
        return None

    def _lost(self, member: Member, shared: SharedCall) -> Failure | None:
        for rank, other in self.members.items():
            came = rank in shared.joined
            if came and lib.hc_call_stage(shared.native, rank) != lib.HC_GONE:
                continue
            if fate := _fate(other):
                text = f"call {shared.number}: rank {rank} ({self.peers[rank]}) {fate}"
                return _failure_of(member, FailureKind.PEER_LOST, text, shared.call)
        return None

    def _late(self, member: Member, shared: SharedCall) -> Failure | None:
        arrived_ns = lib.hc_call_arrived_ns(shared.native, member.spec.rank)
        waited_ns = time.monotonic_ns() - arrived_ns if arrived_ns else 0
        if waited_ns <= member.spec.timeout_s * 1e9:
            return None
        stages = [lib.hc_call_stage(shared.native, rank) for rank in range(len(self.peers))]
        missing = [rank for rank, stage in enumerate(stages) if stage == lib.HC_ABSENT]
        gone = [rank for rank, stage in enumerate(stages) if stage == lib.HC_GONE]
        text = f"call {shared.number}: ranks {missing or gone} did not come in "
        text += f"{member.spec.timeout_s} s"
        return _failure_of(member, FailureKind.PEER_LOST, text, shared.call)

    def _disagree(self, shared: SharedCall, rank: int, call: Collective) -> None:
        first = shared.joined[0]
        known, new = _said(shared.call), _said(call)
        text = f"call {shared.number} is {known} on rank {first} but {new} on rank {rank}"
        shared.mismatch = text
        for joined in shared.joined[:-1]:
            member = self.members[joined]
            member.fail(mismatch(member, text))


@dataclass(eq=False, slots=True)
class Member:
    """A device's part in a group: the payload of its `Group`. `error` is the first failure of the
    group here, `failed` its number in the session."""

    session: Session
    spec: GroupSpec
    communicator: Communicator
    next_call: int = 0
    error: Failure | None = None
    failed: int = 0
    left: bool = False
    outstanding: list[SharedCall] = field(default_factory=list)

    def join(self, call: Collective) -> SharedCall:
        """The member's next call."""
        with self.communicator.changed:
            shared = self.communicator.join(self, call)
            self.next_call += 1
            self.outstanding.append(shared)
            return shared

    def skip(self, shared: SharedCall) -> None:
        """The call was refused after it got its number: to the others the member has not come."""
        with self.communicator.changed:
            self.outstanding = [s for s in self.outstanding if s is not shared]
            shared.joined.remove(self.spec.rank)

    def note(self, failure: Failure) -> None:
        """Every later call fails with this, unless something failed before."""
        if self.error is None:
            self.failed = self.session.failures.number(failure)
            self.error = failure

    def fail(self, failure: Failure) -> None:
        """Fail the unfinished calls of this member and all later ones. The first failure stays."""
        self.note(failure)
        for shared in self.outstanding:
            lib.hc_call_fail(self.session.native, shared.native, self.spec.rank, self.failed)

    def prune(self) -> None:
        """Forget the calls that are done."""
        rank = self.spec.rank
        self.outstanding = [s for s in self.outstanding if not lib.hc_call_done(s.native, rank)]


def mismatch(member: Member, text: str) -> Failure:
    """The failure of a call on which members disagree."""
    return _failure_of(member, FailureKind.ABORTED, text, None)


def _failure_of(member: Member, kind: FailureKind, text: str, call: Collective | None) -> Failure:
    """A failure among peers, as this member's device tells it."""
    name = f"collective {call.kind.value}" if call else "collective"
    return Failure(kind, Scope.PEER, member.session.name, name, text)


def _said(call: Collective) -> str:
    """A call in words."""
    how = f"{call.reduce.value}, root {call.root}"
    parts = f", counts {[list(row) for row in call.counts]}" if call.counts else ""
    return f"{call.kind.value} of {call.count} {call.dtype.short} ({how}{parts})"


def _fate(member: Member) -> str:
    """Why the member will not come to a call; empty when it may."""
    state = member.session.state()
    if state == lib.HC_STATE_CLOSED:
        return "has closed its device"
    if state != lib.HC_OK:
        return f"has lost its device: {member.session.cause()}"
    return "has left the group" if member.left else ""
