"""Asking a daemon from another process of its user."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from hal.core.errors import InvalidCall, PluginError

WAIT_S = 70.0
_OK = 200
SOCKET = "socket"
"""The file in a cluster's folder at which its daemon answers."""


def ask(folder: Path, method: str, path: str, body: object = None) -> Any:
    """What the daemon of a folder answers.

    Raises InvalidCall with what it refuses, or when no daemon is there; PluginError when it ends
    while it is asked."""
    data = b"" if body is None else json.dumps(body).encode()
    # HTTP/1.0 in its own words: `http.client` takes as long to import as all else that is asked
    request = f"{method} {path} HTTP/1.0\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(WAIT_S)
            connection.connect(str(folder / SOCKET))
            connection.sendall(request)
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        if not answer:
            raise PluginError(
                f"the daemon in {folder} ended before it answered; see {folder}/daemon.log"
            )
        head, _, text = answer.partition(b"\r\n\r\n")
        status, found = int(head.split()[1]), json.loads(text)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise InvalidCall(
            f"no daemon answers in {folder} ({error}); start one: hal cluster start"
        ) from error
    except (OSError, IndexError, ValueError) as error:
        raise PluginError(f"the daemon in {folder} did not answer: {error}") from error
    if status != _OK:
        raise InvalidCall(found["error"])
    return found
