"""The memory that a group's ranks of one host share."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Sequence

from hal.core.errors import DeadlineExceeded, PluginError
from stack.comm.engine.library import lib
from stack.comm.engine.links import Card, Deadline, Links

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_TOKEN_AT = 64
"""Where the token lies in the segment; the native head leaves the place free."""


def segment_of(
    links: Links, rank: int, hosts: Sequence[int], cards: Sequence[Card], deadline: Deadline
) -> int:
    """The memory of this rank's host: made by its lowest rank, and sent to the others."""
    leader = hosts[rank]
    local = [r for r, host in enumerate(hosts) if host == leader]
    nbytes = lib.he_segment_nbytes(len(local), len(hosts))
    if rank != leader:
        return _received(leader, links.life(leader), cards[leader].token, nbytes, deadline)
    segment = _new_memory(nbytes, cards[rank].token)
    for other in local[1:]:
        try:
            socket.send_fds(links.life(other), [b"segment"], [segment])
        except OSError as error:
            os.close(segment)
            if isinstance(error, ConnectionError):
                raise DeadlineExceeded(
                    f"rank {other} has given up, and cannot be sent the memory of this host's "
                    "ranks; its process may have ended"
                ) from error
            raise PluginError(
                f"the memory of the group cannot be sent to rank {other}: {error}"
            ) from error
    return segment


def _new_memory(nbytes: int, token: str) -> int:
    """Anonymous memory of a size that nobody can change any more."""
    descriptor = os.memfd_create("hal-group", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)  # else a lack of memory ends the process later
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        os.pwrite(descriptor, token.encode(), _TOKEN_AT)
    except OSError as error:
        os.close(descriptor)
        raise PluginError(f"no {nbytes} bytes of memory for the group: {error}") from error
    return descriptor


def _received(leader: int, link: socket.socket, token: str, nbytes: int, deadline: Deadline) -> int:
    """The segment that the leader sends. One that is smaller, or can shrink, is not touched."""
    link.settimeout(deadline.left_s)
    try:
        _, descriptors, _, _ = socket.recv_fds(link, 16, 1)
    except (TimeoutError, ConnectionError):
        descriptors = []
    if not descriptors:
        raise DeadlineExceeded(
            f"rank {leader} has given up, and did not send the memory of this host's ranks; its "
            "process may have ended"
        )
    segment = descriptors[0]
    seals = fcntl.fcntl(segment, fcntl.F_GET_SEALS)
    found = os.fstat(segment).st_size
    if seals & _SEALS != _SEALS or found != nbytes:
        os.close(segment)
        raise PluginError(f"the group's memory has {found} bytes and seals {seals:#x}")
    if os.pread(segment, len(token), _TOKEN_AT) != token.encode():
        os.close(segment)
        raise PluginError("the group's memory is not that of the lowest rank of this host")
    return segment
