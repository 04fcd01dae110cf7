"""What a store knows, and how it answers: requests in, messages out, no connection and no clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import field

from hal.core.facts import dataclass
from stack.comm.store.wire import COUNT, KEY_NBYTES, KEYS, VALUE_NBYTES, Code, Message

TABLE_NBYTES = 256 << 20
"""The most that all keys and values take."""
ENTRY_NBYTES = 128
"""What a key and its value take besides their own bytes, about."""
WATCHES = 64
"""The most prefixes that one client watches."""
REMEMBERED = 4096
"""Of so many clients the last change is kept, so that asking again does not do it again."""

_CHANGES = frozenset({Code.SET, Code.ADD, Code.COMPARE_SET, Code.DELETE})


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a store is: its keys, the bytes that they take of those that it holds at most, and
    its connections."""

    keys: int
    nbytes: int
    limit_nbytes: int
    clients: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message to a client, by its number."""

    client: int
    message: Message


@dataclass(slots=True)
class _Waiter:
    """A client's request that is answered once no key is `missing`."""

    request: Message
    missing: set[bytes]


@dataclass(slots=True)
class _Client:
    session: bytes
    waiter: _Waiter | None = None
    watches: list[tuple[int, bytes]] = field(default_factory=list)
    leases: set[bytes] = field(default_factory=set)


