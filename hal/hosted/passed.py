"""Descriptors that other processes of this user take: for what a driver names by one, and `/proc`
does not open again as it opens a file of memory.

An offer is a number behind an abstract local socket of this process. The kernel says who connects.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from itertools import count
from threading import RLock, Thread

from hal.core.errors import InvalidCall, Unsupported
from hal.core.values import SharedHandle
from hal.net.handshake import of_this_user

_NUMBER = struct.Struct("<Q")
_PATIENCE_S = 5.0
"""How long one side waits for the other, which has nothing to do but to answer."""
_SLICE_S = 1.0

Token = tuple[int, int, int]
"""The process, what tells its socket from others, and the number of the offer."""


class Offers:
    """What this process offers. Its thread begins with the first offer, and ends with the
    process."""

    def __init__(self) -> None:
        self._lock, self._numbers = RLock(), count(1)  # Python may forget memory in any line
        self._offered: dict[int, int] = {}
        self._of: tuple[int, int] | None = None

    def offer(self, descriptor: int) -> Token:
        """Give a descriptor, which is this object's from now on, to whoever asks for it."""
        with self._lock:
            if self._of is None:
                self._of = os.getpid(), secrets.randbits(62)
                server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                server.bind(_address(*self._of))
                server.listen()
                server.settimeout(_SLICE_S)
                Thread(target=self._serve, args=(server,), name="offers", daemon=True).start()
            number = next(self._numbers)
            self._offered[number] = descriptor
            return (*self._of, number)

    def withdraw(self, token: Token) -> None:
        """Close a descriptor: nobody gets it any more."""
        with self._lock:
            os.close(self._offered.pop(token[2]))

    def _serve(self, server: socket.socket) -> None:
        while True:
            try:
                link, _ = server.accept()
            except TimeoutError:
                continue
            with link:
                try:
                    self._answer(link)
                except OSError:
                    continue  # who asked has gone, or says nothing

    def _answer(self, link: socket.socket) -> None:
        if not of_this_user(link):
            return
        link.settimeout(_PATIENCE_S)
        asked = link.recv(_NUMBER.size)
        if len(asked) != _NUMBER.size:
            return
        with self._lock:
            descriptor = self._offered.get(_NUMBER.unpack(asked)[0])
            if descriptor is not None:
                socket.send_fds(link, [b"!"], [descriptor])


OFFERS = Offers()
"""Those of this process."""


def taken(token: Token) -> int:
    """A descriptor of one's own for what another process offers, or this one. Raises OSError where
    it is offered no more."""
    process, told_apart, number = token
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(_PATIENCE_S)
        link.connect(_address(process, told_apart))
        link.sendall(_NUMBER.pack(number))
        _, descriptors, _, _ = socket.recv_fds(link, 1, 1)
    if not descriptors:
        raise FileNotFoundError(f"process {process} does not offer its memory {number} any more")
    return descriptors[0]


def attached(shared: SharedHandle, kind: str) -> tuple[int, int]:
    """A descriptor of one's own for the memory of a handle, whose token are an offer's and its
    bytes, and these. Raises Unsupported for another kind, InvalidCall where it is not to be had."""
    if shared.kind != kind:
        raise Unsupported(f"import_buffer: kind {shared.kind!r}; this device imports {kind!r}")
    if len(shared.token) != 4 or shared.token[3] < shared.nbytes:
        raise InvalidCall(f"import_buffer: {shared} is no handle of {kind!r}")
    process, told_apart, number, size = shared.token
    try:
        return taken((process, told_apart, number)), size
    except OSError as error:
        raise InvalidCall(f"import_buffer: {shared} cannot be had: {error}") from error


def _address(process: int, told_apart: int) -> str:
    return f"\0hal-offers-{process}-{told_apart:x}"
