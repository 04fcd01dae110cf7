"""What ends a group, as errors that say who did it and what to do."""

from __future__ import annotations

from typing import Any

from hal.core.errors import Failure, FailureKind, HalError, InvalidCall, OperationFailed, Scope
from hal.core.facts import dataclass
from stack.comm.engine.codes import call_in_words
from stack.comm.engine.library import lib
from stack.comm.engine.meeting import MeshLine

_WRONG = {
    lib.HE_WRONG_CALL: "a call that there is not",
    lib.HE_WRONG_LENGTH: "a message whose length is not that of its elements",
    lib.HE_WRONG_FAILURE: "a failure that there is not",
    lib.HE_WRONG_MEMORY: "memory that it does not share",
    lib.HE_WRONG_RING: "more bytes than there is room for",
    lib.HE_WRONG_WORD: "words that ranks do not use",
}
SHRINK = "shrink the group, or start the job again"
EQUAL_CALLS = (
    "all ranks make the same calls in the same order, so let none of them make one alone or leave "
    "one out"
)


class PeerLost(OperationFailed):
    """Rank `rank` is gone: it ended or left. Of a rank that is not in the group, but in another one
    of the mesh, it is the number in the job."""

    next_step = SHRINK

    def __init__(self, failure: Failure, rank: int) -> None:
        super().__init__(failure)
        self.rank = rank

    def __reduce__(self) -> tuple[type[PeerLost], tuple[object, ...]]:
        return type(self), (self.failure, self.rank)


class SilentRank(PeerLost):
    """Rank `rank` has said nothing for a heartbeat: it is stopped, or the way to it is cut."""


class LateRank(PeerLost):
    """Rank `rank` lives, but has not come to a call before its deadline."""

    next_step = "look why the rank is late, or give the group a longer deadline"


class GroupAborted(PeerLost):
    """Rank `rank` has aborted the group, or ended another one of the mesh."""


class ConnectionTampered(PeerLost):
    """What came over the connection to rank `rank` is not what was sent: somebody on the way
    changed, repeated or left out bytes. Both ranks lose the group."""

    next_step = "look who has access to the network between the two hosts; then start again"


class BrokenRank(PeerLost):
    """Rank `rank` said what no rank says, or more than anybody receives: it has another version of
    this package, its memory was overwritten, or its program sends what nobody wants."""

    next_step = "look what runs as that rank; then start the job again"


class CallMismatch(InvalidCall):
    """Two ranks made different calls where the group has one; `ranks` names them."""

    next_step = "let all ranks make the same calls in the same order; then make a new group"

    def __init__(self, message: str, ranks: tuple[int, int]) -> None:
        super().__init__(message)
        self.ranks = ranks

    def __reduce__(self) -> tuple[type[CallMismatch], tuple[object, ...]]:
        return type(self), (str(self), self.ranks)


@dataclass(frozen=True, slots=True)
class Words:
    """What a rank of group `key` says of its failures: with its number and the group's times, and
    its line of a mesh if it lies in one."""

    key: str
    rank: int
    timeout_s: float
    heartbeat_s: float
    line: MeshLine | None = None

    def who(self, rank: int) -> str:
        """A rank by its number, or both of them."""
        if self.line is None or self.line.ranks[rank] == rank:
            return f"rank {rank}"
        return f"rank {rank} (rank {self.line.ranks[rank]} of the job)"

    def _why(self, rank: int) -> str:
        """Why a rank of the job has ended the group, as the end of a sentence."""
        reason = "" if self.line is None else self.line.why(rank)
        return f", since it raised {reason}" if reason else ""

    def error(self, failure: Any) -> HalError:
        """The error of a native failure, for the rank that raises it."""
        group = f"group {self.key!r}"
        if failure.code == lib.HE_FORKED:
            return InvalidCall(f"{group}: the child of a fork is no rank; join a new group")
        if failure.code == lib.HE_DIFFERS:
            ours, theirs = call_in_words(failure.ours), call_in_words(failure.theirs)
            says = (
                f"{self.who(failure.told_by)} makes {ours}, {self.who(failure.rank)} makes {theirs}"
            )
            return CallMismatch(
                f"group {self.key!r}: {says}; {EQUAL_CALLS}", (failure.told_by, failure.rank)
            )
        if failure.code & lib.HE_ELSEWHERE:
            # The error of what has ended another group of the mesh, and this one with it.
            assert self.line is not None, "a group in no mesh has failed with another one"
            rank, ranks = failure.detail, self.line.ranks
            who = f"rank {rank} of the job"
            if rank in ranks:
                rank = ranks.index(rank)
                who = "this rank" if rank == self.rank else self.who(rank)
            says, kind, error = _ELSEWHERE.get(failure.code & ~lib.HE_ELSEWHERE, _ENDED_ELSEWHERE)
            text = says.format(who=who, heartbeat_s=self.heartbeat_s)
            if failure.code & ~lib.HE_ELSEWHERE == lib.HE_DIFFERS:
                ours, theirs = call_in_words(failure.ours), call_in_words(failure.theirs)
                text += f", {theirs} where there was {ours}; {EQUAL_CALLS}"
            if failure.code & ~lib.HE_ELSEWHERE in _BY_ITSELF and who != "this rank":
                text += self._why(failure.detail)
            if failure.rank != self.rank:
                text += f" (told by {self.who(failure.rank)})"
            value = Failure(kind, Scope.PEER, f"rank {self.rank}", group, text, ranks=(rank,))
            return error(value, rank)
        who = "this rank" if failure.rank == self.rank else self.who(failure.rank)
        text, kind, error = _lost(who, failure, self.timeout_s, self.heartbeat_s)
        own = failure.rank == self.rank
        if failure.code in _BY_ITSELF and self.line is not None and not own:
            text += self._why(self.line.ranks[failure.rank])
        if failure.told_by != self.rank:
            text += f" (found by {self.who(failure.told_by)})"
        between = failure.code == lib.HE_TAMPERED and failure.rank == self.rank
        rank = failure.told_by if between else failure.rank
        value = Failure(kind, Scope.PEER, f"rank {self.rank}", group, text, ranks=(rank,))
        return error(value, rank)


