"""Messages between ranks. A head says what comes, ahead of the data: heads of a pair come in the
order in which they were sent, and so tell what a receive waits for in vain."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from hal.core.facts import dataclass
from stack.comm.engine.base import ANYBODY, Array
from stack.comm.engine.failures import EQUAL_CALLS, CallMismatch
from stack.comm.engine.names import is_known, name_of
from stack.comm.mpi.calls import Requests, bytes_of
from stack.comm.mpi.library import mpi

TOLD_TAG, HEAD_TAG, _DATA_TAGS = 0, 1, 2
"""The tags of words about failures, of heads, and of the first data: MPI promises 15 bits of them,
too few for those of messages, which are in the heads."""
_HEAD_NBYTES = 256
_NAME_NBYTES = 120


@dataclass(frozen=True, slots=True)
class Head:
    """A message's number among those from its rank to this one, its tag, and what it has. The tag
    is a text where there is no data: the rank has come to what the text names."""

    number: int
    tag: int | str
    count: int
    dtype: str

    @property
    def meets(self) -> bool:
        return isinstance(self.tag, str)

    def in_words(self, rank: int, does: str) -> str:
        """What a rank does with it, or where that has come to."""
        if isinstance(self.tag, str):
            return f"rank {rank} has come to {self.tag}"
        tag = f", tag {self.tag}" if self.tag else ""
        if self.tag and is_known(self.tag):
            tag += f" ({name_of(self.tag)})"
        return f"rank {rank} {does} {self.count} {self.dtype}{tag}"


def head_of(array: Array, tag: int | str, number: int = 0) -> Head:
    if isinstance(tag, str):
        tag = tag.encode()[:_NAME_NBYTES].decode(errors="ignore")
    return Head(number, tag, array.size, str(array.dtype))


def sent(comm: Any, head: Head, array: Array, peer: int) -> Requests:
    words = [head.number, head.tag, head.count, head.dtype]
    text = json.dumps(words, ensure_ascii=False).encode().ljust(_HEAD_NBYTES)
    yield comm.Isend([np.frombuffer(text, np.uint8), mpi().BYTE], peer, HEAD_TAG)
    if array.nbytes:
        yield comm.Isend(bytes_of(array), peer, _data_tag(head))


def received(comm: Any, head: Head, array: Array, peer: int) -> Requests:
    if array.nbytes:
        yield comm.Irecv(bytes_of(array), peer, _data_tag(head))


def _data_tag(head: Head) -> int:
    return _DATA_TAGS + head.number % _data_tags()


def _data_tags() -> int:
    tags: int = mpi().COMM_WORLD.Get_attr(mpi().TAG_UB) - _DATA_TAGS + 1
    return tags


@dataclass(frozen=True, slots=True)
class Receive:
    """A receive of which no head has come: from `peer`, which may be ANYBODY. `begin` is called
    with the rank that sends it and the requests that are left."""

    peer: int
    wanted: Head
    array: Array
    begin: Callable[[int, Requests], None]


class Inbox:
    """The receives of a rank that wait for heads, and the heads that wait for receives."""

    def __init__(self, key: str, comm: Any) -> None:
        self._key = key
        self._comm = comm
        self._open: list[Receive] = []
        self._kept: list[list[Head]] = [[] for _ in range(comm.size)]

    def post(self, receive: Receive) -> None:
        self._open.append(receive)

    def forget(self) -> None:
        """No receive is open any more: the group has failed."""
        self._open.clear()

    def turn(self) -> bool:
        """Give receives what has come for them, in its order; whether one has got something. Raises
        CallMismatch."""
        before = len(self._open)
        for peer, kept in enumerate(self._kept):
            kept[:] = [head for head in kept if not self._given(peer, head)]
        status = mpi().Status()
        while self._open:
            message = self._comm.Improbe(mpi().ANY_SOURCE, HEAD_TAG, status)
            if message is None:
                break
            text = bytearray(_HEAD_NBYTES)
            message.Recv([text, mpi().BYTE])
            peer, head = status.Get_source(), Head(*json.loads(text.decode().rstrip()))
            if not self._given(peer, head):
                self._keep(peer, head)
        return len(self._open) < before

    def _given(self, peer: int, head: Head) -> bool:
        """Whether a receive takes it: the first one of its tag from the rank, else from anybody."""
        alike = [r for r in self._open if r.wanted.tag == head.tag]
        found = next((r for who in (peer, ANYBODY) for r in alike if r.peer == who), None)
        if found is not None:
            if (head.count, head.dtype) != (found.wanted.count, found.wanted.dtype):
                raise self._differ(peer, head, found.wanted)
            self._open.remove(found)
            found.begin(peer, received(self._comm, head, found.array, peer))
            return True
        # What the first receive waits for is not sent before all have met, and nobody meets who
        # sends something else.
        first = next((r for r in self._open if r.peer == peer), None)
        if first is not None and (first.wanted.meets or head.meets):
            raise self._differ(peer, head, first.wanted)
        return False

    def _keep(self, peer: int, head: Head) -> None:
        kept = self._kept[peer]
        if kept and head.number - kept[0].number >= _data_tags():
            text = f"rank {peer} sends more messages than this MPI has tags, which nobody receives"
            raise CallMismatch(f"group {self._key!r}: {text}", (self._comm.rank, peer))
        kept.append(head)

    def _differ(self, peer: int, head: Head, wanted: Head) -> CallMismatch:
        rank = self._comm.rank
        says = f"{head.in_words(peer, 'sends')}, {wanted.in_words(rank, 'receives')}"
        return CallMismatch(f"group {self._key!r}: {says}; {EQUAL_CALLS}", (rank, peer))
