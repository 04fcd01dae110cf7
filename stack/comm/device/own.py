"""Groups that a plugin makes itself, for ranks that are all its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hal.core import values
from hal.core.device import Device
from hal.core.errors import Failure, HalError
from hal.core.values import (
    Collective,
    CollectiveKind,
    GroupSpec,
    Point,
    ReduceKind,
    Region,
    Waits,
)
from stack.comm.device.meeting import Peer
from stack.comm.group import Group

_REDUCING = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)


class Own:
    """A device's membership in a group of its plugin, and the timeline for its calls."""

    def __init__(self, device: Device, group: values.Group) -> None:
        self._device = device
        self._group = group
        self._timeline = device.create_timeline(False)

    def start(self, call: Collective, dst: Region, src: Region, waits: Waits) -> Point:
        """Begin a call; gives its point. Does not block."""
        return self._device.collective(self._group, call, dst, src, self._timeline, waits)

    @property
    def failure(self) -> Failure | None:
        """The first failure of the group on this member."""
        return self._device.async_error(self._group)

    def abort(self, cause: Failure) -> None:
        """Fail what is not done."""
        self._device.abort(self._group, cause)

    def leave(self) -> None:
        """Give the group back; what was begun goes on."""
        self._device.free(self._group)
        self._device.free(self._timeline)


def prefers_own(peers: Sequence[Peer]) -> bool:
    """Whether a plugin's own group is the better way where nobody says which.

    It is where the host does not see the memory, which the engine would copy to the host and back,
    and among devices of one process, which share threads that the engine does not have. Processes
    whose memory the host sees are the engine's: it reduces shared memory in place.
    """
    return _together(peers) or not all(peer.mapped for peer in peers)


def suits_own(call: Collective, peers: Sequence[Peer]) -> bool:
    """Whether it is also for a call. Reductions of narrow floats among more than two processes are
    the engine's: what moves bytes between devices rounds at each of them, so that a plugin that
    keeps the contract brings these to the host, too, and the engine is faster there."""
    narrow = call.dtype.is_narrow and call.reduce not in (ReduceKind.MIN, ReduceKind.MAX)
    return _together(peers) or len(peers) <= 2 or not (narrow and call.kind in _REDUCING)


def _together(peers: Sequence[Peer]) -> bool:
    """Whether one process has all ranks."""
    return len({peer.process for peer in peers}) == 1


def own_of(group: Group, device: Device, peers: Sequence[Peer]) -> Own | None:
    """The plugin's own group of these ranks, where all are of one plugin that makes such groups;
    all ranks call it. None on all ranks if one of them gets none. Raises what ends the group."""
    between = all(peer.groups_between_processes for peer in peers)
    if not (
        len({peer.plugin for peer in peers}) == 1
        and all(peer.groups for peer in peers)
        and len(set(group.hosts)) == 1
        and (_together(peers) or between)
    ):
        return None
    names = tuple(peer.device for peer in peers)
    spec = GroupSpec(f"{group.key}/{peers[0].nonce}", group.rank, names, group.deadline_s)
    try:
        made = device.create_group(spec)
    except HalError:
        made = None
    all_made = group.all_gather(np.array([made is not None])).all()
    if made is not None and not all_made:
        device.free(made)
    return Own(device, made) if made is not None and all_made else None
