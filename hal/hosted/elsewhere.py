"""How processes of one user find each other by the key of a group, and what they say then.

Each rank has a door, an abstract local socket whose name follows from key and rank; a process
knocks at those of lower ranks than its own until somebody answers. Two processes have one link
(two, where both have knocked at once), and tell each other which ranks are there. Nobody is in the
middle: whoever ends, the system closes its links, and all others know within milliseconds.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import os
import secrets
import selectors
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from threading import Thread
from typing import Any, Protocol
from weakref import WeakSet

from hal.core.errors import InvalidCall, Unsupported
from hal.core.facts import dataclass
from hal.hosted.lock import LOCK
from hal.net.handshake import of_this_user

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1e-3, 20e-3
"""How long to wait before the next knock, and at most."""
_SLICE_S = 1.0
_MESSAGE_NBYTES = 1 << 20
_BACKLOG = 128

_STRANGE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What comes of words that are none of these processes'."""

Message = dict[str, Any]


class Hears(Protocol):
    """Whom the links belong to. Called with the lock held."""

    def came(self) -> None:
        """There are more ranks than before."""

    def heard(self, message: Message, descriptors: Sequence[int]) -> None:
        """Another process says something; the descriptors are this one's from now on."""

    def went(self, ranks: Sequence[int]) -> None:
        """These ranks are there no more: their process has ended, or they do not wait any more."""

    def disagrees(self, text: str) -> None:
        """Another process names other peers."""

    def part(self) -> None:
        """This process ends: tell the others how far it has come."""


@dataclass(eq=False, slots=True)
class _Process:
    """Another process of the group: its ranks so far, and its links, of which the first is spoken
    on."""

    ranks: set[int] = field(default_factory=set)
    links: list[socket.socket] = field(default_factory=list)


