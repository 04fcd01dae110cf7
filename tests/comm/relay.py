"""A network that breaks when told: everything goes through it to a server, and back."""

import select
import socket
import threading

TURN_S = 0.05
END_S = 60
HANDSHAKE = (48, 40)
"""The bytes that a listener says in a handshake."""


class Relay:
    """Passes bytes on between whoever connects to `port` and `target`, until they are cut.

    `swallow` is what to do with an answer of the server: cut its connection instead of passing it
    on, once for each count. `holding` leaves everything where it is, as a cut cable does.
    """

    def __init__(self, target):
        self.swallow = 0
        self.holding = False
        self._target = target
        self._pairs = {}
        self._turn = threading.Lock()
        self._ended = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._pass, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._ended = True
        self._thread.join(END_S)
        self._listener.close()
        self.cut()

    @property
    def port(self):
        return self._listener.getsockname()[1]

    def cut(self):
        """End every connection, at both ends."""
        with self._turn:
            for link in list(self._pairs):
                self._end(link)

    def _end(self, link):
        other = self._pairs.pop(link, None)
        for end in (link, other):
            if end is not None:
                self._pairs.pop(end, None)
                end.close()

    def _pass(self):
        while not self._ended:
            links = [] if self.holding else list(self._pairs)
            try:
                ready = select.select([self._listener, *links], [], [], TURN_S)[0]
            except (ValueError, OSError):  # cut by another thread meanwhile
                continue
            with self._turn:
                for link in ready:
                    self._accept() if link is self._listener else self._move(link)

    def _accept(self):
        self._listener.settimeout(END_S)
        link, _ = self._listener.accept()
        try:
            other = socket.create_connection(("127.0.0.1", self._target), END_S)
        except OSError:  # the server has gone: who connects learns it here as there
            link.close()
            return
        self._pairs[link], self._pairs[other] = other, link

    def _passed(self, data):
        """What goes on of what has come."""
        return data

    def _move(self, link):
        other = self._pairs.get(link)
        if other is None:
            return
        try:
            link.settimeout(END_S)
            data = link.recv(1 << 16)
            from_server = link.getpeername()[1] == self._target
            if self.swallow and from_server and len(data) not in HANDSHAKE:
                self.swallow -= 1
                data = b""
            other.sendall(self._passed(data))
        except OSError:
            data = b""
        if not data:
            self._end(link)
