"""What lies between the ranks of a group, as the few numbers of a LogGP model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from hal.core.description import DeviceInfo
from hal.core.facts import dataclass
from stack.comm.plan.error import PlanError


@dataclass(frozen=True, slots=True)
class Wire:
    """From a rank to another: seconds until the first byte is there, and bytes/s after it."""

    latency_s: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Network:
    """`wires[a][b]` leads from rank a to rank b.

    `places[r]` says where rank r is, from the outermost group to its host; () in a flat group.
    Ranks of one host have ports of their own; what crosses hosts shares the host's port.
    `overhead_s` is what a rank spends on a step besides its bytes. `copied` and `added` are the
    bytes/s of a rank that copies, and that adds two vectors (bytes of the result).
    """

    wires: tuple[tuple[Wire, ...], ...]
    places: tuple[tuple[int, ...], ...]
    overhead_s: float
    copied: tuple[float, ...]
    added: tuple[float, ...]

    def __post_init__(self) -> None:
        size = len(self.wires)
        if {len(row) for row in self.wires} != {size} or len(self.places) != size:
            raise PlanError(f"a network of {size} ranks has {size} wires and a place for each rank")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.wires)

    @property
    def levels(self) -> int:
        """How many levels of groups there are above the ranks of a host: 0 on one host."""
        return len(self.places[0]) if len(set(self.places)) > 1 else 0

    def signature(self) -> str:
        """Equal for equal networks; a part of file names."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


INSIDE = Wire(2e-6, 4e9)
ACROSS = Wire(4e-5, 1e9)
OVERHEAD_S = 1e-6
COPIED = 8e9
"""What is assumed where no device declares a number: the order of magnitude of memory that two
processes share, of a socket between hosts, of a step, and of one core that copies. They decide only
until something is measured."""


def uniform(size: int, wire: Wire = INSIDE, copied: float = COPIED) -> Network:
    """A flat group with equal wires."""
    places: tuple[tuple[int, ...], ...] = ((),) * size
    added = _added(copied)
    return Network(((wire,) * size,) * size, places, OVERHEAD_S, (copied,) * size, (added,) * size)


def network_of_hosts(hosts: Sequence[int]) -> Network:
    """The network of ranks of which only the hosts are known, by a number for each rank."""
    wires = tuple(tuple(INSIDE if a == b else ACROSS for b in hosts) for a in hosts)
    return replace(uniform(len(hosts)), wires=wires, places=tuple((host,) for host in hosts))


def network_of(infos: Sequence[DeviceInfo], places: Sequence[tuple[int, ...]] = ()) -> Network:
    """The network of a group by what its devices declare, in rank order.

    A link counts between ranks of one host, with the numbers that it declares; what it does not
    declare (0) is taken to be as `INSIDE`. Between hosts it is `ACROSS`, and so is what a device
    has no link to. A device copies with its declared "device_to_device".
    """
    where = tuple(places) or ((),) * len(infos)
    rows = [
        tuple(_wire(a, infos[a], b, infos[b], where) for b in range(len(infos)))
        for a in range(len(infos))
    ]
    copied = tuple(info.declared.get("device_to_device", 0) or COPIED for info in infos)
    return Network(tuple(rows), where, OVERHEAD_S, copied, tuple(map(_added, copied)))


def _wire(
    a: int, mine: DeviceInfo, b: int, its: DeviceInfo, places: Sequence[tuple[int, ...]]
) -> Wire:
    if places[a] != places[b]:
        return ACROSS
    if mine.name == its.name:
        return INSIDE
    link = next((link for link in mine.links if link.peer == its.name), None)
    if link is None:
        return ACROSS
    return Wire(link.latency or INSIDE.latency_s, link.bandwidth or INSIDE.bandwidth)


def _added(copied: float) -> float:
    """Adding reads two operands and writes one: three accesses where a copy has two."""
    return copied * 2 / 3
