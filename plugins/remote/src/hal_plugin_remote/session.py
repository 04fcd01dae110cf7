"""The server's end of a connection: one session of a device, driven by messages.

The thread that reads also submits, so operations keep their order. What may take long (memory,
compiling, joining a group) gets a thread of its own. A watcher tells the client what timelines
reach, and brings the bytes of copies to it: always before anything that is reached later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import hal
from hal.core.description import Feature
from hal.core.description_json import to_json
from hal.core.device import Device
from hal.core.errors import (
    DeviceLost,
    Failure,
    FailureKind,
    HalError,
    InvalidCall,
    OperationFailed,
    PluginError,
    Scope,
    StaleHandle,
)
from hal.core.values import (
    AllocOptions,
    Fault,
    Graph,
    Group,
    Handle,
    Health,
    HealthState,
    OpenOptions,
    Point,
    Region,
    Timeline,
)
from hal_plugin_remote.channel import Channel, Ended
from hal_plugin_remote.values import plain, plain_error, value

_ALIVE_S = 1.0
_CALL_S = 3600.0
"""How long the client may take for a host call before its connection counts as useless."""
_FAILED = (HealthState.LOST, HealthState.RESET_REQUIRED)


class Session:
    """A client's device. `sessions` has all of the server, by number, for copies between them."""

    def __init__(self, channel: Channel, number: int, sessions: dict[int, Session]) -> None:
        self._channel, self.number, self._sessions = channel, number, sessions
        self.handles: dict[int, Handle] = {}
        self._device: Device | None = None
        self._here = self._there = ""
        self._given: set[Failure] = set()
        self._numbers = 0
        self._lock = threading.Lock()
        """Guards what follows, and keeps notices in the order in which they became true."""
        self._watched: dict[tuple[int, int], Point] = {}
        self._downloads: dict[int, tuple[Point, int, bytearray]] = {}
        self._uploads: list[tuple[Point, bytearray]] = []
        self._refused: dict[int, tuple[int, Point]] = {}
        self._told_lost = False
        self._calls: dict[int, Callable[[Any], None]] = {}
        self._bell: Timeline | None = None
        self._rung = 0
        self._over = threading.Event()

    def serve(self) -> None:
        """Do what the client says until it leaves; then end the session."""
        try:
            while True:
                # A client that is silent may compute; one that has gone ends its connection.
                self._hear(self._channel.receive(self._place, lambda silent_s: None))
        except (Ended, KeyError, TypeError, ValueError, IndexError):
            pass  # it left, or speaks another language
        finally:
            self._over.set()
            self._channel.end()  # or the client could hear of what only the device's end aborts
            for settle in list(self._calls.values()):
                settle(("ConnectionError", "the client has ended the connection"))
            if self._device is not None:
                self._device.close()
            self._channel.close()

    def end(self) -> None:
        """Cut the client off; the thread that serves it ends the session."""
        self._channel.end()

    def _place(self, body: Any, nbytes: int) -> memoryview:
        """A copy to the device brings its bytes, exactly as many as its region has."""
        hook, _, _, _, dst, _, _ = body
        if hook != "copy" or dst["c"] != "Region" or dst["v"][2] != nbytes:
            raise ValueError(f"{nbytes} bytes that nobody asked for")
        self._upload = bytearray(nbytes)
        return memoryview(self._upload)

    def _hear(self, body: Any) -> None:
        hook, *rest = body
        if hook == "ask":
            number, asked, *args = rest
            if asked in _LONG:
                self._answer_apart(number, asked, args)
            else:
                self._answer(number, asked, args)
        elif hook in _SUBMITS:
            timeline, at, waits, *args = rest
            self._submit(hook, timeline, at, waits, args)
        elif hook == "watch":
            self._watch(*rest)
        elif hook == "free":
            self._free(*rest)
        elif hook == "drop":
            for number in rest[0]:
                self.handles.pop(number, None)
        elif hook == "signal":
            self._signal(*rest)
        elif hook == "called":
            number, said = rest
            self._calls.pop(number)(said)
        else:
            raise ValueError(f"an unknown message {hook!r}")

    # what has an answer

    def _answer_apart(self, number: int, hook: str, args: Sequence[Any]) -> None:
        try:
            threading.Thread(target=self._answer, args=(number, hook, args), daemon=True).start()
        except RuntimeError as error:
            text = f"the server's host gives no more threads; raise `ulimit -u` there ({error})"
            self._send(["error", number, plain_error(PluginError(f"{hook}: {text}"))])

    def _answer(self, number: int, hook: str, args: Sequence[Any]) -> None:
        try:
            owner = self._opened() if hook in _PLAIN else self
            answer = getattr(owner, hook if hook in _PLAIN else f"_on_{hook}")
            result = answer(*(self._value(arg) for arg in args))
            body = ["ok", number, plain(self._seen(result), self._named)]
        except Exception as error:  # noqa: BLE001  the plugin's code runs here: the client hears it
            self._tell_lost()
            body = ["error", number, plain_error(self._seen_error(error))]
        self._send(body)

    def _on_open(self, name: str, options: OpenOptions, there: str) -> tuple[int, dict[str, Any]]:
        if self._device is not None:
            raise InvalidCall("the session is open already")
        device = hal.open(name, options=options)
        self._here, self._there, self._device = name, there, device
        if Feature.SUBSCRIBE in device.info.features:
            device.subscribe(self._on_signal)
        self._bell = device.create_timeline(True)
        threading.Thread(target=self._watcher, name="hal-remote-watch", daemon=True).start()
        return self.number, to_json(device.info)

    def _on_close(self) -> None:
        """What the device still does while it closes comes to the client, too: a byte copied behind
        each copy to the host tells whether that has ended well."""
        device = self._opened()
        self._over.set()
        with self._lock:
            arriving = [
                (number, point, into) for number, (point, _, into) in self._downloads.items()
            ]
            self._downloads.clear()
        marks = self._marked([point for _, point, _ in arriving])
        device.close()
        for (number, _, into), mark in zip(arriving, marks, strict=True):
            if mark[0]:
                self._send(["data", number], into)

    def _marked(self, points: Sequence[Point]) -> list[bytearray]:
        """A byte of the host for each point, which the device sets behind it if it is reached."""
        device, marks = self._opened(), [bytearray(1) for _ in points]
        if not points:
            return marks
        try:
            source, queue = device.alloc(1, AllocOptions()), device.create_timeline(False)
            there = device.fill(source.region(), b"\1", queue, ())
            for point, mark in zip(points, marks, strict=True):
                try:
                    device.copy(mark, source.region(), point.timeline, (point, there))
                except StaleHandle:  # the timeline was freed with work on it
                    own = device.create_timeline(False)
                    device.copy(mark, source.region(), own, (point, there))
        except HalError:
            return marks  # a failed device copies nothing more
        return marks

    def _on_alloc(self, nbytes: int, options: Any) -> tuple[int, str]:
        buffer = self._opened().alloc(nbytes, options)
        return self._keep(buffer), buffer.space

    def _on_load(self, source: Any) -> int:
        return self._keep(self._opened().load(source))

    def _on_load_operator(self, operator: Any, constants: Any) -> int:
        return self._keep(self._opened().load_operator(operator, constants))

    def _on_bind(self, program: Any, args: Any) -> int:
        return self._keep(self._opened().bind(program, args))

    def _on_create_timeline(self, host_driven: bool) -> int:
        return self._keep(self._opened().create_timeline(host_driven))

    def _on_record(self, commands: Any) -> tuple[int, int]:
        graph: Graph = self._opened().record(commands)
        return self._keep(graph), graph.slots

    def _on_create_group(self, spec: Any) -> int:
        return self._keep(self._opened().create_group(spec))

    def _on_shrink(self, group: Group, ranks: Any) -> tuple[int, int, int]:
        new = self._opened().shrink(group, ranks)
        return self._keep(new), new.rank, new.size

    def _on_collective(
        self, group: Any, call: Any, dst: Any, src: Any, timeline: Any, waits: Any
    ) -> int:
        point = self._opened().collective(group, call, dst, src, timeline, self._points(waits))
        return point.value

    def _on_abort(self, group: Any, cause: Failure) -> None:
        self._given.add(cause)
        self._opened().abort(group, cause)

    def _on_inject(self, fault: Fault) -> None:
        self._given.add(fault.failure)
        self._opened().inject(fault)

    def _on_timestamps(self, point: Sequence[int]) -> Any:
        return self._opened().timestamps(self._points([point])[0])

    def _on_settle(self) -> None:
        self._settle()

    def _on_reset(self) -> None:
        try:
            self._opened().reset()
        finally:
            self._settle()
        with self._lock:
            self.handles.clear()
            self._watched.clear()
            self._downloads.clear()
            self._uploads.clear()
            self._refused.clear()
            self._given.clear()
            self._told_lost = False
            self._bell, self._rung = self._opened().create_timeline(True), 0

    # what has none

    def _submit(self, hook: str, number: int, at: int, waits: Any, args: Sequence[Any]) -> None:
        if number in self._refused:
            return  # it has failed from an earlier value on
        device = self._opened()
        try:
            timeline, after = self._timeline(number), self._points(waits)
            match hook:
                case "copy":
                    self._copy(timeline, at, after, *(self._value(arg) for arg in args))
                case "host_call":
                    device.host_call(self._calling(args[0]), timeline, after)
                case _:
                    one, two = (self._value(arg) for arg in args)
                    getattr(device, hook)(one, two, timeline, after)
        except Exception as error:  # noqa: BLE001  the plugin's code runs here: the point fails
            # The device refused what the client took as submitted: the point fails with the
            # reason, and all later ones of its timeline.
            if isinstance(error, OperationFailed):
                cause = error.failure
            else:
                text = f"{type(error).__name__}: {error}"
                cause = Failure(FailureKind.LAUNCH_FAULT, Scope.QUEUE, self._here, "submit", text)
            self._tell_lost()
            with self._lock:
                if not isinstance(error, DeviceLost | StaleHandle):
                    stand_in = self._opened().create_timeline(True)
                    self._opened().signal(stand_in, 1, cause)
                    self._refused[number] = (at, Point(stand_in, 1))
                self._send(["failed", number, at, plain(self._seen(cause), self._named)])

    def _copy(
        self,
        timeline: Timeline,
        at: int,
        after: list[Point],
        dst: Region | None,
        src: Region | None,
        arriving: int,
    ) -> None:
        device = self._opened()
        if dst is not None and src is not None:
            device.copy(dst, src, timeline, after)
        elif dst is not None:
            payload, self._upload = self._upload, bytearray()
            point = device.copy(dst, payload, timeline, after)
            with self._lock:
                self._uploads.append((point, payload))
        elif src is not None:
            into = bytearray(src.nbytes)
            point = device.copy(into, src, timeline, after)
            with self._lock:
                self._downloads[arriving] = (
                    point,
                    next(number for number, handle in self.handles.items() if handle is timeline),
                    into,
                )
            self._ring()

    _upload = bytearray()

    def _calling(self, number: int) -> Callable[[], None]:
        def call() -> None:
            done = threading.Event()
            answer: list[Any] = []

            def settle(said: Any) -> None:
                answer.append(said)
                done.set()

            self._calls[number] = settle
            self._settle()  # what a copy before it brought is there when the function runs
            self._send(["call", number])
            if not done.wait(_CALL_S):
                raise TimeoutError(f"the client did not come back in {_CALL_S:g} s")
            if answer[0] is not None:
                kind, text = answer[0]
                raise type(str(kind), (Exception,), {})(text)

        return call

    def _signal(self, timeline: Any, at: int, failure: Any) -> None:
        cause = self._value(failure)
        if cause is not None:
            self._given.add(cause)
        try:
            self._opened().signal(self._value(timeline), at, cause)
        except HalError:
            self._tell_lost()

    def _free(self, name: Any) -> None:
        try:
            handle = self._value(name)
            del self.handles[name["h"][1]]
            self._opened().free(handle)
        except HalError:
            self._tell_lost()

    def _watch(self, number: int, at: int) -> None:
        timeline = self.handles.get(number)
        if isinstance(timeline, Timeline):
            with self._lock:
                self._watched[number, at] = self._point(timeline, number, at)
            self._ring()

    # telling

    def _watcher(self) -> None:
        """Wait for anything that somebody wants to know, and tell it."""
        while not self._over.is_set():
            with self._lock:
                bell = Point(self._bell, self._rung + 1) if self._bell else None
                points = [*self._watched.values(), *(p for p, _, _ in self._downloads.values())]
            try:
                if bell is not None:
                    self._opened().wait([*points, bell], _ALIVE_S, False)
                quiet = False
            except HalError:
                quiet = True
            if not self._settle() and quiet:
                self._over.wait(_PAUSE_S)
            self._send(["alive"])

    def _settle(self) -> bool:
        """Tell what is reached or has failed; whether there was anything."""
        with self._lock:
            states = {key: self._state(point) for key, point in self._watched.items()}
            # Looked at after the points: whatever came before one of them is here, too.
            told = []
            for number, (point, timeline, into) in list(self._downloads.items()):
                state = self._state(point)
                if state is not None:
                    del self._downloads[number]
                    told.append(self._told(timeline, point.value, state, ["data", number], into))
            self._uploads = [(p, kept) for p, kept in self._uploads if self._state(p) is None]
            for (timeline, at), state in states.items():
                if state is not None:
                    del self._watched[timeline, at]
                    told.append(self._told(timeline, at, state, ["reached", timeline, at]))
            if any(body[0] == "failed" for body, _ in told):
                self._tell_lost()
            for body, payload in told:
                self._send(body, payload)
            return bool(told)

    def _told(
        self,
        timeline: int,
        at: int,
        state: Failure | bool,
        body: list[Any],
        payload: bytes | bytearray = b"",
    ) -> tuple[list[Any], bytes | bytearray]:
        """What the client hears of a point: `body` where it is reached, else its failure."""
        if isinstance(state, Failure):
            return ["failed", timeline, at, plain(self._seen(state), self._named)], b""
        return body, payload

    def _state(self, point: Point) -> Failure | bool | None:
        """True: reached; a failure: failed; None: neither yet."""
        try:
            return self._opened().wait([point], 0.0, True) or None
        except OperationFailed as error:
            return error.failure
        except StaleHandle as error:
            return Failure(FailureKind.ABORTED, Scope.OPERATION, self._here, "free", str(error))

    def _tell_lost(self) -> None:
        """Once the device has failed the client refuses submissions itself."""
        device = self._device
        if device is None or self._told_lost:
            return
        health = device.health()
        if health.state in _FAILED and health.cause is not None:
            self._told_lost = True
            parts = [plain(self._seen(part), self._named) for part in (health.state, health.cause)]
            self._send(["lost", *parts])

    def _on_signal(self, failure: Failure) -> None:
        self._tell_lost()
        self._send(["signal", plain(self._seen(failure), self._named)])

    def _ring(self) -> None:
        with self._lock:
            self._rung += 1
            try:
                if self._bell is not None:
                    self._opened().signal(self._bell, self._rung, None)
            except HalError:
                return  # the watcher looks in slices on a failed device

    def _send(self, body: Sequence[Any], payload: bytes | bytearray = b"") -> None:
        try:
            self._channel.send(body, payload)
        except Ended:
            self._over.set()  # the reader sees it, too

    # names

    def _opened(self) -> Device:
        if self._device is None:
            raise InvalidCall("the session is not open")
        return self._device

    def _keep(self, handle: Handle) -> int:
        with self._lock:
            self._numbers += 1
            self.handles[self._numbers] = handle
            return self._numbers

    def _points(self, waits: Sequence[Sequence[int]]) -> list[Point]:
        return [self._point(self._timeline(number), number, at) for number, at in waits]

    def _point(self, timeline: Timeline, number: int, at: int) -> Point:
        refused = self._refused.get(number)
        return refused[1] if refused and at >= refused[0] else Point(timeline, at)

    def _timeline(self, number: int) -> Timeline:
        handle = self.handles.get(number)
        if not isinstance(handle, Timeline):
            raise StaleHandle(f"{self._there}: the timeline was freed")
        return handle

    def _handle(self, name: Sequence[int]) -> Handle:
        session, number = name
        found = self._sessions[session].handles.get(number)
        if found is None:
            raise StaleHandle(f"{self._there}: the handle was freed")
        return found

    def _value(self, table: Any) -> Any:
        return value(table, self._handle)

    def _named(self, handle: Handle) -> object:
        raise InvalidCall(f"an answer cannot hold {handle!r}")

    def _seen(self, result: Any) -> Any:
        """A result as the client is to see it: failures that were born here name its device, those
        that it gave come back unchanged."""
        match result:
            case Failure() if result.device == self._here and result not in self._given:
                return replace(result, device=self._there)
            case Health():
                return replace(result, cause=self._seen(result.cause))
            case _:
                return result

    def _seen_error(self, error: Exception) -> Exception:
        match error:
            case OperationFailed():
                return type(error)(self._seen(error.failure))
            case _:
                return error


_PAUSE_S = 0.02
_SUBMITS = frozenset({"copy", "fill", "launch", "replay", "host_call"})
_LONG = frozenset(
    {"open", "close", "alloc", "load", "load_operator", "record", "create_group", "shrink", "reset"}
)
_SHORT = frozenset(
    {"bind", "create_timeline", "collective", "abort", "inject", "timestamps", "settle"}
)
_PLAIN = frozenset({"health", "stats", "async_error", "operators"})
"""Hooks whose arguments and results cross as they are."""
