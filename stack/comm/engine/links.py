"""A rank's connections to the other ranks while they meet."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hal.core.errors import DeadlineExceeded, PluginError
from stack.comm.world import host_and_port

VERSION = 2
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_HELLO_NBYTES = 256
LIFE = "life"
DATA = ("programs", "messages")
"""What the connections between two ranks of different hosts are for; those of one host have LIFE
alone."""


@dataclass(frozen=True, slots=True)
class Card:
    """What a rank tells the others. `local` is its abstract socket, `address` and `port` its TCP
    one; who connects proves by `secret` that he has read the card. `token` marks its segment."""

    version: int
    size: int
    boot: str
    local: str
    address: str
    port: int
    secret: str
    token: str


class Deadline:
    """A moment on the monotonic clock, for everything that a meeting waits for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until_s = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left, at least a millisecond so that a wait still looks once."""
        return max(self._until_s - time.monotonic(), 1e-3)

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._until_s


class Listeners:
    """Where higher ranks connect to: one socket for those of this host, one for the others."""

    def __init__(self, store_address: str, size: int) -> None:
        host, port = host_and_port(store_address)
        self.address = _own_address(host, port)
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        self.local_name = f"hal-group-{secrets.token_hex(16)}"
        self.local = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.remote = socket.socket(family, socket.SOCK_STREAM)
        try:
            self.local.bind(f"\0{self.local_name}".encode())
            self.remote.bind((self.address, 0))
            for listener in (self.local, self.remote):
                listener.listen((1 + len(DATA)) * size)
                listener.settimeout(0.05)
        except BaseException:
            self.close()
            raise

    def card(self, size: int) -> Card:
        boot = _boot()
        port = self.remote.getsockname()[1]
        secret, token = secrets.token_hex(16), secrets.token_hex(16)
        return Card(VERSION, size, boot, self.local_name, self.address, port, secret, token)

    def close(self) -> None:
        self.local.close()
        self.remote.close()


def _own_address(host: str, port: int) -> str:
    """This host's address on the way to the store; nothing is sent."""
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


def _boot() -> str:
    """What tells the kernel that runs here from all others."""
    try:
        return _BOOT.read_text().strip()
    except OSError as error:
        raise PluginError(f"a group needs {_BOOT}: {error}; mount proc at /proc") from error


class Links:
    """This rank's connections to the others, by rank and purpose."""

    def __init__(self, rank: int, cards: Sequence[Card], deadline: Deadline) -> None:
        self._rank = rank
        self._cards = cards
        self._deadline = deadline
        self._links: dict[tuple[int, str], socket.socket] = {}

    def life(self, other: int) -> socket.socket:
        """The connection to a rank by which each learns how the other is."""
        return self._links[other, LIFE]

    def reach(self, other: int) -> bool:
        """Connect to a rank's abstract socket; False where it is of another host."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.settimeout(self._deadline.left_s)
        try:
            link.connect(f"\0{self._cards[other].local}".encode())
        except ConnectionRefusedError:
            link.close()
            return False
        self._greet(other, LIFE, link)
        return True

    def call_lower(self, hosts: Sequence[int]) -> None:
        """To all lower ranks that are not reached yet."""
        for other in range(self._rank):
            if hosts[other] != hosts[self._rank]:
                for purpose in (LIFE, *DATA):
                    self._call(other, purpose)
            elif (other, LIFE) not in self._links and not self.reach(other):
                raise DeadlineExceeded(f"rank {other} has given up; its process may have ended")

    def _call(self, other: int, purpose: str) -> None:
        card = self._cards[other]
        try:
            link = socket.create_connection((card.address, card.port), self._deadline.left_s)
        except OSError as error:
            where = f"rank {other} at {card.address}:{card.port}"
            raise DeadlineExceeded(f"{where} cannot be reached: {error}") from error
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._greet(other, purpose, link)

    def _greet(self, other: int, purpose: str, link: socket.socket) -> None:
        self._links[other, purpose] = link
        hello = json.dumps([self._rank, purpose, self._cards[other].secret]).encode()
        link.sendall(hello.ljust(_HELLO_NBYTES))

    def hear_higher(self, listeners: Listeners, hosts: Sequence[int]) -> None:
        """From all higher ranks."""
        higher = range(self._rank + 1, len(self._cards))
        near = {(r, LIFE) for r in higher if hosts[r] == hosts[self._rank]}
        far = {(r, p) for r in higher if hosts[r] != hosts[self._rank] for p in (LIFE, *DATA)}
        while missing := (near | far) - self._links.keys():
            if self._deadline.passed:
                ranks = sorted({rank for rank, _ in missing})
                text = f"ranks {ranks} did not connect within {self._deadline.seconds:g} s"
                raise DeadlineExceeded(text)
            self._accept_one(listeners.local if near & missing else listeners.remote)

    def _accept_one(self, listener: socket.socket) -> None:
        try:
            link, _ = listener.accept()
        except TimeoutError:
            return
        link.settimeout(min(self._deadline.left_s, 5.0))
        who = self._hello(link)
        if who is None or who in self._links:
            link.close()  # a stranger
            return
        if listener.family != socket.AF_UNIX:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._links[who] = link

    def _hello(self, link: socket.socket) -> tuple[int, str] | None:
        """Rank and purpose of who speaks; None if it does not know this rank's secret."""
        text = b""
        try:
            while len(text) < _HELLO_NBYTES:
                part = link.recv(_HELLO_NBYTES - len(text))
                if not part:
                    return None
                text += part
            rank, purpose, secret = json.loads(text)
        except (OSError, ValueError):
            return None
        known = hmac.compare_digest(str(secret), self._cards[self._rank].secret)
        return (int(rank), str(purpose)) if known else None

    def take(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Descriptors, the caller's from now on, -1 where there is none: those of LIFE by rank, and
        by rank those of DATA."""
        for link in self._links.values():
            link.setblocking(False)
        found = {who: link.detach() for who, link in self._links.items()}
        self._links.clear()
        ranks = range(len(self._cards))
        life = tuple(found.get((rank, LIFE), -1) for rank in ranks)
        return life, tuple(found.get((rank, purpose), -1) for rank in ranks for purpose in DATA)

    def close(self) -> None:
        for link in self._links.values():
            link.close()
