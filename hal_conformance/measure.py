"""The figures of `hal.core.description.PERFORMANCE`, measured on a device as its text says.

The device is open without wrappers. Every function gives the tries of one round; `figure` makes a
round's figure of them.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from hal.core.description import LARGE_NBYTES, Feature
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import HalError
from hal.core.facts import dataclass
from hal.core.values import (
    AllocOptions,
    Buffer,
    Collective,
    CollectiveKind,
    Launchable,
    Point,
    Program,
    Timeline,
)
from hal.tile.build import Builder, add, const, mul, program_id
from hal.tile.kernel import Kernel
from hal.tile.node import Node
from hal_conformance.crowd import join
from hal_conformance.expect import Unfit
from hal_conformance.rig import WAIT_S, Rig

TRIES = 9
_SMALL_TRIES = 33
_SMALL_NBYTES = 64 << 10
_COUNT = LARGE_NBYTES // 4
_BLOCK = 256
_INSTANCES = 256


@dataclass(frozen=True, slots=True)
class Bench:
    """The device, a timeline of it, and what the declared figure is."""

    rig: Rig
    device: Device
    timeline: Timeline
    declared: float

    def timed(self, *points: Point) -> float:
        """The time at which the points are reached."""
        if not self.device.wait(points, WAIT_S, True):
            raise TimeoutError(f"{self.device.name}: a measured operation took {WAIT_S} s")
        return time.perf_counter()


def figure(bench: Bench, key: str) -> float:
    """One round: the median of the tries."""
    return statistics.median(_TRIES[key](bench))


def _launches(bench: Bench) -> Iterator[float]:
    empty = _empty(bench)
    for _ in range(_SMALL_TRIES):
        begin = time.perf_counter()
        point = bench.device.launch(empty, (1, 1, 1), bench.timeline, ())
        yield time.perf_counter() - begin
        bench.timed(point)


def _round_trips(bench: Bench) -> Iterator[float]:
    empty = _empty(bench)
    for _ in range(_SMALL_TRIES):
        begin = time.perf_counter()
        yield bench.timed(bench.device.launch(empty, (1, 1, 1), bench.timeline, ())) - begin


def _allocs(bench: Bench) -> Iterator[float]:
    options = AllocOptions()
    for _ in range(_SMALL_TRIES):
        begin = time.perf_counter()
        bench.device.free(bench.device.alloc(_SMALL_NBYTES, options))
        yield time.perf_counter() - begin


def _loads(bench: Bench) -> Iterator[float]:
    for number in range(TRIES):
        source = bench.rig.source(_vector_addition(f"load_{number}"), bench.device)
        begin = time.perf_counter()
        program = bench.device.load(source)
        yield time.perf_counter() - begin
        bench.device.free(program)


def _host_to_device(bench: Bench) -> Iterator[float]:
    for _ in range(TRIES):
        host = np.ones(LARGE_NBYTES, np.uint8).data
        with _written(bench, 1) as (buffer,):
            begin = time.perf_counter()
            point = bench.device.copy(buffer.region(), host, bench.timeline, ())
            yield LARGE_NBYTES / (bench.timed(point) - begin)


def _device_to_host(bench: Bench) -> Iterator[float]:
    for _ in range(TRIES):
        host = np.ones(LARGE_NBYTES, np.uint8).data
        with _written(bench, 1) as (buffer,):
            begin = time.perf_counter()
            point = bench.device.copy(host, buffer.region(), bench.timeline, ())
            yield LARGE_NBYTES / (bench.timed(point) - begin)


def _device_to_device(bench: Bench) -> Iterator[float]:
    for _ in range(TRIES):
        with _written(bench, 2) as (dst, src):
            begin = time.perf_counter()
            point = bench.device.copy(dst.region(), src.region(), bench.timeline, ())
            yield LARGE_NBYTES / (bench.timed(point) - begin)


def _queue_depth(bench: Bench) -> Iterator[float]:
    gate = bench.rig.gate(bench.device)
    most = round(2 * bench.declared)
    with _written(bench, 1, _SMALL_NBYTES) as (buffer,):
        region, count, point = buffer.region(0, 4), 0, None
        with contextlib.suppress(HalError):  # an operation more than it holds is refused
            while count < most:
                point = bench.device.fill(region, b"\1", bench.timeline, (gate.point,))
                count += 1
        gate.open()
        if point is not None:
            bench.timed(point)
        yield count


def _overlaps(bench: Bench) -> Iterator[float]:
    if bench.rig.info.limits.queues < 2:
        raise Unfit("the device has one timeline")
    second = bench.device.create_timeline(False)
    program = bench.device.load(bench.rig.source(_large_addition(), bench.device))
    for _ in range(TRIES):
        apart = _copy_and_kernel(bench, program, bench.timeline)
        yield apart / _copy_and_kernel(bench, program, second)


def _copy_and_kernel(bench: Bench, program: Program, of_kernel: Timeline) -> float:
    """Seconds of a copy on the bench's timeline and a vector addition on a given one."""
    device = bench.device
    with _written(bench, 5) as (dst, src, x, y, z):
        launchable = device.bind(program, (x, y, z))
        begin = time.perf_counter()
        copied = device.copy(dst.region(), src.region(), bench.timeline, ())
        added = device.launch(launchable, (_INSTANCES, 1, 1), of_kernel, ())
        return bench.timed(copied, added) - begin


