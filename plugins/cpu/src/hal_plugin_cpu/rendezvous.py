"""How members of a group in different processes of one host find each other.

A member listens at an abstract socket address made of the group's key and its rank, and connects to
the addresses of all lower ranks. So any two members have a connection of their own: its end tells a
member that the other's process has ended, whoever else lives. Abstract addresses are no files and
go with their process. Members first say hello with what they know of the group, rank 0 also with
the memory that it shares; once a member has everyone's hello it says so. All have met once all say
so. One that ends after it was told so may have met the others already: nobody waits for it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from hal.core.errors import InvalidCall, PluginError
from hal.core.values import GroupSpec
from hal_plugin_cpu._native import lib

_RETRY_S = 0.005
_MESSAGE_NBYTES = 1 << 17
_READY = b"ready"
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_CREDENTIALS = struct.Struct("3i")


@dataclass(eq=False, slots=True)
class _Peer:
    """A connection; `rank` is -1 until its hello. `told` says that this member said to be ready,
    `ready` that the other one did, `ended` that the other one will say nothing more."""

    link: socket.socket
    rank: int = -1
    told: bool = False
    ready: bool = False
    ended: bool = False

    @property
    def met(self) -> bool:
        return self.told and (self.ready or self.ended)


class Rendezvous:
    """One member's search for the others. Use it in a `with` statement; `turn` does a bit of it."""

    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self._others = set(range(len(spec.peers))) - {spec.rank}
        self._peers: list[_Peer] = []
        self._came: set[int] = set()
        self._memory = -1
        self._retry_s = 0.0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def __enter__(self) -> Self:
        try:
            self._listener.bind(_address(self._spec, self._spec.rank))
        except OSError as error:
            self._listener.close()
            raise self._refusal(error) from error
        self._listener.listen(len(self._spec.peers))
        self._listener.setblocking(False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        for peer in self._peers:
            peer.link.close()
        if self._memory >= 0:
            os.close(self._memory)

    @property
    def complete(self) -> bool:
        """Whether every other rank knows that everyone is there, or knew that this one is and has
        ended since: the connection that ended then tells the group so."""
        return {peer.rank for peer in self._peers if peer.met} == self._others

    def take(self) -> tuple[dict[int, socket.socket], int]:
        """The connections by rank and the descriptor of the shared memory, now the caller's."""
        links = {peer.rank: peer.link for peer in self._peers if peer.met}
        self._peers = [peer for peer in self._peers if not peer.met]
        memory, self._memory = self._memory, -1
        return links, memory

    def missing(self) -> str:
        """Who is not there, in words: who never came, else who gave up, else who waits itself."""
        spec = self._spec
        here = {peer.rank for peer in self._peers}
        ready = {peer.rank for peer in self._peers if peer.met}
        missing = sorted(self._others - self._came or self._others - here or self._others - ready)
        return f"group {spec.key!r}: ranks {missing} did not join in {spec.timeout_s} s"

    def turn(self, timeout_s: float, wake: int) -> None:
        """Wait for news of the others, at most that long or until the descriptor `wake` can be
        read. Raises InvalidCall when another member disagrees."""
        if self._connect():
            timeout_s = min(timeout_s, _RETRY_S)
        poll = select.poll()
        links = [self._listener, *(peer.link for peer in self._peers if not peer.ended)]
        for descriptor in (wake, *(link.fileno() for link in links)):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(1000 * timeout_s)}
        if self._listener.fileno() in ready:
            self._accept()
        for peer in [p for p in self._peers if p.link.fileno() in ready]:
            self._hear(peer)
        self._say_ready()

    def _connect(self) -> bool:
        """Try those lower ranks that are not here; True while some are not."""
        missing = set(range(self._spec.rank)) - {peer.rank for peer in self._peers}
        if missing and time.monotonic() >= self._retry_s:
            self._retry_s = time.monotonic() + _RETRY_S
            for rank in missing:
                self._call(rank)
        return bool(missing)

    def _call(self, rank: int) -> None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.setblocking(False)
        if link.connect_ex(_address(self._spec, rank)):
            link.close()  # nobody listens there yet
            return
        self._greet(_Peer(link, rank))

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except BlockingIOError:
            return
        link.setblocking(False)
        self._greet(_Peer(link))

    def _greet(self, peer: _Peer) -> None:
        """Keep the connection of a process of the same user, and say hello."""
        size = _CREDENTIALS.size
        raw = peer.link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        spec = self._spec
        if _CREDENTIALS.unpack(raw)[1] != os.getuid():
            peer.link.close()
            return
        self._peers.append(peer)
        if spec.rank == 0 and self._memory < 0:
            self._memory = _new_memory(lib.hc_link_nbytes(len(spec.peers)))
        shared = [self._memory] if spec.rank == 0 else []
        self._send(peer, json.dumps([spec.rank, spec.peers]).encode(), *shared)

    def _send(self, peer: _Peer, message: bytes, *descriptors: int) -> None:
        try:
            socket.send_fds(peer.link, [message], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return  # it gave up: its end is heard at the next turn

    def _hear(self, peer: _Peer) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(peer.link, _MESSAGE_NBYTES, 1)
        except (BlockingIOError, ConnectionResetError):
            return  # after a reset comes what was said before it, and then the end
        if not message:
            self._end(peer)
        elif message == _READY:
            peer.ready = True
        else:
            self._check(peer, message)
            if peer.rank == 0:
                self._take_memory(descriptors)

    def _end(self, peer: _Peer) -> None:
        """Forget a member that gave up before everyone was there; it may come again."""
        peer.ended = True
        if not peer.told:
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        self._peers.remove(peer)
        peer.link.close()

    def _check(self, peer: _Peer, hello: bytes) -> None:
        rank, peers = json.loads(hello)
        spec = self._spec
        if tuple(peers) != spec.peers:
            theirs = f"rank {rank} names the peers {tuple(peers)}, rank {spec.rank} {spec.peers}"
            raise InvalidCall(f"group {spec.key!r}: {theirs}")
        for former in [p for p in self._peers if p.ended and p.rank == rank]:
            self._drop(former)
        peer.rank = rank
        self._came.add(rank)

    def _say_ready(self) -> None:
        if {peer.rank for peer in self._peers} != self._others or not self._others <= self._came:
            return
        for peer in [peer for peer in self._peers if not peer.told]:
            self._send(peer, _READY)
            peer.told = True

    def _take_memory(self, descriptors: list[int]) -> None:
        if not descriptors:
            text = "no descriptor is left for its memory; raise `ulimit -n`"
            raise PluginError(f"group {self._spec.key!r}: {text}")
        if self._memory >= 0:
            os.close(self._memory)
        self._memory = descriptors[0]
        _check_memory(self._memory, lib.hc_link_nbytes(len(self._spec.peers)))

    def _refusal(self, error: OSError) -> Exception:
        spec = self._spec
        if error.errno == errno.EADDRINUSE:
            return InvalidCall(f"group {spec.key!r}: rank {spec.rank} has joined already")
        return PluginError(f"group {spec.key!r}: no address to meet other processes: {error}")


def _address(spec: GroupSpec, rank: int) -> bytes:
    """The abstract address of a rank: of this user's groups of this key."""
    digest = hashlib.sha256(f"{os.getuid()} {spec.key}".encode()).hexdigest()[:40]
    return b"\0hal-cpu-group-" + f"{digest}-{rank}".encode()


def _new_memory(nbytes: int) -> int:
    """Anonymous memory of a size that nobody can change any more."""
    descriptor = os.memfd_create("hal-cpu-group", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.posix_fallocate(descriptor, 0, nbytes)  # else a system without memory ends the process
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def _check_memory(descriptor: int, nbytes: int) -> None:
    """A smaller memory, or one that can shrink, would kill this process at an access."""
    seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    found = os.fstat(descriptor).st_size
    if seals & _SEALS != _SEALS or found != nbytes:
        raise PluginError(
            f"create_group: rank 0 gave {found} bytes with seals {seals:#x}, needed are {nbytes} "
            f"with {_SEALS:#x}; run one version of the plugin in all processes"
        )
