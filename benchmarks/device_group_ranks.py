"""A rank that adds up device memory with the others, in turns in each way that there is:
`hal run -n 2 --devices cpu:0 -m benchmarks.device_group_ranks ROUNDS`. Rank 0 prints as JSON, for
each way, the seconds of every call from the ranks' meeting to the end of its wait, and the seconds
that this rank's process computed in it."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass

import hal
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.values import AllocOptions, Collective, CollectiveKind, Region
from stack.comm.choose.override import parse_override
from stack.comm.device.group import DeviceGroup
from stack.comm.group import Group
from stack.comm.store import Store
from stack.comm.world import World

NBYTES = 64 << 20
SUM = Collective(CollectiveKind.ALL_REDUCE, DType.F32, NBYTES // DType.F32.nbytes)
WAIT_S = 60.0


@dataclass(frozen=True)
class Way:
    """A group, and the memory that it adds up in place."""

    members: DeviceGroup
    region: Region

    def call(self) -> None:
        """One sum, to its end on this rank."""
        device = self.members.device
        if not device.wait([self.members.start(SUM, self.region, self.region)], WAIT_S, True):
            raise TimeoutError(f"a sum did not end in {WAIT_S} s")


def ways(device: Device, own: DeviceGroup, engine: DeviceGroup) -> dict[str, Way]:
    """The plugin's own group, and the engine on memory as the device allocates it and on memory
    that the ranks share."""
    private = device.alloc(NBYTES, AllocOptions(zero=True)).region()
    shared = engine.alloc(NBYTES).region()
    return {
        "own": Way(own, private),
        "private": Way(engine, private),
        "shared": Way(engine, shared),
    }


def timed(way: Way, meet: Group) -> tuple[float, float]:
    """The seconds of a call, and those that this process computed."""
    meet.barrier()
    start, computed = time.perf_counter(), time.process_time()
    way.call()
    return time.perf_counter() - start, time.process_time() - computed


def main(rounds: int) -> None:
    world = World.from_environment()
    store = Store.of(world)
    place = world.rank, world.size, world.deadline_s
    names = ("meet", "own", "engine")
    meet, *others = (Group.join(store, world.store, f"{world.job}/{n}", *place) for n in names)
    with hal.open(world.device, wrappers=()) as device:
        rules = (parse_override(f"all_reduce={who}") for who in ("device", "engine"))
        own, engine = (DeviceGroup(g, device, r) for g, r in zip(others, rules, strict=True))
        every = ways(device, own, engine)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in every}
        for _ in range(rounds):
            for name, way in every.items():
                found[name].append(timed(way, meet))
        own.close()
        engine.close()
    if world.rank == 0:
        sys.stdout.write(json.dumps(found) + "\n")
    for group in (meet, *others):
        group.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
