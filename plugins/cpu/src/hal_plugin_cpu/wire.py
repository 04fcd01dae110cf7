"""A member's ties to the members of its group in other processes: the native link over shared
memory, and a connection to each, whose end tells that the other's process has ended."""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any

from hal.core.errors import Failure, FailureKind, PluginError
from hal.core.values import Collective, GroupSpec
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.calls import (
    DTYPES,
    KINDS,
    REDUCES,
    Member,
    SharedCall,
    failure_of,
    late,
    native_call,
    said,
)
from hal_plugin_cpu.session import Session


class Wire:
    """Takes the connections and the descriptor of the shared memory over.

    Calls of one group run one after the other, in the order of their numbers.
    """

    def __init__(
        self, session: Session, spec: GroupSpec, links: dict[int, socket.socket], memory: int
    ) -> None:
        self.changed = threading.Lock()
        self._peers = spec.peers
        self._links = links
        self._size = len(spec.peers)
        native = lib.hc_link_new(session.native, memory, spec.rank, self._size)
        os.close(memory)
        if native == ffi.NULL:
            self.close_links()
            raise PluginError(f"create_group: {session.name} has no memory or thread for the group")
        self._native = ffi.gc(native, lib.hc_link_release)
        _LIVE.add(self)

    def join(self, member: Member, call: Collective) -> SharedCall:
        """A call of this member alone; the link compares it with the others'."""
        native = native_call(self._size, call)
        lib.hc_call_over(native, self._native, member.next_call)
        return SharedCall(member.next_call, call, native, [member.spec.rank])

    def skip(self, member: Member, shared: SharedCall) -> None:
        """No later call of this member can run."""
        lib.hc_link_skip(self._native)

    def trouble(self, member: Member) -> Failure | None:
        """What holds the member's link up for good."""
        if not member.outstanding:
            return None
        shared = member.outstanding[0]
        if rank := lib.hc_link_differs(self._native):
            return failure_of(member, FailureKind.ABORTED, self._difference(member, rank - 1), None)
        if rank := lib.hc_link_stuck(self._native):
            text = f"call {shared.number}: {self._fate(rank - 1)}"
            return failure_of(member, FailureKind.PEER_LOST, text, shared.call)
        if lib.hc_link_skipped(self._native):
            text = "an earlier call failed on this member before it ran; shrink the group"
            return failure_of(member, FailureKind.ABORTED, text, shared.call)
        return self._late(member)

    def part(self) -> None:
        """Tell the others that the member has left, and end the link's thread."""
        lib.hc_link_end(self._native)
        self.close_links()

    def descriptors(self) -> Iterable[int]:
        """Those that can be read once a process has ended."""
        return [link.fileno() for link in self._links.values()]

    def hear(self, member: Member, ready: set[int]) -> None:
        """Connections have ended: those members will not come any more."""
        for rank, link in list(self._links.items()):
            if link.fileno() not in ready or not _has_ended(link):
                continue
            self._links.pop(rank).close()
            lib.hc_link_gone(self._native, rank)
            if lib.hc_link_state(self._native, rank) == lib.HC_HERE:
                member.note(failure_of(member, FailureKind.PEER_LOST, self._fate(rank), None))

    def close_links(self) -> None:
        """Close the connections."""
        for link in self._links.values():
            link.close()
        self._links = {}

    def _late(self, member: Member) -> Failure | None:
        moving = [s for s in member.outstanding if _stage(member, s) == lib.HC_MOVING]
        waited_ns = time.monotonic_ns() - lib.hc_link_moved_ns(self._native)
        if not moving or waited_ns <= member.spec.timeout_s * 1e9:
            return None
        missing = [rank for rank in range(self._size) if lib.hc_link_lags(self._native, rank)]
        return late(member, moving[0], missing) if missing else None

    def _fate(self, rank: int) -> str:
        state = lib.hc_link_state(self._native, rank)
        fates = {lib.HC_LEFT: "has left the group", lib.HC_AWAY: "has lost its device"}
        return f"rank {rank} ({self._peers[rank]}) {fates.get(state, 'is gone: its process ended')}"

    def _difference(self, member: Member, other: int) -> str:
        ranks = sorted((member.spec.rank, other))
        calls = [self._said(rank) for rank in ranks]
        number = calls[0][0]
        return (
            f"call {number} is {calls[0][1]} on rank {ranks[0]} "
            f"but {calls[1][1]} on rank {ranks[1]}"
        )

    def _said(self, rank: int) -> tuple[int, str]:
        raw: Any = ffi.new("hc_said *")
        lib.hc_link_said(self._native, rank, raw)
        call = Collective(
            KINDS[raw.kind], DTYPES[raw.dtype], raw.count, REDUCES[raw.reduce], raw.root
        )
        unequal = f" with counts of digest {raw.counts:016x}" if "-v" in call.kind.value else ""
        return raw.number, said(call) + unequal


def _has_ended(link: socket.socket) -> bool:
    try:
        return not link.recv(1)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def _stage(member: Member, shared: SharedCall) -> int:
    return int(lib.hc_call_stage(shared.native, member.spec.rank))


_LIVE: weakref.WeakSet[Wire] = weakref.WeakSet()


def _forget_parent() -> None:
    """A forked child must not hold connections open, or its parent's end would not be noticed."""
    for wire in list(_LIVE):
        wire.close_links()


os.register_at_fork(after_in_child=_forget_parent)
