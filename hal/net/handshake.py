"""How a process that connects to a listener proves that it belongs there, and the listener to it.
A job's store, the ranks of a group and servers of remote devices use it.

Both know a secret, which never travels. The listener speaks first:

    listener  MAGIC, a nonce
    caller    a nonce, what it claims to be, and HMAC-SHA256 of these and of the place
    listener  what it grants, and HMAC-SHA256 of all that was said; a refusal has no digest

Every message has one size. Nonces of both sides keep a proof from being said again; the role that
is in each digest keeps it from being sent back; the place, which names the listener, keeps one that
was made for it from being taken to another. Both sides derive a key from the same, for what they
say to each other afterwards.

Whoever has not proved anything is a stranger: a process of another user where the system knows it
(a local socket), one that is silent, late, or says anything else. Strangers are heard all at once,
each until one moment, and none of them is an error.
"""

from __future__ import annotations

import hmac
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

GREETING_S = 10.0
"""How long after it has connected a stranger may take to prove that it is none."""
STRANGERS = 128
"""The most strangers that a listener hears; one more, and the oldest is closed."""
BACKLOG = 4096
"""The most connections that wait to be accepted: over TCP one more would try again after 1 s."""
MAGIC = b"hal-handshake/1\n"
NONCE_NBYTES = 32
CLAIM_NBYTES = 32
GRANT_NBYTES = 8
KEY_NBYTES = 32

_HELLO = struct.Struct(f"{len(MAGIC)}s{NONCE_NBYTES}s")
_PROOF = struct.Struct(f"{NONCE_NBYTES}s{CLAIM_NBYTES}s32s")
_WELCOME = struct.Struct(f"{GRANT_NBYTES}s32s")
_NO_DIGEST = bytes(32)
_REFUSALS = {
    known: _WELCOME.pack(why, _NO_DIGEST) for known, why in ((False, b"secret"), (True, b"claim"))
}
_CREDENTIALS = struct.Struct("3i")
_ACCEPTS = 64
"""The most connections that are accepted in one turn, so that those who are known get theirs."""
_PAUSE_S = 0.01


class HandshakeError(ValueError):
    """What is at the other end does not know the secret, or speaks of something else."""


class Refused(HandshakeError):
    """The listener refuses this process: it does not know the secret, or (`known`) it does, and is
    not wanted there."""

    def __init__(self, known: bool) -> None:
        super().__init__("it refuses this process")
        self.known = known


@dataclass(frozen=True, slots=True)
class Terms:
    """What both ends know before they connect: the `secret`, and the `place` that is called, which
    names the listener among all that know the secret."""

    secret: bytes = field(repr=False)
    place: bytes

    def digest(self, role: bytes, said: bytes) -> bytes:
        """What only who knows the secret can say. `role` has 4 bytes, `said` one length for a
        role, so that no two digests are of the same bytes."""
        return hmac.digest(self.secret, role + said + self.place, "sha256")


@dataclass(frozen=True, slots=True)
class Known:
    """A caller that has proved itself: its connection, which does not block, what it claims to be
    (CLAIM_NBYTES), and the key that both ends know now."""

    link: socket.socket
    claim: bytes
    key: bytes = field(repr=False)


def prove(link: socket.socket, terms: Terms, claim: bytes, until_s: float) -> tuple[bytes, bytes]:
    """Say to a listener what this process is, by `until_s` on the monotonic clock; gives what is
    granted, and the key.

    Raises OSError when the connection ends or is silent, HandshakeError when the listener is
    another one, Refused when it refuses.
    """
    _, theirs = _HELLO.unpack(_exactly(link, _HELLO.size, until_s, MAGIC))
    claim = claim.ljust(CLAIM_NBYTES, b"\0")
    nonce = os.urandom(NONCE_NBYTES)
    said = theirs + nonce + claim
    link.settimeout(max(until_s - time.monotonic(), 1e-3))
    link.sendall(_PROOF.pack(nonce, claim, terms.digest(b"call", said)))
    welcome = _exactly(link, _WELCOME.size, until_s)
    grant, digest = _WELCOME.unpack(welcome)
    if digest == _NO_DIGEST:
        raise Refused(welcome == _REFUSALS[True])
    if not hmac.compare_digest(digest, terms.digest(b"hear", said + grant)):
        raise HandshakeError("it does not know the secret")
    return grant, terms.digest(b"link", said)