class _Refusal(Exception):
    """The answer to a request that cannot be served."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class Table:
    """The keys and values, who waits for them, who watches them, and whose end deletes them.

    A client has a session, which stays the same when it connects again; a change that it asks for
    with the same number again is not done again. `room` is how many bytes are left.
    """

    def __init__(self, nbytes: int = TABLE_NBYTES) -> None:
        self.room = nbytes
        self._limit = nbytes
        self._values: dict[bytes, bytes] = {}
        self._owners: dict[bytes, int] = {}
        self._clients: dict[int, _Client] = {}
        self._waiting: dict[bytes, set[int]] = {}
        self._done: OrderedDict[bytes, Message] = OrderedDict()

    @property
    def usage(self) -> Usage:
        """How full it is."""
        held = self._limit - self.room
        return Usage(len(self._values), held, self._limit, len(self._clients))

    @property
    def remembered(self) -> int:
        """Of how many clients the last change is kept."""
        return len(self._done)

    def value(self, key: bytes) -> bytes | None:
        """The value of a key, None if it has none. Any thread may ask."""
        return self._values.get(key)

    def come(self, client: int, session: bytes) -> None:
        """A client has connected."""
        self._clients[client] = _Client(session)

    def busy(self, client: int) -> bool:
        """Whether the client waits for an answer, so that its next request is not looked at."""
        return self._clients[client].waiter is not None

    def leases(self, client: int) -> bool:
        """Whether the client holds a lease."""
        return bool(self._clients[client].leases)

    def ask(self, client: int, request: Message) -> list[Delivery]:
        """Do what a client asks for. The answers are for it and for others."""
        try:
            return list(self._ask(client, request))
        except _Refusal as refusal:
            return [_to(client, request, refusal.code, str(refusal).encode())]

    def gone(self, client: int, why: str) -> list[Delivery]:
        """A client's connection has ended: its leases end, and nobody waits for it."""
        known = self._clients.pop(client)
        for key in known.waiter.missing if known.waiter else ():
            self._waiting[key].discard(client)
            if not self._waiting[key]:
                del self._waiting[key]
        ended = [one for key in sorted(known.leases) for one in self._remove(key, why)]
        return [one for one in ended if one.client in self._clients]

    def _ask(self, client: int, request: Message) -> Iterator[Delivery]:
        known = self._clients[client]
        last = self._done.get(known.session)
        if request.code in _CHANGES and last is not None and last.number == request.number:
            yield Delivery(client, last)
            return
        served = _SERVED.get(request.code)
        if served is None:
            raise _Refusal(Code.INVALID, f"{request.code.name} is no request")
        for one in served(self, client, request):
            if one.client == client and request.code in _CHANGES and one.message.code is Code.DONE:
                self._done[known.session] = one.message
                self._done.move_to_end(known.session)
                if len(self._done) > REMEMBERED:
                    self._done.popitem(last=False)
            yield one

    def _set(self, client: int, request: Message) -> Iterator[Delivery]:
        key, value = _parts(request, 2)
        yield from self._put(key, value)
        yield _to(client, request, Code.DONE)

    def _find(self, client: int, request: Message) -> Iterator[Delivery]:
        (key,) = _parts(request, 1)
        found = self._values.get(key)
        yield _to(client, request, Code.DONE, *([] if found is None else [found]))

    def _get(self, client: int, request: Message) -> Iterator[Delivery]:
        most = 1 if request.code is Code.GET else KEYS
        if not 0 < len(request.fields) <= most:
            text = f"{request.code.name} names {len(request.fields)} keys; 1 to {most} are allowed"
            raise _Refusal(Code.INVALID, text)
        if any(len(key) > KEY_NBYTES for key in request.fields):
            raise _Refusal(Code.INVALID, f"a key has at most {KEY_NBYTES} bytes")
        keys = request.fields
        missing = {key for key in keys if key not in self._values}
        if not missing:
            yield _to(client, request, Code.DONE, *self._wanted(request))
            return
        self._clients[client].waiter = _Waiter(request, missing)
        for key in missing:
            self._waiting.setdefault(key, set()).add(client)

    def _add(self, client: int, request: Message) -> Iterator[Delivery]:
        key, amount = _parts(request, 2)
        if len(amount) != COUNT.size:
            raise _Refusal(Code.INVALID, f"an amount of {len(amount)} bytes is no number")
        value = self._values.get(key, b"0")
        digits = value.removeprefix(b"-")
        if not digits.isdigit() or len(digits) > 19:
            raise _Refusal(
                Code.INVALID, f"{_said(key)} is {value[:80]!r}, which is no whole number"
            )
        count = int(value) + COUNT.unpack(amount)[0]
        if not -(1 << 63) <= count < 1 << 63:
            raise _Refusal(Code.INVALID, f"{_said(key)} would be {count}, which needs over 64 bits")
        yield from self._put(key, str(count).encode())
        yield _to(client, request, Code.DONE, COUNT.pack(count))

    def _compare_set(self, client: int, request: Message) -> Iterator[Delivery]:
        if len(request.fields) not in (2, 3):
            raise _Refusal(
                Code.INVALID, f"COMPARE_SET has {len(request.fields)} fields, not 2 or 3"
            )
        key, value, *expected = request.fields
        found = self._values.get(key)
        if found != (expected[0] if expected else None):
            yield _to(client, request, Code.CURRENT, *([] if found is None else [found]))
            return
        yield from self._put(key, value)
        yield _to(client, request, Code.DONE)

    def _delete(self, client: int, request: Message) -> Iterator[Delivery]:
        (key,) = _parts(request, 1)
        found = key in self._values
        if found:
            yield from self._remove(key, "deleted")
        yield _to(client, request, Code.DONE, b"1" if found else b"")

    def _clear(self, client: int, request: Message) -> Iterator[Delivery]:
        (prefix,) = _parts(request, 1)
        if not prefix:
            raise _Refusal(Code.INVALID, "CLEAR has no prefix: it would take every key away")
        keys = sorted(key for key in self._values if key.startswith(prefix))
        if not self._owners.keys().isdisjoint(keys):
            keys = []
        for key in keys:
            yield from self._remove(key, "deleted")
        yield _to(client, request, Code.DONE)

    def _usage(self, client: int, request: Message) -> Iterator[Delivery]:
        numbers = self.usage
        fields = (numbers.keys, numbers.nbytes, numbers.limit_nbytes, numbers.clients)
        yield _to(client, request, Code.DONE, *map(COUNT.pack, fields))

    def _lease(self, client: int, request: Message) -> Iterator[Delivery]:
        key, value = _parts(request, 2)
        owner = self._clients.get(self._owners.get(key, -1))
        if owner is not None and owner.session == self._clients[client].session:
            owner.leases.discard(key)  # the same process, before its connection broke
        elif key in self._values:
            raise _Refusal(Code.FAILED, f"{_said(key)} is taken: {self._values[key][:80]!r} has it")
        yield from self._put(key, value)
        self._owners[key] = client
        self._clients[client].leases.add(key)
        yield _to(client, request, Code.DONE)

    def _beat(self, client: int, request: Message) -> Iterator[Delivery]:
        yield _to(client, request, Code.DONE)

    def _watch(self, client: int, request: Message) -> Iterator[Delivery]:
        (prefix,) = _parts(request, 1)
        watches = self._clients[client].watches
        if len(watches) == WATCHES:
            raise _Refusal(Code.INVALID, f"a client watches at most {WATCHES} prefixes")
        watches.append((request.number, prefix))
        for key in sorted(key for key in self._values if key.startswith(prefix)):
            yield _to(client, request, Code.CHANGED, key, self._values[key])
        yield _to(client, request, Code.DONE)

    def _put(self, key: bytes, value: bytes) -> Iterator[Delivery]:
        """Change a value, and tell those who wait for it or watch it."""
        before = self._values.get(key)
        if not key or len(key) > KEY_NBYTES:
            raise _Refusal(Code.INVALID, f"a key has 1 to {KEY_NBYTES} bytes, not {len(key)}")
        if len(value) > VALUE_NBYTES:
            text = f"{_said(key)}: a value has at most {VALUE_NBYTES} bytes, not {len(value)}"
            raise _Refusal(Code.INVALID, text)
        new = _nbytes(key, value) - (0 if before is None else _nbytes(key, before))
        if new > self.room:
            text = f"{_said(key)}: the store is full: it holds {self._limit} bytes"
            raise _Refusal(Code.FAILED, text)
        self.room -= new
        self._values[key] = value
        yield from self._tell(key, value)
        if before is None:
            for client in sorted(self._waiting.pop(key, ())):
                known = self._clients[client]
                waiter = known.waiter
                assert waiter is not None, "who waits for a key has a waiter"
                waiter.missing.discard(key)
                if not waiter.missing:
                    known.waiter = None
                    request = waiter.request
                    yield _to(client, request, Code.DONE, *self._wanted(request))

    def _remove(self, key: bytes, why: str) -> Iterator[Delivery]:
        self.room += _nbytes(key, self._values.pop(key))
        owner = self._clients.get(self._owners.pop(key, -1))
        if owner is not None:
            owner.leases.discard(key)
        yield from self._tell(key, None, why)

    def _tell(self, key: bytes, value: bytes | None, why: str = "") -> Iterator[Delivery]:
        fields = (key, b"", why.encode()) if value is None else (key, value)
        for client, known in self._clients.items():
            for number, prefix in known.watches:
                if key.startswith(prefix):
                    yield Delivery(client, Message(Code.CHANGED, number, fields))

    def _wanted(self, request: Message) -> tuple[bytes, ...]:
        return (self._values[request.fields[0]],) if request.code is Code.GET else ()


_SERVED = {
    Code.SET: Table._set,
    Code.FIND: Table._find,
    Code.GET: Table._get,
    Code.WAIT: Table._get,
    Code.ADD: Table._add,
    Code.COMPARE_SET: Table._compare_set,
    Code.DELETE: Table._delete,
    Code.CLEAR: Table._clear,
    Code.USAGE: Table._usage,
    Code.LEASE: Table._lease,
    Code.BEAT: Table._beat,
    Code.WATCH: Table._watch,
}


def _to(client: int, request: Message, code: Code, *fields: bytes) -> Delivery:
    return Delivery(client, Message(code, request.number, fields))


def _parts(request: Message, count: int) -> tuple[bytes, ...]:
    if len(request.fields) != count:
        text = f"{request.code.name} has {len(request.fields)} fields, not {count}"
        raise _Refusal(Code.INVALID, text)
    return request.fields


def _nbytes(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + ENTRY_NBYTES


def _said(key: bytes) -> str:
    return f"the key {key.decode(errors='backslashreplace')[:200]!r}"
