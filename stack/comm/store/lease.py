"""Keys that live as long as the process which set them."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from types import TracebackType
from typing import Self

from hal.core.errors import DeadlineExceeded, HalError
from stack.comm.store.link import Link
from stack.comm.store.wire import Code, Message, StoreError, WireError

_BEATS = 5
"""Signs of life in the time after which the server ends a silent lease."""
_END_S = 10.0
_LEAVE_S = 2.0
"""How long a process that lets keys go waits for the store; it deletes them by itself later."""


class LeaseLost(StoreError):
    """The connection of a lease has broken."""


class Lease:
    """A key on a connection of its own, whose end deletes the key. A thread gives signs of life.

    A process that is stopped, or cut off, for longer than the server's lease time loses it. More
    keys may be set on the same connection, which share its fate.
    """

    def __init__(self, link: Link, name: str, key: bytes, value: bytes, until_s: float) -> None:
        self._link = link
        self._name = name
        self._lost = ""
        self._released = False
        self._asking = threading.Lock()
        try:
            link.ask(Code.LEASE, (key, value), until_s, f"{name!r} was not leased in time")
        except BaseException:
            link.close()
            raise
        self._thread = threading.Thread(target=self._beat, name="hal-lease", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    @property
    def lost(self) -> str:
        """Why the key is not this process's any more; "" while it is, as far as is known."""
        return self._lost

    def release(self) -> None:
        """Let the key go. Raises DeadlineExceeded when the thread does not end."""
        self._released = True
        self._link.interrupt()
        self._thread.join(_END_S)
        if self._thread.is_alive():
            raise DeadlineExceeded(f"the lease of {self._name!r} did not end within {_END_S} s")

    def ask(self, code: Code, fields: tuple[bytes, ...], until_s: float) -> Message:
        """The answer to a request on this connection, from any thread.

        Raises StoreError when the lease is lost, or the request is refused.
        """
        if not self._asking.acquire(timeout=max(until_s - time.monotonic(), 0.0)):
            raise LeaseLost(f"the lease of {self._name!r} is lost: the store is silent")
        try:
            return self._link.once(code, until_s, fields)
        except (OSError, WireError) as error:
            raise LeaseLost(f"the lease of {self._name!r} is lost: {error}") from None
        finally:
            self._asking.release()

    def wait_lost(self, deadline_s: float) -> str:
        """Wait until the key is lost, or until that time has passed; gives `lost`."""
        self._thread.join(deadline_s)
        return self._lost

    def _beat(self) -> None:
        """Give signs of life until the connection ends: the server sees both."""
        pause_s = self._link.lease_s / _BEATS
        try:
            while True:
                with self._asking:
                    self._link.once(Code.BEAT, time.monotonic() + self._link.lease_s - pause_s)
                self._link.rest(pause_s)
        except (OSError, HalError, ValueError) as error:
            self._lost = "released" if self._released else str(error) or "the store is silent"
        finally:
            self._link.close()


class _HeldKeys:
    """What this process holds in one store: keys, on the connection of one lease."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._keys: set[bytes] = set()

    def take(
        self, connect: Callable[[], Link], name: str, key: bytes, value: bytes, until_s: float
    ) -> Lease:
        with self._lock:
            lease = self._lease
            if lease is not None and not lease.lost:
                if key in self._keys:
                    raise StoreError(f"the key {name!r} is taken: this process has it")
                try:
                    lease.ask(Code.LEASE, (key, value), until_s)
                except LeaseLost:
                    lease = None
            if lease is None or lease.lost:
                self._keys.clear()  # they went with the lease that had them
                lease = self._lease = Lease(connect(), name, key, value, until_s)
            self._keys.add(key)
            return lease

    def drop(self, lease: Lease, keys: Collection[bytes]) -> None:
        with self._lock:
            with suppress(StoreError):
                for key in keys:
                    lease.ask(Code.DELETE, (key,), time.monotonic() + _LEAVE_S)
            if lease is self._lease:
                self._keys.difference_update(keys)
                if not self._keys:
                    self._lease = None
                    with suppress(DeadlineExceeded):
                        lease.release()


_HELD: defaultdict[tuple[str, str], _HeldKeys] = defaultdict(_HeldKeys)
"""By address and token."""
os.register_at_fork(after_in_child=_HELD.clear)


class Hold:
    """Keys that this process sets together and lets go together."""

    def __init__(self, address: str, token: str, connect: Callable[[], Link], prefix: str) -> None:
        self._held = _HELD[address, token]
        self._connect = connect
        self._prefix = prefix
        self._keys: dict[bytes, Lease] = {}
        self._process = os.getpid()

    def set(self, key: str, value: bytes, deadline_s: float) -> None:
        """Set a key. Raises StoreError when it has a value already."""
        name = self._prefix + key
        until_s = time.monotonic() + deadline_s
        lease = self._held.take(self._connect, name, name.encode(), value, until_s)
        self._keys[name.encode()] = lease

    @property
    def there(self) -> bool:
        """Whether this process has set keys, and all of them are its own, as far as is known."""
        own = os.getpid() == self._process and bool(self._keys)
        return own and not any(of.lost for of in self._keys.values())

    def release(self) -> None:
        """Let all keys go. Does not fail: a store that does not answer deletes them by itself."""
        if os.getpid() != self._process:
            return  # they are its parent's
        for lease in set(self._keys.values()):
            self._held.drop(lease, [key for key, of in self._keys.items() if of is lease])
        self._keys.clear()
