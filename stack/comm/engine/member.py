"""A rank's membership in a group as a native object: it runs calls, and tells how it failed."""

from __future__ import annotations

import atexit
import math
import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hal.core.errors import DeadlineExceeded, HalError, OutOfMemory, PluginError
from stack.comm.choose.predict import Element
from stack.comm.engine.base import Array, Engine, PassNow, Work
from stack.comm.engine.buffers import readable, writable
from stack.comm.engine.call import NativeCall, address_of
from stack.comm.engine.codes import KIND_OF, NUMPY_CODES
from stack.comm.engine.failures import Words
from stack.comm.engine.library import Caller, ffi, lib
from stack.comm.engine.links import Connections
from stack.comm.engine.meeting import MeshLine, Met
from stack.comm.engine.names import learn
from stack.comm.engine.routes import IN_PLACE, Route, Routes

NS = 1_000_000_000
_SEND = lib.HE_SEND
_PENDING = lib.HE_PENDING
_NULL = ffi.NULL
_SLICE_NS = 50_000_000
"""How long Python does not look for Ctrl-C."""
WAYS = {
    lib.HE_BY_POST: "posted",
    lib.HE_BY_MAPPING: "mapped",
    lib.HE_BY_READING: "read",
    lib.HE_BY_SLICES: "sliced",
    lib.HE_BY_STEPS: "stepped",
}
"""How calls run among the ranks of one host: the data comes with the word that a rank is there;
in memory that all of them map; read out of the others' memory; through slots, reduced in slices;
through slots."""
_MOST_NBYTES = 2**63 - 1
_KEYS_NBYTES = 3 * lib.HE_KEY_NBYTES
_HEARTBEATS = 10
_MANY = 64
_LEAST_HEARTBEAT_S = 0.2


