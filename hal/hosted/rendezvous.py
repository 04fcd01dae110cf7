"""How the members of a group find each other in the process, and the calls that they share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace

from hal.core.errors import (
    DeadlineExceeded,
    Failure,
    FailureKind,
    HalError,
    InvalidCall,
    OperationFailed,
    Scope,
)
from hal.core.facts import dataclass
from hal.core.values import Collective, GroupSpec, Span
from hal.hosted.arithmetic import Ends, combine
from hal.hosted.faults import takes_device
from hal.hosted.lock import LOCK, SLICE_S
from hal.hosted.machine import DriverGroup
from hal.hosted.queues import Operation, Stage
from hal.hosted.session import Session
from hal.hosted.watch import Doing


@dataclass(eq=False, slots=True)
class SharedCall:
    """One call of a communicator. `joined` has, by rank, who submitted it and has not given up;
    `arrived` are the ranks whose waits are over. The machine of the rank `at` reads or writes."""

    communicator: Communicator
    number: int
    call: Collective
    joined: dict[int, tuple[Operation, Ends]] = field(default_factory=dict)
    arrived: set[int] = field(default_factory=set)
    at: int = 0

    @property
    def name(self) -> str:
        return f"collective {self.call.kind.value}"

    @property
    def complete(self) -> bool:
        """Whether every member has joined."""
        return len(self.joined) == len(self.communicator.peers)

    def arrive(self, op: Operation) -> bool:
        """A member's turn has come; True for the last one, who then works for all."""
        rank = self._rank(op)
        member = self.communicator.members[rank]
        if member.error is not None and self.number >= member.failed_from:
            member.fail(member.error, self.number)
            return False
        if absent := [r for r in self.communicator.gone if r not in self.joined]:
            member.fail(self.communicator.lost(member, absent[0]), self.number)
            return False
        op.stage = Stage.ARRIVED
        member.session.active.add(op)
        self.arrived.add(rank)
        if not self.complete or len(self.arrived) < len(self.communicator.peers):
            return False
        for one, _ in self.joined.values():
            one.stage = Stage.RUNNING
        return True

    def work_for_all(self, doing: Doing) -> None:
        """Do what the call says with the memory of all members, and end every part of it. `doing`
        says meanwhile how far it is."""
        start_ns = time.monotonic_ns()
        failure = self._work(doing)
        doing.operation = ""
        end_ns = max(time.monotonic_ns(), start_ns + 1)
        machine = self.communicator.members[0].session.machine
        own_ns = machine.collective_ns(self.call, self.communicator.peers)
        span = Span(self.name, start_ns, end_ns, device_ns=own_ns)
        with LOCK:
            if failure is not None and takes_device(failure):
                self.lose(failure)
            for rank, (op, _) in list(self.joined.items()):
                member = self.communicator.members[rank]
                if failure is not None and op.stage is Stage.RUNNING:
                    member.session.fail(op.queue, op.value, failure)
                if failure is not None and failure.scope is Scope.PEER:
                    member.fail(failure, self.number)
                if self in member.calls:
                    member.calls.remove(self)
                member.session.finish(op, (span,))

    def _work(self, doing: Doing) -> Failure | None:
        ends = [self.joined[rank][1] for rank in range(len(self.communicator.peers))]

        def goes_on(rank: int) -> None:
            self.at = rank
            doing.step(self.name)

        try:
            doing.step(self.name)
            if not self.communicator.collect(self.call, ends, goes_on):
                combine(self.call, ends, goes_on)
        except OperationFailed as error:
            return error.failure
        except Exception as error:  # noqa: BLE001  foreign code: a machine's read or write
            text = f"{type(error).__name__}: {error}"
            where = self.communicator.peers[0]
            return Failure(FailureKind.LAUNCH_FAULT, Scope.OPERATION, where, self.name, text)
        return None

    def lose(self, failure: Failure) -> None:
        """The machine of the rank `at` does not return, or says that it is gone: its device is
        lost, and no part of the call ends any more (with the lock held)."""
        rank, session = self.at, self.communicator.members[self.at].session
        session.lose(replace(failure, device=session.name))
        for op, _ in list(self.joined.values()):
            member = self.communicator.members[self._rank(op)]
            lost = _peer_lost(member, f"rank {rank} ({session.name}) is lost: {failure.message}")
            member.fail(lost, self.number)
            member.session.fail(op.queue, op.value, lost)

    def expire(self, op: Operation, waited_s: float) -> None:
        """Fail the call on a member that waited for longer than the group allows."""
        member = self.communicator.members[self._rank(op)]
        if waited_s > member.spec.timeout_s:
            ranks = range(len(self.communicator.peers))
            absent = [rank for rank in ranks if rank not in self.arrived]
            missing = absent or [rank for rank in ranks if rank not in self.joined]
            text = f"call {self.number}: ranks {missing} did not come in {member.spec.timeout_s} s"
            member.fail(_peer_lost(member, text), self.number)

    def leave(self, op: Operation, cause: Failure) -> None:
        """A member's operation ended without its work: the others need not wait for it."""
        if any(one is op for one, _ in self.joined.values()):
            member = self.communicator.members[self._rank(op)]
            member.drop(self)
            member.fail(cause, self.number)
            member.depart(str(cause))

    def _rank(self, op: Operation) -> int:
        return next(rank for rank, (one, _) in self.joined.items() if one is op)


