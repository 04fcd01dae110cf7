"""Which rank runs where, and on which device."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that runs `slots` ranks on these devices, in turn. `name` is what reaches it; ""
    is the launcher's own machine."""

    name: str
    slots: int
    devices: tuple[str, ...]

    def __str__(self) -> str:
        return self.name or "this host"


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank's place: the number of its host among the job's, and its device there."""

    rank: int
    host: int
    local_rank: int
    local_size: int
    device: str


def seats(hosts: Sequence[Host], size: int) -> tuple[Seat, ...]:
    """Ranks 0 to `size` - 1, host by host, each host filled before the next.

    Ranks of a host take its devices in turn; more ranks than devices share them. Raises
    InvalidCall when the hosts have too few slots.
    """
    slots = sum(host.slots for host in hosts)
    if size < 1:
        raise InvalidCall(f"{size} ranks are asked for; a job has at least 1")
    if size > slots:
        counted = ", ".join(f"{host}: {host.slots}" for host in hosts)
        raise InvalidCall(
            f"{size} ranks are asked for, but the hosts have {slots} slots: {counted}"
        )
    found: list[Seat] = []
    for number, host in enumerate(hosts):
        first = len(found)
        here = min(host.slots, size - first)
        found += [
            Seat(first + i, number, i, here, host.devices[i % len(host.devices)])
            for i in range(here)
        ]
    return tuple(found)


def share(cpus: Sequence[int], local_rank: int, local_size: int) -> frozenset[int]:
    """The processors of one of the ranks of a host: neighbours, as many for each as there are.

    With fewer processors than ranks each has one, and some have the same. A rank's libraries start
    as many threads as it may use processors, so that ranks do not take each other's.
    """
    ordered = sorted(cpus)
    if len(ordered) < local_size:
        return frozenset({ordered[local_rank % len(ordered)]})
    first, end = (len(ordered) * (local_rank + i) // local_size for i in (0, 1))
    return frozenset(ordered[first:end])


def device_names(text: str) -> tuple[str, ...]:
    """The names in "cpu:0,cpu:1". Raises InvalidCall for what cannot be a device."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        plugin, _, index = name.partition(":")
        if not plugin or not index.isascii() or not index.isdecimal():
            raise InvalidCall(
                f'{name!r} in {text!r} is not a device name; it is "plugin:index", and `hal '
                "devices` lists those there are"
            )
    return names