def _all_reduces(bench: Bench) -> Iterator[float]:
    others = [name for name in bench.rig.setting.peers if name != bench.rig.name]
    if not others or Feature.COLLECTIVES not in bench.rig.info.features:
        raise Unfit("the plugin has one device, or it has no collectives")
    peers = [_bench_of(bench.rig, name) for name in others]
    benches = (bench, *peers)
    members = join(bench.rig, [each.device for each in benches])
    for _ in range(TRIES):
        with contextlib.ExitStack() as stack:
            pairs = [stack.enter_context(_written(each, 2)) for each in benches]
            begin = time.perf_counter()
            points = [
                member.call(_SUM, dst.region(), src.region())
                for member, (dst, src) in zip(members, pairs, strict=True)
            ]
            ends = map(Bench.timed, benches, points)
            yield LARGE_NBYTES / (max(ends) - begin)


_SUM = Collective(CollectiveKind.ALL_REDUCE, DType.F32, _COUNT)

_TRIES: Mapping[str, Callable[[Bench], Iterator[float]]] = {
    "launch_s": _launches,
    "round_trip_s": _round_trips,
    "alloc_s": _allocs,
    "load_s": _loads,
    "host_to_device": _host_to_device,
    "device_to_host": _device_to_host,
    "device_to_device": _device_to_device,
    "queue_depth": _queue_depth,
    "overlap": _overlaps,
    "all_reduce": _all_reduces,
}


def _bench_of(rig: Rig, name: str) -> Bench:
    device = rig.open(name, wrappers=(), cache_dir="")
    return Bench(rig, device, device.create_timeline(False), 0)


@contextlib.contextmanager
def _written(bench: Bench, count: int, nbytes: int = LARGE_NBYTES) -> Iterator[list[Buffer]]:
    """Fresh buffers that were written once; freed at the end."""
    device = bench.device
    buffers = [device.alloc(nbytes, AllocOptions()) for _ in range(count)]
    fills = [device.fill(b.region(), b"\0", bench.timeline, ()) for b in buffers]
    bench.timed(*fills)
    try:
        yield buffers
    finally:
        for buffer in buffers:
            device.free(buffer)


def _empty(bench: Bench) -> Launchable:
    """A program that does nothing, bound."""
    program = bench.device.load(bench.rig.source(Builder("empty").kernel(), bench.device))
    return bench.device.bind(program, ())


def _vector_addition(name: str) -> Kernel:
    """z = x + y in float32, an element by an instance."""
    b = Builder(name)
    x, y = b.buffer("x", DType.F32), b.buffer("y", DType.F32)
    z = b.buffer("z", DType.F32, reads=False, writes=True)
    at = program_id()
    b.store(z, at, add(b.load(x, at), b.load(y, at)))
    return b.kernel()


def _large_addition() -> Kernel:
    """z = x + y for LARGE_NBYTES of float32, in blocks, over _INSTANCES instances."""
    b = Builder("large_addition")
    x, y = b.buffer("x", DType.F32), b.buffer("y", DType.F32)
    z = b.buffer("z", DType.F32, reads=False, writes=True)
    blocks = _COUNT // _INSTANCES // _BLOCK

    def add_block(number: Node) -> None:
        at = mul(add(mul(program_id(), blocks), number), _BLOCK)
        left, right = (b.load(memory, at, (_BLOCK,), (1,)) for memory in (x, y))
        b.store(z, at, add(left, right), (1,))

    b.loop(0, blocks, 1, add_block)
    return b.kernel()


_RATE_WIDTH, _RATE_CHAINS, _RATE_ROUNDS = 64, 4, 512


def rate(rig: Rig, dtype: DType) -> float:
    """Operations/s of multiplications and additions on tiles that stay where they are, over all
    instances; by the device's own clock where its spans have one. The most of some tries."""
    device, line = rig.device, rig.timeline()
    instances = 4 * rig.info.limits.instances
    out = rig.buffer(instances * _RATE_WIDTH * dtype.nbytes)
    bound = device.bind(rig.program(_chains(dtype)), (out, _RATE_ROUNDS))
    operations = 2 * _RATE_WIDTH * _RATE_CHAINS * _RATE_ROUNDS * instances
    best = 0.0
    for _ in range(TRIES):
        begin = time.perf_counter()
        point = device.launch(bound, (instances, 1, 1), line, ())
        rig.done(point)
        seconds = time.perf_counter() - begin
        if Feature.TIMESTAMPS in rig.info.features and (spans := device.timestamps(point)):
            own_ns = spans[0].device_ns
            seconds = own_ns * 1e-9 if own_ns else seconds
        best = max(best, operations / seconds)
    return best


def _chains(dtype: DType) -> Kernel:
    """Several sums that do not wait for each other, each a multiplication and an addition."""
    b = Builder("chains")
    y, rounds = b.buffer("y", dtype, reads=False, writes=True), b.scalar("rounds", DType.I64)

    def body(_: Node, *sums: Node) -> list[Node]:
        return [add(mul(x, 0.5), 1.0) for x in sums]

    first = [const(float(i), dtype, (_RATE_WIDTH,)) for i in range(_RATE_CHAINS)]
    total, *rest = b.loop(0, rounds, 1, body, first)
    for one in rest:
        total = add(total, one)
    b.store(y, mul(program_id(), _RATE_WIDTH), total, (1,))
    return b.kernel()
