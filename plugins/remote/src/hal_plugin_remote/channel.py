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
import time
from collections.abc import Callable
from typing import Any

import msgpack

from hal.net.seal import TAG_NBYTES, Seals

BODY_NBYTES = 256 << 20
"""The longest body: a program's text is the longest thing that one holds."""
TICK_S = 1.0
"""How often whoever waits for the other side looks whether it is still there."""
_JOINED_NBYTES = 64 << 10
_HEAD = struct.Struct("<IQ")

Place = Callable[[Any, int], memoryview]
"""Where the payload of so many bytes that belongs to a body goes; raises where none belongs."""
Quiet = Callable[[float], None]
"""Called every `TICK_S` in which nothing comes, with the seconds since something came; raises
`Ended` where that is too long."""


class Ended(Exception):
    """The connection is over; the text says how."""


class Channel:
    """A connection after its handshake. Any thread sends; one thread receives.

    A side that is busy takes nothing and says nothing for as long as it is, so neither ends a
    connection: whoever receives judges by `Quiet`, and who sends waits for the connection's end.
    """

    def __init__(self, link: socket.socket, key: bytes, calling: bool) -> None:
        """`key` is the handshake's, `calling` tells its two sides apart."""
        link.settimeout(TICK_S)
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
                    self._send_all(b"".join((head, text, payload, seal)))
                else:
                    self._send_all(head + text)
                    self._send_all(payload)
                    self._send_all(seal)
            except OSError as error:
                raise Ended(f"{type(error).__name__}: {error}") from None

    def receive(self, place: Place, quiet: Quiet) -> Any:
        """The next frame's body, after its payload is where `place` says.

        Raises Ended when the connection is over, or its bytes are not a frame of the other side.
        """
        head = self._exactly(bytearray(_HEAD.size), quiet)
        nbytes, payload_nbytes = _HEAD.unpack(head)
        if nbytes > BODY_NBYTES:
            raise Ended(f"a frame of {nbytes} bytes; {BODY_NBYTES} are allowed")
        text = self._exactly(bytearray(nbytes), quiet)
        try:
            body = msgpack.unpackb(
                text, use_list=False, strict_map_key=False, unicode_errors="surrogatepass"
            )
            payload = place(body, payload_nbytes) if payload_nbytes else memoryview(b"")
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise Ended(f"not a frame: {type(error).__name__}: {error}") from None
        if payload_nbytes:
            self._exactly(payload, quiet)
        if self._seals:
            seal = self._exactly(bytearray(TAG_NBYTES), quiet)
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

    def _send_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while len(view):
            with contextlib.suppress(TimeoutError):  # the other side takes nothing at the moment
                view = view[self._link.send(view) :]

    def _exactly(self, into: bytearray | memoryview, quiet: Quiet) -> bytearray | memoryview:
        view, have, came_s = memoryview(into), 0, time.monotonic()
        while have < len(view):
            try:
                got = self._link.recv_into(view[have:])
            except TimeoutError:
                quiet(time.monotonic() - came_s)
                continue
            except OSError as error:
                raise Ended(f"{type(error).__name__}: {error}") from None
            if not got:
                raise Ended("the other side has ended the connection")
            have, came_s = have + got, time.monotonic()
        return into
