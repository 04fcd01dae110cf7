"""A group of ranks that compute together: the collective operations, and the life of the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hal.core.errors import HalError, InvalidCall
from hal.core.values import CollectiveKind, ReduceKind
from stack.comm.engine.base import Engine, Work
from stack.comm.engine.call import NativeCall, call_of
from stack.comm.engine.choice import joined
from stack.comm.engine.codes import KINDS, REDUCES, Reduce
from stack.comm.engine.collectives import Collectives, code_of
from stack.comm.engine.meeting import MeetingPlace, MeshLine, leave
from stack.comm.engine.routes import Proved
from stack.comm.engine.survivors import agree_who_is_left
from stack.comm.plan.program import Program
from stack.comm.store import Hold, Store
from stack.comm.world import World

Array = NDArray[Any]


class Group(Collectives[Array]):
    """A group of `size` ranks, of which this process is number `rank`.

    Every operation blocks until it is done on this rank, and gives its result; `group.later` has
    the same operations in the background. The first failure ends the group on all ranks: operations
    raise it until `shrink` makes a group of those who are left.
    """

    def __init__(
        self, member: Engine, hosts: tuple[int, ...], hold: Hold, place: MeetingPlace
    ) -> None:
        """Use `Group.join` or `Group.of`."""
        super().__init__(member)
        self._send_now, self._receive_now = member.send_now, member.receive_now
        self._hold = hold
        self._place = place
        self._routes = Proved(member.rank, member.size)
        self.hosts = hosts
        """For each rank the lowest rank of its host: ranks with equal numbers share memory."""
        self.later = Later(member)

    @classmethod
    def of(cls, world: World) -> Self:
        """The group of all ranks of a job, or of an epoch of it. Raises InvalidCall before the
        first epoch of a job that may replace ranks."""
        world.check_epoch()
        place = MeetingPlace(Store.of(world), world.store, world.job, world.silent_s)
        return cls._join(place, world.rank, world.size, world.deadline_s)

    @classmethod
    def join(
        cls,
        store: Store,
        address: str,
        key: str,
        rank: int,
        size: int,
        deadline_s: float,
        silent_s: float | None = None,
        line: MeshLine | None = None,
    ) -> Self:
        """Meet the other ranks of group `key` in `store`, which is reached at `address`.

        `key` is equal on all ranks and new for every group. `deadline_s` is how long this waits,
        and how long an operation may make no progress; a rank that says nothing for `silent_s`
        seconds, by default a tenth of it, is lost. `line` is for a group that lies in a mesh.
        Raises DeadlineExceeded that names the missing, InvalidCall when ranks disagree.
        """
        place = MeetingPlace(store, address, key, silent_s, line)
        return cls._join(place, rank, size, deadline_s)

    @classmethod
    def _join(cls, place: MeetingPlace, rank: int, size: int, deadline_s: float) -> Self:
        if not 0 <= rank < size:
            raise InvalidCall(f"group {place.key!r}: rank {rank} is no rank of a group of {size}")
        try:
            return cls(*joined(place, rank, size, deadline_s), place)
        except BaseException:
            place.store.close()
            raise

    @property
    def key(self) -> str:
        """What the group is called, equally on all ranks."""
        return self._member.key

    @property
    def deadline_s(self) -> float:
        """How long an operation may make no progress.

        An operation that fails, by its deadline or otherwise, has its arrays to itself again when
        it raises, but for one thing. Ranks of one host write large arrays in each other's processes
        (broadcast, scatter, gather and messages of private memory). One whose process is stopped
        (SIGSTOP) just before such a write, and goes on after this one has raised, still writes up
        to 4 MiB into what this one was to receive. End such a process before you use that memory
        for something else, as a job that goes on after faults does (docs/fault-tolerance.md), or
        receive into new arrays.
        """
        return self._member.timeout_s

    @deadline_s.setter
    def deadline_s(self, deadline_s: float) -> None:
        """From the next call of this rank on. Raises InvalidCall unless it is above 0."""
        if not deadline_s > 0:
            raise InvalidCall(f"group {self.key!r}: {deadline_s:g} s is no deadline")
        self._member.timeout_s = deadline_s

    @property
    def way(self) -> str:
        """How the last operation ran: the name of a chunk program, or a way among the ranks of one
        host (`stack.comm.engine.member.WAYS`); "" before the first."""
        return self._member.way

    @property
    def failure(self) -> HalError | None:
        """What has ended the group; None while it works. Does not block."""
        return self._member.failure()

    def follow(
        self,
        program: Program,
        array: Array,
        out: Array,
        reduce: Reduce = ReduceKind.SUM,
        lengths: Sequence[int] | None = None,
    ) -> Array:
        """Run a chunk program of this group's size, from `array` to `out`; all ranks call it.

        `array` and `out` are what the program calls the rank's INPUT and OUTPUT: one and the same
        array if it runs in place where both have equal lengths. `lengths` are those of its extents;
        without them they are equal ones, which `array` fills. A program is proved right before it
        runs for the first time. Raises PlanError for one that is not, InvalidCall for wrong sizes.
        """
        route = self._routes.get(program, lengths, array, out)
        code = code_of(array, out, reduce)
        kind = KINDS[CollectiveKind(program.kind)]
        return self._member.run(call_of(kind, code, 0, -1, REDUCES[reduce]), out, array, route)

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
        """A new array, zero at first, that all ranks of this host map: operations on such arrays
        copy nothing in between. It lives as long as it is used. Raises OutOfMemory."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        return self._member.share(shape, np.dtype(dtype))

    def send(self, array: Array, to: int, tag: int = 0) -> Array:
        code = self._send_now(array, to, tag)
        if code == 0:
            return array
        return super().send(array, to, tag) if code is None else self._member.passed(code, array)

    def receive(self, array: Array, source: int | None, tag: int = 0) -> Array:
        code = None if source is None else self._receive_now(array, source, tag)
        if code == 0:
            return array
        if code is None:
            return super().receive(array, source, tag)
        return self._member.passed(code, array)

    def meet(self, name: str) -> None:
        """All ranks come to this, each when it has received what it was sent, and call it so.
        Raises CallMismatch, on all of them, where one sends or awaits a message instead: it would
        wait for it until its deadline."""
        self._member.meet(name)

    def abort(self) -> None:
        """End the group: operations that run or come raise on all ranks. Does not block, and may
        be called from any thread and again."""
        self._member.abort()

    def say_why(self, error: BaseException) -> None:
        """Tell the other ranks of a mesh what this one raises, before it ends the group."""
        if self._place.line is not None:
            self._place.line.say(error)

    def close(self) -> None:
        """Leave the group; its others are told. Operations that are queued still end."""
        self._member.leave()
        leave(self._place, self._hold)
        self._place.store.close()  # whoever uses it again connects again

    def shrink(self) -> Self:
        """A group of those who are left, in the order of their ranks; all of them call it.

        Ranks that are lost, or do not come within the deadline, are left out. This group is closed.
        Raises PeerLost on a rank that the others have left out.
        """
        ranks = agree_who_is_left(self._place, self._member)
        place = self._place.next("shrunk")
        made = self._join(place, ranks.index(self.rank), len(ranks), self._member.timeout_s)
        self.close()
        return made

    def grow(self, key: str, size: int) -> Self:
        """A group of `size` ranks that begins with this one's; all of them call it. The new ranks
        `join` group `key` with ranks from this group's size on. This group is closed."""
        if size < self.size:
            raise InvalidCall(f"a group of {self.size} ranks does not grow to {size}")
        place = replace(self._place, key=key, line=None)
        made = self._join(place, self.rank, size, self._member.timeout_s)
        self.close()
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _do(self, call: NativeCall, dst: Array, src: Array) -> Array:
        return self._member.run(call, dst, src)

    def _do_message(self, kind: int, dtype: int, array: Array, peer: int, tag: int) -> Array:
        return self._member.pass_message(kind, dtype, array, peer, tag)


class Later(Collectives[Work]):
    """The operations of a group, begun and left to its thread; collectives run in the order of
    the calls, messages side by side. Each gives a `Work`, whose `wait` gives the result."""

    def _do(self, call: NativeCall, dst: Array, src: Array) -> Work:
        return self._member.start(call, dst, src)

    def _do_message(self, kind: int, dtype: int, array: Array, peer: int, tag: int) -> Work:
        return self._member.message(kind, dtype, array, peer, tag)
