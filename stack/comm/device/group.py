"""A group whose ranks are devices: collectives on device memory, behind and before other work."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import numpy as np

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, InvalidCall, Scope
from hal.core.values import (
    AllocOptions,
    Buffer,
    Collective,
    CollectiveKind,
    Point,
    ReduceKind,
    Region,
    Waits,
)
from stack.comm.choose.override import DEVICE, Override, parse_override
from stack.comm.device.line import CallLine
from stack.comm.device.meeting import meet
from stack.comm.device.memory import is_open
from stack.comm.device.own import Own, own_of, prefers_own, suits_own
from stack.comm.group import Group
from stack.comm.messages import Messages, RankCall, kind_of, sent_bytes

Kind = CollectiveKind
UNEVEN = (Kind.ALL_GATHER, Kind.GATHER, Kind.REDUCE_SCATTER, Kind.SCATTER)
"""Kinds whose parts may differ in size."""


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

    def __init__(
        self, group: Group, device: Device, rules: Sequence[Override] | None = None
    ) -> None:
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
        self._line = CallLine(group, device, any(not peer.mapped for peer in self.peers))
        self._messages: CallLine | None = None
        self._lock = threading.Lock()
        self._newest: tuple[Own | CallLine, Point] | None = None
        self._named: set[str] = set()
        self._own_sent: Counter[str] = Counter()

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
        others = (part.failure for part in (self._messages, self._own) if part is not None)
        return self._line.failure or next(filter(None, others), None)

    @property
    def way(self) -> str:
        """How the last call ran: "plugin" for the plugin's own group, else `Group.way`; "" before
        the first."""
        if self._newest is None:
            return ""
        return "plugin" if isinstance(self._newest[0], Own) else self.group.way

    @property
    def sent(self) -> Counter[str]:
        """The bytes that this rank has sent, by the kind of call (`kind_of`), as `sent_bytes`
        counts them: those of calls that are done, and those that a group of the plugin's has
        begun."""
        found = Counter(self._own_sent)
        for line in self._lines:
            found.update(line.sent)
        return found

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
        call: RankCall,
        dst: Region,
        src: Region,
        waits: Waits = (),
        elements: Region | None = None,
    ) -> Point:
        """Begin a collective behind the points in `waits`; gives the point at which it is done on
        this rank. Does not block. Messages are begun beside the collectives, in an order of their
        own, and by the ranks alone that have a part in them.

        `dst` equal to `src` means in place. Regions that the rank does not use may be empty. The
        buffers stay alive until the point. Where two names of calls meet, the group fails with
        both. `elements` is for an all-to-all: an i64 for each rank, how many elements of its part
        travel, read once the points are reached; the rest of the parts of `dst` stays as it is.
        Raises InvalidCall for regions that do not fit, and after `leave`.
        """
        self.check(call, dst, src, elements)
        with self._lock:
            if isinstance(call, Messages):
                # With the lock held: messages and collectives do not wait for each other
                if self._messages is None:
                    self._line.check_here()
                    self._messages = CallLine(self.group, self.device, staged=False)
                return self._messages.start(call, dst, src, waits)
            way = self._line if elements is not None else self._way(call)
            if self._newest is not None and self._newest[0] is not way:
                waits = (*waits, self._newest[1])
            if isinstance(way, CallLine):
                point = way.start(call, dst, src, waits, elements)
            else:
                point = way.start(call, dst, src, waits)
                self._own_sent[kind_of(call)] += sent_bytes(call, self.rank, self.size)
            self._newest = way, point
            return point

    def check(
        self, call: RankCall, dst: Region, src: Region, elements: Region | None = None
    ) -> None:
        """Raise InvalidCall for what `start` would refuse."""
        where, size = f"{self.device.name} in group {self.group.key!r}", self.size
        if isinstance(call, Messages):
            if any(not 0 <= rank < size for pair in call.pairs for rank in pair):
                raise InvalidCall(f"{where}: {call} are not among {size} ranks")
        else:
            ranks, parts = self.size, call.parts
            if (
                call.kind is Kind.ALL_TO_ALL_V
                and [len(row) for row in call.counts] != [ranks] * ranks
            ):
                raise InvalidCall(f"{where}: counts is not {ranks} rows of {ranks}: {call.counts}")
            if parts and (call.kind not in UNEVEN or len(parts) != ranks or min(parts) < 0):
                raise InvalidCall(
                    f"{where}: {call} among {ranks} has no parts of {list(parts)} elements"
                )
            if not 0 <= call.root < ranks:
                raise InvalidCall(f"{where}: root {call.root} is no rank of a group of {ranks}")
            if call.dtype is DType.BOOL and call.reduce is ReduceKind.AVG:
                raise InvalidCall(f"{where}: there is no average of bools")
        if elements is not None:
            partial = isinstance(call, Collective) and call.kind is Kind.ALL_TO_ALL
            if not partial or elements.nbytes != size * DType.I64.nbytes or dst == src:
                raise InvalidCall(
                    f"{where}: {call} takes no {elements.nbytes} bytes of numbers of elements: an "
                    f"all-to-all that is not in place takes {size} of i64"
                )
        sides = zip(("dst", "src"), (dst, src), call.elements(self.rank, size), strict=True)
        for side, region, count in sides:
            if count is not None and region.nbytes != count * call.dtype.nbytes:
                raise InvalidCall(
                    f"{where}: {call} needs {count * call.dtype.nbytes} bytes of {side} on rank "
                    f"{self.rank} of {size}, not {region.nbytes}"
                )

    def _way(self, call: Collective) -> Own | CallLine:
        """Who runs a call: the same on all ranks. A plugin's group need not compare names, so the
        first call of each goes by the engine; a plan that begins calls in another order is found
        out in its first run."""
        if self._own is None or call.parts or self._is_new(call.name):
            return self._line
        elements = [n or 0 for rank in range(self.size) for n in call.elements(rank, self.size)]
        nbytes = max(elements) * call.dtype.nbytes
        rule = next((r for r in self._rules if r.holds(call.kind, nbytes)), None)
        prefers = self._prefers_own and suits_own(call, self.peers)
        own = prefers if rule is None else rule.algorithm == DEVICE
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
        for line in self._lines:
            line.fail(cause)
        if self._own is not None:
            self._own.abort(cause)

    def leave(self, last: Callable[[], None]) -> None:
        """As `close`, in the background; `last` is called at the end. Only the first one counts."""
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            own.leave()
        if self._messages is None:
            self._line.leave(last)
        else:
            self._messages.leave(lambda: self._line.leave(last))

    @property
    def _lines(self) -> list[CallLine]:
        """In the order in which they end."""
        return [line for line in (self._messages, self._line) if line is not None]

    def close(self) -> None:
        """End the calls that are begun, and give back what this has of the device. Those that are
        not done within the group's deadline are aborted. The group stays open."""
        self.leave(lambda: None)
        text = "calls did not end within the group's deadline"
        late = Failure(FailureKind.ABORTED, Scope.PEER, self.device.name, "close", text)
        for line in self._lines:
            if not line.join(self.group.deadline_s):
                line.fail(late)
                line.join(self.group.deadline_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
