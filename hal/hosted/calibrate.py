"""What the device does in practice: the figures of `DeviceInfo.declared`, by the contract's method.

A figure is the median of tries, each on buffers that were allocated for it and written once. A
plugin brings the texts of two programs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from statistics import median

from hal.core.description import LARGE_NBYTES
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import PluginError
from hal.core.values import (
    AllocOptions,
    Buffer,
    Collective,
    CollectiveKind,
    GroupSpec,
    KernelSource,
    Launchable,
    Param,
    ParamKind,
    Point,
    Program,
    Timeline,
)

TRIES = 11
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
    empty, launch = bench.empty(), bench.device.launch

    def try_once() -> float:
        start_ns = time.perf_counter_ns()
        point = launch(empty, (1, 1, 1), bench.timeline, ())
        seconds = (time.perf_counter_ns() - start_ns) / 1e9
        bench.wait(point)
        return seconds

    figures = {
        "launch_s": _median(try_once, 3 * TRIES),
        "round_trip_s": _round_trip_s(bench),
        "alloc_s": _median(lambda: _alloc_s(bench), 3 * TRIES),
        "load_s": median(_load_s(bench, number) for number in range(TRIES)),
        "host_to_device": LARGE_NBYTES / _median(lambda: _to_device_s(bench)),
        "device_to_host": LARGE_NBYTES / _median(lambda: _to_host_s(bench)),
        "device_to_device": LARGE_NBYTES / _median(lambda: _within_s(bench)),
        "queue_depth": _queue_depth(bench),
        "overlap": _median(lambda: _overlap(bench)),
    }
    if len(devices) > 1:
        figures["all_reduce"] = LARGE_NBYTES / _all_reduce_s(devices, texts)
    return figures


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


def _median(try_once: Callable[[], float], tries: int = TRIES) -> float:
    return median(try_once() for _ in range(tries))


def _seconds(work: Callable[[], object]) -> float:
    start_ns = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start_ns) / 1e9


def _round_trip_s(bench: Bench) -> float:
    empty, device = bench.empty(), bench.device

    def try_once() -> float:
        return _seconds(lambda: bench.wait(device.launch(empty, (1, 1, 1), bench.timeline, ())))

    return _median(try_once, 3 * TRIES)


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
    program = bench.program(bench.texts.addition.format(number=TRIES), "add", _BUFFERS)
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


def _all_reduce_s(devices: Sequence[Device], texts: Texts) -> float:
    """A sum over all devices, from the first member's call to the last one's end."""
    benches = [Bench(device, device.create_timeline(False), texts) for device in devices]
    # A group of the devices, which join at once.
    peers = tuple(device.name for device in devices)
    key = f"calibration {os.getpid()}"
    with ThreadPoolExecutor(len(devices)) as threads:
        joins = [
            threads.submit(device.create_group, GroupSpec(key, rank, peers, _TIMEOUT_S))
            for rank, device in enumerate(devices)
        ]
        groups = [join.result(2 * _TIMEOUT_S) for join in joins]
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, LARGE_NBYTES // 4)

    def try_once() -> float:
        with ExitStack() as stack:
            pairs = [stack.enter_context(bench.written(2)) for bench in benches]
            start_ns = time.perf_counter_ns()
            points = [
                b.device.collective(group, call, dst.region(), src.region(), b.timeline, ())
                for b, group, (dst, src) in zip(benches, groups, pairs, strict=True)
            ]
            for bench, point in zip(benches, points, strict=True):
                bench.wait(point)
            return (time.perf_counter_ns() - start_ns) / 1e9

    return _median(try_once)
