"""Generated faults in what a device tells of its work, its memory and itself, and in what it takes
of long lists: spans, counts, points of a wait, numbers of a launch, timelines, shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hal.core.errors import OperationFailed
from hal.core.values import Buffer, Region
from tests.mutants.population import KEPT, KIB, MIB, Generated, around

Wrong = Callable[..., Any]
Plant = Callable[[Any], object]


def _by(hook: str, make: Callable[[], Wrong]) -> Plant:
    return lambda device: around(device, hook, make())


def _spans_cut(most: int) -> Wrong:
    return lambda real, point: tuple(real(point))[:most]


def _spans_turned(above: int) -> Wrong:
    def wrong(real: Any, point: Any) -> Any:
        spans = tuple(real(point))
        return spans[::-1] if len(spans) > above else spans

    return wrong


def _spans_of_another(bits: int) -> Wrong:
    """Of points beyond 2^bits, the spans of an earlier one."""

    def wrong(real: Any, point: Any) -> Any:
        return real(replace(point, value=point.value % (1 << bits) or 1))

    return wrong


def _counted_to(field: str, bits: int) -> Wrong:
    def wrong(real: Any, space: Any) -> Any:
        told = real(space)
        return replace(told, **{field: getattr(told, field) % (1 << bits)})

    return wrong


def _any_of_first(most: int) -> Wrong:
    """A wait for any point looks at so many."""

    def wrong(real: Any, points: Any, timeout_s: float, wait_all: bool) -> Any:
        return real(points if wait_all else list(points)[:most], timeout_s, wait_all)

    return wrong


def _any_is_all(above: int) -> Wrong:
    def wrong(real: Any, points: Any, timeout_s: float, wait_all: bool) -> Any:
        return real(points, timeout_s, wait_all or len(points) > above)

    return wrong


def _poison_lost(above: int) -> Callable[..., None]:
    """Beyond so many waits, those that have failed count as reached."""

    def plant(device: Any, name: str) -> None:
        wait = device.wait

        def fails(point: Any) -> bool:
            try:
                wait((point,), 0.0, True)
            except OperationFailed:
                return True
            return False

        def wrong(real: Any, *given: Any) -> Any:
            waits = tuple(given[-1])
            if len(waits) > above:
                waits = tuple(p for p in waits if not fails(p))
            return real(*given[:-1], waits)

        around(device, name, wrong)

    return plant


def _number_narrow(change: Callable[[Any], Any], kind: type) -> Wrong:
    def wrong(real: Any, program: Any, args: Any) -> Any:
        return real(program, tuple(change(a) if type(a) is kind else a for a in args))

    return wrong


def _low_32(number: int) -> int:
    """As a 32-bit register holds it."""
    return number if number < 0 else number & 0xFFFF_FFFF


def _as_f32(number: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def _lines_shared(most: int) -> Plant:
    """Device timelines beyond so many are the last one once more."""

    def plant(device: Any) -> None:
        lines: list[Any] = []

        def wrong(real: Any, host_driven: bool) -> Any:
            if host_driven or len(lines) < most:
                line = real(host_driven)
                if not host_driven:
                    lines.append(line)
                return line
            return lines[-1]

        around(device, "create_timeline", wrong)

    return plant


def _zero_ignored(below: int) -> Plant:
    """Small memory is handed out as it was left."""

    def plant(device: Any) -> None:
        create, fill, wait = device.create_timeline, device.fill, device.wait

        def wrong(real: Any, nbytes: int, options: Any) -> Buffer:
            buffer: Buffer = real(nbytes, options)
            if options.zero and 0 < nbytes < below:
                wait((fill(buffer.region(), b"\x5a", create(False), ()),), 20.0, True)
            return buffer

        around(device, "alloc", wrong)

    return plant


def _graph_region_from_zero(above: int) -> Wrong:
    """Slots of a graph that are given a part of a buffer beyond an offset take its start."""

    def wrong(real: Any, graph: Any, slots: Any, *rest: Any) -> Any:
        KEPT.append(graph)
        return real(
            graph,
            tuple(
                replace(s, offset=0) if isinstance(s, Region) and s.offset > above else s
                for s in slots
            ),
            *rest,
        )

    return wrong


def _calls_dropped(every: int) -> Wrong:
    """Of many host calls that wait at once, one is never made."""
    count = [0]

    def wrong(real: Any, function: Any, *rest: Any) -> Any:
        count[0] += 1
        return real((lambda: None) if count[0] % every == 0 else function, *rest)

    return wrong


def _read_only(real: Any, region: Any, writable: bool) -> Any:
    """What is mapped for writing is a copy in which nobody writes back."""
    view = real(region, writable)
    return memoryview(bytearray(view)) if writable else view


def _rows(device: str) -> Iterator[tuple[str, str, str, tuple[str, ...], Plant]]:
    """Of each fault: its kind, place, size, cases, and what plants it."""
    for most in (1, 64):
        plant = _by("timestamps", partial(_spans_cut, most))
        yield "dropped", "timestamps spans", f"beyond {most}", (".span",), plant
    for above in (1, 64):
        plant = _by("timestamps", partial(_spans_turned, above))
        yield "reordered", "timestamps spans", f"beyond {above}", (".span",), plant
    for bits in (4, 8, 10):
        plant = _by("timestamps", partial(_spans_of_another, bits))
        yield "wrapped", "timestamps value", f"2^{bits}", (".span",), plant
    for field, bits in (("live_nbytes", 16), ("live_nbytes", 24), ("peak_nbytes", 24),
                        ("allocations", 8), ("live_buffers", 5)):  # fmt: skip
        plant = _by("stats", partial(_counted_to, field, bits))
        yield "wrapped", f"stats {field}", f"2^{bits}", (".stats", "C.alloc-walk"), plant
    for most in (2, 70):
        plant = _by("wait", partial(_any_of_first, most))
        yield "dropped", "wait any points", f"beyond {most}", (".wait-any", ".points-beyond"), plant
    plant = _by("wait", partial(_any_is_all, 70))
    yield "ignored", "wait any", "beyond 70", (".wait-any", ".points-beyond"), plant
    for name in ("launch", "copy", "fill"):
        for above in (1, 70):
            lost = partial(_poison_lost(above), name=name)
            cases = (".failed-wait", ".wait-that-failed", ".one-failed-wait")
            yield "swallowed", f"{name} failed waits", f"beyond {above}", cases, lost
    plant = _by("bind", partial(_number_narrow, _low_32, int))
    yield "narrow", "bind integers", "to 32 bits", (".argument", ".scalar"), plant
    plant = _by("bind", partial(_number_narrow, _as_f32, float))
    yield "narrow", "bind floats", "to f32", (".argument", ".scalar"), plant
    for most in (4, 40):
        yield "stale", "create_timeline", f"beyond {most}", (".queues", ".apart", ".timelines",
              ".submit"), _lines_shared(most)  # fmt: skip
    for below in (64, 5000):
        yield "dropped", "alloc zero", f"below {below}", (".zero", ".alloc-"), _zero_ignored(below)
    for above in (0, 4 * KIB, MIB):
        plant = _by("replay", partial(_graph_region_from_zero, above))
        yield "wrapped", "replay slot offset", f"above {above}", (".slot",), plant
    plant = _by("host_call", partial(_calls_dropped, 97))
    yield "dropped", "host_call calls", "each 97th", (".host-call",), plant
    if device == "cpu":
        plant = _by("map", lambda: _read_only)
        yield "stale", "map for writing", "always", (".map",), plant


def reports() -> Iterator[Generated]:
    """Every fault of this file, on the reference device and on the CPU plugin's."""
    for device in ("reference", "cpu"):
        for kind, place, size, cases, plant in _rows(device):
            words = (*place.split(), *(case.strip(".-") for case in cases))
            yield Generated(kind, place, size, device, cases, words, plant)
