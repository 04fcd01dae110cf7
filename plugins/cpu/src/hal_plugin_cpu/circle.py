"""The members of a group in one process, and the calls that they share."""

from __future__ import annotations

import threading
import time

from hal.core.errors import Failure, FailureKind
from hal.core.values import Collective
from hal_plugin_cpu._native import lib
from hal_plugin_cpu.calls import Member, SharedCall, failure_of, late, native_call, said


class Circle:
    """The members of one group, by rank, and the calls that not all of them have joined."""

    def __init__(self, peers: tuple[str, ...]) -> None:
        self.peers = peers
        self.changed = threading.Lock()
        self.members: dict[int, Member] = {}
        self._calls: dict[int, SharedCall] = {}

    def join(self, member: Member, call: Collective) -> SharedCall:
        """The shared call that is the member's next one. A disagreement fails it on everyone who
        joined."""
        number = member.next_call
        shared = self._calls.get(number)
        if shared is None:
            native = native_call(len(self.peers), call)
            shared = self._calls[number] = SharedCall(number, call, native, [])
        shared.joined.append(member.spec.rank)
        if len(shared.joined) == len(self.peers):
            del self._calls[number]
        if shared.call != call and not shared.mismatch:
            self._disagree(shared, member.spec.rank, call)
        return shared

    def skip(self, member: Member, shared: SharedCall) -> None:
        """To the others the member has not come."""
        shared.joined.remove(member.spec.rank)

    def trouble(self, member: Member) -> Failure | None:
        """Who of the others will not come, or has not come in time."""
        for shared in member.outstanding:
            if lib.hc_call_stage(shared.native, member.spec.rank) == lib.HC_MOVING:
                continue
            failure = self._lost(member, shared) or self._late(member, shared)
            if failure is not None:
                return failure
        return None

    def part(self) -> None:
        """Nothing is to be done: the others see that the member has left."""

    def _lost(self, member: Member, shared: SharedCall) -> Failure | None:
        for rank, other in self.members.items():
            came = rank in shared.joined
            if came and lib.hc_call_stage(shared.native, rank) != lib.HC_GONE:
                continue
            if fate := _fate(other):
                text = f"call {shared.number}: rank {rank} ({self.peers[rank]}) {fate}"
                return failure_of(member, FailureKind.PEER_LOST, text, shared.call)
        return None

    def _late(self, member: Member, shared: SharedCall) -> Failure | None:
        arrived_ns = lib.hc_call_arrived_ns(shared.native, member.spec.rank)
        waited_ns = time.monotonic_ns() - arrived_ns if arrived_ns else 0
        if waited_ns <= member.spec.timeout_s * 1e9:
            return None
        ranks = range(len(self.peers))
        missing = [r for r in ranks if lib.hc_call_stage(shared.native, r) == lib.HC_ABSENT]
        gone = [r for r in ranks if lib.hc_call_stage(shared.native, r) == lib.HC_GONE]
        return late(member, shared, missing or gone)

    def _disagree(self, shared: SharedCall, rank: int, call: Collective) -> None:
        first = shared.joined[0]
        known, new = said(shared.call), said(call)
        text = f"call {shared.number} is {known} on rank {first} but {new} on rank {rank}"
        shared.mismatch = text
        for joined in shared.joined[:-1]:
            member = self.members[joined]
            member.fail(mismatch(member, text))


def mismatch(member: Member, text: str) -> Failure:
    """The failure of a call on which members disagree."""
    return failure_of(member, FailureKind.ABORTED, text, None)


def _fate(member: Member) -> str:
    """Why the member will not come to a call; empty when it may."""
    state = member.session.state()
    if state == lib.HC_STATE_CLOSED:
        return "has closed its device"
    if state != lib.HC_OK:
        return f"has lost its device: {member.session.cause()}"
    return "has left the group" if member.left else ""
