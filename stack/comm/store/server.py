"""The store's server: one thread that serves all connections, for as long as a job runs."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import field
from functools import partial
from types import TracebackType
from typing import Self

from hal.core.errors import DeadlineExceeded, InvalidCall
from hal.core.facts import dataclass
from hal.net.handshake import BACKLOG, STRANGERS, Acceptor, Known, Terms
from hal.net.loop import turn
from hal.net.seal import Seals
from stack.comm.store.table import Delivery, Table, Usage
from stack.comm.store.wire import (
    GRANT,
    LEASE_S,
    MESSAGE_NBYTES,
    PLACE,
    WireError,
    pack,
    take,
)

BACKLOG_NBYTES = 16 << 20
"""A client that leaves more than this unread is cut off. A watch then looks at everything anew."""
_TURN_S = 1.0
_END_S = 10.0
_READ_NBYTES = 1 << 18


@dataclass(eq=False, slots=True)
class _Peer:
    """A connection whose other end has proved that it knows the token, and its client's number.
    `writing`: the selector tells when more of the outbox can be sent."""

    link: socket.socket
    client: int
    seals: Seals
    heard_s: float
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    writing: bool = False


class StoreServer:
    """Serves a `Table` to whoever knows the token. Use it in a `with` statement.

    `address` is where it listens ("127.0.0.1:4711"); port 0 takes one that is free. A client that
    breaks the rules is cut off, the others notice nothing.
    """

    def __init__(
        self, token: str, host: str = "127.0.0.1", port: int = 0, lease_s: float = LEASE_S
    ) -> None:
        """Listen. Holders of leases that say nothing for `lease_s` seconds are cut off.

        Raises InvalidCall when the address is taken or is not this machine's.
        """
        self._lease_s = lease_s
        self._table = Table()
        self._due: deque[Delivery] = deque()
        self._peers: dict[int, _Peer] = {}
        self._next = 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            listener.close()
            raise InvalidCall(
                f"the store cannot listen at {host}:{port}: {error}; choose another port or address"
            ) from error
        listener.listen(BACKLOG)
        self._listener = listener
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = max(8, descriptors * 3 // 4 - STRANGERS)
        self._woken, self._waker = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: None)
        terms, grant = Terms(token.encode(), PLACE), GRANT.pack(lease_s)
        self._acceptor = Acceptor(
            self._selector, [self._listener], terms, self._wants, self._admit, grant
        )
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="hal-store", daemon=True)

    @property
    def port(self) -> int:
        """The port at which it listens."""
        return int(self._listener.getsockname()[1])

    def value(self, key: str) -> bytes | None:
        """The value of a key as it is now, None if it has none."""
        return self._table.value(key.encode())

    def usage(self) -> Usage:
        """How full the table is. Any thread may ask."""
        return self._table.usage

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cut everybody off. Raises DeadlineExceeded if the thread does not end."""
        self._ended = True
        os.write(self._waker, b"x")
        self._thread.join(_END_S)
        if self._thread.is_alive():
            raise DeadlineExceeded(f"the store's thread did not end within {_END_S} s")
        for peer in self._peers.values():
            peer.link.close()
        self._acceptor.close()
        self._selector.close()
        os.close(self._woken)
        os.close(self._waker)

    def _serve(self) -> None:
        while not self._ended:
            turn(self._selector, min(_TURN_S, self._lease_s / 4))
            self._deliver()
            self._acceptor.expire()
            # Drop holders of leases that have fallen silent.
            now_s = time.monotonic()
            for peer in list(self._peers.values()):
                if now_s - peer.heard_s > self._lease_s and self._table.leases(peer.client):
                    self._drop(peer, f"it gave no sign of life for {self._lease_s:g} s")
            self._deliver()

    def _wants(self, session: bytes) -> bool:
        return len(self._peers) < self._most

    def _admit(self, known: Known) -> None:
        """A client has come; the handshake's claim is its session."""
        known.link.setblocking(False)
        peer = _Peer(known.link, self._next, Seals(known.key, calling=False), time.monotonic())
        self._next += 1
        self._peers[peer.client] = peer
        with contextlib.suppress(OSError):  # it has gone again, which is read
            known.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            known.link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._selector.register(known.link, selectors.EVENT_READ, partial(self._turn, peer))
        self._table.come(peer.client, known.claim)

    def _turn(self, peer: _Peer) -> None:
        """Write to a connection, and read from it."""
        if peer.writing:
            self._flush(peer)
        if peer.client in self._peers:
            try:
                data = peer.link.recv(_READ_NBYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it ended before it had read everything
                data = b""
            except OSError as error:
                self._drop(peer, f"its connection broke: {error}")
                return
            if not data:
                self._drop(peer, "its connection ended")
                return
            peer.heard_s = time.monotonic()
            peer.inbox += data
            self._hear(peer)

    def _hear(self, peer: _Peer) -> None:
        """Serve the requests that are complete, one after the other has been answered."""
        try:
            while peer.client in self._peers and not self._table.busy(peer.client):
                message = take(peer.inbox, MESSAGE_NBYTES, peer.seals)
                if message is None:
                    break
                self._due += self._table.ask(peer.client, message)
        except WireError as error:
            self._drop(peer, str(error))
        if len(peer.inbox) > MESSAGE_NBYTES + _READ_NBYTES:
            self._drop(peer, "it sent requests without waiting for answers")

    def _deliver(self) -> None:
        """Send what is due, and serve those who have sent their next request already."""
        while self._due:
            one = self._due.popleft()
            if (peer := self._peers.get(one.client)) is not None:
                empty = not peer.outbox
                peer.outbox += pack(one.message, peer.seals)
                if empty:
                    self._flush(peer)
                if len(peer.outbox) > BACKLOG_NBYTES:
                    self._drop(peer, "it does not read what it is told")
                self._hear(peer)

    def _flush(self, peer: _Peer) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                sent = peer.link.send(peer.outbox)
            except BlockingIOError:
                raise
            except OSError as error:
                self._drop(peer, f"its connection broke: {error}")
                return
            del peer.outbox[:sent]
        if peer.client in self._peers and peer.writing is not bool(peer.outbox):
            peer.writing = not peer.writing
            writing = selectors.EVENT_WRITE if peer.writing else 0
            self._selector.modify(
                peer.link, selectors.EVENT_READ | writing, partial(self._turn, peer)
            )

    def _drop(self, peer: _Peer, why: str) -> None:
        """Close a connection, and tell those who watch its leases."""
        if self._peers.pop(peer.client, None) is not None:
            self._selector.unregister(peer.link)
            peer.link.close()
            self._due += self._table.gone(peer.client, why)
