"""Frames over a connection: a body of plain values, and a payload of bytes beside it.

Every frame carries a seal (`hal.net.seal`) under the key of the handshake, so that nobody on the
way can change, repeat, drop or reorder one. On a local socket the kernel says whose process the
other side is, and frames go as they are.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import msgpack

from hal.net.seal import TAG_NBYTES, Seals

BODY_NBYTES = 256 << 20
"""The longest body: a program's text is the longest thing that one holds."""
SILENCE_S = 10.0
"""A side that says nothing for so long, not even that it lives, is gone; so is one that takes
nothing of what it is sent."""
_CHUNK_NBYTES = 4 << 20
_JOINED_NBYTES = 64 << 10
_HEAD = struct.Struct("<IQ")

Place = Callable[[Any, int], memoryview]
"""Where the payload of so many bytes that belongs to a body goes; raises where none belongs."""


class Ended(Exception):
    """The connection is over; the text says how."""


class Channel:
    """A connection after its handshake. Any thread sends; one thread receives."""

    def __init__(self, link: socket.socket, key: bytes, calling: bool) -> None:
        """`key` is the handshake's, `calling` tells its two sides apart."""
        link.settimeout(SILENCE_S)
        self._link = link
        self._seals: Seals | None = None
        if link.family != socket.AF_UNIX:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._seals = Seals(key, calling)
        self._sending = threading.Lock()

    def send(self, body: object, payload: bytes | bytearray | memoryview = b"") -> None:
        """Send a frame. Raises Ended when the connection is over."""
        text = msgpack.packb(body, unicode_errors="surrogatepass")
        with self._sending:
            head = _HEAD.pack(len(text), len(payload))
            seal = self._seals.tag(head, text, payload) if self._seals else b""
            try:
                if len(payload) <= _JOINED_NBYTES:
                    self._link.sendall(b"".join((head, text, payload, seal)))
                else:
                    self._link.sendall(head + text)
                    for at in range(0, len(payload), _CHUNK_NBYTES):  # each has its own timeout
                        self._link.sendall(memoryview(payload)[at : at + _CHUNK_NBYTES])
                    self._link.sendall(seal)
            except OSError as error:
                raise Ended(f"{type(error).__name__}: {error}") from None

    def receive(self, place: Place) -> Any:
        """The next frame's body, after its payload is where `place` says.

        Raises Ended when the connection is over or its bytes are not a frame of the other side,
        TimeoutError when nothing began to come within the socket's timeout.
        """
        head = self._exactly(bytearray(_HEAD.size), begun=False)
        nbytes, payload_nbytes = _HEAD.unpack(head)
        if nbytes > BODY_NBYTES:
            raise Ended(f"a frame of {nbytes} bytes; {BODY_NBYTES} are allowed")
        text = self._exactly(bytearray(nbytes))
        try:
            body = msgpack.unpackb(
                text, use_list=False, strict_map_key=False, unicode_errors="surrogatepass"
            )
            payload = place(body, payload_nbytes) if payload_nbytes else memoryview(b"")
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise Ended(f"not a frame: {type(error).__name__}: {error}") from None
        if payload_nbytes:
            self._exactly(payload)
        if self._seals:
            seal = self._exactly(bytearray(TAG_NBYTES))
            if not self._seals.holds(seal, head, text, payload):
                raise Ended("a frame does not carry the other side's seal: somebody changed it")
        return body

    def end(self) -> None:
        """End the connection, from any thread; whoever waits in it sees the end."""
        with contextlib.suppress(OSError):  # it has ended already
            self._link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection and give its descriptor back: only the thread that receives may, or
        its next wait could be for another socket that got the same number."""
        self.end()
        self._link.close()

    def _exactly(self, into: bytearray | memoryview, begun: bool = True) -> bytearray | memoryview:
        view, have = memoryview(into), 0
        while have < len(view):
            try:
                got = self._link.recv_into(view[have:])
            except TimeoutError:
                if not begun and not have:
                    raise
                raise Ended("the other side stopped in the middle of a frame") from None
            except OSError as error:
                raise Ended(f"{type(error).__name__}: {error}") from None
            if not got:
                raise Ended("the other side has ended the connection")
            have += got
        return into