class Elsewhere:
    """The other processes of a group. Its methods are called with the lock held, and none of them
    waits. A thread listens until `close`."""

    def __init__(self, key: str, peers: Sequence[str], hears: Hears) -> None:
        self._key, self._peers, self._hears = key, list(peers), hears
        self._own = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._here: list[int] = []
        self._doors: dict[int, socket.socket] = {}
        self._knocked: dict[int, socket.socket] = {}
        self._links: dict[socket.socket, str] = {}
        """Each link's process; "" until it has said who it is."""
        self._greeted: set[socket.socket] = set()
        self._processes: dict[str, _Process] = {}
        self._selector = selectors.DefaultSelector()
        self._wakes = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wakes, selectors.EVENT_READ, lambda: None)
        self.meets, self._ended = True, False
        Thread(target=self._loop, name=f"group {key}", daemon=True).start()
        _OPEN.add(self)

    @property
    def ranks(self) -> set[int]:
        """Those that are in other processes, as far as these have come."""
        return {rank for process in self._processes.values() for rank in process.ranks}

    def add(self, rank: int) -> None:
        """A rank of this process has come. Raises InvalidCall where another process has it,
        Unsupported where the system lets nobody listen."""
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            door.bind(self._address(rank))
            door.listen(_BACKLOG)
        except OSError as error:
            door.close()
            if error.errno == errno.EADDRINUSE:
                text = f"group {self._key!r}: rank {rank} has joined already, in another process"
                raise InvalidCall(text) from error
            text = f"group {self._key!r}: other processes cannot be met: {error}"
            raise Unsupported(text) from error
        door.setblocking(False)
        self._doors[rank] = door
        self._here.append(rank)
        self._selector.register(door, selectors.EVENT_READ, partial(self._open, door))
        for link in self._greeted:
            self._say(link, {"say": "here", "rank": rank})
        self._wake()

    def remove(self, rank: int) -> None:
        """A rank of this process does not wait any longer."""
        if rank in self._doors:
            self._here.remove(rank)
            self._shut(self._doors.pop(rank))
            for link in self._greeted:
                self._say(link, {"say": "away", "rank": rank})

    def tell(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Say something to every other process. One that takes nothing any more has ended."""
        for process in self._processes.values():
            self._say(process.links[0], message, descriptors)

    def settle(self) -> None:
        """All ranks are there: nobody is let in any more."""
        self.meets = False
        for door in self._doors.values():
            self._shut(door)
        self._doors.clear()
        self._knocked.clear()

    def close(self) -> None:
        """Nobody here belongs to the group any more."""
        if self._ended:
            return
        self._ended = True
        self.settle()
        for link in list(self._links):
            self._forget(link)
        self._processes.clear()
        self._wake()
        _OPEN.discard(self)

    def part(self) -> None:
        """This process ends."""
        self._hears.part()

    def leave_to_parent(self) -> None:
        """This is a fork: what is open is the parent's."""
        self._ended = True
        for held in (*self._doors.values(), *self._links):
            held.close()

    def _address(self, rank: int) -> str:
        name = hashlib.sha256(self._key.encode()).hexdigest()[:32]
        return f"\0hal-group-{os.getuid()}-{name}-{rank}"

    def _wake(self) -> None:
        os.eventfd_write(self._wakes, 1)

    def _loop(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            with LOCK:
                if self._ended:
                    break
                if self.meets:
                    self._knock()
            ready = self._selector.select(pause_s if self.meets else _SLICE_S)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            for key, _ in ready:
                with LOCK:
                    if not self._ended:
                        key.data()
            with suppress(BlockingIOError):
                os.eventfd_read(self._wakes)
        self._selector.close()
        os.close(self._wakes)

    def _knock(self) -> None:
        known = {*self._here, *self.ranks, *self._knocked}
        for rank in range(max(self._here, default=0)):
            if rank in known:
                continue
            link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            link.setblocking(False)
            try:
                link.connect(self._address(rank))
            except OSError:
                link.close()  # nobody is there yet
                continue
            self._knocked[rank] = link
            self._watch(link)
            if link in self._links:
                self._greet(link)

    def _open(self, door: socket.socket) -> None:
        if door not in self._doors.values():
            return
        with suppress(OSError):  # who knocked may have gone
            link, _ = door.accept()
            link.setblocking(False)
            self._watch(link)

    def _watch(self, link: socket.socket) -> None:
        self._links[link] = ""
        self._selector.register(link, selectors.EVENT_READ, partial(self._read, link))
        if not of_this_user(link):
            self._lose(link)

    def _greet(self, link: socket.socket) -> None:
        """Say who is here: who has knocked does, and who lets it in."""
        self._greeted.add(link)
        own = {"say": "hello", "process": self._own, "peers": self._peers, "ranks": self._here}
        self._say(link, own)

    def _say(self, link: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        try:
            socket.send_fds(link, [json.dumps(message).encode()], descriptors, flags)
        except OSError:  # it has ended, or takes nothing: `_read` sees the end
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _read(self, link: socket.socket) -> None:
        if link not in self._links:
            return
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        try:
            data, descriptors, _, _ = socket.recv_fds(link, _MESSAGE_NBYTES, 1, flags)
        except (BlockingIOError, ConnectionResetError):
            # Who ends with something unread resets a link, of which one hears before what he said
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._lose(link)
            return
        try:
            self._take(link, json.loads(data), descriptors)
        except _STRANGE:  # it says what no process of ours says
            if link in self._links:
                self._lose(link)

    def _take(self, link: socket.socket, message: Message, descriptors: Sequence[int]) -> None:
        match message["say"]:
            case "hello":
                self._know(link, message)
            case "here":
                self._processes[self._links[link]].ranks.add(message["rank"])
                self._hears.came()
            case "away":
                self._processes[self._links[link]].ranks.discard(message["rank"])
                self._hears.went([message["rank"]])
            case said if not self._links[link]:
                raise ValueError(f"{said!r} before a greeting")
            case _:
                self._hears.heard(message, descriptors)

    def _know(self, link: socket.socket, message: Message) -> None:
        name, ranks = message["process"], message["ranks"]
        if name not in self._processes and not self.ranks.isdisjoint(ranks):
            # It comes for a later group of this key, whose door is not open yet
            self._lose(link)
            return
        if link not in self._greeted:
            self._greet(link)
        self._knocked = {rank: at for rank, at in self._knocked.items() if at is not link}
        self._links[link] = name
        process = self._processes.setdefault(name, _Process())
        process.links.append(link)
        process.ranks.update(ranks)
        if message["peers"] != self._peers:
            theirs = f"ranks {ranks} name the peers {message['peers']}, others {self._peers}"
            self._hears.disagrees(f"group {self._key!r}: {theirs}")
        else:
            self._hears.came()

    def _lose(self, link: socket.socket) -> None:
        name = self._links[link]
        self._knocked = {rank: at for rank, at in self._knocked.items() if at is not link}
        process = self._processes.pop(name, None)
        for one in process.links if process else [link]:
            self._forget(one)
        if process is not None:
            self._hears.went(sorted(process.ranks))

    def _shut(self, door: socket.socket) -> None:
        self._selector.unregister(door)
        door.close()

    def _forget(self, link: socket.socket) -> None:
        del self._links[link]
        self._greeted.discard(link)
        self._selector.unregister(link)
        link.close()


_OPEN = WeakSet[Elsewhere]()


def _part() -> None:
    """A process that ends well says so: what it has done counts, and it is no dead one."""
    with LOCK:
        for one in [*_OPEN]:
            one.part()


def _leave_to_parent() -> None:
    for one in [*_OPEN]:
        one.leave_to_parent()
    _OPEN.clear()


atexit.register(_part)
os.register_at_fork(after_in_child=_leave_to_parent)
