"""The members of a group, here and in other processes, and the calls that they share."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import count
from queue import Empty, SimpleQueue

from hal.core.description import Feature
from hal.core.errors import (
    DeadlineExceeded,
    Failure,
    FailureKind,
    HalError,
    OperationFailed,
    Scope,
)
from hal.core.facts import dataclass
from hal.core.values import Collective, GroupSpec, Span
from hal.hosted.arithmetic import Bytes, Ends, combine
from hal.hosted.elsewhere import Elsewhere, Message
from hal.hosted.faults import takes_device
from hal.hosted.lock import LOCK, SLICE_S
from hal.hosted.machine import DriverGroup, GoesOn, Invitation
from hal.hosted.queues import Operation, Stage
from hal.hosted.session import Session
from hal.hosted.watch import Doing
from hal.hosted.wire import call_of, packed, unpacked, words_of

_ENDED = "its process has ended, or no longer waits"
_IDLE_S = 60.0
_PATIENCE_S = 5.0
"""The least time that a rank has to bring its bytes once all have come to a call."""


@dataclass(eq=False, slots=True)
class SharedCall:
    """One call of a communicator. `joined` has, by rank, who submitted it here and has not given
    up; `seen` are the ranks that have submitted it, as far as this process knows, and `arrived`
    those whose waits are over. The machine of the rank `at` reads or writes."""

    communicator: Communicator
    number: int
    call: Collective
    joined: dict[int, tuple[Operation, Ends]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    arrived: set[int] = field(default_factory=set)
    driver: bool = True
    """Whether the driver's group takes what has arrived."""
    begun: bool = False
    at: int = 0

    @property
    def name(self) -> str:
        return f"collective {self.call.kind.value}"

    @property
    def complete(self) -> bool:
        """Whether every member has joined."""
        return not self._absent

    @property
    def _absent(self) -> list[int]:
        here, ranks = self.communicator.members, range(len(self.communicator.peers))
        return [r for r in ranks if r not in (self.joined if r in here else self.arrived)]

    def arrive(self, op: Operation) -> bool:
        """A member's turn has come; True for the last one, who then works for all. Where some are
        in other processes, a thread of the communicator does when all are told to begin."""
        rank, communicator = self._rank(op), self.communicator
        member = communicator.members[rank]
        if member.error is not None and self.number >= member.failed_from:
            member.fail(member.error, self.number)
            return False
        if absent := [r for r, (first, _) in communicator.gone.items() if first <= self.number]:
            member.fail(communicator.lost(member, absent[0]), self.number)
            return False
        op.stage = Stage.ARRIVED
        member.session.active.add(op)
        takes = communicator.takes(self.call, rank, self.joined[rank][1])
        communicator.tell("arrived", rank, self.number, driver=takes, call=words_of(self.call))
        return self.come(rank, takes) and not communicator.spans

    def come(self, rank: int, takes: bool) -> bool:
        """A rank's waits are over, here or elsewhere. Begins the call once all are there; where
        there are several processes, that of rank 0 says so, that all begin their calls in one
        order."""
        self.arrived.add(rank)
        self.driver &= takes
        ready = self.complete and len(self.arrived) == len(self.communicator.peers)
        if not ready or 0 not in self.communicator.members:
            return False
        self.communicator.tell("begin", 0, self.number, driver=self.driver)
        self.begin(self.driver)
        return True

    def begin(self, driver: bool) -> None:
        """All have come."""
        if not self.joined:
            return  # all have given up, and told so
        self.begun, self.driver = True, driver
        for one, _ in self.joined.values():
            one.stage = Stage.RUNNING
        if self.communicator.spans:
            self.communicator.begun.put(self)

    def work_for_all(self, doing: Doing) -> None:
        """Do what the call says with the memory of all members here, and end every part of it.
        `doing` says meanwhile how far it is."""
        start_ns = time.monotonic_ns()
        failure = self._work(doing)
        doing.operation = ""
        end_ns = max(time.monotonic_ns(), start_ns + 1)
        communicator = self.communicator
        own_ns = communicator.lead.session.machine.collective_ns(self.call, communicator.peers)
        span = Span(self.name, start_ns, end_ns, device_ns=own_ns)
        with LOCK:
            if failure is not None and takes_device(failure):
                self.lose(failure)
            for rank, (op, _) in list(self.joined.items()):
                member = communicator.members[rank]
                if failure is not None and op.stage is Stage.RUNNING:
                    member.session.fail(op.queue, op.value, failure)
                # What others do of the call is not known to have failed, too.
                if failure is not None and (failure.scope is Scope.PEER or communicator.spans):
                    member.fail(failure, self.number)
                if self in member.calls:
                    member.calls.remove(self)
                member.session.finish(op, (span,))
            communicator.settle()

    def _work(self, doing: Doing) -> Failure | None:
        communicator, size = self.communicator, len(self.communicator.peers)
        ends = {rank: end for rank, (_, end) in sorted(self.joined.items())}

        def goes_on(rank: int) -> None:
            self.at = rank
            doing.step(self.name)

        def goes_on_together(rank: int) -> None:
            goes_on(rank)
            communicator.check(self.number)

        if given_up := communicator.members.keys() - ends.keys():
            return communicator.failed(f"rank {min(given_up)} has given up")
        try:
            doing.step(self.name)
            if self.driver:
                communicator.collect(self.call, ends, goes_on_together)
            else:
                phases = count()

                def exchange(own: Mapping[int, bytes]) -> Sequence[Bytes]:
                    return communicator.exchange(self.number, next(phases), own, goes_on)

                combine(self.call, ends, size, goes_on, exchange)
        except OperationFailed as error:
            return error.failure
        except Exception as error:  # noqa: BLE001  foreign code: a machine's read or write
            text = f"{type(error).__name__}: {error}"
            where = communicator.lead.session.name
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
            missing = [rank for rank in ranks if rank not in self.arrived] or self._absent or [0]
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

    @property
    def owes(self) -> int:
        """The first call in which others may still wait for this member."""
        return min((call.number for call in self.calls), default=self.next_call)

    def fail(self, failure: Failure, first: int = 0, *, known: bool = False) -> None:
        """Fail this member's unfinished calls from the number `first` on, of which other processes
        are told unless it is `known` to them. The first error stays."""
        first = max(first, self.owes)
        if self.error is None or first < self.failed_from:
            self.error, self.failed_from = self.error or failure, first
            if not known:
                rank, named = self.spec.rank, failure.kind is FailureKind.PEER_LOST
                text = failure.message if named else self.communicator.words(rank, str(failure))
                self.communicator.tell("gone", rank, first, text=text)
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
        self.communicator.settle()

    def depart(self, text: str) -> None:
        """This member comes to no later call: fail those that the others wait in for it."""
        rank, communicator = self.spec.rank, self.communicator
        first = self.next_call if self.error is None else self.failed_from
        communicator.leave(rank, first, communicator.words(rank, text))
        communicator.tell("gone", rank, first, text=communicator.gone[rank][1])
        communicator.settle()


