"""Collectives among the CPU devices of one process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from hal.core.dtypes import DType
from hal.core.errors import Failure, InvalidCall, StaleHandle, Unsupported
from hal.core.spec import hookimpl
from hal.core.values import (
    Collective,
    CollectiveKind,
    Group,
    GroupSpec,
    Handle,
    Point,
    ReduceKind,
    Region,
    Timeline,
    Waits,
)
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.arguments import check_bounds
from hal_plugin_cpu.meeting import Member, meet, mismatch_failure
from hal_plugin_cpu.session import Session
from hal_plugin_cpu.watch import WATCH

_NULL = ffi.NULL
_PREFIX = "cpu:"
_WHOLE = frozenset({CollectiveKind.ALL_TO_ALL})
_GATHERS = frozenset({CollectiveKind.ALL_GATHER}) | _WHOLE
_SCATTERS = frozenset({CollectiveKind.REDUCE_SCATTER}) | _WHOLE
_REDUCES = frozenset(
    {CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER}
)


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
            raise Unsupported(f"create_group: {foreign} are no CPU devices of this process")
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
        _check(call, dst, src, group.size)
        self._check_handles(dst, src, timeline)
        shared = member.circle.join(member, call)
        try:
            value = lib.hc_collective(
                self._session.native, shared.native, group.rank, dst.buffer.native, dst.offset,
                src.buffer.native, src.offset, timeline.native, len(waits),
                self._session.point_array(waits) if waits else _NULL,
                self._fault(member, shared.mismatch),
            )  # fmt: skip
        except TypeError as error:
            raise self._session.foreign("collective", error) from error
        if value < 0:
            self._session.refuse(value, "collective")
        WATCH.add(member)
        return Point(timeline, value)

    @hookimpl
    def abort(self, group: Group, cause: Failure) -> None:
        member = group.native
        with member.circle.changed:
            member.fail(cause)

    @hookimpl
    def async_error(self, group: Group) -> Failure | None:
        error: Failure | None = group.native.error
        return error

    @hookimpl
    def shrink(self, group: Group, ranks: Sequence[int]) -> Group:
        spec = self._member(group, "shrink").spec
        if group.rank not in ranks or len(set(ranks)) != len(ranks):
            raise InvalidCall(f"shrink: ranks {ranks} must be distinct and include {group.rank}")
        if not all(0 <= rank < group.size for rank in ranks):
            raise InvalidCall(f"shrink: ranks {ranks} of a group of {group.size}")
        name = ",".join(map(str, ranks))
        peers = tuple(spec.peers[rank] for rank in ranks)
        key = f"{spec.key}/{name}"
        return self.create_group(
            replace(spec, key=key, rank=list(ranks).index(group.rank), peers=peers)
        )

    def free(self, handle: Handle) -> bool:
        """Leave the handle's group; False when the handle is of another kind."""
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

    def _check_handles(self, dst: Region, src: Region, timeline: Timeline) -> None:
        """Before the call takes its number, because a call that is refused must not count."""
        native = self._session.native
        for handle in (dst.buffer, src.buffer, timeline):
            try:
                code = lib.hc_usable(native) or lib.hc_check(native, handle.native)
            except TypeError as error:
                raise self._session.foreign("collective", error) from error
            if code:
                self._session.refuse(code, "collective")
        if timeline.host_driven:
            raise InvalidCall("collective: a host-driven timeline takes no operations")

    def _fault(self, member: Member, mismatch: str) -> int:
        if mismatch:
            member.error = member.error or mismatch_failure(member, mismatch)
        if member.error is not None:
            return self._session.failures.number(member.error) << 3 | int(lib.HC_FAULT_FAIL)
        return self._session.faults.code("collective") if self._session.faults.pending else 0


def _check(call: Collective, dst: Region, src: Region, size: int) -> None:
    """Raises InvalidCall for regions, a root or a type that do not fit the call."""
    check_bounds(dst, "collective")
    check_bounds(src, "collective")
    if not 0 <= call.root < size or call.count < 0:
        raise InvalidCall(f"collective: count {call.count}, root {call.root} of {size} members")
    if call.kind in _REDUCES and call.reduce is ReduceKind.AVG and call.dtype is DType.BOOL:
        raise InvalidCall("collective: bool has no average")
    part = 0 if call.kind is CollectiveKind.BARRIER else call.count * call.dtype.nbytes
    needs = (
        part * size if call.kind in _GATHERS else part,
        part * size if call.kind in _SCATTERS else part,
    )
    if (dst.nbytes, src.nbytes) != needs and call.kind is not CollectiveKind.BARRIER:
        raise InvalidCall(
            f"collective: {call.kind.value} of {call.count} {call.dtype.short} among {size} needs "
            f"(dst, src) of {needs} bytes, got ({dst.nbytes}, {src.nbytes})"
        )
