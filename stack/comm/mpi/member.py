"""A rank's membership in a group whose data MPI moves."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hal.core.errors import DeadlineExceeded, Failure, FailureKind, HalError, InvalidCall, Scope
from stack.comm.engine.base import ANYBODY, Array, Engine, Work
from stack.comm.engine.call import NativeCall
from stack.comm.engine.failures import CallMismatch, GroupAborted, LateRank, PeerLost
from stack.comm.engine.library import lib
from stack.comm.engine.meeting import MeshLine
from stack.comm.engine.routes import Route
from stack.comm.mpi.calls import Requests, Said, collective
from stack.comm.mpi.library import mpi
from stack.comm.mpi.messages import TOLD_TAG, Inbox, Receive, head_of, sent

_SPINS = 2000
_NAP_S, _LONG_NAP_S = 5e-5, 2e-3
"""Between two looks at a call, the longer it takes; MPI has no wait with a deadline."""
_LOOK_S = 0.01
_IDLE_S = 0.5
_MISMATCH = "mismatch"
"""What ranks tell each other of a CallMismatch; of other failures their kind."""
_members: dict[str, set[MpiMember]] = {}
"""Those of this process that have not left, by their mesh."""


class MpiWork(Work):
    """A call on its way, of which `Mover` takes one step after the other."""

    def __init__(self, member: MpiMember, what: str, result: Array, peer: int = -1) -> None:
        self.what = what
        self.steps: Requests = iter(())
        self._peer = peer
        self._member = member
        self._result = result
        self._request: Any = None
        self._over = threading.Event()
        self._error: HalError | None = None
        self.begun_s = time.monotonic()

    @property
    def done(self) -> bool:
        return self._over.is_set()

    @property
    def peer(self) -> int:
        return self._peer

    def come_from(self, peer: int, steps: Requests) -> None:
        """Take a message of this rank, of which nobody may have been named before."""
        self._peer, self.steps = peer, steps

    def advance(self) -> bool:
        """Go on with it if it can; whether it has ended."""
        try:
            while self._request is None or self._request.Test():
                self._request = next(self.steps)
        except StopIteration:
            self.end(None)
        except HalError as error:
            self._member.fail(error)
            self.end(error)
        except mpi().Exception as error:
            failed = self._member.error(
                FailureKind.PEER_LOST, f"MPI failed in {self.what}: {error}"
            )
            self._member.fail(failed)
            self.end(failed)
        return self._over.is_set()

    def end(self, error: HalError | None) -> None:
        self._error = error
        self._over.set()

    def wait(self, timeout_s: float | None = None) -> Array:
        limit_s = 2 * self._member.timeout_s if timeout_s is None else timeout_s
        if not self._over.wait(limit_s):
            raise DeadlineExceeded(f"{self.what} of group {self._member.key!r} is not done in time")
        if self._error is not None:
            raise self._error
        return self._result

    def finish(self) -> Array:
        try:
            return self.wait(2 * self._member.timeout_s)  # the call's own deadline ends it
        except KeyboardInterrupt:
            self._member.abort()
            raise


class MpiMember(Engine):
    """Collectives run one after the other, messages side by side. MPI tells neither who is late nor
    who has died, and may add in another order than that of the ranks."""

    def __init__(self, key: str, comm: Any, timeout_s: float, line: MeshLine | None = None) -> None:
        self.key = key
        self.rank = comm.rank
        self.size = comm.size
        self.timeout_s = timeout_s
        self._line = line
        self._comm = comm
        self._sequence = 0
        self._failure: HalError | None = None
        self._calls: deque[MpiWork] = deque()
        self._messages: list[MpiWork] = []
        self._waiting: list[MpiWork] = []
        self._inbox = Inbox(key, comm)
        self._sent: Counter[int] = Counter()
        self._changed = threading.Condition(threading.RLock())
        self._mover: threading.Thread | None = None
        self._left = False
        self._looked_s = 0.0
        self._told: list[Any] = []
        if line is not None:
            _members.setdefault(line.mesh, set()).add(self)

    @property
    def way(self) -> str:
        return "mpi" if self._sequence else ""

    def run(self, call: NativeCall, dst: Array, src: Array, route: Route | None = None) -> Array:
        with self._changed:
            work = self._work(call, dst, src, route)
            if self._calls:
                self._calls.append(work)
                self._wake()
            else:
                self._run_here(work)
        return work.finish()

    def _run_here(self, work: MpiWork) -> None:
        """Go on with a call in the caller's thread until it has ended."""
        spins = 0
        try:
            while not work.advance():
                spins += 1
                if spins > _SPINS:
                    self._look_after(work)
                    time.sleep(_nap_s(time.monotonic() - work.begun_s))
        except KeyboardInterrupt:
            self.abort()
            raise

    def start(
        self, call: NativeCall, dst: Array, src: Array, route: Route | None = None
    ) -> MpiWork:
        with self._changed:
            work = self._work(call, dst, src, route)
            self._calls.append(work)
            self._wake()
        return work

    def message(self, kind: int, dtype: int, array: Array, peer: int, tag: int) -> MpiWork:
        with self._changed:
            self._check()
            return self._message(kind == lib.HE_SEND, array, peer, tag)

    def _message(self, out: bool, array: Array, peer: int, tag: int | str) -> MpiWork:
        who = "any rank" if peer == ANYBODY else f"rank {peer}"
        work = MpiWork(self, f"message {'to' if out else 'from'} {who}", array, peer)
        if out:
            head = head_of(array, tag, self._sent[peer])
            self._sent[peer] += 1
            work.steps = sent(self._comm, head, array, peer)
            self._messages.append(work)
        else:
            self._waiting.append(work)
            begin = partial(self._begin, work)
            self._inbox.post(Receive(peer, head_of(array, tag), array, begin))
        self._wake()
        return work

    def _begin(self, work: MpiWork, peer: int, steps: Requests) -> None:
        """A receive has found its message."""
        work.come_from(peer, steps)
        self._waiting.remove(work)
        self._messages.append(work)

    def meet(self, name: str) -> None:
        none, others = np.empty(0, np.uint8), [r for r in range(self.size) if r != self.rank]
        with self._changed:
            self._check()
            works = [self._message(out, none, r, name) for out in (True, False) for r in others]
        for work in works:
            work.finish()

    def share(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        return np.zeros(shape, dtype)

    def failure(self) -> HalError | None:
        self._look()
        return self._failure

    def fail(self, error: HalError, tell: bool = False) -> None:
        """The first failure ends the group here, and the others of its mesh. With `tell` its other
        ranks hear of it."""
        if self._failure is not None:
            return
        self._failure = error
        if tell:
            self._tell(error)
        for other in self._beside():
            other.fail(_seen_from(error, self, other), tell=True)

    def _beside(self) -> list[MpiMember]:
        """The members of this process in other groups of the mesh."""
        if self._line is None:
            return []
        return [each for each in list(_members.get(self._line.mesh, ())) if each is not self]

    def _tell(self, error: HalError) -> None:
        if isinstance(error, CallMismatch):
            word: list[Any] = [_MISMATCH, str(error), error.ranks]
        else:
            assert isinstance(error, PeerLost), f"a group does not end by {type(error).__name__}"
            word = [error.failure.kind.value, error.failure.message, error.rank]
        data = [bytearray(json.dumps(word).encode()), mpi().BYTE]
        others = [r for r in range(self.size) if r != self.rank]
        self._told += [self._comm.Isend(data, other, TOLD_TAG) for other in others]

    def error(self, kind: FailureKind, text: str, rank: int = -1) -> PeerLost:
        """A failure; MPI does not tell by which rank, for which there is -1."""
        group, ranks = f"group {self.key!r}", () if rank < 0 else (rank,)
        value = Failure(kind, Scope.PEER, f"rank {self.rank}", group, text, ranks=ranks)
        return (GroupAborted if kind is FailureKind.ABORTED else LateRank)(value, rank)

    def abort(self) -> None:
        """Without the lock, which a call of another thread has until it is done."""
        text = f"rank {self.rank} has aborted the group"
        self.fail(self.error(FailureKind.ABORTED, text, self.rank), tell=True)

    def leave(self) -> None:
        with self._changed:
            self._left = True
            self._changed.notify_all()
        if self._line is not None:
            _members[self._line.mesh].discard(self)

    def lost(self) -> set[int]:
        return set()

    def _work(self, call: NativeCall, dst: Array, src: Array, route: Route | None) -> MpiWork:
        if route is not None:
            raise InvalidCall(
                "the MPI engine follows no chunk programs; HAL_COMM_ENGINE=native does"
            )
        self._check()
        said = Said(self._sequence, call, str(src.dtype))
        self._sequence += 1
        for array, what in ((src, "source"), (dst, "destination")):
            if not array.flags.c_contiguous:
                raise InvalidCall(f"the {what} is not C-contiguous; give a copy")
        work = MpiWork(self, str(said), dst)
        work.steps = collective(self.key, self._comm, said, dst, src)
        return work

    def _check(self) -> None:
        self._look()
        if self._failure is not None:
            raise self._failure

    def _look(self) -> None:
        """Now and then, what was told of failures here, and in the mesh's other groups."""
        now_s = time.monotonic()
        if self._failure is not None or now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        for member in (self, *self._beside()):
            # Its own thread may be looking at this group
            if member._changed.acquire(blocking=False):
                try:
                    member._hear()
                finally:
                    member._changed.release()

    def _hear(self) -> None:
        status = mpi().Status()
        message = self._comm.Improbe(mpi().ANY_SOURCE, TOLD_TAG, status)
        if message is None:
            return
        data = bytearray(status.Get_count(mpi().BYTE))
        message.Recv([data, mpi().BYTE])
        kind, text, rank = json.loads(data)
        if kind == _MISMATCH:
            self.fail(CallMismatch(text, tuple(rank)))
        else:
            self.fail(self.error(FailureKind(kind), text, rank))

    def _look_after(self, work: MpiWork) -> None:
        """End a call that has not, because the group has failed or its time is over."""
        self._look()
        if self._failure is None and time.monotonic() - work.begun_s > self.timeout_s:
            text = f"{work.what} was not done within {self.timeout_s:g} s; MPI does not tell why"
            self.fail(self.error(FailureKind.HANG, text))
        if self._failure is not None:
            work.end(self._failure)

    def _wake(self) -> None:
        """There is something for the thread to go on with."""
        if self._mover is None:
            self._mover = threading.Thread(target=self._move, name=f"mpi {self.key}", daemon=True)
            self._mover.start()
        self._changed.notify_all()

    @property
    def _busy(self) -> bool:
        return bool(self._calls or self._messages or self._waiting)

    def _move(self) -> None:
        """The thread that goes on with what is begun, until the rank has left."""
        moved_s = time.monotonic()
        while not (self._left and not self._busy):
            with self._changed:
                if not self._busy and not self._changed.wait_for(
                    lambda: self._busy or self._left, _IDLE_S
                ):
                    continue
                moved = self._turn()
            now_s = time.monotonic()
            moved_s = now_s if moved else moved_s
            time.sleep(_nap_s(now_s - moved_s))

    def _turn(self) -> bool:
        """Go on with all that can; whether something has."""
        moved = False
        try:
            moved = bool(self._waiting) and self._inbox.turn()
        except CallMismatch as error:
            self.fail(error, tell=True)
        for work in self._waiting:
            self._look_after(work)
        if self._failure is not None:
            self._inbox.forget()
        for work in (*self._messages, *([self._calls[0]] if self._calls else ())):
            if not work.advance():
                self._look_after(work)
            moved |= work.done
        self._messages = [work for work in self._messages if not work.done]
        self._waiting = [work for work in self._waiting if not work.done]
        if self._calls and self._calls[0].done:
            self._calls.popleft()
        return moved


def _seen_from(error: HalError, here: MpiMember, there: MpiMember) -> HalError:
    """What has ended a group of a mesh, for another one. A rank that is not in that has its number
    in the job."""
    if not isinstance(error, PeerLost):
        return error
    rank = error.rank
    if rank >= 0 and here._line is not None and there._line is not None:
        rank, ranks = here._line.ranks[rank], there._line.ranks
        rank = ranks.index(rank) if rank in ranks else rank
    text = f"group {here.key!r} of the mesh has ended: {error.failure.message}"
    return there.error(error.failure.kind, text, rank)


def _nap_s(waited_s: float) -> float:
    return min(max(waited_s / 20, _NAP_S), _LONG_NAP_S)