@dataclass(eq=False, slots=True)
class Member:
    """A device's part in a group: the payload of its `Group`. `error` is the first failure here,
    `calls` are unfinished."""

    session: Session
    spec: GroupSpec
    communicator: Communicator
    error: Failure | None = None
    failed_from: int = 0
    next_call: int = 0
    calls: list[SharedCall] = field(default_factory=list)

    def fail(self, failure: Failure, first: int = 0) -> None:
        """Fail this member's unfinished calls from the number `first` on. The first error stays."""
        self.failed_from = first if self.error is None else min(first, self.failed_from)
        self.error = self.error or failure
        for call in [c for c in self.calls if c.number >= first]:
            if call not in self.calls:
                continue  # it failed with one before, which is on the same timeline
            op = call.joined[self.spec.rank][0]
            if op.stage is not Stage.RUNNING:
                self.drop(call)
                self.session.fail(op.queue, op.value, failure)

    def drop(self, call: SharedCall) -> None:
        """Take this member out of a call."""
        self.calls.remove(call)
        del call.joined[self.spec.rank]

    def depart(self, text: str) -> None:
        """This member comes to no later call: fail those that the others wait in for it."""
        rank = self.spec.rank
        self.communicator.gone.setdefault(rank, text)
        for other in list(self.communicator.members.values()):
            absent = [call.number for call in other.calls if rank not in call.joined]
            if other is not self and absent:
                other.fail(self.communicator.lost(other, rank), min(absent))


