"""A client's connection to the store's server: it proves who it is, asks, and connects again."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from weakref import WeakSet

from hal.core.errors import DeadlineExceeded, InvalidCall
from hal.net.handshake import CLAIM_NBYTES, HandshakeError, Refused, Terms, prove
from hal.net.seal import Seals
from stack.comm.store.wire import (
    GRANT,
    KEYS,
    MESSAGE_NBYTES,
    PLACE,
    VALUE_NBYTES,
    Code,
    Message,
    StoreError,
    WireError,
    nbytes_of,
    pack,
    take,
)
from stack.comm.world import host_and_port

_RETRY_S = 0.05
_AGAIN_S = 0.005
_ENDED = "the other side has ended the connection"
_READ_NBYTES = 1 << 18


class Link:
    """A connection to the server at `address`, made at the first call and again when it breaks.

    One thread at a time uses it. A request that is sent again after a break is not done twice.
    """

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._terms = Terms(token.encode(), PLACE)
        self.session = os.urandom(CLAIM_NBYTES)
        self._number = 0
        self._socket: socket.socket | None = None
        self._inbox = bytearray()
        self._seals: Seals  # of the connection that is there
        self._stopped = False
        self.lease_s = 0.0
        _LINKS.add(self)

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._inbox.clear()

    def interrupt(self) -> None:
        """End the connection for good, which the thread that waits in this link sees."""
        self._stopped = True
        if (link := self._socket) is not None:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:  # it has ended already
                return

    def ask(self, code: Code, fields: tuple[bytes, ...], until_s: float, what: str) -> Message:
        """The answer to a request, by `until_s` on the monotonic clock; `what` says in words what
        is waited for.

        Raises DeadlineExceeded, StoreError, InvalidCall.
        """
        self._number += 1
        request = Message(code, self._number, fields)
        return self._served(request, until_s, what)[-1]

    def stream(
        self, code: Code, fields: tuple[bytes, ...], until_s: float, what: str
    ) -> list[Message]:
        """The messages that come before the answer to a request. Raises as `ask`."""
        self._number += 1
        return self._served(Message(code, self._number, fields), until_s, what)[:-1]

    def once(self, code: Code, until_s: float, fields: tuple[bytes, ...] = ()) -> Message:
        """The answer to a request on the connection that is there.

        Raises OSError when it has broken or is silent, WireError, StoreError, InvalidCall.
        """
        self._number += 1
        return self._exchange(Message(code, self._number, fields), until_s)[-1]

    def rest(self, seconds: float) -> None:
        """Do nothing for that long. Raises OSError as soon as the connection ends."""
        link = self._open()
        link.settimeout(seconds)
        with suppress(TimeoutError):
            if not link.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError(_ENDED)

    def _served(self, request: Message, until_s: float, what: str) -> list[Message]:
        while True:
            self.connect(until_s)
            try:
                return self._exchange(request, until_s)
            except TimeoutError:
                self.close()
                raise DeadlineExceeded(f"{what}; the store at {self.address} is there") from None
            except OSError:
                self.close()
                time.sleep(min(_AGAIN_S, max(0.0, until_s - time.monotonic())))
            except WireError as error:
                self.close()
                raise StoreError(
                    f"{self.address} does not speak as a store does: {error}"
                ) from None

    def _exchange(self, request: Message, until_s: float) -> list[Message]:
        """Send a request; the messages that it gets, the answer last."""
        self.send(request, until_s)
        got = [self.hear(until_s, request.number)]
        while got[-1].code is Code.CHANGED:
            got.append(self.hear(until_s, request.number))
        # Raise what the server says against the request
        answer = got[-1]
        text = b" ".join(answer.fields).decode(errors="replace")
        if answer.code is Code.INVALID:
            raise InvalidCall(text)
        if answer.code is Code.FAILED:
            raise StoreError(text)
        return got

    def connect(self, until_s: float) -> None:
        """Be connected. Raises DeadlineExceeded when nobody listens, StoreError when it is another
        store, or none."""
        while self._socket is None:
            if self._stopped:
                raise StoreError(f"the connection to the store at {self.address} was closed")
            try:
                self._connect(until_s)
            except OSError as error:
                self.close()
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    text = f"the store at {self.address} cannot be reached: {error}"
                    raise DeadlineExceeded(text) from None
                time.sleep(min(_RETRY_S, left_s))
            except Refused as refused:
                self.close()
                why = (
                    "it has too many clients; raise `ulimit -n`" if refused.known else "wrong token"
                )
                text = f"the store at {self.address} refuses this process: {why}"
                raise StoreError(text) from None
            except HandshakeError as error:
                self.close()
                raise StoreError(f"{self.address} is no store of this job: {error}") from None

    def _connect(self, until_s: float) -> None:
        left_s = max(until_s - time.monotonic(), 1e-3)
        link = socket.create_connection(host_and_port(self.address), left_s)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = link
        grant, key = prove(link, self._terms, self.session, until_s)
        self._seals = Seals(key, calling=True)
        (self.lease_s,) = GRANT.unpack(grant)

    def send(self, message: Message, until_s: float) -> None:
        """Send a message. Raises OSError (TimeoutError at `until_s`), InvalidCall when it is so
        long that the server would not listen."""
        if nbytes_of(message) > MESSAGE_NBYTES:
            raise InvalidCall(
                f"{message.code.name} of {nbytes_of(message)} bytes is too long: a value has at "
                f"most {VALUE_NBYTES} bytes, and a call names at most {KEYS} keys"
            )
        link = self._open()
        link.settimeout(max(until_s - time.monotonic(), 1e-3))
        link.sendall(pack(message, self._seals))

    def hear(self, until_s: float, number: int = 0) -> Message:
        """The next message, or the next one with this number. Raises OSError, WireError."""
        while True:
            link = self._open()
            while (message := take(self._inbox, MESSAGE_NBYTES, self._seals)) is None:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError("timed out")
                link.settimeout(left_s)
                data = link.recv(_READ_NBYTES)
                if not data:
                    raise ConnectionResetError(_ENDED)
                self._inbox += data
            if number in (0, message.number):
                return message

    def _open(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionResetError("the connection is closed")
        return self._socket


def _forked() -> None:
    """A child of a fork lets go of its parent's connections: they must end with the parent, and
    the child must not speak in its name."""
    for link in list(_LINKS):
        link.close()
        link.session = os.urandom(CLAIM_NBYTES)


_LINKS: WeakSet[Link] = WeakSet()
os.register_at_fork(after_in_child=_forked)