class Member(Engine):
    """Takes the descriptors of a meeting over. `timeout_s` is the one deadline: a call that makes
    no progress for so long fails. A rank that is silent for `silent_s` seconds, by default a tenth
    of it, is lost."""

    def __init__(
        self,
        key: str,
        rank: int,
        met: Met,
        timeout_s: float,
        silent_s: float | None = None,
        line: MeshLine | None = None,
    ) -> None:
        self.key = key
        self.rank = rank
        self.size = len(met.hosts)
        self.heartbeat_s = silent_s or max(timeout_s / _HEARTBEATS, _LEAST_HEARTBEAT_S)
        self._caller: Any = None
        self._words = Words(key, rank, timeout_s, self.heartbeat_s, line)
        self.timeout_s = timeout_s
        local = [r for r, host in enumerate(met.hosts) if host == met.hosts[rank]]
        links = met.connections
        native = lib.he_group_new(
            rank, self.size, len(local), local, met.segment, links.life, links.data,
            _keys(links), int(self.heartbeat_s * NS),
            learn(line.mesh) if line else 0, line.ranks if line else ffi.NULL,
        )  # fmt: skip
        if native == ffi.NULL:
            for descriptor in (met.segment, *links.life, *links.data):
                if descriptor >= 0:
                    os.close(descriptor)
            raise PluginError(f"group {key!r}: no memory or thread for it")
        self.native = ffi.gc(native, lib.he_group_release)
        self._caller = Caller(self.native, address_of(native), self._timeout_ns)
        self._collective = self._caller.collective
        self._followed = ""
        self._routes = None
        if len(local) < self.size:
            go_on = partial(_raise_failure, self.native, self._words)  # keeps no member alive
            self._routes = Routes(rank, met.hosts, met.choices, go_on)
        _LIVE.add(self)

    @property
    def timeout_s(self) -> float:
        return self._words.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        """For calls from now on; how long a rank may be silent stays."""
        self._words = replace(self._words, timeout_s=timeout_s)
        self._timeout_ns = int(timeout_s * NS)
        if self._caller is not None:
            self._caller.wait_at_most(self._timeout_ns)

    def run(self, call: NativeCall, dst: Array, src: Array, route: Route | None = None) -> Array:
        """Block until the call is done on this rank; gives `dst`. Raises what ended the group."""
        if self._routes is not None:
            src, route = self._routed(call, dst, src, route)
        elif route is None:
            code = self._collective(call.address, call.numbers_at, dst, src)
            if code == 0:
                return dst
            if code is not None:
                return self._ended(code, (call, dst, src), dst)
        at = writable(dst)
        of = at if src is dst else readable(src)
        steps = _NULL if route is None else self._along(route)
        code = lib.he_collective(
            self.native, call.native, steps, at, of, call.numbers, self._timeout_ns
        )
        return self._ended(code, (call, at, of, route), dst) if code else dst

    def _ended(
        self, code: int, keep: tuple[Any, ...], result: Array, message: bool = False
    ) -> Array:
        """The result of a blocking call that has not ended well, or not yet."""
        if code != _PENDING:
            raise self.error()
        return Running(self, lib.he_left(), keep, result, message).finish()

    def start(
        self, call: NativeCall, dst: Array, src: Array, route: Route | None = None
    ) -> Running:
        """Leave the call to the group's thread."""
        if self._routes is not None:
            src, route = self._routed(call, dst, src, route)
        at, of = writable(dst), readable(src)
        steps = _NULL if route is None else self._along(route)
        native = lib.he_collective_start(
            self.native, call.native, steps, at, of, call.numbers, self._timeout_ns
        )
        return Running(self, native, (call, at, of, route), dst)

    def message(self, kind: int, dtype: int, array: Array, peer: int, tag: int) -> Running:
        at = readable(array) if kind == lib.HE_SEND else writable(array)
        native = lib.he_message_start(
            self.native, kind, dtype, array.size, at, peer, tag, self._timeout_ns
        )
        return Running(self, native, (at,), array, message=True)

    def pass_message(self, kind: int, dtype: int, array: Array, peer: int, tag: int) -> Array:
        at = readable(array) if kind == _SEND else writable(array)
        code = lib.he_message_pass(
            self.native, kind, dtype, array.size, at, peer, tag, self._timeout_ns
        )
        return self.passed(code, array, at) if code else array

    @property
    def send_now(self) -> PassNow:
        send: PassNow = self._caller.send
        return send

    @property
    def receive_now(self) -> PassNow:
        receive: PassNow = self._caller.receive
        return receive

    def passed(self, code: int, array: Array, at: Any = None) -> Array:
        return self._ended(code, (array, at), array, message=True)

    def meet(self, name: str) -> None:
        tag, none = learn(name) | lib.HE_MEETING, np.empty(0, np.uint8)
        code, others = NUMPY_CODES[none.dtype], [r for r in range(self.size) if r != self.rank]
        for each in [
            self.message(kind, code, none, r, tag) for kind in (_SEND, lib.HE_RECV) for r in others
        ]:
            each.finish()

    def _along(self, route: Route) -> Any:
        """The steps for the native engine."""
        self._followed = route.name
        return route.native

    def _routed(
        self, call: NativeCall, dst: Array, src: Array, route: Route | None
    ) -> tuple[Array, Route]:
        """Source and steps of a call among several hosts; those that are given, if any. Programs
        run in place where that is simplest, and else want memory that nobody writes: the source is
        copied."""
        if route is not None:
            return src, route
        assert self._routes is not None
        of, nbytes = KIND_OF[call.kind], src.dtype.itemsize
        short = src.dtype.kind not in "iub" and nbytes == 2
        element = Element(nbytes, 4 if short else nbytes)
        found = self._routes.of(of, call.count, call.counts, call.root, element)
        if of in IN_PLACE:
            if src is not dst:
                dst[...] = src.reshape(dst.shape)
            return dst, found
        return src.copy() if np.may_share_memory(src, dst) else src, found

    def share(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array in memory that all ranks of this host map; it lives as long as it is used."""
        nbytes = math.prod(shape) * dtype.itemsize
        native = self.native
        memory = lib.he_share(native, max(nbytes, 1)) if nbytes <= _MOST_NBYTES else ffi.NULL
        if memory == ffi.NULL:
            left = int(lib.he_memory_left())
            raise OutOfMemory(
                f"group {self.key!r}: no {nbytes} bytes of memory for the ranks of this host: this "
                f"process can have {left}"
                + ("" if nbytes > left else ", but no descriptor or no mapping for them"),
                nbytes,
                left,
            )
        owner = ffi.gc(memory, lambda at: lib.he_unshare(native, at))
        buffer = ffi.buffer(owner, max(nbytes, 1))
        return np.frombuffer(buffer, np.uint8, nbytes).view(dtype).reshape(shape)

    @property
    def way(self) -> str:
        """How the last call ran here: the name of the program that it followed, or one of WAYS;
        "" before the first."""
        way: int = lib.he_way_of(self.native)
        return self._followed if way == lib.HE_BY_PROGRAM else WAYS.get(way, "")

    def failure(self) -> HalError | None:
        """What has ended the group, None while it works."""
        return _failure_of(self.native, self._words)

    def error(self) -> HalError:
        """The failure that a call of this group has met."""
        failure = self.failure()
        assert failure is not None, "a call failed, and the group has no failure"
        return failure

    def abort(self) -> None:
        lib.he_abort(self.native)

    def leave(self) -> None:
        lib.he_group_leave(self.native)
        _forget_done()  # which keep their groups' memory

    def lost(self) -> set[int]:
        """The ranks that this one knows to be gone."""
        states = ((r, lib.he_state_of(self.native, r)) for r in range(self.size))
        return {r for r, state in states if state != lib.HE_HERE}


def _keys(links: Connections) -> bytes:
    """The keys of all connections, as the native engine takes them."""
    far = [descriptor >= 0 for descriptor in links.data[::2]]
    programs, messages = links.data_keys[::2], links.data_keys[1::2]
    rows = zip(links.life_keys, programs, messages, strict=True)
    keys = [
        b"".join(row) if is_far else bytes(_KEYS_NBYTES)
        for row, is_far in zip(rows, far, strict=True)
    ]
    assert all(len(row) == _KEYS_NBYTES for row in keys), "a connection between hosts has no key"
    return b"".join(keys)


def _failure_of(native: Any, words: Words) -> HalError | None:
    found = ffi.new("he_failure *")
    return words.error(found) if lib.he_failure_of(native, found) else None


def _raise_failure(native: Any, words: Words) -> None:
    error = _failure_of(native, words) if lib.he_failure_of(native, ffi.NULL) else None
    if error is not None:
        raise error


class Running(Work):
    """A call that the group's thread runs. Its arrays are not to be touched until it is done."""

    def __init__(
        self,
        member: Member,
        native: Any,
        keep: tuple[Any, ...],
        result: Array,
        message: bool = False,
    ) -> None:
        if native == ffi.NULL:
            none = PluginError(f"group {member.key!r}: no memory or thread for a call")
            raise member.failure() or none
        self._member = member
        self._native = ffi.gc(native, lib.he_work_release)
        self._keep = keep
        self._result = result
        self._message = message
        if len(_UNDONE) >= _MANY:
            _forget_done()
        _UNDONE.add(self)

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        ended: bool = lib.he_work_test(self._native) != lib.HE_PENDING
        return ended

    @property
    def peer(self) -> int:
        return int(lib.he_message_peer(self._native)) if self._message and self.done else -1

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

    def finish(self) -> Array:
        """As `wait`, for a caller that cannot go on without it: an interrupt aborts the group."""
        try:
            self._await(None)  # the call's own deadline ends it
        except KeyboardInterrupt:
            self._member.abort()
            self._await(time.monotonic() + self._member.timeout_s)
            raise
        return self.wait(0)

    def _await(self, until_s: float | None) -> int:
        """Its code; HE_PENDING when the time has come."""
        code, left_ns = lib.HE_PENDING, _SLICE_NS
        while code == lib.HE_PENDING and left_ns > 0:
            if until_s is not None:
                left_ns = min(_SLICE_NS, max(int((until_s - time.monotonic()) * NS), 0))
            code = lib.he_work_wait(self._native, left_ns)
        return int(code)


_LIVE: weakref.WeakSet[Member] = weakref.WeakSet()
_UNDONE: set[Running] = set()
"""Work that nobody has waited for: its arrays stay alive, as the native thread uses them."""


def _forget_done() -> None:
    # a list, since other threads begin work meanwhile
    _UNDONE.difference_update([work for work in list(_UNDONE) if work.done])


@atexit.register
def _leave_all() -> None:
    """A process that ends in good order is told apart from one that is killed."""
    for member in list(_LIVE):
        member.leave()
