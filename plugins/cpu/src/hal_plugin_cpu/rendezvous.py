"""Where the members of a group find each other, in this process."""

from __future__ import annotations

import os
import threading

from hal.core.errors import DeadlineExceeded, InvalidCall
from hal.core.values import GroupSpec
from hal_plugin_cpu.communicator import Communicator, Member
from hal_plugin_cpu.session import Session


class Gathering:
    """The members of one key that wait for each other. It is over once all ranks are here, or two
    disagree."""

    def __init__(self, peers: tuple[str, ...]) -> None:
        self.communicator = Communicator(peers)
        self.disagreement = ""

    @property
    def over(self) -> bool:
        return bool(self.disagreement) or not self.missing

    @property
    def missing(self) -> list[int]:
        """The ranks that have not come."""
        here = self.communicator.members
        return [rank for rank in range(len(self.communicator.peers)) if rank not in here]


_changed = threading.Condition()
_gatherings: dict[str, Gathering] = {}


def meet(session: Session, spec: GroupSpec) -> Member:
    """Wait until every rank of the group has called this.

    Raises DeadlineExceeded that names the missing ranks; InvalidCall when members disagree.
    """
    with _changed:
        gathering = _gatherings.setdefault(spec.key, Gathering(spec.peers))
        communicator = gathering.communicator
        if spec.rank in communicator.members:
            raise InvalidCall(f"group {spec.key!r}: rank {spec.rank} has joined already")
        member = Member(session, spec, communicator)
        if spec.peers == communicator.peers:
            communicator.members[spec.rank] = member
        else:
            theirs = f"rank {spec.rank} names the peers {spec.peers}, others {communicator.peers}"
            gathering.disagreement = f"group {spec.key!r}: {theirs}"
        if gathering.over:
            del _gatherings[spec.key]
            _changed.notify_all()
        try:
            _changed.wait_for(lambda: gathering.over, min(spec.timeout_s, threading.TIMEOUT_MAX))
            if gathering.disagreement:
                raise InvalidCall(gathering.disagreement)
            if not gathering.over:
                raise DeadlineExceeded(
                    f"group {spec.key!r}: ranks {gathering.missing} of {spec.peers} did not come "
                    f"in {spec.timeout_s} s; they must be devices of this process"
                )
            return member
        finally:
            if not gathering.over:
                # The member gives up; it may come again
                del gathering.communicator.members[spec.rank]
                if not gathering.communicator.members:
                    del _gatherings[spec.key]


def _forget_parent() -> None:
    """In a forked child nobody waits, and the lock may be held for ever."""
    global _changed
    _changed = threading.Condition()
    _gatherings.clear()


os.register_at_fork(after_in_child=_forget_parent)
