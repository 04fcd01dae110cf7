"""A rank's membership in a group as a native object: it runs calls, and tells how it failed."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.errors import DeadlineExceeded, HalError, OutOfMemory, PluginError
from stack.comm.engine.buffers import native_counts, readable, writable
from stack.comm.engine.failures import error_of
from stack.comm.engine.library import ffi, lib
from stack.comm.engine.meeting import Met

Array = NDArray[Any]
NS = 1_000_000_000
_collective = lib.he_collective
_PENDING = lib.HE_PENDING
_NULL = ffi.NULL
_SLICE_NS = 50_000_000
"""How long Python does not look for Ctrl-C."""
_HEARTBEATS = 10
_LEAST_HEARTBEAT_S = 0.2


class Member:
    """Takes the descriptors of a meeting over. `timeout_s` is the one deadline: a call that makes
    no progress for so long fails, and a rank that is silent for a tenth of it is lost."""

    def __init__(self, key: str, rank: int, met: Met, timeout_s: float) -> None:
        self.key = key
        self.rank = rank
        self.size = len(met.hosts)
        self.timeout_s = timeout_s
        self.heartbeat_s = max(timeout_s / _HEARTBEATS, _LEAST_HEARTBEAT_S)
        self._timeout_ns = int(timeout_s * NS)
        local = [r for r, host in enumerate(met.hosts) if host == met.hosts[rank]]
        native = lib.he_group_new(
            rank, self.size, len(local), local, met.segment, met.life, int(self.heartbeat_s * NS)
        )
        if native == ffi.NULL:
            for descriptor in (met.segment, *(d for d in met.life if d >= 0)):
                os.close(descriptor)
            raise PluginError(f"group {key!r}: no memory or thread for it")
        self.native = ffi.gc(native, lib.he_group_release)
        _LIVE.add(self)

    def run(
        self,
        kind: int,
        dtype: int,
        dst: Array,
        src: Array,
        count: int,
        root: int,
        reduce: int,
        counts: Sequence[int] | None,
    ) -> Array:
        """Block until the call is done on this rank; gives `dst`. Raises what ended the group."""
        if counts is not None:
            count = 0  # equal on all ranks, as the counts are
        to = writable(dst)
        of = to if src is dst else readable(src)
        numbers = _NULL if counts is None else native_counts(counts)
        code = _collective(
            self.native, kind, dtype, reduce, root, count, to, of, numbers, self._timeout_ns
        )
        if code == _PENDING:
            Work(self, lib.he_left(), (to, of, numbers), dst).finish()
        elif code:
            raise self.error()
        return dst

    def start(
        self,
        kind: int,
        dtype: int,
        dst: Array,
        src: Array,
        count: int,
        root: int,
        reduce: int,
        counts: Sequence[int] | None,
    ) -> Work:
        """Leave the call to the group's thread."""
        if counts is not None:
            count = 0
        to, of, numbers = writable(dst), readable(src), native_counts(counts)
        native = lib.he_collective_start(
            self.native, kind, dtype, reduce, root, count, to, of, numbers, self._timeout_ns
        )
        return Work(self, native, (to, of, numbers), dst)

    def share(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array in memory that all ranks of this host map; it lives as long as it is used."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        native = self.native
        memory = lib.he_share(native, max(nbytes, 1))
        if memory == ffi.NULL:
            raise OutOfMemory(f"group {self.key!r}: no memory that can be shared", nbytes, 0)
        owner = ffi.gc(memory, lambda at: lib.he_unshare(native, at))
        buffer = ffi.buffer(owner, max(nbytes, 1))
        return np.frombuffer(buffer, np.uint8, nbytes).view(dtype).reshape(shape)

    def failure(self) -> HalError | None:
        """What has ended the group, None while it works."""
        found = ffi.new("he_failure *")
        if not lib.he_failure_of(self.native, found):
            return None
        return error_of(self.key, self.rank, found, self.timeout_s, self.heartbeat_s)

    def error(self) -> HalError:
        """The failure that a call of this group has met."""
        failure = self.failure()
        assert failure is not None, "a call failed, and the group has no failure"
        return failure

    def abort(self) -> None:
        lib.he_abort(self.native)

    def leave(self) -> None:
        lib.he_group_leave(self.native)

    def lost(self) -> set[int]:
        """The ranks that this one knows to be gone."""
        states = ((r, lib.he_state_of(self.native, r)) for r in range(self.size))
        return {r for r, state in states if state != lib.HE_HERE}


class Work:
    """A call that the group's thread runs. Its arrays are not to be touched until it is done."""

    def __init__(self, member: Member, native: Any, keep: tuple[Any, ...], result: Array) -> None:
        if native == ffi.NULL:
            raise PluginError(f"group {member.key!r}: no memory or thread for a call")
        self._member = member
        self._native = ffi.gc(native, lib.he_work_release)
        self._keep = keep
        self._result = result
        _UNDONE.add(self)

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        ended: bool = lib.he_work_test(self._native) != lib.HE_PENDING
        return ended

    def wait(self, timeout_s: float | None = None) -> Array:
        """The call's result once it is done. Raises DeadlineExceeded when it is not done in time
        (it goes on then; without a time its group's deadline ends it), else what ended the group.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        code = self._await(until_s)
        if code == lib.HE_PENDING:
            raise DeadlineExceeded(f"a call of group {self._member.key!r} is not done in time")
        _UNDONE.discard(self)
        if code:
            raise self._member.error()
        return self._result

    def finish(self) -> None:
        """As `wait`, for a caller that cannot go on without it: an interrupt aborts the group."""
        try:
            self._await(None)  # the call's own deadline ends it
        except KeyboardInterrupt:
            self._member.abort()
            self._await(time.monotonic() + self._member.timeout_s)
            raise
        self.wait(0)

    def _await(self, until_s: float | None) -> int:
        """Its code; HE_PENDING when the time has come."""
        code, left_ns = lib.HE_PENDING, _SLICE_NS
        while code == lib.HE_PENDING and left_ns > 0:
            if until_s is not None:
                left_ns = min(_SLICE_NS, max(int((until_s - time.monotonic()) * NS), 0))
            code = lib.he_work_wait(self._native, left_ns)
        return int(code)


_LIVE: weakref.WeakSet[Member] = weakref.WeakSet()
_UNDONE: set[Work] = set()
"""Work that nobody has waited for: its arrays stay alive, as the native thread uses them."""


@atexit.register
def _leave_all() -> None:
    """A process that ends in good order is told apart from one that is killed."""
    for member in list(_LIVE):
        member.leave()
