"""How people reach a daemon: HTTP with JSON on a socket of the folder, and a page on this machine.

The socket is in a folder that its user alone may enter, so who reaches it is that user. The page is
served on the loopback interface to who knows the token in the folder's file `token`."""

from __future__ import annotations

import hmac
import http.server
import json
import os
import secrets
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hal.core.errors import HalError, InvalidCall
from stack.cluster.client import SOCKET
from stack.cluster.cluster import LiveCluster
from stack.cluster.files import JobFile, told
from stack.scheduler.spec import SpecError

_LONGEST = 107
_NBYTES = 1 << 20
_TAIL = 1 << 16
Ask = Callable[[Callable[[LiveCluster], Any]], Any]


@dataclass(frozen=True, slots=True)
class Door:
    """What those who come may do: `ask` runs a call on the cluster's thread, `end` ends the daemon;
    who does not know the token may do nothing."""

    ask: Ask
    end: Callable[[], None]
    token: str = ""


class Server:
    """Answers on threads of its own until `close`."""

    def __init__(self, folder: Path, ask: Ask, end: Callable[[], None], port: int | None) -> None:
        self._path = folder / SOCKET
        if len(os.fsencode(self._path)) > _LONGEST:
            raise InvalidCall(
                f"{self._path} is too long for a socket's name ({_LONGEST} bytes); name another "
                "folder with --state"
            )
        self._path.unlink(missing_ok=True)
        local = _Local(str(self._path), _Handler)
        local.door = Door(ask, end)
        self._servers: list[socketserver.BaseServer] = [local]
        self.page = ""
        if port is not None:
            token = secrets.token_urlsafe(24)
            place = folder / "token"
            place.unlink(missing_ok=True)
            with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write(token)
            page = _Tcp(("127.0.0.1", port), _Handler)
            page.door = Door(ask, end, token)
            self._servers.append(page)
            self.page = f"http://127.0.0.1:{page.server_address[1]}/?token={token}"
        for server in self._servers:
            threading.Thread(target=server.serve_forever, name="hal-cluster", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._path.unlink(missing_ok=True)


class _Tcp(socketserver.ThreadingMixIn, socketserver.TCPServer):
    door: Door
    daemon_threads = True
    allow_reuse_address = True


class _Local(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    door: Door
    daemon_threads = True


def _answer(door: Door, method: str, path: list[str], body: Any) -> Any:
    """What a request gives. Raises LookupError where there is nothing of this name."""
    match method, path:
        case "POST", ["jobs"]:
            file = told(body, JobFile, "the job")
            return {"job": door.ask(lambda cluster: cluster.submit(file))}
        case "GET", ["jobs"]:
            return door.ask(LiveCluster.jobs)
        case "GET", ["jobs", number, "why"]:
            return {"why": door.ask(lambda cluster: cluster.why(_number(number)))}
        case "GET", ["jobs", number, "log"]:
            place = door.ask(lambda cluster: cluster.log(_number(number)))
            return {"path": place and str(place), "text": _tail(place)}
        case "POST", ["jobs", number, "cancel" | "hold" | "release" as verb]:
            door.ask(lambda cluster: getattr(cluster, verb)(_number(number)))
            return {}
        case "POST", ["jobs", number, "resize"]:
            ranks = body.get("ranks")
            if type(ranks) is not int:
                raise ValueError("the body needs `ranks`, a number")
            door.ask(lambda cluster: cluster.resize(_number(number), ranks))
            return {}
        case "GET", ["hosts"]:
            return door.ask(LiveCluster.hosts)
        case "POST", ["hosts", name, "drain" | "join" | "lose" as verb]:
            door.ask(lambda cluster: getattr(cluster, verb)(name))
            return {}
        case "GET", ["all"]:
            return door.ask(lambda c: {"jobs": c.jobs(), "hosts": c.hosts(), "queues": c.queues()})
        case "POST", ["end"]:
            door.end()
            return {}
    raise LookupError(f"{method} /{'/'.join(path)}")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise LookupError(f"job {text!r}")
    return int(text)


def _tail(place: Path | None) -> str:
    if place is None or not place.exists():
        return ""
    with place.open("rb") as log:
        log.seek(max(place.stat().st_size - _TAIL, 0))
        return log.read().decode(errors="replace")


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = 30.0

    @property
    def _door(self) -> Door:
        server = self.server
        assert isinstance(server, _Tcp | _Local), "these alone have it"
        return server.door

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        if self._door.token and place.path == "/":
            if self._is_known(parse_qs(place.query).get("token", [""])[0]):
                self._send(HTTPStatus.OK, _page(), "text/html; charset=utf-8")
        else:
            self._do("GET", place.path)

    def do_POST(self) -> None:
        self._do("POST", urlsplit(self.path).path)

    def log_message(self, *_: object) -> None:
        """A daemon's standard error is for what went wrong."""

    def address_string(self) -> str:
        return "local"

    def _do(self, method: str, path: str) -> None:
        if not self._is_known(self.headers.get("X-Token", "")):
            return
        status, found = HTTPStatus.OK, None
        try:
            found = _answer(self._door, method, path.strip("/").split("/"), self._body())
        except (HalError, SpecError) as error:
            status, found = HTTPStatus.CONFLICT, {"error": str(error)}
        except LookupError as error:
            status, found = HTTPStatus.NOT_FOUND, {"error": f"there is no {error}"}
        except (ValueError, UnicodeDecodeError) as error:
            status, found = HTTPStatus.BAD_REQUEST, {"error": f"no request: {error}"}
        except TimeoutError:
            text = "the daemon did not answer in time; see its log"
            status, found = HTTPStatus.SERVICE_UNAVAILABLE, {"error": text}
        self._send(status, json.dumps(found).encode(), "application/json")

    def _body(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= _NBYTES:
            raise ValueError(f"a body of {length} bytes")
        body = json.loads(self.rfile.read(length) or b"{}")
        if isinstance(body, dict):
            return body
        raise ValueError("the body is no object")

    def _is_known(self, shown: str) -> bool:
        if hmac.compare_digest(shown.encode(), self._door.token.encode()):
            return True
        text = b'{"error": "this needs the token that the page was opened with"}'
        self._send(HTTPStatus.FORBIDDEN, text, "application/json")
        return False

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)


def _page() -> bytes:
    return files("stack.cluster").joinpath("page.html").read_bytes()