_BY_ITSELF = lib.HE_LEFT, lib.HE_ABORTED, lib.HE_DIFFERS
"""How a rank that lives ends a group, with a reason of its own."""

_ELSEWHERE: dict[int, tuple[str, FailureKind, type[PeerLost]]] = {
    lib.HE_ENDED: ("the process of {who} has ended", FailureKind.PEER_LOST, PeerLost),
    lib.HE_LEFT: ("{who} has left another group of the mesh", FailureKind.PEER_LOST, PeerLost),
    lib.HE_SILENT: (
        "{who} has said nothing for {heartbeat_s:g} s: stopped, or cut off",
        FailureKind.PEER_LOST,
        SilentRank,
    ),
    lib.HE_LATE: (
        "{who} did not come to a call of another group of the mesh before its deadline",
        FailureKind.HANG,
        LateRank,
    ),
    lib.HE_DIFFERS: (
        "{who} made another call than the others in another group of the mesh",
        FailureKind.ABORTED,
        GroupAborted,
    ),
}
_ENDED_ELSEWHERE = (
    "{who} has ended another group of the mesh, and this one with it",
    FailureKind.ABORTED,
    GroupAborted,
)


def _lost(
    who: str, failure: Any, timeout_s: float, heartbeat_s: float
) -> tuple[str, FailureKind, type[PeerLost]]:
    match failure.code:
        case lib.HE_ENDED:
            return f"the process of {who} has ended", FailureKind.PEER_LOST, PeerLost
        case lib.HE_SILENT:
            text = f"{who} has said nothing for {heartbeat_s:g} s: stopped, or cut off"
            return text, FailureKind.PEER_LOST, SilentRank
        case lib.HE_LEFT:
            text = f"{who} has left the group before {call_in_words(failure.ours)}"
            return text, FailureKind.PEER_LOST, PeerLost
        case lib.HE_LATE:
            return _late(who, failure, timeout_s), FailureKind.HANG, LateRank
        case lib.HE_ABORTED:
            return f"{who} has aborted the group", FailureKind.ABORTED, GroupAborted
        case lib.HE_UNREADABLE:
            text = f"the memory of {who} cannot be read any more in {call_in_words(failure.ours)}"
            return text, FailureKind.ILLEGAL_ADDRESS, PeerLost
        case lib.HE_TAMPERED:
            ends = f"ranks {failure.rank} and {failure.told_by}"
            text = f"the connection between {ends} was tampered with"
            return text, FailureKind.DATA_CORRUPTION, ConnectionTampered
        case lib.HE_NONSENSE:
            text = f"{who} said what no rank says: {_WRONG[failure.detail]}"
            return text, FailureKind.DATA_CORRUPTION, BrokenRank
        case lib.HE_FLOODED:
            text = (
                f"{who} sends {call_in_words(failure.theirs)}, which nobody receives yet and which "
                "is more than a group keeps; receive it, or what came before it, first"
            )
            return text, FailureKind.OUT_OF_MEMORY, BrokenRank
        case lib.HE_NO_MEMORY:
            text = f"{who} has no memory, descriptor or thread for it"
            return text, FailureKind.OUT_OF_MEMORY, PeerLost
    raise AssertionError(f"the engine gave the unknown code {failure.code}")


def _late(who: str, failure: Any, timeout_s: float) -> str:
    if failure.ours.kind == lib.HE_RECV:
        return f"{who} has waited {timeout_s:g} s in vain for {call_in_words(failure.ours)}"
    last = call_in_words(failure.theirs) + (", done" if failure.detail else ", not done")
    if failure.theirs.sequence < 0:
        last = "none"
    return (
        f"{who} did not come to {call_in_words(failure.ours)} within {timeout_s:g} s; "
        f"its last call is {last}"
    )
