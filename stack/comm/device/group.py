"""A group whose ranks are devices: collectives on device memory, behind and before other work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import numpy as np

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.errors import Failure, FailureKind, InvalidCall, Scope
from hal.core.values import AllocOptions, Buffer, Collective, Point, Region, Waits
from stack.comm.choose.override import DEVICE, Rule, parse_override
from stack.comm.device.call import Call
from stack.comm.device.line import Line
from stack.comm.device.meeting import meet
from stack.comm.device.memory import is_open
from stack.comm.device.own import Own, own_of, prefers_own
from stack.comm.group import Group


class DeviceGroup:
    """The device of this rank in a group: it begins collectives on regions of the device's buffers,
    and gives points that the device's other work waits for.

    All ranks begin the same calls in the same order. The devices of the ranks may be of different
    plugins. Calls run one after the other, by the engine of `group` or, where all ranks are of one
    plugin that makes groups, in a group of the plugin's: as `prefers_own` says, unless an override
    does (`stack.comm.choose.override`). The first failure fails every point from it on: what ended
    the group, or what failed a point that a call waits for, which then ends the group on the other
    ranks. While this lives, nobody else calls operations of `group`, which stays the caller's.
    """

    def __init__(self, group: Group, device: Device, rules: Sequence[Rule] | None = None) -> None:
        """All ranks of the group make theirs at once, with equal `rules`: the override; without
        them that of rank 0's environment. Raises what ends the group, PlanError for a text that
        is no override."""
        self.group = group
        self.device = device
        self.peers = meet(group, device)
        self._rules = tuple(parse_override(self.peers[0].plans) if rules is None else rules)
        self._prefers_own = prefers_own(self.peers)
        needed = self._prefers_own or any(rule.algorithm == DEVICE for rule in self._rules)
        self._own = own_of(group, device, self.peers) if needed else None
        self._line = Line(group, device, any(not peer.mapped for peer in self.peers))
        self._lock = threading.Lock()
        self._newest: tuple[Own | Line, Point] | None = None
        self._named: set[str] = set()

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def size(self) -> int:
        return self.group.size

    @property
    def failure(self) -> Failure | None:
        """The first failure of a call; None while all is well. Does not block. What has ended the
        group on all ranks, with the rank that caused it, is `group.failure`."""
        return self._line.failure or (self._own.failure if self._own else None)

    @property
    def way(self) -> str:
        """How the last call ran: "plugin" for the plugin's own group, else `Group.way`; "" before
        the first."""
        if self._newest is None:
            return ""
        return "plugin" if isinstance(self._newest[0], Own) else self.group.way

    def alloc(self, nbytes: int, label: str = "") -> Buffer:
        """A buffer for calls of this group, the caller's until `device.free`. Where the device's
        memory is the host's and it takes such memory as its own, all ranks of this host map it, and
        calls copy nothing in between; else, and after the group's end, it is as the device
        allocates it. Raises OutOfMemory."""
        takes_in = is_open(self.device) and Feature.IMPORT_HOST in self.device.info.features
        if takes_in and self.group.failure is None:
            return self.device.import_host(self.group.empty(nbytes, np.uint8).data)
        return self.device.alloc(nbytes, AllocOptions(label=label))

    def start(
        self,
        collective: Collective,
        dst: Region,
        src: Region,
        waits: Waits = (),
        parts: Sequence[int] | None = None,
        *,
        name: str = "",
    ) -> Point:
        """Begin a collective behind the points in `waits`; gives the point at which it is done on
        this rank. Does not block.

        `dst` equal to `src` means in place. Regions that the rank does not use may be empty. The
        buffers stay alive until the point. `parts` are the elements of each rank's part where they
        differ (all_gather, gather, reduce_scatter, scatter), equal on all ranks; the collective's
        count does not count then. `name` is what all ranks call an all-reduce: where two names
        meet, the group fails with both. Raises InvalidCall for regions that do not fit, and after
        `leave`.
        """
        call = self.check(collective, dst, src, parts, name)
        with self._lock:
            way = self._way(call)
            if self._newest is not None and self._newest[0] is not way:
                waits = (*waits, self._newest[1])
            point = way.start(call, dst, src, waits)
            self._newest = way, point
            return point

    def check(
        self,
        collective: Collective,
        dst: Region,
        src: Region,
        parts: Sequence[int] | None = None,
        name: str = "",
    ) -> Call:
        """The call that `start` would begin. Raises InvalidCall for what does not fit."""
        call = Call(collective, None if parts is None else tuple(parts), name)
        where = f"{self.device.name} in group {self.group.key!r}"
        call.check(where, self.rank, self.size, dst, src)
        return call

    def _way(self, call: Call) -> Own | Line:
        """Who runs a call: the same on all ranks. A plugin's group compares no names, so the first
        call of each goes by the engine; a plan that begins calls in another order is found out in
        its first run."""
        if self._own is None or call.parts is not None or self._is_new(call.name):
            return self._line
        nbytes = call.nbytes(self.size)
        rule = next((r for r in self._rules if r.holds(call.collective.kind, nbytes)), None)
        own = self._prefers_own if rule is None else rule.algorithm == DEVICE
        return self._own if own else self._line

    def _is_new(self, name: str) -> bool:
        """Whether the engine has to compare a name first."""
        new = name not in self._named and name != "" and all(peer.copies for peer in self.peers)
        self._named.add(name)
        return new

    def abort(self, cause: Failure) -> None:
        """Fail every call that is not done, here with `cause`, and end the group on all ranks. Does
        not block, and may be called from any thread and again. Raises InvalidCall for a cause that
        is no Failure."""
        if not isinstance(cause, Failure):
            raise InvalidCall(f"group {self.group.key!r}: the cause is {cause!r}, not a Failure")
        self._line.fail(cause)
        if self._own is not None:
            self._own.abort(cause)

    def leave(self, last: Callable[[], None]) -> None:
        """As `close`, in the background; `last` is called at the end. Only the first one counts."""
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            own.leave()
        self._line.leave(last)

    def close(self) -> None:
        """End the calls that are begun, and give back what this has of the device. Those that are
        not done within the group's deadline are aborted. The group stays open."""
        self.leave(lambda: None)
        if not self._line.join(self.group.deadline_s):
            text = "calls did not end within the group's deadline"
            self._line.fail(
                Failure(FailureKind.ABORTED, Scope.PEER, self.device.name, "close", text)
            )
            self._line.join(self.group.deadline_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
