"""The store's server: one thread that serves all connections, for as long as a job runs."""

from __future__ import annotations

import contextlib
import hmac
import os
import resource
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from hal.core.errors import DeadlineExceeded, InvalidCall
from stack.comm.store.table import Delivery, Table
from stack.comm.store.wire import (
    GREETING_NBYTES,
    LEASE_S,
    MAGIC,
    MESSAGE_NBYTES,
    NONCE_NBYTES,
    Code,
    Message,
    WireError,
    pack,
    proof,
    take,
)

GREETING_S = 10.0
"""How long a stranger may take to prove that it knows the token."""
STRANGERS = 128
"""The most connections that have not proved it; one more, and the oldest is closed."""
BACKLOG_NBYTES = 16 << 20
"""A client that leaves more than this unread is cut off. A watch then looks at everything anew."""
_TURN_S = 1.0
_END_S = 10.0
_PAUSE_S = 0.01
_READ_NBYTES = 1 << 18


@dataclass(eq=False, slots=True)
class _Peer:
    """A connection; `client` is -1 until it has proved that it knows the token. `writing`: the
    selector tells when more of the outbox can be sent."""

    link: socket.socket
    nonce: bytes
    heard_s: float
    client: int = -1
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
        self._token = token
        self._lease_s = lease_s
        self._table = Table()
        self._due: deque[Delivery] = deque()
        self._peers: dict[socket.socket, _Peer] = {}
        self._clients: dict[int, _Peer] = {}
        self._next = 0
        self._listener = _listen(host, port)
        self._listener.setblocking(False)
        self._most = max(8, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4)
        self._woken, self._waker = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="hal-store", daemon=True)

    @property
    def port(self) -> int:
        """The port at which it listens."""
        return int(self._listener.getsockname()[1])

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
        self._selector.close()
        self._listener.close()
        os.close(self._woken)
        os.close(self._waker)

    def _serve(self) -> None:
        while not self._ended:
            for key, events in self._selector.select(min(_TURN_S, self._lease_s / 4)):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._turn(self._peers.get(key.fileobj), events)
                self._deliver()
            self._expire()
            self._deliver()

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:  # it has gone again, or the system gives no more descriptors now
            self._drop_stranger()
            time.sleep(_PAUSE_S)
            return
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._welcome(link)

    def _welcome(self, link: socket.socket) -> None:
        strangers = sum(known.client < 0 for known in self._peers.values())
        if strangers >= STRANGERS or len(self._peers) >= self._most:
            self._drop_stranger()
        if len(self._peers) >= self._most:
            link.close()
            return
        known = _Peer(link, os.urandom(NONCE_NBYTES), time.monotonic())
        self._peers[link] = known
        self._selector.register(link, selectors.EVENT_READ)
        self._send(known, Message(Code.HELLO, 0, (MAGIC, known.nonce)))

    def _drop_stranger(self) -> None:
        """Close the oldest connection that has proved nothing."""
        oldest = next((known for known in self._peers.values() if known.client < 0), None)
        if oldest is not None:
            self._drop(oldest, "it did not prove that it knows the token")

    def _turn(self, peer: _Peer | None, events: int) -> None:
        """Read from a connection, or write to it; it may have been dropped in this turn."""
        if peer is not None and events & selectors.EVENT_WRITE:
            self._flush(peer)
        if peer is not None and events & selectors.EVENT_READ and peer.link in self._peers:
            self._read(peer)

    def _read(self, peer: _Peer) -> None:
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
            while peer.link in self._peers and not self._busy(peer):
                limit = GREETING_NBYTES if peer.client < 0 else MESSAGE_NBYTES
                message = take(peer.inbox, limit)
                if message is None:
                    break
                self._answer(peer, message)
        except WireError as error:
            self._drop(peer, str(error))
        if len(peer.inbox) > MESSAGE_NBYTES + _READ_NBYTES:
            self._drop(peer, "it sent requests without waiting for answers")

    def _busy(self, peer: _Peer) -> bool:
        return peer.client >= 0 and self._table.busy(peer.client)

    def _answer(self, peer: _Peer, message: Message) -> None:
        if peer.client < 0:
            self._admit(peer, message)
        else:
            self._due += self._table.ask(peer.client, message)

    def _admit(self, peer: _Peer, message: Message) -> None:
        """Look at a stranger's proof, and prove the same to it."""
        if message.code is not Code.PROOF or len(message.fields) != 3:
            raise WireError("a connection begins with a proof")
        nonce, session, proved = message.fields
        nonces = peer.nonce + nonce
        if not hmac.compare_digest(proved, proof(self._token, b"client" + session, nonces)):
            self._send(peer, Message(Code.REFUSED, 0, (b"its token is not this store's",)))
            self._drop(peer, "its token is wrong")
            return
        peer.client = self._next
        self._next += 1
        self._clients[peer.client] = peer
        self._table.come(peer.client, session)
        lease = str(self._lease_s).encode()
        mine = proof(self._token, b"server" + lease, nonces)
        self._send(peer, Message(Code.WELCOME, 0, (mine, lease)))

    def _deliver(self) -> None:
        """Send what is due, and serve those who have sent their next request already."""
        while self._due:
            one = self._due.popleft()
            if (peer := self._clients.get(one.client)) is not None:
                self._send(peer, one.message)
                self._hear(peer)

    def _send(self, peer: _Peer, message: Message) -> None:
        empty = not peer.outbox
        peer.outbox += pack(message)
        if empty:
            self._flush(peer)
        if len(peer.outbox) > BACKLOG_NBYTES:
            self._drop(peer, "it does not read what it is told")

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
        if peer.link in self._peers and peer.writing is not bool(peer.outbox):
            peer.writing = not peer.writing
            writing = selectors.EVENT_WRITE if peer.writing else 0
            self._selector.modify(peer.link, selectors.EVENT_READ | writing)

    def _drop(self, peer: _Peer, why: str) -> None:
        """Close a connection, and tell those who watch its leases."""
        if self._peers.pop(peer.link, None) is None:
            return
        self._selector.unregister(peer.link)
        peer.link.close()
        if self._clients.pop(peer.client, None) is not None:
            self._due += self._table.gone(peer.client, why)

    def _expire(self) -> None:
        """Drop strangers that say nothing, and holders of leases that have fallen silent."""
        now_s = time.monotonic()
        for peer in list(self._peers.values()):
            silent_s = now_s - peer.heard_s
            if peer.client < 0 and silent_s > GREETING_S:
                self._drop(peer, f"it proved nothing in {GREETING_S} s")
            elif peer.client >= 0 and self._table.leases(peer.client) and silent_s > self._lease_s:
                self._drop(peer, f"it gave no sign of life for {self._lease_s:g} s")


def _listen(host: str, port: int) -> socket.socket:
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
    listener.listen(STRANGERS)
    return listener
