"""Groups of devices of several plugins, which the stack makes: the same cases run on them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hal
from hal.core.device import Device
from hal.core.facts import dataclass
from hal.core.values import OpenOptions
from hal.core.wrappers.named import wrapper
from stack.comm.device.contract import StackGroups
from stack.comm.store import Store, StoreServer

STORE_S = 10.0
"""How long a call of the store may take."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The store in which the members of mixed groups meet."""

    address: str
    token: str

    def open(
        self, registry: hal.Registry, name: str, wrappers: Sequence[Any], options: OpenOptions
    ) -> Device:
        """A device with the stack's groups in the place of its plugin's."""
        raw = registry.open(name, (), options)
        groups = StackGroups(raw, Store(self.address, self.token, STORE_S), self.address)
        around = [wrapper(w) if isinstance(w, str) else w for w in wrappers]
        return Device(groups, name, around)


@contextmanager
def rendezvous() -> Iterator[Rendezvous]:
    """A store for the members of mixed groups."""
    token = secrets.token_hex(16)
    with StoreServer(token) as server:
        yield Rendezvous(f"127.0.0.1:{server.port}", token)
