"""How the ranks of a failed group agree who goes on."""

from __future__ import annotations

import json
import time

from hal.core.errors import Failure, FailureKind, Scope
from stack.comm.engine.base import Engine
from stack.comm.engine.failures import PeerLost
from stack.comm.engine.meeting import DECIDED, MeetingPlace
from stack.comm.store import Store

_PAUSE_S = 0.005


def agree_who_is_left(place: MeetingPlace, member: Engine) -> list[int]:
    """The ranks of the next group, the same list on all of them.

    Every rank writes down that it is there and whom it has lost. Once everybody else is there, or
    at the deadline, whoever sees it first decides: the store takes one decision. Raises PeerLost
    when it was made without this rank.
    """
    table = place.table
    store = table.under("shrink/")
    store.set(str(member.rank), json.dumps(sorted(member.lost())).encode())
    until_s = time.monotonic() + member.timeout_s
    here, wanted = _here_and_wanted(store, member)
    while not wanted <= here and time.monotonic() < until_s and table.find(DECIDED) is None:
        time.sleep(_PAUSE_S)
        here, wanted = _here_and_wanted(store, member)
    mine = json.dumps(sorted(wanted & here)).encode()
    ranks: list[int] = json.loads(table.compare_set(DECIDED, None, mine) or b"[]")
    if member.rank not in ranks:
        text = f"ranks {ranks} went on without this rank"
        where = f"rank {member.rank}"
        kind, lost = FailureKind.PEER_LOST, (member.rank,)
        failure = Failure(kind, Scope.PEER, where, "shrink", text, ranks=lost)
        raise PeerLost(failure, member.rank)
    return ranks


def _here_and_wanted(store: Store, member: Engine) -> tuple[set[int], set[int]]:
    """The ranks that have written themselves down, and those that nobody has lost."""
    told = {rank: store.find(str(rank)) for rank in range(member.size)}
    here = {rank: set(json.loads(lost)) for rank, lost in told.items() if lost is not None}
    return set(here), set(range(member.size)) - member.lost().union(*here.values())
