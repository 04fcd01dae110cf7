"""The store as a rank sees it: keys with values, that all ranks of a job share."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from hal.core.errors import InvalidCall
from hal.net.handshake import Terms
from stack.comm.store.lease import Hold, Lease
from stack.comm.store.link import Link
from stack.comm.store.table import Usage
from stack.comm.store.watch import Watch
from stack.comm.store.wire import COUNT, Code, Message
from stack.comm.world import World


class Store:
    """A job's shared table of bytes. Any thread may call it.

    Every call ends within `deadline_s` seconds, its own or the store's, in which it also connects
    again if the connection breaks. Raises of every call: DeadlineExceeded when nobody answers in
    time, StoreError when the token is wrong or the store is full, InvalidCall for a key that is
    empty or longer than 1 KiB or a value of over 1 MiB. `prefix` is what its keys begin with in the
    whole table (see `under`).
    """

    def __init__(self, address: str, token: str, deadline_s: float) -> None:
        """The store at `address` ("127.0.0.1:4711"). Connects at the first call."""
        self._links = _Links(address, token)
        self._deadline_s = deadline_s
        self.prefix = ""

    @classmethod
    def of(cls, world: World) -> Store:
        """The store of a job. Raises InvalidCall in a child of a rank's process."""
        world.check_process()
        return cls(world.store, world.token, world.deadline_s)

    def under(self, prefix: str) -> Store:
        """The same store, where every key begins with `prefix`, which callers leave out."""
        other = Store.__new__(Store)
        other._links = self._links
        other._deadline_s = self._deadline_s
        other.prefix = self.prefix + prefix
        return other

    def terms(self, place: bytes) -> Terms:
        """What a handshake with another process that knows the store's token needs; `place` names
        the one that listens."""
        return Terms(self._links.token.encode(), place)

    def close(self) -> None:
        """End the connections that no call uses now; also those of `under`."""
        self._links.close()

    def set(self, key: str, value: bytes, deadline_s: float | None = None) -> None:
        """Give a key a value."""
        self._ask(Code.SET, (self._key(key), value), f"{key!r} was not set", deadline_s)

    def get(self, key: str, deadline_s: float | None = None) -> bytes:
        """The value of a key, once it has one."""
        what = f"nobody has set {self.prefix + key!r}"
        return self._ask(Code.GET, (self._key(key),), what, deadline_s).fields[0]

    def find(self, key: str, deadline_s: float | None = None) -> bytes | None:
        """The value of a key as it is now, None if it has none."""
        fields = self._ask(Code.FIND, (self._key(key),), f"{key!r} not found", deadline_s).fields
        return fields[0] if fields else None

    def wait(self, keys: Sequence[str], deadline_s: float | None = None) -> None:
        """Wait until every one of 1 to 1,024 keys has had a value since this call began."""
        what = f"not all of {[self.prefix + key for key in keys[:8]]} were set"
        self._ask(Code.WAIT, tuple(map(self._key, keys)), what, deadline_s)

    def add(self, key: str, amount: int = 1, deadline_s: float | None = None) -> int:
        """Add to a whole number, which begins at 0 and is kept as decimal text; gives the sum.

        Raises InvalidCall where the value is no number, or would need more than 64 bits.
        """
        if not -(1 << 63) <= amount < 1 << 63:
            raise InvalidCall(f"the amount {amount} needs more than 64 bits")
        fields = (self._key(key), COUNT.pack(amount))
        answer = self._ask(Code.ADD, fields, f"{key!r} was not added to", deadline_s)
        return int(COUNT.unpack(answer.fields[0])[0])

    def compare_set(
        self, key: str, expected: bytes | None, value: bytes, deadline_s: float | None = None
    ) -> bytes | None:
        """Give a key a value if it has the expected one (None: none); gives what it has then."""
        fields = (self._key(key), value, *([] if expected is None else [expected]))
        answer = self._ask(Code.COMPARE_SET, fields, f"{key!r} was not compared", deadline_s)
        if answer.code is Code.DONE:
            return value
        return answer.fields[0] if answer.fields else None

    def delete(self, key: str, deadline_s: float | None = None) -> bool:
        """Take a key away; gives whether it was there."""
        answer = self._ask(Code.DELETE, (self._key(key),), f"{key!r} not deleted", deadline_s)
        return bool(answer.fields[0])

    def lease(self, key: str, value: bytes, deadline_s: float | None = None) -> Lease:
        """Set a key that is there for as long as this process lives, or until `Lease.release`.

        Raises StoreError when the key has a value already.
        """
        until_s = self._until(deadline_s)
        return Lease(self._links.new(), self.prefix + key, self._key(key), value, until_s)

    def hold(self) -> Hold:
        """What sets keys that are there for as long as this process lives, or until it is released.
        All that a process holds in a store is on one connection."""
        return Hold(self._links.address, self._links.token, self._links.new, self.prefix)

    def clear(self, deadline_s: float | None = None) -> None:
        """Take all keys away that begin with this store's prefix, which is not empty; none where a
        process holds one of them."""
        what = f"the keys of {self.prefix!r} were not deleted"
        self._ask(Code.CLEAR, (self.prefix.encode(),), what, deadline_s)

    def usage(self, deadline_s: float | None = None) -> Usage:
        """How full the whole store is."""
        answer = self._ask(Code.USAGE, (), "the store did not say how full it is", deadline_s)
        return Usage(*(COUNT.unpack(field)[0] for field in answer.fields))

    def watch(self, prefix: str, deadline_s: float | None = None) -> Watch:
        """Every change of a key that begins with `prefix`, those that are there to begin with."""
        whole = (self.prefix + prefix).encode()
        return Watch(self._links.new(), whole, len(self.prefix.encode()), self._until(deadline_s))

    def _key(self, key: str) -> bytes:
        return (self.prefix + key).encode()

    def _until(self, deadline_s: float | None) -> float:
        return time.monotonic() + (self._deadline_s if deadline_s is None else deadline_s)

    def _ask(
        self, code: Code, fields: tuple[bytes, ...], what: str, deadline_s: float | None
    ) -> Message:
        seconds = self._deadline_s if deadline_s is None else deadline_s
        return self._links.ask(
            code, fields, f"{what} within {seconds:g} s", self._until(deadline_s)
        )


class _Links:
    """Connections that wait for their next call: a call that waits keeps its own meanwhile."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self.token = token
        self._idle: deque[Link] = deque()  # its own operations need no lock

    def new(self) -> Link:
        return Link(self.address, self.token)

    def ask(self, code: Code, fields: tuple[bytes, ...], what: str, until_s: float) -> Message:
        link = self._taken()
        try:
            answer = link.ask(code, fields, until_s, what)
        except BaseException:
            link.close()
            raise
        self._idle.append(link)
        return answer

    def close(self) -> None:
        with suppress(IndexError):
            for _ in range(len(self._idle)):
                self._idle.pop().close()

    def _taken(self) -> Link:
        try:
            return self._idle.pop()
        except IndexError:
            return self.new()
