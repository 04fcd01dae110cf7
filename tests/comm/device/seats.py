"""Ranks of a test with devices: in threads, each with its device and its part in every group."""

from contextlib import contextmanager

import numpy as np

from hal.core.values import AllocOptions
from stack.comm.device.group import DeviceGroup
from stack.comm.group import Group
from stack.comm.store import Store
from tests.comm.device.devices import open_device
from tests.comm.engine.crew import WAIT_S, crews


class Seat:
    """A rank: its device, and its part in each group by the group's ranks."""

    def __init__(self, name):
        self.device = open_device(name)
        self.timeline = self.device.create_timeline(False)
        self.parts = {}

    def put(self, array, part=None):
        """A buffer with these elements, and the point at which they are there; the buffer is made
        for calls of the group if its `part` is given."""
        make = part.alloc if part else lambda n: self.device.alloc(n, AllocOptions())
        buffer = make(array.nbytes)
        return buffer, self.device.copy(buffer.region(), array.tobytes(), self.timeline, ())

    def get(self, buffer, dtype, *waits):
        """The elements of a buffer after these points."""
        host = bytearray(buffer.nbytes)
        self.done(self.device.copy(host, buffer.region(), self.timeline, waits))
        return np.frombuffer(host, dtype)

    def done(self, *points):
        assert self.device.wait(points, WAIT_S, True)


@contextmanager
def seated_as(world, groups):
    """The seat of a rank of a job, in those of these groups that have it."""
    seat, store = Seat(world.device), Store.of(world)
    joined = []
    for ranks in groups:
        if world.rank in ranks:
            place = f"{world.job}/{ranks}", ranks.index(world.rank), len(ranks)
            joined.append(Group.join(store, world.store, *place, world.deadline_s))
            seat.parts[ranks] = DeviceGroup(joined[-1], seat.device)
    yield seat
    for part in seat.parts.values():
        part.close()
    for group in joined:
        group.close()
    seat.device.close()


@contextmanager
def seated(names, *groups, deadline_s=WAIT_S, rules=None, hosts=None):
    """A seat for each device, all of them in the group of all ranks and in those of these ranks.
    `hosts[r]` is where rank r believes to be. Calls have the deadline once all are seated."""
    groups = (tuple(range(len(names))), *groups)
    seats = [Seat(name) for name in names]
    where = [tuple(hosts[r] if hosts else 0 for r in ranks) for ranks in groups]
    with crews(*where) as made:
        for ranks, crew in zip(groups, made, strict=True):
            parts = crew.do(lambda g, r=ranks: DeviceGroup(g, seats[r[g.rank]].device, rules))
            for rank, part in zip(ranks, parts, strict=True):
                seats[rank].parts[ranks] = part
            for group in crew.groups:
                group.deadline_s = deadline_s
        try:
            yield seats
        finally:
            for seat in seats:
                for part in seat.parts.values():
                    part.close()
            for seat in seats:
                seat.device.close()
