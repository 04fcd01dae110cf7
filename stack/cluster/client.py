"""Asking a daemon from another process of its user."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from hal.core.errors import InvalidCall, PluginError

WAIT_S = 70.0
SOCKET = "socket"
"""The file in a cluster's folder at which its daemon answers."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=WAIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(folder: Path, method: str, path: str, body: object = None) -> Any:
    """What the daemon of a folder answers.

    Raises InvalidCall with what it refuses, or when no daemon is there; PluginError when it ends
    while it is asked."""
    connection = _Connection(folder / SOCKET)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text)
        answer = connection.getresponse()
        found = json.loads(answer.read())
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise InvalidCall(
            f"no daemon answers in {folder} ({error}); start one: hal cluster start"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise PluginError(f"the daemon in {folder} did not answer: {error}") from error
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise InvalidCall(found["error"])
    return found
