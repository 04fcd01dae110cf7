"""A rank's connections to the other ranks while they meet."""

from __future__ import annotations

import os
import secrets
import select
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from hal.core.errors import DeadlineExceeded, InvalidCall, PluginError
from hal.core.facts import dataclass
from hal.net.handshake import (
    BACKLOG,
    CLAIM_NBYTES,
    Acceptor,
    HandshakeError,
    Known,
    Refused,
    Terms,
    of_this_user,
    prove,
)
from hal.net.loop import turn
from stack.comm.store import Store
from stack.comm.world import host_and_port

VERSION = 4
_BOOT = Path("/proc/sys/kernel/random/boot_id")
LIFE = "life"
DATA = ("programs", "messages")
"""What the connections between two ranks of different hosts are for; those of one host have LIFE
alone."""
PURPOSES = (LIFE, *DATA)
_CLAIM = struct.Struct(">BI")
"""What a rank says of itself: the number of the purpose, and its own."""
_TURN_S = 1.0
_END_S = 10.0
_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class Card:
    """What a rank tells the others. `process` on `host` has the rank. `local` is its abstract
    socket, `address` and `port` its TCP one. `token` marks its segment."""

    version: int
    size: int
    process: int
    host: str
    boot: str
    local: str
    address: str
    port: int
    token: str


@dataclass(frozen=True, slots=True)
class Connections:
    """A rank's connected sockets, which do not block, as descriptors, -1 where there is none:
    `life[r]` to rank r, `data[2 * r]` and the one after it for the purposes of DATA where rank r is
    of another host. `life_keys` and `data_keys` are the 32 bytes that only the two ends of each
    connection know (b"" where there is none)."""

    life: tuple[int, ...]
    life_keys: tuple[bytes, ...]
    data: tuple[int, ...]
    data_keys: tuple[bytes, ...]


def terms_of(store: Store, rank: int) -> Terms:
    """What a handshake with a rank needs, where `store` is the group's part of the job's store."""
    return store.terms(f"hal-group/{VERSION}/{store.prefix}{rank}".encode())


class Deadline:
    """A moment on the monotonic clock, for everything that a meeting waits for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.until_s = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left, at least a millisecond so that a wait still looks once."""
        return max(self.until_s - time.monotonic(), 1e-3)

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.until_s


class Listeners:
    """Where higher ranks connect to: one socket for those of this host, one for the others. A
    thread hears them, and strangers, until `close`."""

    def __init__(self, store: Store, address: str, rank: int, size: int) -> None:
        """Listen on the way to the store at `address`."""
        host, port = host_and_port(address)
        self._higher = range(rank + 1, size)
        self._came: dict[tuple[int, str], Known] = {}
        self._news = threading.Condition()
        self._ended = False
        self.address = address_towards(host, port)
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        self.local_name = f"hal-group-{secrets.token_hex(16)}"
        local = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        remote = socket.socket(family, socket.SOCK_STREAM)
        try:
            local.bind(f"\0{self.local_name}".encode())
            remote.bind((self.address, 0))
            for listener in (local, remote):
                listener.listen(BACKLOG)
        except BaseException:
            local.close()
            remote.close()
            raise
        self.port: int = remote.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._waker = os.eventfd(0)
        self._selector.register(self._waker, selectors.EVENT_READ, lambda: None)
        self._acceptor = Acceptor(
            self._selector, [local, remote], terms_of(store, rank), self._wants, self._take
        )
        self._thread = threading.Thread(target=self._serve, name="hal-meeting", daemon=True)
        self._thread.start()

    def card(self, size: int) -> Card:
        token = secrets.token_hex(16)
        try:
            boot = _BOOT.read_text().strip()  # tells the kernel that runs here from all others
        except OSError as error:
            raise PluginError(f"a group needs {_BOOT}: {error}; mount proc at /proc") from error
        place = (os.getpid(), socket.gethostname(), boot)
        return Card(VERSION, size, *place, self.local_name, self.address, self.port, token)

    def await_all(
        self, wanted: set[tuple[int, str]], deadline: Deadline
    ) -> dict[tuple[int, str], Known]:
        """The connections of these ranks for these purposes, the caller's from now on, in time; at
        the deadline those that have come."""
        with self._news:
            self._news.wait_for(lambda: wanted <= self._came.keys(), deadline.left_s)
            return {who: self._came.pop(who) for who in wanted & self._came.keys()}

    def close(self) -> None:
        """Raises DeadlineExceeded if the thread does not end."""
        self._ended = True
        os.eventfd_write(self._waker, 1)
        self._thread.join(_END_S)
        if self._thread.is_alive():
            raise DeadlineExceeded(f"the thread of a meeting did not end within {_END_S:g} s")
        self._acceptor.close()
        self._selector.close()
        os.close(self._waker)
        for known in self._came.values():
            known.link.close()

    def _serve(self) -> None:
        while not self._ended:
            turn(self._selector, _TURN_S)
            self._acceptor.expire()

    def _wants(self, claim: bytes) -> bool:
        """Whether a rank may come: it is a higher one, which has not come or has gone again."""
        who = _who(claim)
        with self._news:
            before = self._came.get(who) if who is not None else None
        return who is not None and who[0] in self._higher and (not before or _gone(before.link))

    def _take(self, known: Known) -> None:
        who = _who(known.claim)
        assert who is not None, "it was wanted"
        with suppress(OSError):  # a local socket has no such option
            known.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._news:
            if before := self._came.pop(who, None):
                before.link.close()
            self._came[who] = known
            self._news.notify_all()


