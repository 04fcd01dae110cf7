"""Where remote devices are, and how a connection to one is made.

`HAL_REMOTE` lists them, apart by spaces: "10.0.0.2:7070/cpu:0 unix:/run/hal.sock/opencl:0" makes
remote:0 and remote:1. Between machines both sides know a secret: the file that `HAL_REMOTE_SECRET`
names has it. On a local socket the kernel tells whose process the other side is.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from hal.core.errors import PluginError
from hal.net.handshake import HandshakeError, Refused, Terms, of_this_user, prove
from hal_plugin_remote.channel import Channel, Ended

DEVICES_VARIABLE = "HAL_REMOTE"
SECRET_VARIABLE = "HAL_REMOTE_SECRET"
LOCAL = "unix:"
CALLER, LIFE = b"client", b"does it live?"
"""What those claim to be who connect: a client, or somebody who asks whether the server lives."""
LIVES = "lives"
"""The answer to that; where it does not, the connection ends without one."""
_CONNECT_S = 5.0
_PAUSE_S = 0.01
_SECRET_NBYTES = 16


@dataclass(frozen=True, slots=True)
class Place:
    """The device that a server at `address` calls `device`; here its name is `name`."""

    name: str
    address: str
    device: str


def places() -> tuple[Place, ...]:
    """The devices of `HAL_REMOTE`, in its order. Raises PluginError for an entry that is none."""
    return tuple(
        _place(index, entry)
        for index, entry in enumerate(os.environ.get(DEVICES_VARIABLE, "").split())
    )


def neighbours(place: Place) -> Mapping[str, str]:
    """What the server of `place` calls each device that this process reaches there, by the name
    here."""
    return {other.name: other.device for other in places() if other.address == place.address}


def connect(place: Place) -> Channel:
    """A connection to the server of a place. Who is dropped because many others come, too, tries
    again. Raises PluginError."""
    until_s = time.monotonic() + _CONNECT_S
    while True:
        try:
            return _proved(place, CALLER, until_s)
        except OSError as error:
            busy = isinstance(error, BlockingIOError | ConnectionError)
            absent = isinstance(error, ConnectionRefusedError)
            if absent or not busy or time.monotonic() >= until_s:
                raise PluginError(
                    f"{place.name}: no server at {place.address} ({error}); start one there: "
                    f"hal serve {place.device} --at ADDRESS"
                ) from None
        except Refused:
            raise PluginError(
                f"{place.name}: the server at {place.address} refuses the secret of "
                f"{SECRET_VARIABLE}; both sides need the same"
            ) from None
        except HandshakeError as error:
            raise PluginError(f"{place.name} at {place.address}: {error}") from None
        time.sleep(_PAUSE_S)


def lives(place: Place, until_s: float) -> bool:
    """Whether the server of a place says, by then on the monotonic clock, that it lives."""

    def quiet(silent_s: float) -> None:
        if time.monotonic() >= until_s:
            raise Ended("no answer")

    def nowhere(body: object, nbytes: int) -> memoryview:
        raise ValueError(f"{nbytes} bytes that nobody asked for")

    try:
        with closing(_proved(place, LIFE, until_s)) as channel:
            return bool(channel.receive(nowhere, quiet) == LIVES)
    except (OSError, HandshakeError, PluginError, Ended):
        return False


def terms(address: str) -> Terms:
    """What both sides know before they meet; on a local socket the kernel tells who calls.

    Raises PluginError as `secret`.
    """
    return Terms(b"" if address.startswith(LOCAL) else secret(), b"hal serve")


def secret() -> bytes:
    """What both sides of a connection between machines know.

    Raises PluginError where `HAL_REMOTE_SECRET` names no file of this user's own, closed to others,
    with at least 16 bytes.
    """
    name = os.environ.get(SECRET_VARIABLE, "")
    if not name:
        raise PluginError(f"set {SECRET_VARIABLE} to a file with the secret that the server has")
    try:
        with Path(name).open("rb") as file:
            facts = os.fstat(file.fileno())
            text = file.read().strip()
    except OSError as error:
        raise PluginError(f"{SECRET_VARIABLE} names {name}: {error.strerror}") from None
    if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise PluginError(f"{name} must be yours and closed to others: chmod 600 {name}")
    if len(text) < _SECRET_NBYTES:
        raise PluginError(f"{name} has {len(text)} bytes; a secret has at least {_SECRET_NBYTES}")
    return text


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of "10.0.0.2:7070" or "[::1]:7070". Raises PluginError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise PluginError(f"{address!r} is no address; write HOST:PORT or unix:/PATH")
    return host.strip("[]"), int(port)


def _place(index: int, entry: str) -> Place:
    address, _, device = entry.rpartition("/")
    plugin, _, number = device.partition(":")
    if not address or not plugin or not number.isdecimal():
        raise PluginError(
            f"{DEVICES_VARIABLE} has {entry!r}; an entry is HOST:PORT/DEVICE or unix:/PATH/DEVICE, "
            f"like 10.0.0.2:7070/cpu:0"
        )
    if not address.startswith(LOCAL):
        host_and_port(address)
    return Place(f"remote:{index}", address, device)


def _proved(place: Place, claim: bytes, until_s: float) -> Channel:
    """A connection on which this process has proved itself. Raises OSError, HandshakeError, and
    PluginError as `terms` and where the server is another user's."""
    with ExitStack() as stack:
        link = stack.enter_context(_connected(place.address, until_s - time.monotonic()))
        if link.family == socket.AF_UNIX and not of_this_user(link):
            raise PluginError(f"{place.name}: the server at {place.address} is another user's")
        _, key = prove(link, terms(place.address), claim, until_s)
        stack.pop_all()
    return Channel(link, key, calling=True)


def _connected(address: str, timeout_s: float) -> socket.socket:
    timeout_s = max(timeout_s, _PAUSE_S)
    if address.startswith(LOCAL):
        link = socket.socket(socket.AF_UNIX)
        try:
            link.settimeout(timeout_s)
            link.connect(address.removeprefix(LOCAL))
        except OSError:
            link.close()
            raise
    else:
        link = socket.create_connection(host_and_port(address), timeout_s)
    return link
