"""A rank's membership in a group whose data MPI moves."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from hal.core.errors import DeadlineExceeded, Failure, FailureKind, HalError, InvalidCall, Scope
from stack.comm.engine.base import ANYBODY, Array, Engine, Work
from stack.comm.engine.call import NativeCall
from stack.comm.engine.failures import GroupAborted, LateRank
from stack.comm.engine.library import lib
from stack.comm.engine.routes import Route
from stack.comm.mpi.calls import ABORT_TAG, Requests, Said, collective, received, sent, tags_of
from stack.comm.mpi.library import mpi

_SPINS = 2000
_NAP_S, _LONG_NAP_S = 5e-5, 2e-3
"""Between two looks at a call, the longer it takes; MPI has no wait with a deadline."""
_LOOK_S = 0.01
_IDLE_S = 0.5
Lane = tuple[int, int, int]
_COLLECTIVES: Lane = (-1, -1, -1)
"""The lane of collectives; messages have one for each direction, rank and tag."""


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
        """Take a message of this rank, of which nobody was named before."""
        self._peer, self.steps = peer, steps

    @property
    def array(self) -> Array:
        """What it moves."""
        return self._result

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
    """Calls run one after the other, messages of a pair and direction too. MPI tells neither who is
    late nor who has died, and may add in another order than that of the ranks."""

    def __init__(self, key: str, comm: Any, timeout_s: float) -> None:
        self.key = key
        self.rank = comm.rank
        self.size = comm.size
        self.timeout_s = timeout_s
        self._comm = comm
        self._sequence = 0
        self._failure: HalError | None = None
        self._lanes: dict[Lane, deque[MpiWork]] = {}
        self._changed = threading.Condition(threading.RLock())
        self._mover: threading.Thread | None = None
        self._left = False
        self._looked_s = 0.0
        self._told: list[Any] = []

    @property
    def way(self) -> str:
        return "mpi" if self._sequence else ""

    def run(self, call: NativeCall, dst: Array, src: Array, route: Route | None = None) -> Array:
        with self._changed:
            work = self._work(call, dst, src, route)
            if self._lanes.get(_COLLECTIVES):
                self._queue(_COLLECTIVES, work)
            else:
                # Run a call in the caller's thread
                spins = 0
                while not work.advance():
                    spins += 1
                    if spins > _SPINS:
                        self._look_after(work)
                        time.sleep(_nap_s(time.monotonic() - work.begun_s))
        return work.finish()

    def start(
        self, call: NativeCall, dst: Array, src: Array, route: Route | None = None
    ) -> MpiWork:
        with self._changed:
            work = self._work(call, dst, src, route)
            self._queue(_COLLECTIVES, work)
        return work

    def message(self, kind: int, dtype: int, array: Array, peer: int, tag: int) -> MpiWork:
        out = kind == lib.HE_SEND
        comm, tags = self._comm, tags_of(tag)
        what = (
            f"message {'to' if out else 'from'} {'any rank' if peer == ANYBODY else f'rank {peer}'}"
        )
        with self._changed:
            self._check()
            work = MpiWork(self, what, array, peer)
            if out:
                work.steps = sent(comm, array, peer, tags)
            elif peer != ANYBODY:
                work.steps = received(self.key, comm, array, peer, tags)
            self._queue((kind, peer, tag), work)
        return work

    def meet(self, name: str) -> None:
        """MPI gives a receive what has its tag, and shows nothing else of what has come."""

    def share(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        return np.zeros(shape, dtype)

    def failure(self) -> HalError | None:
        self._look()
        return self._failure

    def fail(self, error: HalError) -> None:
        """The first failure ends the group here."""
        if self._failure is None:
            self._failure = error

    def error(self, kind: FailureKind, text: str) -> LateRank:
        """A failure of which MPI does not tell the rank: that is -1."""
        group = f"group {self.key!r}"
        return LateRank(Failure(kind, Scope.PEER, f"rank {self.rank}", group, text), -1)

    def abort(self) -> None:
        text = "this rank has aborted the group"
        where, ranks = f"rank {self.rank}", (self.rank,)
        value = Failure(FailureKind.ABORTED, Scope.PEER, where, self.key, text, ranks=ranks)
        with self._changed:
            if self._failure is None:
                others = [r for r in range(self.size) if r != self.rank]
                word = [bytearray(1), mpi().BYTE]
                self._told = [self._comm.Isend(word, other, ABORT_TAG) for other in others]
            self.fail(GroupAborted(value, self.rank))

    def leave(self) -> None:
        with self._changed:
            self._left = True
            self._changed.notify_all()

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
        """Now and then, whether somebody has aborted the group."""
        now_s = time.monotonic()
        if self._failure is not None or now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        status = mpi().Status()
        if self._comm.Iprobe(mpi().ANY_SOURCE, ABORT_TAG, status):
            rank = status.Get_source()
            text = f"rank {rank} has aborted the group"
            where, kind = f"rank {self.rank}", FailureKind.ABORTED
            value = Failure(kind, Scope.PEER, where, self.key, text, ranks=(rank,))
            self.fail(GroupAborted(value, rank))

    def _look_after(self, work: MpiWork) -> None:
        """End a call that has not, because the group has failed or its time is over."""
        self._look()
        if self._failure is None and time.monotonic() - work.begun_s > self.timeout_s:
            text = f"{work.what} was not done within {self.timeout_s:g} s; MPI does not tell why"
            self.fail(self.error(FailureKind.HANG, text))
        if self._failure is not None:
            work.end(self._failure)

    def _queue(self, lane: Lane, work: MpiWork) -> None:
        self._lanes.setdefault(lane, deque()).append(work)
        if self._mover is None:
            self._mover = threading.Thread(target=self._move, name=f"mpi {self.key}", daemon=True)
            self._mover.start()
        self._changed.notify_all()

    def _move(self) -> None:
        """The thread that goes on with what is queued, until the rank has left."""
        moved_s = time.monotonic()
        while not (self._left and not self._lanes):
            with self._changed:
                if not self._lanes and not self._changed.wait_for(
                    lambda: bool(self._lanes) or self._left, _IDLE_S
                ):
                    continue
                moved = [self._move_lane(lane) for lane in list(self._lanes)]
            now_s = time.monotonic()
            moved_s = now_s if any(moved) else moved_s
            time.sleep(_nap_s(now_s - moved_s))

    def _move_lane(self, lane: Lane) -> bool:
        queue = self._lanes[lane]
        from_anybody = lane[:2] == (lib.HE_RECV, ANYBODY)
        if from_anybody and self._adopt(lane):
            return True
        if from_anybody or not queue[0].advance():
            self._look_after(queue[0])
        if not queue[0].done:
            return False
        queue.popleft()
        if not queue:
            del self._lanes[lane]
        return True

    def _adopt(self, lane: Lane) -> bool:
        """Let the first receive from anybody be one from a rank whose message is there. Only from
        a rank of which no receive of this tag is open, as the next message may be for that one."""
        tag, tags = lane[2], tags_of(lane[2])
        for peer in range(self.size):
            own = lib.HE_RECV, peer, tag
            if own not in self._lanes and self._comm.Iprobe(peer, tags[0]):
                work = self._lanes[lane].popleft()
                if not self._lanes[lane]:
                    del self._lanes[lane]
                work.come_from(peer, received(self.key, self._comm, work.array, peer, tags))
                self._queue(own, work)
                return True
        return False


def _nap_s(waited_s: float) -> float:
    return min(max(waited_s / 20, _NAP_S), _LONG_NAP_S)