def _claim(rank: int, purpose: str) -> bytes:
    return _CLAIM.pack(PURPOSES.index(purpose), rank).ljust(CLAIM_NBYTES, b"\0")


def _who(claim: bytes) -> tuple[int, str] | None:
    """Rank and purpose of a claim; None for another one."""
    purpose, rank = _CLAIM.unpack_from(claim)
    known = purpose < len(PURPOSES) and claim == _claim(rank, PURPOSES[purpose])
    return (rank, PURPOSES[purpose]) if known else None


def _gone(link: socket.socket) -> bool:
    """Whether the other end of a connection has been closed."""
    look = select.poll()
    look.register(link, select.POLLIN)
    try:
        return bool(look.poll(0)) and not link.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def address_towards(host: str, port: int) -> str:
    """This host's address on the way to the store, which is there; nothing is sent. Raises
    PluginError where there is no way."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.settimeout(1)
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise PluginError(
            f"this host has no way to the job's store at {host}: {error}; is its network interface "
            "up? (`ip link set lo up` for the loopback of a namespace)"
        ) from error


class Links:
    """This rank's connections to the others, by rank and purpose, and the key that both ends of
    each know."""

    def __init__(self, store: Store, rank: int, cards: Sequence[Card], deadline: Deadline) -> None:
        self._store = store
        self._rank = rank
        self._cards = cards
        self._deadline = deadline
        self._links: dict[tuple[int, str], tuple[socket.socket, bytes]] = {}

    def life(self, other: int) -> socket.socket:
        """The connection to a rank by which each learns how the other is."""
        return self._links[other, LIFE][0]

    def reach(self, other: int) -> bool:
        """Connect to a rank's abstract socket; False where it is of another host."""
        return self._connect(other, LIFE, f"\0{self._cards[other].local}".encode())

    def call_lower(self, hosts: Sequence[int]) -> None:
        """To all lower ranks that are not reached yet."""
        for other in range(self._rank):
            if hosts[other] != hosts[self._rank]:
                for purpose in PURPOSES:
                    self._call(other, purpose)
            elif (other, LIFE) not in self._links and not self.reach(other):
                raise DeadlineExceeded(f"rank {other} has given up; its process may have ended")

    def _call(self, other: int, purpose: str) -> None:
        card = self._cards[other]
        if not self._connect(other, purpose, (card.address, card.port)):
            raise DeadlineExceeded(
                f"rank {other} at {card.address}:{card.port} has given up; its process may have "
                "ended"
            )

    def _connect(self, other: int, purpose: str, address: bytes | tuple[str, int]) -> bool:
        """Connect and prove which rank this is; False where nobody of this user listens. Who is
        dropped because many others come, too, tries again."""
        said = repr(address) if isinstance(address, bytes) else f"{address[0]}:{address[1]}"
        where = f"rank {other} at {said}"
        while True:
            try:
                return self._attempt(other, purpose, address)
            except ConnectionRefusedError:
                return False
            except OSError as error:
                dropped = isinstance(error, BlockingIOError | ConnectionError)
                if not dropped or time.monotonic() >= self._deadline.until_s:
                    raise DeadlineExceeded(f"{where} cannot be reached: {error}") from error
            except Refused:
                text = f"{where} has met another process as rank {self._rank}"
                raise InvalidCall(text) from None
            except HandshakeError as error:
                raise PluginError(f"{where} does not speak as a rank does: {error}") from None
            time.sleep(_PAUSE_S)

    def _attempt(self, other: int, purpose: str, address: bytes | tuple[str, int]) -> bool:
        with ExitStack() as stack:
            if isinstance(address, bytes):
                link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            else:
                link = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stack.enter_context(link)
            link.settimeout(self._deadline.left_s)
            link.connect(address)
            if link.family == socket.AF_UNIX and not of_this_user(link):
                return False
            claim, terms = _claim(self._rank, purpose), terms_of(self._store, other)
            _, key = prove(link, terms, claim, self._deadline.until_s)
            self._links[other, purpose] = link, key
            stack.pop_all()
        return True

    def hear_higher(self, listeners: Listeners, hosts: Sequence[int]) -> None:
        """From all higher ranks."""
        higher = range(self._rank + 1, len(self._cards))
        near = {(r, LIFE) for r in higher if hosts[r] == hosts[self._rank]}
        far = {(r, p) for r in higher if hosts[r] != hosts[self._rank] for p in PURPOSES}
        came = listeners.await_all(near | far, self._deadline)
        self._links |= {who: (known.link, known.key) for who, known in came.items()}
        if missing := (near | far) - came.keys():
            ranks = sorted({rank for rank, _ in missing})
            text = f"ranks {ranks} did not connect within {self._deadline.seconds:g} s"
            raise DeadlineExceeded(text)

    def ended(self) -> list[int]:
        """The ranks that have closed a connection, or whose process has ended."""
        return sorted({other for (other, _), (link, _) in self._links.items() if _gone(link)})

    def take(self) -> Connections:
        """The connections, the caller's from now on."""
        for link, _ in self._links.values():
            link.setblocking(False)
        found = {who: (link.detach(), key) for who, (link, key) in self._links.items()}
        self._links.clear()
        ranks = range(len(self._cards))
        life = [found.get((rank, LIFE), (-1, b"")) for rank in ranks]
        data = [found.get((rank, purpose), (-1, b"")) for rank in ranks for purpose in DATA]
        return Connections(*zip(*life, strict=True), *zip(*data, strict=True))

    def close(self) -> None:
        for link, _ in self._links.values():
            link.close()
