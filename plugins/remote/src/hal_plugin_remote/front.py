"""The process that hears who calls a server: it proves callers, hands them over, and says whether
the server lives when its interpreter cannot, because a driver's call holds it or it has no
processor.

The server starts it (`python -m hal_plugin_remote.front LISTENER PAIR ADDRESS`, with two of its
descriptors), and it ends with the server's end of the pair. On the pair go, from here, the key of a
caller with its connection, and `ASKED`; the server's interpreter answers with `ANSWERED`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from hal.net.handshake import CLAIM_NBYTES, Acceptor, Known
from hal.net.loop import turn
from hal_plugin_remote.address import CALLER, LIFE, LIVES, terms
from hal_plugin_remote.channel import Channel, Ended

ASKED, ANSWERED = b"?", b"!"
_CLAIMS = tuple(claim.ljust(CLAIM_NBYTES, b"\0") for claim in (CALLER, LIFE))
_TURN_S = 1.0
_LOOK_S = 0.5
"""How long the server's threads are looked at when its interpreter does not answer."""
_WORKS = 0.05
"""A thread that works ran for more than this part of the time in which it had a processor; one that
waits for the interpreter alone wakes for far less."""


@dataclass(eq=False, slots=True)
class _Asker:
    """Who wants to know whether the server lives, since when, and its threads then."""

    channel: Channel
    since_s: float
    threads: dict[str, _Thread]

    def sees_work(self, threads: dict[str, _Thread], now_s: float) -> bool:
        """Whether one of them has worked since."""
        return any(
            thread.works_since(self.threads[name], now_s - self.since_s)
            for name, thread in threads.items()
            if name in self.threads
        )


class Front:
    """Hears at a listener for the server at the other end of a pair, the process `server`."""

    def __init__(self, listener: socket.socket, pair: socket.socket, address: str) -> None:
        """Raises PluginError where the address needs a secret and there is none."""
        self._pair, self._server = pair, os.getppid()
        self._ended = False
        self._callers: deque[Known] = deque()
        self._askers: list[_Asker] = []
        self._selector = selectors.DefaultSelector()
        self._acceptor = Acceptor(
            self._selector, [listener], terms(address), _CLAIMS.__contains__, self._take
        )
        pair.setblocking(False)
        self._selector.register(pair, selectors.EVENT_READ, self._hear)

    def run(self) -> None:
        """Hear until the server has ended."""
        while not self._ended:
            turn(self._selector, _LOOK_S / 4 if self._askers or self._callers else _TURN_S)
            self._acceptor.expire()
            self._hand_over()
            self._look()

    def _take(self, known: Known) -> None:
        if known.claim == _CLAIMS[0]:
            self._callers.append(known)
            return
        channel = Channel(known.link, known.key, calling=False)
        self._askers.append(_Asker(channel, time.monotonic(), _threads(self._server)))
        with contextlib.suppress(OSError):  # it has not read what it was asked before
            self._pair.send(ASKED)

    def _hand_over(self) -> None:
        """Give the server as many callers as it takes now."""
        while self._callers:
            known = self._callers[0]
            try:
                socket.send_fds(self._pair, [known.key], [known.link.fileno()])
            except OSError:  # it reads none now, or the system lets no more be on their way
                return
            self._callers.popleft().link.close()

    def _hear(self) -> None:
        try:
            said = self._pair.recv(len(ANSWERED))
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said == ANSWERED:
            self._tell(self._askers)
            self._askers = []
        else:
            self._ended = True

    def _look(self) -> None:
        """Tell those who asked long enough ago whether a thread of the server has worked since."""
        now_s = time.monotonic()
        due = [asker for asker in self._askers if now_s - asker.since_s >= _LOOK_S]
        if not due:
            return
        self._askers = [asker for asker in self._askers if asker not in due]
        threads = _threads(self._server)
        self._tell([asker for asker in due if asker.sees_work(threads, now_s)])
        for asker in due:
            asker.channel.close()

    def _tell(self, askers: list[_Asker]) -> None:
        for asker in askers:
            with contextlib.suppress(Ended):  # it has gone
                asker.channel.send(LIVES)
            asker.channel.close()


@dataclass(frozen=True, slots=True)
class _Thread:
    """For how long a thread has run, and waited for a processor; whether it wants to run now."""

    ran_s: float
    waited_s: float
    ready: bool

    def works_since(self, before: _Thread, seconds: float) -> bool:
        """Whether it has worked since it was looked at so many seconds ago, or wanted to all the
        time."""
        ran_s, waited_s = self.ran_s - before.ran_s, self.waited_s - before.waited_s
        if not ran_s:
            return self.ready and before.ready
        return ran_s >= _WORKS * (seconds - waited_s)


def _threads(process: int) -> dict[str, _Thread]:
    """The threads of a process; none on a system that does not say."""
    found: dict[str, _Thread] = {}
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it may end at any time
                ran, waited, _ = (thread / "schedstat").read_text(encoding="ascii").split()
                state = (thread / "stat").read_text(errors="replace").rpartition(") ")[2][0]
                found[thread.name] = _Thread(int(ran) * 1e-9, int(waited) * 1e-9, state == "R")
    return found


if __name__ == "__main__":
    listener, pair = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    Front(listener, pair, sys.argv[3]).run()
