"""Copies of the newest state of a host in the memory of another host's agent, over TCP.

Each agent listens, and receives what others give it; it gives the state of its own host to one
other agent at a time. Both ends know the job's secret (`hal.net.handshake`), and each piece carries
a tag (`hal.net.seal`). All is done in the agent's selector: nothing here waits, but a thread that
connects.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from hal.net.handshake import BACKLOG, Acceptor, HandshakeError, Known, Terms, prove
from hal.net.seal import TAG_NBYTES, Seals
from stack.comm.world import host_and_port
from stack.launch.keeping import HEADER, Head, order_of

PIECE_NBYTES = 1 << 20
_PIECES = 16
"""So many pieces go between two looks at all else."""
STALLED_S = 3.0
"""Whoever takes nothing for so long, or does not say that all is there, gets no more."""
_CONNECT_S = 5.0
_MOST_NBYTES = 1 << 46
_HEAD = struct.Struct(">QQI")
"""Of a piece: bytes of the whole memory, where this piece is in it, and its bytes. The header of
the memory comes last, and makes it whole."""
_ANSWER = struct.Struct(">qq")
"""What is whole now: epoch and step."""

Given = Callable[[tuple[int, int], str], None]
"""Takes the epoch and step of what was to be given, and why it was not: "" where it was."""


def _terms(token: str, address: str) -> Terms:
    return Terms(token.encode(), f"hal/copies/{address}".encode())


class Copies:
    """What this host holds of another one's state: `memories`, two of them, of which one is whole.
    It listens at `address`."""

    def __init__(self, selector: selectors.BaseSelector, token: str, own_address: str) -> None:
        """Listen there. Raises OSError."""
        family = socket.AF_INET6 if ":" in own_address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind((own_address, 0))
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        port = listener.getsockname()[1]
        self.address = f"[{own_address}]:{port}" if ":" in own_address else f"{own_address}:{port}"
        self._selector = selector
        terms = _terms(token, self.address)
        self._acceptor = Acceptor(selector, [listener], terms, lambda claim: True, self._take)
        self._source: _Giver | None = None
        self.memories: list[int] = []

    def forget(self) -> None:
        """A rank of this host has a newer state."""
        for descriptor in self.memories:
            os.close(descriptor)
        self.memories = []

    def look(self) -> None:
        """Now and then."""
        self._acceptor.expire()

    def close(self) -> None:
        """Listen no more; the memories stay."""
        self._acceptor.close()
        if self._source is not None:
            self._source.close()

    def _take(self, known: Known) -> None:
        """Another host gives its state from now on, and the one before does no more."""
        if self._source is not None:
            self._source.close()
        self._source = _Giver(self._selector, known, self._next_memory)

    def _next_memory(self, nbytes: int) -> int:
        """Where the next copy goes: what is whole stays until that one is."""
        if len(self.memories) == 2:
            older = min(self.memories, key=order_of)
            if os.fstat(older).st_size == nbytes:
                os.pwrite(older, bytes(HEADER.size), 0)
                return older
            self.memories.remove(older)
            os.close(older)
        made = os.memfd_create("hal-state")
        self.memories.append(made)
        os.posix_fallocate(made, 0, nbytes)
        return made


class _Giver:
    """The connection of an agent that gives."""

    def __init__(
        self, selector: selectors.BaseSelector, known: Known, next_memory: Callable[[int], int]
    ) -> None:
        self._selector = selector
        self._link = known.link
        self._seals = Seals(known.key, calling=False)
        self._next_memory = next_memory
        self._memory = -1
        self._inbox = bytearray()
        self._link.setblocking(False)
        selector.register(self._link, selectors.EVENT_READ, self._hear)

    def close(self) -> None:
        """Idempotent."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(self._link)
        self._link.close()

    def _hear(self) -> None:
        try:
            data = self._link.recv(PIECE_NBYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._inbox += data
        try:
            while self._heard():
                pass
        except (HandshakeError, OSError):  # no memory, or no piece of ours: it hears so by the end
            self.close()

    def _heard(self) -> bool:
        """Take a piece, if one is complete. Raises HandshakeError for what is none."""
        first = _HEAD.size + TAG_NBYTES
        if len(self._inbox) < first:
            return False
        whole, at, nbytes = _HEAD.unpack_from(self._inbox)
        if nbytes > PIECE_NBYTES or at + nbytes > whole or whole > _MOST_NBYTES:
            raise HandshakeError(f"{nbytes} bytes at {at} of {whole} are no piece of a state")
        if len(self._inbox) < first + nbytes:
            return False
        with memoryview(self._inbox) as view:
            head, tag, piece = view[: _HEAD.size], view[_HEAD.size : first], view[first:][:nbytes]
            if not self._seals.holds(tag, head, piece):
                raise HandshakeError("a piece has another tag")
            if at == HEADER.size:
                self._memory = self._next_memory(whole)
            os.pwrite(self._memory, piece, at)
            for part in (head, tag, piece):
                part.release()
        del self._inbox[: first + nbytes]
        if at == 0:
            answer = _ANSWER.pack(*order_of(self._memory))
            self._link.send(answer + self._seals.tag(answer))
        return True


class Giver:
    """Gives the state of this host to the agent at `address`. Calls `given` for each that was
    asked for."""

    def __init__(
        self, selector: selectors.BaseSelector, token: str, address: str, given: Given
    ) -> None:
        self._selector = selector
        self._given = given
        self._terms, self.address = _terms(token, address), address
        self._link: socket.socket | None = None
        self._seals: Seals
        self._memory = -1
        self._order = (-1, -1)
        self._next = -1
        """What was asked for while another one was on its way."""
        self._gives = False
        self._at = 0
        self._outbox = memoryview(b"")
        self._inbox = b""
        self._moved_s = 0.0
        self.why = ""
        """Why it gives nothing any more; "" where it does."""
        self._waker = os.eventfd(0)
        selector.register(self._waker, selectors.EVENT_READ, self._connected)
        self._met: tuple[socket.socket, bytes] | str | None = None
        threading.Thread(target=self._connect, name="hal-copies", daemon=True).start()

    def give(self, memory: int) -> None:
        """Give what this memory has, which stays as it is until `given` is called; the descriptor
        is this object's."""
        if self._gives:
            if self._next >= 0:
                os.close(self._next)
            self._next = memory
            return
        self._memory, self._order = memory, order_of(memory)
        self._at, self._moved_s, self._gives = HEADER.size, time.monotonic(), True
        if self.why:
            self._end(self.why)
        else:
            self._begin()

    def look(self) -> None:
        """Give up where nothing has moved for too long."""
        if self._gives and time.monotonic() - self._moved_s > STALLED_S:
            self._fail(f"it took nothing for {STALLED_S:g} s")

    def close(self) -> None:
        """Give nothing any more."""
        self._fail("it is not asked for any more")

    def _connect(self) -> None:
        until_s = time.monotonic() + _CONNECT_S
        link = None
        try:
            link = socket.create_connection(host_and_port(self.address), _CONNECT_S)
            _, key = prove(link, self._terms, b"copies", until_s)
            link.setblocking(False)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._met = link, key
        except (OSError, HandshakeError) as error:
            if link is not None:
                link.close()
            self._met = f"it cannot be reached at {self.address}: {error}"
        os.eventfd_write(self._waker, 1)

    def _connected(self) -> None:
        self._selector.unregister(self._waker)
        os.close(self._waker)
        met = self._met
        if isinstance(met, str):
            self._fail(met)
            return
        assert met is not None
        link, key = met
        if self.why:
            link.close()
            return
        self._link, self._seals = link, Seals(key, calling=True)
        self._begin()

    def _begin(self) -> None:
        if self._link is not None and self._gives:
            self._moved_s = time.monotonic()
            self._selector.register(
                self._link, selectors.EVENT_READ | selectors.EVENT_WRITE, self._move
            )

    def _move(self) -> None:
        """Send what the connection takes; then hear that all is there."""
        assert self._link is not None
        try:
            self._send()
            with suppress(BlockingIOError):
                data = self._link.recv(_ANSWER.size + TAG_NBYTES - len(self._inbox))
                if not data:
                    raise ConnectionResetError("it has ended the connection")
                self._inbox += data
        except OSError as error:
            self._fail(str(error))
            return
        if len(self._inbox) == _ANSWER.size + TAG_NBYTES:
            said, tag = self._inbox[: _ANSWER.size], self._inbox[_ANSWER.size :]
            self._inbox = b""
            if not self._seals.holds(tag, said):
                self._fail("what it says has another tag")
            elif _ANSWER.unpack(said) == self._order:
                self._end("")
            else:  # a newer one is to be given in its place
                self._end("it has changed")

    def _send(self) -> None:
        assert self._link is not None
        try:
            for _ in range(_PIECES):  # the agent has other things to do, and to give signs of life
                if not self._outbox and not self._cut():
                    break
                self._outbox = self._outbox[self._link.send(self._outbox) :]
                self._moved_s = time.monotonic()
            else:
                return
        except BlockingIOError:
            return
        self._selector.modify(self._link, selectors.EVENT_READ, self._move)

    def _cut(self) -> bool:
        """Make the next piece; False where the last one is on its way."""
        if self._at < 0:
            return False
        whole = os.fstat(self._memory).st_size
        if self._at < whole:
            piece, at = os.pread(self._memory, PIECE_NBYTES, self._at), self._at
            self._at += len(piece)
        else:
            # Who has another step there meanwhile will ask for it; that ranks have agreed on this
            # one, or are in another epoch with it, may have come
            piece, at, self._at = os.pread(self._memory, HEADER.size, 0), 0, -1
            found = Head._make(HEADER.unpack(piece))
            is_same = found.step == self._order[1]
            piece = HEADER.pack(*found._replace(whole=is_same))
            self._order = (found.epoch, found.step) if is_same else self._order
        head = _HEAD.pack(whole, at, len(piece))
        self._outbox = memoryview(b"".join((head, self._seals.tag(head, piece), piece)))
        return True

    def _fail(self, why: str) -> None:
        self.why = self.why or why
        if self._link is not None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(self._link)
            self._link.close()
            self._link = None
        if self._gives:
            self._end(why)

    def _end(self, why: str) -> None:
        self._gives, self._outbox = False, memoryview(b"")
        os.close(self._memory)
        if self._link is not None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(self._link)
        self._given(self._order, why)
        if self._next >= 0:
            following, self._next = self._next, -1
            self.give(following)