def uid_of(link: socket.socket) -> int:
    """Whose process is at the other end of a local socket, as the system says."""
    raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


def of_this_user(link: socket.socket) -> bool:
    """Whether the other end of a local socket is a process of the same user, as the system says."""
    return uid_of(link) == os.getuid()


def _exactly(link: socket.socket, nbytes: int, until_s: float, begin: bytes = b"") -> bytes:
    """So many bytes and no more: what comes behind them is not of the handshake. They have to begin
    with `begin`."""
    data = b""
    while len(data) < nbytes:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        link.settimeout(left_s)
        part = link.recv(nbytes - len(data))
        if not part:
            raise ConnectionResetError("the other side has ended the connection")
        data += part
        if data[: len(begin)] != begin[: len(data)]:
            raise HandshakeError(f"it begins with {data[: len(begin)]!r}, not with {begin!r}")
    return data


@dataclass(eq=False, slots=True)
class _Stranger:
    """A connection that has not proved anything yet; it may until `until_s`."""

    link: socket.socket
    nonce: bytes
    until_s: float
    said: bytes = b""


class Acceptor:
    """Hears all who connect to some listeners, in its owner's selector (see `hal.net.loop`). The
    owner calls `expire` now and then.

    Who has proved itself is refused unless `wants` says of its claim that it may come; else it is
    welcomed with `grant`, and `take` gets the connection for its own.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listeners: Sequence[socket.socket],
        terms: Terms,
        wants: Callable[[bytes], bool],
        take: Callable[[Known], None],
        grant: bytes = b"",
    ) -> None:
        self._selector = selector
        self._listeners = listeners
        self._terms = terms
        self._wants = wants
        self._take = take
        self._grant = grant.ljust(GRANT_NBYTES, b"\0")
        self._strangers: dict[_Stranger, None] = {}  # the oldest first
        for listener in listeners:
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ, partial(self._hear, listener))

    def expire(self) -> None:
        """Close the strangers whose time has passed."""
        now_s = time.monotonic()
        for stranger in [one for one in self._strangers if one.until_s <= now_s]:
            self._close(stranger)

    def close(self) -> None:
        """Close listeners and strangers."""
        for stranger in list(self._strangers):
            self._close(stranger)
        for listener in self._listeners:
            self._selector.unregister(listener)
            listener.close()

    def _hear(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            try:
                link, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError:  # it has gone again, or the system gives no more descriptors now
                self._close_oldest()
                time.sleep(_PAUSE_S)
                return
            self._greet(link)

    def _greet(self, link: socket.socket) -> None:
        try:
            link.setblocking(False)
            if link.family == socket.AF_UNIX and not of_this_user(link):
                link.close()
                return
            if len(self._strangers) >= STRANGERS:
                self._close_oldest()
            stranger = _Stranger(link, os.urandom(NONCE_NBYTES), time.monotonic() + GREETING_S)
            link.send(_HELLO.pack(MAGIC, stranger.nonce))
        except OSError:  # it has gone again
            link.close()
            return
        self._strangers[stranger] = None
        self._selector.register(link, selectors.EVENT_READ, partial(self._read, stranger))

    def _read(self, stranger: _Stranger) -> None:
        try:
            data = stranger.link.recv(_PROOF.size - len(stranger.said))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        stranger.said += data
        if not data:
            self._close(stranger)
        elif len(stranger.said) == _PROOF.size:
            nonce, claim, digest = _PROOF.unpack(stranger.said)
            said = stranger.nonce + nonce + claim
            known = hmac.compare_digest(digest, self._terms.digest(b"call", said))
            link = stranger.link
            self._forget(stranger)
            if not known or not self._wants(claim):
                with suppress(OSError):
                    link.send(_REFUSALS[known])
                link.close()
                return
            digest = self._terms.digest(b"hear", said + self._grant)
            with suppress(OSError):  # who owns the connection now sees that it has ended
                link.send(_WELCOME.pack(self._grant, digest))
            self._take(Known(link, claim, self._terms.digest(b"link", said)))

    def _close_oldest(self) -> None:
        oldest = next(iter(self._strangers), None)
        if oldest is not None:
            self._close(oldest)

    def _close(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.link.close()

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger]
        self._selector.unregister(stranger.link)
