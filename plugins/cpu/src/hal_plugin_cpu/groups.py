"""Collectives among CPU devices of one process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from hal.core.errors import Failure, InvalidCall, StaleHandle, Unsupported
from hal.core.spec import hookimpl
from hal.core.values import (
    Collective,
    Group,
    GroupSpec,
    Handle,
    Point,
    Region,
    Timeline,
    Waits,
)
from hal.core.wrappers.checks import shrunk
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.communicator import Member, mismatch
from hal_plugin_cpu.extents import check
from hal_plugin_cpu.rendezvous import meet
from hal_plugin_cpu.session import Session
from hal_plugin_cpu.watch import WATCH

_NULL = ffi.NULL
_PREFIX = "cpu:"


class Groups:
    """The hooks of collectives."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._members: set[Member] = set()

    @hookimpl
    def create_group(self, spec: GroupSpec) -> Group:
        session = self._session
        if code := lib.hc_usable(session.native):
            session.refuse(code, "create_group")
        if not 0 <= spec.rank < len(spec.peers) or spec.peers[spec.rank] != session.name:
            raise InvalidCall(
                f"create_group: {session.name} is not rank {spec.rank} of {spec.peers}"
            )
        if foreign := [peer for peer in spec.peers if not peer.startswith(_PREFIX)]:
            raise Unsupported(f"create_group: {foreign} are no CPU devices")
        member = meet(session, spec)
        with self._lock:
            self._members.add(member)
        return Group(session.name, session.epoch, member, spec.rank, len(spec.peers))

    @hookimpl
    def collective(
        self,
        group: Group,
        call: Collective,
        dst: Region,
        src: Region,
        timeline: Timeline,
        waits: Waits,
    ) -> Point:
        member = self._member(group, "collective")
        check(call, dst, src, group.rank, group.size)
        # Before the call takes its number, because a call that is refused must not count
        native = self._session.native
        for handle in (dst.buffer, src.buffer, timeline, *(point.timeline for point in waits)):
            try:
                code = lib.hc_usable(native) or lib.hc_check(native, handle.native)
            except TypeError as error:
                raise self._session.foreign("collective", error) from error
            if code:
                self._session.refuse(code, "collective")
        if timeline.host_driven:
            raise InvalidCall("collective: a host-driven timeline takes no operations")
        points = self._session.point_array(waits) if waits else _NULL
        shared = member.join(call)
        value = 0
        try:
            if shared.mismatch:
                member.note(mismatch(member, shared.mismatch))
            if member.error is not None:
                fault = member.failed << 3 | int(lib.HC_FAULT_FAIL)
            else:
                fault = (
                    self._session.faults.code("collective") if self._session.faults.pending else 0
                )
            value = lib.hc_collective(
                self._session.native, shared.native, group.rank, dst.buffer.native, dst.offset,
                src.buffer.native, src.offset, timeline.native, len(waits),
                points, fault,
            )  # fmt: skip
        finally:
            if value <= 0:
                member.skip(shared)
        if value < 0:
            self._session.refuse(value, "collective")
        WATCH.add(member)
        return Point(timeline, value)

    @hookimpl
    def abort(self, group: Group, cause: Failure) -> None:
        member = group.native
        with member.communicator.changed:
            member.fail(cause)

    @hookimpl
    def async_error(self, group: Group) -> Failure | None:
        error: Failure | None = group.native.error
        return error

    @hookimpl
    def shrink(self, group: Group, ranks: Sequence[int]) -> Group:
        spec = self._member(group, "shrink").spec
        return self.create_group(shrunk(f"{self._session.name}.shrink", spec, ranks))

    def free(self, handle: Handle) -> bool:
        """Leave the handle's group, whose calls so far go on; False when the handle is of another
        kind."""
        if not isinstance(handle, Group):
            return False
        member = self._member(handle, "free")
        with self._lock:
            self._members.discard(member)
        member.left = True
        return True

    def leave_all(self) -> None:
        """The session ends: its handles of groups are stale."""
        with self._lock:
            members, self._members = self._members, set()
        for member in members:
            member.left = True

    def _member(self, group: Group, where: str) -> Member:
        member = group.native
        if not isinstance(member, Member) or member.session is not self._session or member.left:
            raise StaleHandle(
                f"{self._session.name}.{where}: the group was left, or is of another session"
            )
        return member
