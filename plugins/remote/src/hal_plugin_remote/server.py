"""Offers devices to other processes and machines: listens, and gives each client a session."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from hal.core.errors import DeadlineExceeded, PluginError
from hal.net.handshake import BACKLOG, Acceptor, Known
from hal.net.loop import turn
from hal_plugin_remote.address import LOCAL, host_and_port, terms
from hal_plugin_remote.channel import Channel
from hal_plugin_remote.session import Session

_TURN_S = 1.0
_END_S = 10.0


class Server:
    """Serves at an address until it is left. Use it in a `with` statement.

    One thread hears who comes; each client that has proved itself gets a session and a thread.
    """

    def __init__(self, address: str) -> None:
        """Listen at "HOST:PORT" (port 0 takes a free one; the secret is needed) or at "unix:/PATH",
        a socket that only this user can reach. Raises PluginError."""
        agreed = terms(address)
        self._path = address.removeprefix(LOCAL) if address.startswith(LOCAL) else ""
        try:
            if not address.startswith(LOCAL):
                host, port = host_and_port(address)
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
            else:
                path = address.removeprefix(LOCAL)
                listener = socket.socket(socket.AF_UNIX)
                before = os.umask(0o177)
                try:
                    listener.bind(path)
                    listener.listen(BACKLOG)
                except OSError:
                    listener.close()
                    raise
                finally:
                    os.umask(before)
            self._listener = listener
        except OSError as error:
            raise PluginError(f"cannot listen at {address}: {error}") from None
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = os.pipe()
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: None)
        self._acceptor = Acceptor(
            self._selector, [self._listener], agreed, lambda claim: True, self._take
        )
        self._sessions: dict[int, Session] = {}
        self._threads: list[threading.Thread] = []
        self._next = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._hear, name="hal-remote-server", daemon=True)

    @property
    def address(self) -> str:
        """Where clients find it."""
        if self._path:
            return LOCAL + self._path
        host, port = self._listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cut everybody off. Raises DeadlineExceeded if a device does not close."""
        self._ended.set()
        os.write(self._waker, b"x")
        self._thread.join(_END_S)
        self._acceptor.close()
        self._selector.close()
        os.close(self._woken)
        os.close(self._waker)
        if self._path:
            Path(self._path).unlink(missing_ok=True)
        for session in list(self._sessions.values()):
            session.end()
        for thread in [self._thread, *self._threads]:
            thread.join(_END_S)
            if thread.is_alive():
                raise DeadlineExceeded(f"{thread.name} did not end within {_END_S:g} s")

    def _hear(self) -> None:
        while not self._ended.is_set():
            turn(self._selector, _TURN_S)
            self._acceptor.expire()
            self._threads = [thread for thread in self._threads if thread.is_alive()]

    def _take(self, known: Known) -> None:
        self._next += 1
        channel = Channel(known.link, known.key, calling=False)
        session = self._sessions[self._next] = Session(channel, self._next, self._sessions)
        thread = threading.Thread(
            target=self._serve, args=(session,), name=f"hal-remote-{self._next}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the host gives no more threads: the client sees its connection end
            del self._sessions[self._next]
            channel.close()
            return
        self._threads.append(thread)

    def _serve(self, session: Session) -> None:
        try:
            session.serve()
        finally:
            self._sessions.pop(session.number, None)