class Communicator:
    """The members of one group, by rank, and the calls that not all of them have joined."""

    def __init__(self, peers: tuple[str, ...]) -> None:
        self.peers = peers
        self.members: dict[int, Member] = {}
        self.gone: dict[int, str] = {}
        self.disagreement = ""
        self._calls: dict[int, SharedCall] = {}
        self._turn = threading.Lock()
        self._own: DriverGroup | HalError | None = None
        self._asked = False

    def connect(self, timeout_s: float) -> None:
        """Once all have joined, have the first one's machine make a group of the driver's; each
        member calls it, and one asks (without the lock). Raises DeadlineExceeded, and for every
        member what the machine refuses."""
        if not self._turn.acquire(timeout=timeout_s):
            raise DeadlineExceeded(f"the group's driver did not connect it in {timeout_s} s")
        try:
            if not self._asked:
                self._asked = True
                ranks = range(len(self.peers))
                machines = [self.members[rank].session.machine for rank in ranks]
                self._own = machines[0].group(machines, timeout_s)
        except HalError as error:
            self._own = error
        finally:
            self._turn.release()
        if isinstance(self._own, HalError):
            raise self._own

    def collect(
        self, call: Collective, ends: Sequence[Ends], goes_on: Callable[[int], None]
    ) -> bool:
        """Have a group of the driver's do a call; False where there is none that takes it."""
        if self._own is None or isinstance(self._own, HalError):
            return False
        timeout_s = self.members[0].spec.timeout_s
        if not self._turn.acquire(timeout=timeout_s):
            raise DeadlineExceeded(f"the group's call before did not end in {timeout_s} s")
        try:
            return self._own.collect(call, [end.parts for end in ends], goes_on)
        finally:
            self._turn.release()

    def lost(self, member: Member, rank: int) -> Failure:
        """That a rank is gone, as another member sees it."""
        text = f"rank {rank} ({self.peers[rank]}) is gone: {self.gone[rank]}"
        return _peer_lost(member, text)

    def join(self, member: Member, call: Collective) -> tuple[SharedCall, str]:
        """The shared call that is the member's next one, and how the member disagrees with it."""
        number = member.next_call
        shared = self._calls.setdefault(number, SharedCall(self, number, call))
        member.next_call += 1
        if all(m.next_call > number for m in self.members.values()):
            del self._calls[number]
        if shared.call == call:
            return shared, ""
        known, new = _said(shared.call), _said(call)
        return shared, f"call {number} is {known} for others but {new} on rank {member.spec.rank}"

    def disagree(self, shared: SharedCall, text: str) -> None:
        """Fail the call on everyone: those who joined it now, others when they come."""
        for member in self.members.values():
            failure = Failure(
                FailureKind.ABORTED, Scope.PEER, member.session.name, shared.name, text
            )
            member.fail(failure, shared.number)


_arrivals = threading.Condition(LOCK)
_open: dict[str, Communicator] = {}


def meet(session: Session, spec: GroupSpec) -> Member:
    """Wait until every rank of the group has called this.

    Raises DeadlineExceeded that names the missing ranks; InvalidCall when members disagree.
    """
    with _arrivals:
        communicator = _open.setdefault(spec.key, Communicator(spec.peers))
        member = Member(session, spec, communicator)
        _enter(communicator, member)
        try:
            _wait_for_all(communicator, member)
        except BaseException:
            _withdraw(communicator, member)
            raise
        session.members.append(member)
    return member


def _wait_for_all(communicator: Communicator, member: Member) -> None:
    until_s = time.monotonic() + member.spec.timeout_s
    while len(communicator.members) < len(communicator.peers) and not communicator.disagreement:
        member.session.check_usable("create_group")
        if (left_s := until_s - time.monotonic()) <= 0:
            raise _missing(communicator, member.spec)
        _arrivals.wait(min(left_s, SLICE_S))
    if communicator.disagreement:
        raise InvalidCall(communicator.disagreement)


def _enter(communicator: Communicator, member: Member) -> None:
    spec = member.spec
    if spec.peers != communicator.peers:
        theirs = f"rank {spec.rank} names the peers {spec.peers}, others {communicator.peers}"
        communicator.disagreement = f"group {spec.key!r}: {theirs}"
    elif spec.rank in communicator.members:
        raise InvalidCall(f"group {spec.key!r}: rank {spec.rank} has joined already")
    else:
        communicator.members[spec.rank] = member
    if communicator.disagreement or len(communicator.members) == len(communicator.peers):
        del _open[spec.key]
    _arrivals.notify_all()


def _withdraw(communicator: Communicator, member: Member) -> None:
    """The member does not wait any longer; the last one takes the communicator away."""
    communicator.members.pop(member.spec.rank, None)
    if not communicator.members and _open.get(member.spec.key) is communicator:
        del _open[member.spec.key]


def _missing(communicator: Communicator, spec: GroupSpec) -> DeadlineExceeded:
    missing = [rank for rank in range(len(spec.peers)) if rank not in communicator.members]
    text = f"group {spec.key!r}: ranks {missing} did not join in {spec.timeout_s} s"
    return DeadlineExceeded(text)


def _peer_lost(member: Member, text: str) -> Failure:
    return Failure(FailureKind.PEER_LOST, Scope.PEER, member.session.name, "collective", text)


def _said(call: Collective) -> str:
    how = f"{call.reduce.value}, root {call.root}"
    return f"{call.kind.value} of {call.count} {call.dtype.short} ({how})"
