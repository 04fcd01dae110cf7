"""Where the ranks of other hosts reach the launcher."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from hal.core.errors import InvalidCall
from stack.comm.world import host_and_port
from stack.launch.seats import Host

HERE = "127.0.0.1"
_ANY_PORT = 0
_DISCARD = 9


def listen_at(address: str) -> tuple[str, int]:
    """What the store listens at: "10.0.0.1:4711", or any free port of "10.0.0.1", and no other
    interface; this host alone reaches it when the address is "".

    Raises InvalidCall for a name that means this host's loopback.
    """
    if not address:
        return HERE, _ANY_PORT
    host, port = split(address)
    try:
        found = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise InvalidCall(f"--address {host} is not known here: {error}") from error
    if found.startswith("127.") and host not in (found, "localhost"):
        raise InvalidCall(
            f"--address {host} is {found} here, which no other host reaches; say one of this "
            "host's addresses in numbers"
        )
    return found, port


def reached_at(address: str, port: int) -> str:
    """What the ranks are told."""
    host = split(address)[0] if address else HERE
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Host and port, which is 0 when it is left out. Raises InvalidCall."""
    whole = address.startswith("[") and address.endswith("]")
    if whole or ":" not in address:
        return address.removeprefix("[").removesuffix("]"), _ANY_PORT
    return host_and_port(address)


def own_address(hosts: Sequence[Host]) -> str:
    """This machine's address on its way to the first of these hosts; "" if there are none.

    Raises InvalidCall when the name of the host is not known here.
    """
    if not hosts:
        return ""
    name = hosts[0].name.rpartition("@")[2]
    try:
        family, _, _, _, place = socket.getaddrinfo(name, _DISCARD, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)  # looks up the way, and sends nothing
            found = str(probe.getsockname()[0])
    except (OSError, UnicodeError) as error:  # UnicodeError: it cannot be a name at all
        raise InvalidCall(
            f"how {name} reaches this machine is not known ({error}); say it by --address HOST, or "
            "in a cluster's file by `address`"
        ) from error
    return f"[{found}]" if ":" in found else found
