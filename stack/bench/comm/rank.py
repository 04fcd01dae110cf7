"""A rank of `hal bench comm`: `python -m stack.bench.comm.rank OPTIONS`, under `hal run`."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import asdict

from hal.core.facts import dataclass
from hal.core.values import CollectiveKind
from stack.bench.comm.device import DeviceMemory
from stack.bench.comm.times import CollectiveTime, HostMemory, kind_of, rows_between_hosts, times
from stack.comm.choose.choices import keep
from stack.comm.choose.network import network_of_hosts
from stack.comm.group import Group
from stack.comm.store import Store
from stack.comm.world import World


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is to be measured: a kind by its name, bytes, and in which memory: of the host, or of
    each rank's device."""

    kind: str
    sizes: tuple[int, ...]
    shared: bool
    on_devices: bool

    def text(self) -> str:
        """For the command line of a rank."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class RanksReport:
    """What was measured among `size` ranks of `hosts` hosts. `table` is the file to which the times
    of programs were added; "" where none was measured."""

    size: int
    hosts: int
    times: tuple[CollectiveTime, ...]
    table: str

    def text(self) -> str:
        return json.dumps(asdict(self))


def found_in(text: str) -> RanksReport:
    """What `RanksReport.text` has written."""
    given = json.loads(text)
    return RanksReport(**{**given, "times": tuple(CollectiveTime(**row) for row in given["times"])})


def found_by(world: World, wanted: Sweep) -> RanksReport:
    """Measure as a rank of the job; all ranks get the same, but for `table`, which is rank 0's.

    Programs are measured first, and kept: the times are those of what is chosen from then on.
    """
    kind, group = kind_of(wanted.kind), Group.of(world)
    rows, table = rows_between_hosts(group, kind, wanted.sizes), ""
    if rows:
        if group.rank == 0:
            table = str(keep(network_of_hosts(group.hosts), rows))
        group.barrier()
        group = group.grow(f"{world.job}/measured", group.size)
    with group:
        found = _times(world, group, kind, wanted)
        return RanksReport(world.size, len(set(group.hosts)), tuple(found), table)


def _times(world: World, group: Group, kind: CollectiveKind, wanted: Sweep) -> list[CollectiveTime]:
    if not wanted.on_devices:
        return times(group, HostMemory(group, wanted.shared), kind, wanted.sizes)
    with closing(Store.of(world)) as store:
        key, place = f"{world.job}/clock", (world.rank, world.size, world.deadline_s)
        with (
            Group.join(store, world.store, key, *place) as clock,
            DeviceMemory(group, world.device, wanted.shared) as memory,
        ):
            return times(clock, memory, kind, wanted.sizes)


def main() -> None:
    given = json.loads(sys.argv[1])
    wanted = Sweep(**{**given, "sizes": tuple(given["sizes"])})
    world = World.from_environment()
    found = found_by(world, wanted)
    if world.rank == 0:
        sys.stdout.write(found.text() + "\n")


if __name__ == "__main__":
    main()
