"""Collectives among hosted devices."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.errors import Failure, Unsupported
from hal.core.spec import hookimpl
from hal.core.values import Collective, Group, GroupSpec, Point, Region, Timeline, Waits
from hal.core.wrappers.checks import shrunk
from hal.hosted.arithmetic import Ends, check_fits
from hal.hosted.communicator import Member
from hal.hosted.lock import LOCK
from hal.hosted.queues import Operation
from hal.hosted.rendezvous import meet
from hal.hosted.session import Session


class Groups:
    """The hooks of collectives."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @hookimpl
    def create_group(self, spec: GroupSpec) -> Group:
        session = self._session
        near = {session.name} | {link.peer for link in session.info.links}
        if foreign := [peer for peer in spec.peers if peer not in near]:
            raise Unsupported(f"{session.name}.create_group: it reaches no {foreign}")
        with LOCK:
            session.check_usable("create_group")
        member = meet(session, spec)
        try:
            with session.calling("create_group"):
                member.communicator.connect(spec.timeout_s)
        except BaseException as error:
            with LOCK:
                self._leave(member, f"it could not join: {error}")
            raise
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
        session, member = self._session, group.native
        where = f"{session.name}.collective"
        check_fits(where, call, Ends(dst, src), group.rank, group.size)
        uses = (dst.buffer.native, src.buffer.native)
        with LOCK:
            session.check_usable("collective")
            for allocation in uses:
                allocation.check("collective")
            fault = session.faults.take("collective")
            shared, disagreement = member.communicator.join(member, call)
            op = Operation(timeline.native, shared, tuple(waits), uses, fault)
            shared.joined[member.spec.rank] = (op, Ends(dst, src))
            member.calls.append(shared)
            point = self._session.submit(op, timeline)
            if disagreement:
                member.communicator.disagree(shared.number, disagreement)
            return point

    @hookimpl
    def abort(self, group: Group, cause: Failure) -> None:
        with LOCK:
            group.native.fail(cause)

    @hookimpl
    def async_error(self, group: Group) -> Failure | None:
        error: Failure | None = group.native.error
        return error

    @hookimpl
    def shrink(self, group: Group, ranks: Sequence[int]) -> Group:
        spec: GroupSpec = group.native.spec
        return self.create_group(shrunk(f"{self._session.name}.shrink", spec, ranks))

    def free(self, group: Group) -> None:
        """Leave; what was submitted goes on (with the lock held)."""
        self._leave(group.native, "it left the group")

    def _leave(self, member: Member, why: str) -> None:
        if member in self._session.members:  # a reset has taken it out
            self._session.members.remove(member)
        member.depart(why)
