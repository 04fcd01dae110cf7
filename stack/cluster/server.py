"""How people reach a daemon: HTTP with JSON on a socket of the folder, and a page on this machine.

At the socket the kernel says who asks. Who runs the daemon is its operator, who may do all; the
cluster's other users see and change their own jobs. The page is served on the loopback interface,
to each user by a token of his own, which he gets at the socket."""

from __future__ import annotations

import hmac
import http.server
import io
import json
import os
import secrets
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hal.core.errors import HalError, InvalidCall
from hal.core.facts import dataclass
from hal.net.handshake import uid_of
from stack.cluster.client import SOCKET
from stack.cluster.cluster import LiveCluster
from stack.cluster.files import JobFile, told
from stack.cluster.users import NotAllowed, User, open_own, own
from stack.scheduler.spec import SpecError

_LONGEST = 107
_NBYTES = 1 << 20
_TAIL = 1 << 16
Ask = Callable[[Callable[[LiveCluster], Any]], Any]


@dataclass(frozen=True, slots=True)
class Door:
    """What those who come may do: `ask` runs a call on the cluster's thread, `end` ends the daemon.
    `users` are those who may come, by name; `tokens` are theirs for the `page`."""

    ask: Ask
    end: Callable[[], None]
    users: Mapping[str, User]
    tokens: dict[str, str] = field(default_factory=dict)
    page: str = ""

    def by_uid(self, uid: int) -> str:
        """The name of who has come, "" for a stranger. Root is where he can be anybody."""
        mine = own()
        names = (user.name for user in self.users.values() if user.uid == uid)
        return mine.name if uid in (0, mine.uid) else next(names, "")

    def by_token(self, shown: str) -> str:
        """The name of whose token it is, "" if it is nobody's."""
        known = list(self.tokens.items())
        found = [n for n, t in known if hmac.compare_digest(shown.encode(), t.encode())]
        return found[0] if found else ""

    def page_of(self, name: str) -> str:
        """Where a user finds the page. Raises InvalidCall where there is none."""
        if not self.page:
            raise InvalidCall("the daemon serves no page; start it with --page PORT")
        return f"{self.page}/?token={self.tokens.setdefault(name, secrets.token_urlsafe(24))}"


class Server:
    """Answers on threads of its own until `close`."""

    def __init__(self, folder: Path, door: Door, port: int | None) -> None:
        """Listen; `port` is the page's, None for none. Raises InvalidCall."""
        self._path = folder / SOCKET
        if len(os.fsencode(self._path)) > _LONGEST:
            raise InvalidCall(
                f"{self._path} is too long for a socket's name ({_LONGEST} bytes); name another "
                "folder with --state"
            )
        self._path.unlink(missing_ok=True)
        local = _Local(str(self._path), _Handler)
        self._servers: list[_Local | _Tcp] = [local]
        if port is not None:
            page = _Tcp(("127.0.0.1", port), _Handler)
            self._servers.append(page)
            door = replace(door, page=f"http://127.0.0.1:{page.server_address[1]}")
        self.page = door.page and door.page_of(own().name)
        self._path.chmod(0o666 if len(door.users) > 1 else 0o600)
        for server in self._servers:
            server.door = door
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


def _answer(door: Door, who: str, method: str, path: list[str], body: Any) -> Any:
    """What a user's request gives. Raises LookupError where there is nothing of this name, and
    NotAllowed for what is not for this user."""
    match method, path:
        case "POST", ["jobs"]:
            file = told(body, JobFile, "the job")
            return {"job": door.ask(lambda cluster: cluster.submit(file, who))}
        case "GET", ["jobs"]:
            return door.ask(lambda cluster: cluster.jobs(who))
        case "GET", ["jobs", number, "why"]:
            return {
                "why": door.ask(lambda cluster: cluster.why(cluster.owned(_number(number), who)))
            }
        case "GET", ["jobs", number, "log"]:
            place = door.ask(lambda cluster: cluster.log(cluster.owned(_number(number), who)))
            return {"path": place and str(place), "text": _tail(place)}
        case "POST", ["jobs", number, "cancel" | "hold" | "release" as verb]:
            door.ask(lambda cluster: getattr(cluster, verb)(cluster.owned(_number(number), who)))
            return {}
        case "POST", ["jobs", number, "resize"]:
            ranks = body.get("ranks")
            if type(ranks) is not int:
                raise ValueError("the body needs `ranks`, a number")
            door.ask(lambda cluster: cluster.resize(cluster.owned(_number(number), who), ranks))
            return {}
        case "POST", ["jobs", number, "speed"]:
            speed = body.get("speed")
            if type(speed) not in (int, float):
                raise ValueError("the body needs `speed`, a number")
            door.ask(lambda cluster: cluster.measured(cluster.owned(_number(number), who), speed))
            return {}
        case "GET", ["hosts"]:
            return door.ask(LiveCluster.hosts)
        case "POST", ["hosts", name, "drain" | "join" | "lose" as verb]:
            _operator(who)
            door.ask(lambda cluster: getattr(cluster, verb)(name))
            return {}
        case "GET", ["all"]:
            return door.ask(
                lambda c: {"jobs": c.jobs(who), "hosts": c.hosts(), "queues": c.queues()}
            )
        case "GET", ["page"]:
            return {"page": door.page_of(who)}
        case "POST", ["end"]:
            _operator(who)
            door.end()
            return {}
    raise LookupError(f"{method} /{'/'.join(path)}")


def _operator(who: str) -> None:
    if who != own().name:
        raise NotAllowed(f"that is for {own().name} alone, who runs the daemon; you are {who}")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise LookupError(f"job {text!r}")
    return int(text)


def _tail(place: Path | None) -> str:
    try:
        with open_own(place) if place else io.BytesIO() as log:
            log.seek(max(log.seek(0, os.SEEK_END) - _TAIL, 0))
            return log.read(_TAIL).decode(errors="replace")
    except FileNotFoundError:
        return ""


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = 30.0

    @property
    def _door(self) -> Door:
        server = self.server
        assert isinstance(server, _Tcp | _Local), "these alone have it"
        return server.door

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        if isinstance(self.server, _Tcp) and place.path == "/":
            if self._who(parse_qs(place.query).get("token", [""])[0]):
                self._send(
                    HTTPStatus.OK,
                    files("stack.cluster").joinpath("page.html").read_bytes(),
                    "text/html; charset=utf-8",
                )
        else:
            self._do("GET", place.path)

    def do_POST(self) -> None:
        self._do("POST", urlsplit(self.path).path)

    def log_message(self, *_: object) -> None:
        """A daemon's standard error is for what went wrong."""

    def address_string(self) -> str:
        return "local"

    def _do(self, method: str, path: str) -> None:
        who = self._who(self.headers.get("X-Token", ""))
        if not who:
            return
        status, found = HTTPStatus.OK, None
        try:
            places = path.strip("/").split("/")
            found = _answer(self._door, who, method, places, self._body())
        except NotAllowed as error:
            status, found = HTTPStatus.FORBIDDEN, {"error": str(error)}
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

    def _who(self, shown: str) -> str:
        """The name of who asks; "" for a stranger, who has been told so."""
        if isinstance(self.server, _Tcp):
            name, why = self._door.by_token(shown), "this needs the token of `hal cluster page`"
        else:
            uid = uid_of(self.connection)
            name, why = self._door.by_uid(uid), f"user {uid} is not among this cluster's users"
        if not name:
            self._send(
                HTTPStatus.FORBIDDEN, json.dumps({"error": why}).encode(), "application/json"
            )
        return name

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)
