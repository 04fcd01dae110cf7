"""How the ranks of a torch process group become a group of the stack."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import timedelta

import torch.distributed as dist

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from stack.comm.group import Group
from stack.comm.store import Store, StoreServer
from stack.comm.world import World

_KEY = "hal-meeting"
_ALONE = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class _Card:
    """Where to meet: rank 0 writes it into torch's store."""

    address: str
    token: str
    key: str


def meet(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Group:
    """The group of the ranks that share torch's `store`: they meet in the job's own store under
    `hal run`, else in one that rank 0 serves until all have met.

    Raises as `Group.join`, and what torch's store raises when rank 0 does not come in time.
    """
    deadline_s = timeout.total_seconds()
    if rank:
        return _join(_Card(**json.loads(store.get(_KEY))), rank, size, deadline_s)
    with _place(store) as card:
        store.set(_KEY, json.dumps(asdict(card)))
        group = _join(card, rank, size, deadline_s)
        group.barrier()  # until then others need the store
    return group


def _join(card: _Card, rank: int, size: int, deadline_s: float) -> Group:
    with closing(Store(card.address, card.token, deadline_s)) as store:
        group = Group.join(store, card.address, card.key, rank, size, deadline_s)
    if rank:
        group.barrier()
    return group


@contextmanager
def _place(store: dist.Store) -> Iterator[_Card]:
    key = f"torch/{secrets.token_hex(8)}"
    if world := World.present():
        yield _Card(world.store, world.token, key)
        return
    token, host = secrets.token_hex(16), _own_address(store)
    with StoreServer(token, host) as server:
        yield _Card(
            f"[{host}]:{server.port}" if ":" in host else f"{host}:{server.port}", token, key
        )


def _own_address(store: dist.Store) -> str:
    """This host's address on its way to that of torch's store. One without an address is a file or
    a table in memory: its ranks are of this host."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore):
        return _ALONE
    try:
        found = socket.getaddrinfo(store.host, store.port, type=socket.SOCK_DGRAM)
        family, _, _, _, place = found[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.setblocking(False)
            probe.connect(place)  # looks up the way, and sends nothing
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise InvalidCall(
            f"torch's store is at {store.host}, which is not found: {error}"
        ) from error
    return _ALONE if address == "::1" else address
