"""What the device does in practice: the figures of `DeviceInfo.declared`, by the contract's method.

A figure is the median of tries, each on buffers that were allocated for it and written once. The
tries of all figures take turns in rounds: what else the machine does for some milliseconds is in
few tries of each. A plugin brings the texts of two programs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from statistics import median

from hal.core.description import LARGE_NBYTES
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import PluginError
from hal.core.facts import dataclass
from hal.core.values import (
    AllocOptions,
    Buffer,
    Collective,
    CollectiveKind,
    Group,
    GroupSpec,
    KernelSource,
    Launchable,
    Param,
    ParamKind,
    Point,
    Program,
    Timeline,
)

ROUNDS, TRIES, SMALL_TRIES = 3, 4, 12
"""Tries of a figure in each round; of one that takes microseconds more."""

QUEUE_DEPTH = 4096
"""How many operations are tried behind a wait."""

_TIMEOUT_S = 20.0
_calibrating = threading.Lock()
_known: dict[Hashable, Mapping[str, float]] = {}
_SMALL_NBYTES = 64 << 10
_BUFFERS = tuple(Param(name, ParamKind.BUFFER, DType.F32, writes=name == "c") for name in "abc")


@dataclass(frozen=True, slots=True)
class Texts:
    """Two programs in a format: `empty`, which takes nothing and does nothing, and `add`, an
    element of c = a + b (float32) by an instance, with a place for a `number` that makes the text a
    new one."""

    format: str
    empty: str
    addition: str


def measured(devices: Sequence[Device], texts: Texts) -> Mapping[str, float]:
    """The figures of the first device; `all_reduce` among all of them if there are several."""
    bench = Bench(devices[0], devices[0].create_timeline(False), texts)
    empty, numbers = bench.empty(), count()
    small: Mapping[str, Callable[[], float]] = {
        "launch_s": lambda: _launch_s(bench, empty),
        "round_trip_s": lambda: _round_trip_s(bench, empty),
        "alloc_s": lambda: _alloc_s(bench),
    }
    large: dict[str, Callable[[], float]] = {
        "load_s": lambda: _load_s(bench, next(numbers)),
        "host_to_device": lambda: LARGE_NBYTES / _to_device_s(bench),
        "device_to_host": lambda: LARGE_NBYTES / _to_host_s(bench),
        "device_to_device": lambda: LARGE_NBYTES / _within_s(bench),
        "overlap": lambda: _overlap(bench),
    }
    if len(devices) > 1:
        members = _joined([Bench(d, d.create_timeline(False), texts) for d in devices])
        large["all_reduce"] = lambda: LARGE_NBYTES / _all_reduce_s(members)
    tries: dict[str, list[float]] = {key: [] for key in (*small, *large)}
    for _ in range(ROUNDS):
        for key, try_once in small.items():
            tries[key] += [try_once() for _ in range(SMALL_TRIES)]
        for key, try_once in large.items():
            tries[key] += [try_once() for _ in range(TRIES)]
    figures = {key: median(found) for key, found in tries.items()}
    return figures | {"queue_depth": _queue_depth(bench)}


def figures(
    key: Hashable, names: Sequence[str], opened: Callable[[int], object], texts: Texts
) -> Mapping[str, float]:
    """The figures of devices that `opened` opens by index, and which are closed again; measured
    once in a process for each `key`."""
    with _calibrating, ExitStack() as stack:
        if key not in _known:
            devices = [
                stack.enter_context(closing(Device(opened(index), name)))
                for index, name in enumerate(names)
            ]
            _known[key] = measured(devices, texts)
        return _known[key]


@dataclass(frozen=True, slots=True)
class Bench:
    """A device and a timeline of it to measure on."""

    device: Device
    timeline: Timeline
    texts: Texts

    def wait(self, *points: Point) -> None:
        """Wait for the points. Raises PluginError when they take longer than any should."""
        if not self.device.wait(points, _TIMEOUT_S, True):
            raise PluginError(f"calibration: the device did not answer in {_TIMEOUT_S:g} s")

    @contextmanager
    def written(self, count: int, nbytes: int = LARGE_NBYTES) -> Iterator[list[Buffer]]:
        """Fresh buffers, each written once."""
        buffers = [self.device.alloc(nbytes, AllocOptions()) for _ in range(count)]
        for buffer in buffers:
            self.wait(self.device.fill(buffer.region(), b"\1", self.timeline, ()))
        yield buffers
        for buffer in buffers:
            self.device.free(buffer)

    def program(self, text: str, entry: str, params: tuple[Param, ...]) -> Program:
        """A program, loaded."""
        return self.device.load(KernelSource(self.texts.format, text, entry, params))

    def empty(self) -> Launchable:
        """A program that does nothing, bound."""
        return self.device.bind(self.program(self.texts.empty, "empty", ()), ())


def _seconds(work: Callable[[], object]) -> float:
    start_ns = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start_ns) / 1e9


def _launch_s(bench: Bench, empty: Launchable) -> float:
    points: list[Point] = []
    launch, line = bench.device.launch, bench.timeline
    seconds = _seconds(lambda: points.append(launch(empty, (1, 1, 1), line, ())))
    bench.wait(*points)
    return seconds


def _round_trip_s(bench: Bench, empty: Launchable) -> float:
    launch, line = bench.device.launch, bench.timeline
    return _seconds(lambda: bench.wait(launch(empty, (1, 1, 1), line, ())))


def _alloc_s(bench: Bench) -> float:
    device = bench.device
    return _seconds(lambda: device.free(device.alloc(_SMALL_NBYTES, AllocOptions())))


def _load_s(bench: Bench, number: int) -> float:
    text = bench.texts.addition.format(number=number)
    source = KernelSource(bench.texts.format, text, "add", _BUFFERS)
    programs: list[Program] = []
    seconds = _seconds(lambda: programs.append(bench.device.load(source)))
    bench.device.free(programs.pop())
    return seconds


def _to_device_s(bench: Bench) -> float:
    host = bytes(range(256)) * (LARGE_NBYTES // 256)
    with bench.written(1) as (buffer,):
        copy = bench.device.copy
        return _seconds(lambda: bench.wait(copy(buffer.region(), host, bench.timeline, ())))


def _to_host_s(bench: Bench) -> float:
    host = bytearray(b"\1") * LARGE_NBYTES
    with bench.written(1) as (buffer,):
        copy = bench.device.copy
        return _seconds(lambda: bench.wait(copy(host, buffer.region(), bench.timeline, ())))


def _within_s(bench: Bench) -> float:
    with bench.written(2) as (dst, src):
        copy = bench.device.copy
        return _seconds(lambda: bench.wait(copy(dst.region(), src.region(), bench.timeline, ())))


def _overlap(bench: Bench) -> float:
    """How much faster a copy and a kernel are on two timelines than on one."""
    other = bench.device.create_timeline(False)
    program = bench.program(bench.texts.addition.format(number="of overlap"), "add", _BUFFERS)
    ratio = _both_s(bench, program, bench.timeline) / _both_s(bench, program, other)
    bench.device.free(program)
    bench.device.free(other)
    return ratio


def _both_s(bench: Bench, program: Program, of_kernel: Timeline) -> float:
    device, grid = bench.device, (LARGE_NBYTES // 4, 1, 1)
    with bench.written(5) as (dst, src, *operands):
        add = device.bind(program, operands)

        def run() -> None:
            copied = device.copy(dst.region(), src.region(), bench.timeline, ())
            bench.wait(copied, device.launch(add, grid, of_kernel, ()))

        seconds = _seconds(run)
        device.free(add)
    return seconds


def _queue_depth(bench: Bench) -> float:
    """Operations behind a wait, as many as were tried: the queue ends with the memory."""
    gate = bench.device.create_timeline(True)
    with bench.written(1, _SMALL_NBYTES) as (buffer,):
        fill, region, waits = bench.device.fill, buffer.region(), (Point(gate, 1),)
        points = [fill(region, b"\1", bench.timeline, waits) for _ in range(QUEUE_DEPTH)]
        bench.device.signal(gate, 1, None)
        bench.wait(points[-1])
    bench.device.free(gate)
    return float(len(points))


_Member = tuple[Bench, Group]


def _joined(benches: Sequence[Bench]) -> Sequence[_Member]:
    """A group of the devices, which join at once."""
    peers = tuple(bench.device.name for bench in benches)
    key = f"calibration {os.getpid()}"
    with ThreadPoolExecutor(len(benches)) as threads:
        joins = [
            threads.submit(bench.device.create_group, GroupSpec(key, rank, peers, _TIMEOUT_S))
            for rank, bench in enumerate(benches)
        ]
        groups = [join.result(2 * _TIMEOUT_S) for join in joins]
    return tuple(zip(benches, groups, strict=True))


_SUM = Collective(CollectiveKind.ALL_REDUCE, DType.F32, LARGE_NBYTES // 4)


def _all_reduce_s(members: Sequence[_Member]) -> float:
    """A sum over all devices, from the first member's call to the last one's end."""
    with ExitStack() as stack:
        pairs = [stack.enter_context(bench.written(2)) for bench, _ in members]
        start_ns = time.perf_counter_ns()
        points = [
            bench.device.collective(group, _SUM, dst.region(), src.region(), bench.timeline, ())
            for (bench, group), (dst, src) in zip(members, pairs, strict=True)
        ]
        for (bench, _), point in zip(members, points, strict=True):
            bench.wait(point)
        return (time.perf_counter_ns() - start_ns) / 1e9
