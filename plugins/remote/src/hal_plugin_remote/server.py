"""Offers devices to other processes and machines: listens, and gives each client a session."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from hal.core.errors import DeadlineExceeded, PluginError
from hal.net.handshake import BACKLOG, KEY_NBYTES
from hal_plugin_remote.address import LOCAL, host_and_port, terms
from hal_plugin_remote.channel import TICK_S, Channel
from hal_plugin_remote.front import ANSWERED, ASKED
from hal_plugin_remote.session import Session

_END_S = 10.0


class Server:
    """Serves at an address until it is left. Use it in a `with` statement.

    A process beside it hears who comes, and says whether this one lives (`front`); each client that
    has proved itself gets a session and a thread.
    """

    def __init__(self, address: str) -> None:
        """Listen at "HOST:PORT" (port 0 takes a free one; the secret is needed) or at "unix:/PATH",
        a socket that only this user can reach. Raises PluginError."""
        terms(address)  # or no caller could be heard
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
        self._pair, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._front = _started(self._listener, theirs, address)
        self._sessions: dict[int, Session] = {}
        self._threads: list[threading.Thread] = []
        self._next = 0
        self.ended = threading.Event()
        """Set when nobody is heard any more."""
        self._pair.settimeout(TICK_S)
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
        self.ended.set()
        self._listener.close()
        self._pair.shutdown(socket.SHUT_RDWR)
        self._thread.join(_END_S)
        self._pair.close()
        if self._path:
            Path(self._path).unlink(missing_ok=True)
        self._front.wait(_END_S)
        for session in list(self._sessions.values()):
            session.end()
        for thread in [self._thread, *self._threads]:
            thread.join(_END_S)
            if thread.is_alive():
                raise DeadlineExceeded(f"{thread.name} did not end within {_END_S:g} s")

    def _hear(self) -> None:
        """Takes no lock and calls nothing that may take long: what it answers is whether the
        interpreter lives."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    said, links, _, _ = socket.recv_fds(self._pair, KEY_NBYTES, 1)
                    if not said:
                        return
                    if said == ASKED:
                        self._pair.send(ANSWERED)
                    for number in links:
                        self._take(socket.socket(fileno=number), said)
        except OSError:
            return  # the other process has ended
        finally:
            self.ended.set()

    def _take(self, link: socket.socket, key: bytes) -> None:
        self._next += 1
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        channel = Channel(link, key, calling=False)
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


def _started(listener: socket.socket, pair: socket.socket, address: str) -> subprocess.Popen[bytes]:
    numbers = (listener.fileno(), pair.fileno())
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "hal_plugin_remote.front", *map(str, numbers), address],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=numbers,
        start_new_session=True,  # a terminal's interrupt is for the server, which ends it
    )
