"""Members of a group in a process of their own, on devices whose driver joins processes:
python -m tests.hosted.members JOB, a JSON object with the group's `key`, `size` and `peers`, the
`ranks` here, `timeout_s`, and for a driver that joins processes the `seats` of all
ranks, and a folder as `shelf`.

Prints "ready", and behind a first line of input "joined", or what refused it. Then, for each line:
for "go" and a call (`hal.hosted.wire`), what each rank has of it in hexadecimal, or its failure;
for "abort", the call and seconds, the same, where the first rank gives up after so long; "exit"
ends the process with the devices open.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from hal.core.description import Feature, Link
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, HalError, OperationFailed, Scope
from hal.core.values import AllocOptions, CollectiveKind, GroupSpec
from hal.core.wrappers.validation import validate
from hal.hosted.device import HostedDevice
from hal.hosted.order import Order
from hal.hosted.wire import call_of
from hal.tile.numeric import NUMPY
from hal_conformance.collectives import source_count, wanted_count
from tests.hosted.conftest import TinyMachine, describe

WAIT_S = 30.0
LINKS = tuple(Link(f"tiny:{rank}", "memory", 0, 0) for rank in range(8))


def drawn(call, rank, size):
    """What a rank brings to a call."""
    rng = np.random.default_rng([rank, size, call.count])
    count = source_count(call, rank, size)
    if call.dtype.is_float:
        return rng.integers(-3, 4, count).astype(NUMPY[call.dtype])  # exact in any order
    return rng.integers(0, 2 if call.dtype is DType.BOOL else 100, count).astype(NUMPY[call.dtype])


class Shelf(TinyMachine):
    """One whose driver joins processes: each rank lays float32 on a shelf, a folder that rank 0's
    names, and adds what lies there. One of the seat "stuck" never does its part."""

    def __init__(self, job, rank):
        super().__init__()
        self.said, self.shelf = job["seats"][rank], job["shelf"]

    @property
    def seat(self):
        return self.said

    def invite(self):
        return self.shelf.encode()

    def group(self, machines, to, goes_on):
        return ShelfGroup(machines, to)


class ShelfGroup:
    def __init__(self, machines, to):
        self.machines, self.size, self.shelf = machines, to.size, Path(to.words.decode())
        self.calls = 0

    def takes(self, call, rank, dst, src):
        return call.kind is CollectiveKind.ALL_REDUCE and call.root == 0

    def collect(self, call, ends, goes_on):
        self.calls += 1
        for rank, (_, src) in ends.items():
            if self.machines[rank].seat == "stuck":
                time.sleep(WAIT_S)
            place = self.shelf / f"{self.calls}-{rank}"
            place.with_suffix(".new").write_bytes(src.memory[src.offset : src.offset + src.nbytes])
            place.with_suffix(".new").rename(place)
        places = [self.shelf / f"{self.calls}-{rank}" for rank in range(self.size)]
        until_s = time.monotonic() + WAIT_S
        while not all(place.exists() for place in places) and time.monotonic() < until_s:
            goes_on(min(ends))
            time.sleep(0.001)
        total = sum(np.frombuffer(place.read_bytes(), np.float32) for place in places)
        for dst, _ in ends.values():
            # One more, so that it is seen who did it
            dst.memory[dst.offset : dst.offset + dst.nbytes] = (total + 1).tobytes()


class One:
    """A rank: its device, and its part in the group."""

    def __init__(self, rank, job, machine):
        name = f"tiny:{rank}"
        info = describe(name)
        info = replace(info, features=info.features | {Feature.GROUP_IPC}, links=LINKS)
        info = replace(info, limits=replace(info.limits, progress_s=5.0))
        self.rank, self.size = rank, job["size"]
        self.device = Device(HostedDevice(info, machine, Order()), name, [validate])
        self.peers = tuple(job["peers"])
        self.spec = GroupSpec(job["key"], rank, self.peers, job["timeout_s"])

    def join(self):
        self.group = self.device.create_group(self.spec)

    def call(self, call):
        """What the rank has of it in the end."""
        device, timeline = self.device, self.device.create_timeline(False)
        data = drawn(call, self.rank, self.size)
        src = device.alloc(data.nbytes, AllocOptions())
        dst = device.alloc(wanted_count(call, self.rank, self.size) * data.itemsize, AllocOptions())
        device.copy(src.region(), data.tobytes(), timeline, ())
        point = device.collective(self.group, call, dst.region(), src.region(), timeline, ())
        out = bytearray(dst.nbytes)
        end = device.copy(out, dst.region(), timeline, (point,))
        assert device.wait([end], WAIT_S, True)
        for held in (src, dst, timeline):
            device.free(held)
        return out.hex()

    def said(self, call):
        """The same in words, with what failed."""
        try:
            return self.call(call)
        except OperationFailed as error:
            return f"failed {error.failure.kind.value} {error.failure.message}"
        except HalError as error:
            return f"refused {type(error).__name__} {error}"


def main(job):
    ones = [
        One(rank, job, Shelf(job, rank) if "seats" in job else TinyMachine())
        for rank in job["ranks"]
    ]
    click.echo("ready")
    sys.stdin.readline()
    with ThreadPoolExecutor(len(ones)) as pool:
        try:
            list(pool.map(One.join, ones))
        except HalError as error:
            click.echo(f"refused {type(error).__name__} {error}")
            return
        click.echo("joined")
        for line in sys.stdin:
            word, *rest = json.loads(line)
            if word == "exit":
                return
            begun = [pool.submit(one.said, call_of(rest[0])) for one in ones]
            if word == "abort":
                time.sleep(rest[1])
                stop = Failure(FailureKind.ABORTED, Scope.PEER, "tiny:0", "abort", "enough")
                ones[0].device.abort(ones[0].group, stop)
            click.echo(json.dumps([one.result(2 * WAIT_S) for one in begun]))
    for one in ones:
        one.device.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