class Communicator:
    """The members of one group that this process has, by rank, the calls that not all have
    submitted, and the links to the processes that have the others. It is what these links call
    (`Hears`)."""

    def __init__(self, key: str, peers: tuple[str, ...]) -> None:
        self.key, self.peers = key, peers
        self.members: dict[int, Member] = {}
        self.gone: dict[int, tuple[int, str]] = {}
        """By rank: the first call to which it does not come, and why."""
        self.disagreement = ""
        self.met = False
        """Whether all members are there."""
        self.changed = threading.Condition(LOCK)
        self.begun: SimpleQueue[SharedCall | None] = SimpleQueue()
        """Calls with ranks elsewhere, in the order in which all processes begin them."""
        self._elsewhere: Elsewhere | None = None
        self._seats: dict[int, str] = {}
        """What each rank's machine says of itself, once its process has found all ranks."""
        self._came: set[int] = set()
        self._found = False
        self._calls: dict[int, SharedCall] = {}
        self._brought: dict[tuple[int, int, int], memoryview] = {}
        """By call, phase and rank: the bytes from elsewhere that nobody has taken yet."""
        self._turn = threading.Lock()
        self._asked = False
        self._own: DriverGroup | None = None
        self._refused: HalError | None = None
        self._words: bytes | None = None

    @property
    def spans(self) -> bool:
        """Whether some members are in other processes."""
        return len(self.members) < len(self.peers)

    @property
    def lead(self) -> Member:
        """The member of the lowest rank here."""
        return self.members[min(self.members)]

    @property
    def absent(self) -> list[int]:
        """The ranks that have not come, or else have gone again, or whose process has not found
        all others."""
        ranks, there = range(len(self.peers)), self._there()
        gone = [rank for rank in ranks if rank not in there]
        late = [rank for rank in ranks if rank not in self._seats]
        return [rank for rank in gone if rank not in self._came] or gone or late

    # how members meet (with the lock held)

    def enter(self, member: Member) -> None:
        """A member of this process has come. Raises InvalidCall where another process has its
        rank."""
        rank, features = member.spec.rank, member.session.info.features
        if Feature.GROUP_IPC in features and len(self.members) + 1 < len(self.peers):
            if self._elsewhere is None:
                self._elsewhere = Elsewhere(self.key, self.peers, self)
            self._elsewhere.add(rank)
        self.members[rank] = member
        self.came()

    def withdraw(self, member: Member) -> None:
        """A member of this process does not wait any longer, or was not let in."""
        rank = member.spec.rank
        if self.members.get(rank) is member:
            del self.members[rank]
            if self._elsewhere is not None:
                self._elsewhere.remove(rank)
            self.went([rank])
        if self._elsewhere is not None and not self.members:
            self._elsewhere.close()

    def refuse(self, text: str) -> None:
        """Members name different peers: all of them are refused, also elsewhere."""
        self.disagrees(text)
        if self._elsewhere is not None:
            self._elsewhere.tell({"say": "disagrees", "text": text})

    def came(self) -> None:
        there = self._there()
        self._came |= there
        if not self._found and len(there) == len(self.peers):
            self._found = True
            own = {rank: one.session.machine.seat for rank, one in self.members.items()}
            self._seats.update(own)
            if self._elsewhere is not None:
                self._elsewhere.tell({"say": "found", "seats": [*own.items()]})
            self._meet()
        self.changed.notify_all()

    def _there(self) -> set[int]:
        return set(self.members) | (self._elsewhere.ranks if self._elsewhere else set())

    def went(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            if self.met or (self._found and rank in self._seats):
                # It has found all others, too: it has joined, and may have left at once
                if rank not in self.gone:
                    self.leave(rank, 0, self.words(rank, _ENDED))
            else:
                self._found = False
                self._seats.pop(rank, None)
        self.changed.notify_all()

    def disagrees(self, text: str) -> None:
        self.disagreement = self.disagreement or text
        self.changed.notify_all()

    def _meet(self) -> None:
        """All members are there, if all processes have found them."""
        if self.met or not self._found or len(self._seats) < len(self.peers):
            return
        self.met = True
        if self._elsewhere is not None:
            self._elsewhere.settle()
            if self.spans:
                name = f"group {self.key} calls"
                threading.Thread(target=self._work, name=name, daemon=True).start()
            else:
                self._elsewhere.close()
                self._elsewhere = None
        self.changed.notify_all()

    # the driver's group (without the lock)

    def connect(self, timeout_s: float) -> None:
        """Once all have joined, have the driver make a group of its own, where it does; each member
        calls it, and one of each process asks. Raises DeadlineExceeded, and for every member what
        the machine refuses."""
        if not self._turn.acquire(timeout=timeout_s):
            raise DeadlineExceeded(f"the group's driver did not connect it in {timeout_s} s")
        try:
            if not self._asked:
                self._asked = True
                self._own = self._joined(timeout_s)
        except HalError as error:
            self._refused = error
        finally:
            self._turn.release()
        if self._refused is not None:
            raise self._refused

    def _joined(self, timeout_s: float) -> DriverGroup | None:
        seats, machine = set(self._seats.values()), self.lead.session.machine
        if "" in seats or len(seats) < len(self.peers):
            return None
        if 0 in self.members:
            self._words = machine.invite()
            with LOCK:
                self.tell("invites", 0, 0, words=self._words.hex())
        with LOCK:
            ends_s = time.monotonic() + timeout_s
            while self._words is None:
                self.check(0)
                if (left_s := ends_s - time.monotonic()) <= 0:
                    text = f"group {self.key!r}: ranks [0] did not invite the others"
                    raise DeadlineExceeded(f"{text} in {timeout_s} s")
                self.changed.wait(min(left_s, SLICE_S))
        machines = {rank: one.session.machine for rank, one in sorted(self.members.items())}
        invitation = Invitation(len(self.peers), self._words, timeout_s)
        return machine.group(machines, invitation, lambda _: self.check(0))

    def takes(self, call: Collective, rank: int, ends: Ends) -> bool:
        """Whether the driver's group does a rank's part of a call."""
        return self._own is not None and self._own.takes(call, rank, *ends.parts)

    def collect(self, call: Collective, ends: Mapping[int, Ends], goes_on: GoesOn) -> None:
        """Have the driver's group do a call that it takes."""
        assert self._own is not None, "it has taken the call"
        timeout_s = self.lead.spec.timeout_s
        if not self._turn.acquire(timeout=timeout_s):
            raise DeadlineExceeded(f"the group's call before did not end in {timeout_s} s")
        try:
            self._own.collect(call, {rank: end.parts for rank, end in ends.items()}, goes_on)
        finally:
            self._turn.release()

    # the host's way (without the lock)

    def exchange(
        self, number: int, phase: int, own: Mapping[int, bytes], goes_on: GoesOn
    ) -> Sequence[Bytes]:
        """What all ranks bring, by rank, of which this process's bring their `own`. Raises
        OperationFailed that names those that do not."""
        found: dict[int, Bytes] = {**own}
        size, patience_s = len(self.peers), max(self.lead.spec.timeout_s, _PATIENCE_S)
        for rank, data in own.items() if self.spans else ():
            descriptor = packed(data)
            try:
                with LOCK:
                    self.tell("brings", rank, number, [descriptor], phase=phase, nbytes=len(data))
            finally:
                os.close(descriptor)
        until_s = time.monotonic() + patience_s
        with LOCK:
            while missing := [rank for rank in range(size) if rank not in found]:
                goes_on(self.lead.spec.rank)
                came = {r: self._brought.pop((number, phase, r), None) for r in missing}
                if new := {rank: data for rank, data in came.items() if data is not None}:
                    found |= new
                    until_s = time.monotonic() + patience_s
                    continue
                self.check(number)
                if time.monotonic() > until_s:
                    text = f"call {number}: ranks {missing} did not bring their bytes"
                    raise OperationFailed(self.failed(f"{text} in {patience_s:g} s"))
                self.changed.wait(SLICE_S)
        return [found[rank] for rank in range(size)]

    # calls (with the lock held, but for `check` and `failed`)

    def tell(
        self, say: str, rank: int, number: int, descriptors: Sequence[int] = (), **more: object
    ) -> None:
        """Say something of a rank here to the other processes."""
        if self._elsewhere is not None and self.met:
            self._elsewhere.tell({"say": say, "rank": rank, "number": number, **more}, descriptors)

    def heard(self, message: Message, descriptors: Sequence[int]) -> None:
        match message["say"], message.get("rank", 0), message.get("number", 0):
            case "found", _, _:
                self._seats.update(map(tuple, message["seats"]))
                self._meet()
            case "disagrees", _, _:
                self.disagrees(message["text"])
            case "invites", _, _:
                self._words = bytes.fromhex(message["words"])
            case "arrived", rank, number:
                call = call_of(message["call"])
                shared, disagreement = self._shared(rank, number, call)
                if disagreement:
                    self.disagree(number, disagreement)
                else:
                    shared.come(rank, message["driver"])
            case "begin", _, number:
                if begun := self._unfinished(number):
                    begun.begin(message["driver"])
            case "brings", rank, number:
                (descriptor,) = descriptors
                brought = unpacked(descriptor, message["nbytes"])
                self._brought[number, message["phase"], rank] = brought
            case "gone", rank, number:
                self.leave(rank, number, message["text"])
            case "mismatch", _, number:
                self._mismatch(number, message["text"])
        self.changed.notify_all()

    def check(self, number: int) -> None:
        """Raise OperationFailed where a rank elsewhere does not come to a call, or one here has
        given it up meanwhile, as others do not get on without it."""
        if not self.spans:
            return
        gone = {rank: self.gone[rank] for rank in [*self.gone] if rank not in self.members}
        for rank, member in self.members.items():
            if member.error is not None:
                gone[rank] = member.failed_from, self.words(rank, str(member.error))
        if came := [text for first, text in gone.values() if first <= number]:
            raise OperationFailed(self.failed(came[0]))

    def failed(self, text: str) -> Failure:
        """The failure of a call by another rank."""
        return _peer_lost(self.lead, text)

    def lost(self, member: Member, rank: int) -> Failure:
        """That a rank is gone, as another member sees it."""
        return _peer_lost(member, self.gone[rank][1])

    def words(self, rank: int, text: str) -> str:
        """That a rank is gone, and why."""
        return f"rank {rank} ({self.peers[rank]}) is gone: {text}"

    def leave(self, rank: int, first: int, text: str) -> None:
        """A rank, here or elsewhere, comes to no call from the number `first` on: fail those in
        which the members here wait for it."""
        if rank in self.gone and self.gone[rank][0] <= first:
            return
        self.gone[rank] = first, text
        for other in [*self.members.values()]:
            waits = [c.number for c in other.calls if c.number >= first and not c.begun]
            if other.spec.rank != rank and waits:
                other.fail(self.lost(other, rank), min(waits))

    def join(self, member: Member, call: Collective) -> tuple[SharedCall, str]:
        """The shared call that is the member's next one, and how the member disagrees with it."""
        number = member.next_call
        member.next_call += 1
        return self._shared(member.spec.rank, number, call)

    def disagree(self, number: int, text: str) -> None:
        """Fail the call on everyone: those who joined it now, others when they come."""
        self.tell("mismatch", self.lead.spec.rank, number, text=text)
        self._mismatch(number, text)

    def settle(self) -> None:
        """End the links once nobody here needs them."""
        needed = any(m.calls or rank not in self.gone for rank, m in self.members.items())
        if self._elsewhere is not None and self.met and not needed:
            self._elsewhere.close()
            self._elsewhere = None
            self._brought.clear()
            self.begun.put(None)

    def part(self) -> None:
        for rank, member in self.members.items():
            if rank not in self.gone:
                self.tell("gone", rank, member.owes, text=self.words(rank, _ENDED))

    def _shared(self, rank: int, number: int, call: Collective) -> tuple[SharedCall, str]:
        shared = self._calls.setdefault(number, SharedCall(self, number, call))
        shared.seen.add(rank)
        if len(shared.seen) == len(self.peers):
            del self._calls[number]
        if shared.call == call:
            return shared, ""
        known, new = _said(shared.call), _said(call)
        return shared, f"call {number} is {known} for others but {new} on rank {rank}"

    def _unfinished(self, number: int) -> SharedCall | None:
        calls = (call for member in self.members.values() for call in member.calls)
        return next((call for call in calls if call.number == number), None)

    def _mismatch(self, number: int, text: str) -> None:
        for member in [*self.members.values()]:
            about = FailureKind.ABORTED, Scope.PEER, member.session.name, "collective"
            member.fail(Failure(*about, text), number, known=True)

    def _work(self) -> None:
        """Do the calls with ranks elsewhere, one after the other: a thread of the group, as other
        work of the devices must not wait for who comes late to it."""
        while True:
            try:
                call = self.begun.get(timeout=_IDLE_S)
            except Empty:
                continue
            if call is None:
                return
            call.work_for_all(Doing())


def _peer_lost(member: Member, text: str) -> Failure:
    return Failure(FailureKind.PEER_LOST, Scope.PEER, member.session.name, "collective", text)


def _said(call: Collective) -> str:
    how = f"{call.reduce.value}, root {call.root}"
    return f"{call.kind.value} of {call.count} {call.dtype.short} ({how})"
