"""How the members of a group find each other in the process, and by it in others."""

from __future__ import annotations

import time

from hal.core.errors import DeadlineExceeded, InvalidCall
from hal.core.values import GroupSpec
from hal.hosted.communicator import Communicator, Member
from hal.hosted.lock import LOCK, SLICE_S
from hal.hosted.session import Session

_open: dict[str, Communicator] = {}
"""Those that not all members of this process have joined, by key."""


def meet(session: Session, spec: GroupSpec) -> Member:
    """Wait until every rank of the group has called this.

    Raises DeadlineExceeded that names the missing ranks; InvalidCall when members disagree.
    """
    with LOCK:
        communicator = _open.get(spec.key)
        if communicator is None or communicator.met or communicator.disagreement:
            communicator = _open[spec.key] = Communicator(spec.key, spec.peers)
        member = Member(session, spec, communicator)
        try:
            _enter(communicator, member)
            _wait_for_all(communicator, member)
        except BaseException:
            communicator.withdraw(member)
            _forget(communicator, member)
            raise
        _forget(communicator, member)
        session.members.append(member)
    return member


def _enter(communicator: Communicator, member: Member) -> None:
    spec = member.spec
    if spec.peers != communicator.peers:
        theirs = f"rank {spec.rank} names the peers {spec.peers}, others {communicator.peers}"
        communicator.refuse(f"group {spec.key!r}: {theirs}")
    elif spec.rank in communicator.members:
        raise InvalidCall(f"group {spec.key!r}: rank {spec.rank} has joined already")
    else:
        communicator.enter(member)


def _wait_for_all(communicator: Communicator, member: Member) -> None:
    until_s = time.monotonic() + member.spec.timeout_s
    while not communicator.met and not communicator.disagreement:
        member.session.check_usable("create_group")
        if (left_s := until_s - time.monotonic()) <= 0:
            raise _missing(communicator, member.spec)
        communicator.changed.wait(min(left_s, SLICE_S))
    if communicator.disagreement:
        raise InvalidCall(communicator.disagreement)


def _forget(communicator: Communicator, member: Member) -> None:
    """Nobody else joins it: all have, or the last one has withdrawn, or they disagree."""
    over = communicator.met or communicator.disagreement or not communicator.members
    if over and _open.get(member.spec.key) is communicator:
        del _open[member.spec.key]


def _missing(communicator: Communicator, spec: GroupSpec) -> DeadlineExceeded:
    text = f"group {spec.key!r}: ranks {communicator.absent} did not join in {spec.timeout_s} s"
    return DeadlineExceeded(text)
