"""Generated faults in words, times, numbers and lifetimes: what a device says of a failure or of
its work, what it makes of odd numbers and offsets, what it forgets or does again after many calls,
and what it declares."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from hal.core.errors import FailureKind, OperationFailed, error_for
from hal.core.spec import hookimpl
from hal.core.values import Buffer, HealthState, Region, Slot
from tests.mutants.population import KIB, MIB, Generated, around

Wrong = Callable[..., Any]
Plant = Callable[[Any], object]


def _by(hook: str, make: Callable[[], Wrong]) -> Plant:
    return lambda device: around(device, hook, make())


def _spans(change: Callable[[Any], Any]) -> Wrong:
    return lambda real, point: tuple(change(span) for span in real(point))


def _told(change: Callable[[Any], Any]) -> Wrong:
    """Failures are told otherwise than they were."""

    def wrong(real: Any, *given: Any) -> Any:
        try:
            return real(*given)
        except OperationFailed as error:
            raise error_for(change(error.failure)) from None

    return wrong


def _first_failure() -> Wrong:
    """Every failure is told as the first one."""
    seen: list[Any] = []

    def first(failure: Any) -> Any:
        seen.append(failure)
        return seen[0]

    return _told(first)


def _unseen_behind(most: int) -> Wrong:
    """Of the points of a wait, so many are looked at for failures."""

    def wrong(real: Any, points: Any, timeout_s: float, wait_all: bool) -> Any:
        points = list(points)
        try:
            return real(points, timeout_s, wait_all)
        except OperationFailed:
            real(points[:most], 0.0, wait_all)
            return True

    return wrong


def _numbers(change: Callable[[Any], Any]) -> Wrong:
    def one(arg: Any) -> Any:
        return arg if isinstance(arg, Buffer | Region | Slot) else change(arg)

    return lambda real, program, args: real(program, tuple(map(one, args)))


def _last_two_swapped(above: int) -> Wrong:
    def wrong(real: Any, program: Any, args: Any) -> Any:
        args = list(args)
        at = [i for i, a in enumerate(args) if not isinstance(a, Buffer | Region | Slot)]
        if len(args) > above and len(at) > 1:
            args[at[-1]], args[at[-2]] = args[at[-2]], args[at[-1]]
        return real(program, tuple(args))

    return wrong


def _parts_aligned(to: int) -> Wrong:
    """Parts of buffers begin at a multiple of so many bytes."""

    def one(arg: Any) -> Any:
        return replace(arg, offset=arg.offset // to * to) if isinstance(arg, Region) else arg

    return lambda real, program, args: real(program, tuple(map(one, args)))


def _download_late(above: int, seconds: float) -> Plant:
    """Bytes for the host come so long after the point that says that they are there."""

    def plant(device: Any) -> None:
        wait = device.wait

        def wrong(real: Any, dst: Any, src: Any, timeline: Any, waits: Any) -> Any:
            if isinstance(dst, Region) or src.nbytes <= above:
                return real(dst, src, timeline, waits)
            meanwhile = bytearray(src.nbytes)
            point = real(meanwhile, src, timeline, waits)

            def bring() -> None:
                if wait((point,), 20.0, True):
                    time.sleep(seconds)
                    memoryview(dst).cast("B")[:] = meanwhile

            threading.Thread(target=bring, daemon=True).start()
            return point

        around(device, "copy", wrong)

    return plant


def _last_byte_lost(above: int, rest: int) -> Wrong:
    """Copies between buffers lose a byte where their size is not a multiple of four."""

    def wrong(real: Any, dst: Any, src: Any, *others: Any) -> Any:
        both = isinstance(dst, Region) and isinstance(src, Region)
        if both and dst.nbytes > above and dst.nbytes % 4 == rest:
            dst, src = (replace(r, nbytes=r.nbytes - 1) for r in (dst, src))
        return real(dst, src, *others)

    return wrong


def _pattern_turned(nbytes: int, above: int) -> Wrong:
    def wrong(real: Any, dst: Any, pattern: Any, *rest: Any) -> Any:
        turned = len(pattern) == nbytes and dst.nbytes > above
        return real(dst, bytes(pattern)[::-1] if turned else pattern, *rest)

    return wrong


def _small_fill_lost(below: int) -> Wrong:
    def wrong(real: Any, dst: Any, *rest: Any) -> Any:
        return real(replace(dst, nbytes=0) if dst.nbytes < below else dst, *rest)

    return wrong


def _each(every: int, change: Callable[..., Any]) -> Wrong:
    """Every so manyth call is `change(real, *arguments)`."""
    count = [0]

    def wrong(real: Any, *given: Any) -> Any:
        count[0] += 1
        return change(real, *given) if count[0] % every == 0 else real(*given)

    return wrong


def _replay_lost(every: int) -> Plant:
    """One of so many replays does nothing."""

    def plant(device: Any) -> None:
        call = device.host_call

        def nothing(real: Any, graph: Any, slots: Any, timeline: Any, waits: Any) -> Any:
            return call(lambda: None, timeline, waits)

        around(device, "replay", _each(every, nothing))

    return plant


def _later_waits_lost() -> Wrong:
    """A graph's replays but the first wait for nothing."""
    seen: set[int] = set()

    def wrong(real: Any, graph: Any, slots: Any, timeline: Any, waits: Any) -> Any:
        again = id(graph) in seen
        seen.add(id(graph))
        return real(graph, slots, timeline, () if again else waits)

    return wrong


def _twice(real: Any, function: Any, *rest: Any) -> Any:
    return real(lambda: (function(), function()), *rest)


def _large_text_kept(above: int) -> Wrong:
    """Long texts are taken for the first long one with such parameters."""
    known: dict[Any, Any] = {}

    def wrong(real: Any, source: Any) -> Any:
        made = real(source)
        if len(source.text) <= above:
            return made
        return replace(made, native=known.setdefault(source.params, made).native)

    return wrong


def _heard_twice(real: Any, callback: Any) -> Any:
    return real(lambda failure: (callback(failure), callback(failure)))


def _first_heard() -> Wrong:
    """Subscribers hear the first loss again, whatever the second one is."""
    seen: list[Any] = []

    def wrong(real: Any, callback: Any) -> Any:
        def told(failure: Any) -> None:
            seen.append(failure)
            callback(seen[0])

        return real(told)

    return wrong


def _first_health() -> Wrong:
    """Once it was not well it never is again."""
    ill: list[Any] = []

    def wrong(real: Any) -> Any:
        now = real()
        if now.state is not HealthState.OK:
            ill.append(now)
        return ill[0] if ill else now

    return wrong


def _always_well() -> Wrong:
    well: list[Any] = []

    def wrong(real: Any) -> Any:
        well.append(real())
        return well[0]

    return wrong


def _gates_shared(most: int) -> Plant:
    """Host-driven timelines beyond so many are the last one once more."""

    def plant(device: Any) -> None:
        gates: list[Any] = []

        def wrong(real: Any, host_driven: bool) -> Any:
            if not host_driven:
                return real(host_driven)
            if len(gates) < most:
                gates.append(real(host_driven))
            return gates[-1]

        around(device, "create_timeline", wrong)

    return plant


def _counted(field: str, change: Callable[[int], int]) -> Wrong:
    def wrong(real: Any, space: Any) -> Any:
        told = real(space)
        return replace(told, **{field: change(getattr(told, field))})

    return wrong


def _declares(change: Callable[[Any], Any]) -> Plant:
    def plant(device: Any) -> None:
        told = change(device.describe())
        device.describe = hookimpl(lambda: told)

    return plant


def _limits(**factors: int) -> Callable[[Any], Any]:
    def change(info: Any) -> Any:
        more = {name: factor * getattr(info.limits, name) for name, factor in factors.items()}
        return replace(info, limits=replace(info.limits, **more))

    return change


def _grid_axis(axis: int) -> Callable[[Any], Any]:
    def change(info: Any) -> Any:
        grid = list(info.limits.grid)
        grid[axis] *= 2
        return replace(info, limits=replace(info.limits, grid=tuple(grid)))

    return change


def _ulp(function: str, error: float) -> Callable[[Any], Any]:
    def change(info: Any) -> Any:
        ulp = {**info.numeric.ulp, function: error}
        return replace(info, numeric=replace(info.numeric, ulp=ulp))

    return change


def _changes_its_mind(device: Any) -> None:
    """What it declares is another thing from the third time on."""
    first, count = device.describe(), [0]
    other = replace(first, limits=replace(first.limits, queues=first.limits.queues + 1))

    def describe() -> Any:
        count[0] += 1
        return first if count[0] < 3 else other

    device.describe = hookimpl(describe)


def _no_negative_zero(number: Any) -> Any:
    return 0.0 if type(number) is float and number == 0 else number


def _quiet_nan(number: Any) -> Any:
    return 0.0 if type(number) is float and number != number else number


def _no_least(number: Any) -> Any:
    least = type(number) is int and number in {-(1 << bits) for bits in (7, 15, 31, 63)}
    return number + 1 if least else number


def _no_denormal(number: Any) -> Any:
    return 0.0 if type(number) is float and 0 < abs(number) < 2.0**-126 else number


def _rows() -> Iterator[tuple[str, str, str, tuple[str, ...], Plant]]:
    """Of each fault: its kind, place, size, cases, and what plants it."""
    for size, change in {
        "in us": lambda s: replace(s, start_ns=s.start_ns // 1000, end_ns=s.end_ns // 1000),
        "of whole ms": lambda s: replace(
            s, start_ns=s.start_ns // 10**6 * 10**6, end_ns=s.end_ns // 10**6 * 10**6
        ),
        "70 ms late": lambda s: replace(
            s, start_ns=s.start_ns + 7 * 10**7, end_ns=s.end_ns + 7 * 10**7
        ),
        "ends before starts": lambda s: replace(s, start_ns=s.end_ns, end_ns=s.start_ns),
        "lasts twice as long": lambda s: replace(s, end_ns=2 * s.end_ns - s.start_ns),
    }.items():
        yield (
            "sign",
            "timestamps time",
            size,
            (".span",),
            _by("timestamps", partial(_spans, change)),
        )
    told = (".failures-apart", ".kind", ".fails", ".every-word", ".failure-is", ".first-", ".fail")
    yield "stale", "wait failure", "first", told, _by("wait", _first_failure)
    for size, change in {
        "operation": lambda f: replace(f, operation="launch"),
        "device": lambda f: replace(f, device="device:0"),
        "message beyond 12": lambda f: replace(f, message=f.message[:12]),
        "kind": lambda f: replace(f, kind=FailureKind.ABORTED),
        "retryable": lambda f: replace(f, retryable=not f.retryable),
    }.items():
        yield "narrow", "wait failure", size, told, _by("wait", partial(_told, change))
    for most in (1, 5, 40):
        cases = (".failed-point-beyond", ".many-waiters", ".fails")
        plant = _by("wait", partial(_unseen_behind, most))
        yield "swallowed", "wait failed points", f"beyond {most}", cases, plant
    numbers = (".scalar", ".argument", ".denormal")
    for size, one in {
        "negative zero": _no_negative_zero,
        "NaN": _quiet_nan,
        "least integer": _no_least,
        "denormals": _no_denormal,
    }.items():
        yield "range", "bind numbers", size, numbers, _by("bind", partial(_numbers, one))
    for above in (3, 9):
        plant = _by("bind", partial(_last_two_swapped, above))
        yield "reordered", "bind numbers", f"beyond {above} arguments", numbers, plant
    for to in (8, 16, 64):
        plant = _by("bind", partial(_parts_aligned, to))
        yield "wrapped", "bind parts", f"to {to} bytes", (".bind-part", ".region", "offset"), plant
    for above in (0, 300 * KIB):
        plant = _download_late(above, 0.05)
        yield "slow", "copy downloads", f"above {above}", (".copy-", ".large-"), plant
    for above, rest in ((100, 1), (70_000, 3), (3 * MIB, 1)):
        plant = _by("copy", partial(_last_byte_lost, above, rest))
        size = f"4n + {rest} above {above}"
        yield "dropped", "copy last byte", size, (".copy-size", ".copy-large", ".copy-"), plant
    for nbytes, above in ((2, 0), (4, 5000), (8, 100_000)):
        plant = _by("fill", partial(_pattern_turned, nbytes, above))
        yield "reordered", f"fill pattern of {nbytes}", f"above {above}", (".fill-",), plant
    for below in (2, 4):
        plant = _by("fill", partial(_small_fill_lost, below))
        yield "dropped", "fill", f"below {below} bytes", (".fill-",), plant
    for every in (7, 70):
        yield (
            "dropped",
            "replay",
            f"each {every}th",
            (".hundred-replays", "replay", "graph"),
            (_replay_lost(every)),
        )
        plant = _by("host_call", partial(_each, every, _twice))
        yield "stale", "host_call again", f"each {every}th", (".host-call",), plant
    yield (
        "ignored",
        "replay waits",
        "but the first",
        ("graph-waits", "replay", "graph"),
        (_by("replay", _later_waits_lost)),
    )
    for above in (300, 3000):
        plant = _by("load", partial(_large_text_kept, above))
        yield "stale", "load texts", f"above {above}", (".alive", ".load-", ".equal"), plant
    yield (
        "stale",
        "subscribe",
        "twice",
        (".subscribers-hear",),
        _by("subscribe", lambda: _heard_twice),
    )
    yield (
        "stale",
        "subscribe",
        "first",
        (".subscribers", "loss", "reset"),
        (_by("subscribe", _first_heard)),
    )
    yield (
        "stale",
        "health",
        "of the first loss",
        (".works-after-reset", "health"),
        _by("health", _first_health),
    )
    yield "swallowed", "health", "always", ("health", "loss"), _by("health", _always_well)
    for most in (6, 40):
        yield (
            "stale",
            "create_timeline gates",
            f"beyond {most}",
            (".eight-", ".points-", "gate"),
            (_gates_shared(most)),
        )
    for field, size, count in (
        ("peak_nbytes", "live", lambda n: n // 2),
        ("live_buffers", "beyond 100", lambda n: min(n, 100)),
        ("allocations", "one more", lambda n: n + 1),
        ("live_nbytes", "beyond 1 MiB", lambda n: min(n, MIB)),
    ):
        plant = _by("stats", partial(_counted, field, count))
        yield "narrow", f"stats {field}", size, (".stats", ".alloc-walk"), plant
    for function in ("exp", "tanh", "div", "pow"):
        cases = (f".math-f32-{function}", ".math-")
        yield "range", f"describe ulp {function}", "0.01", cases, _declares(_ulp(function, 0.01))
    yield (
        "stale",
        "describe",
        "from the third on",
        ("B.immutable", "B.constant", "B."),
        (_changes_its_mind),
    )


def _of_limits() -> Iterator[tuple[str, str, str, tuple[str, ...], Plant]]:
    """Limits that a device declares and has not: the other one gives all that it declares."""
    yield "range", "describe alloc_nbytes", "twice", ("B.",), _declares(_limits(alloc_nbytes=2))
    for axis in (0, 1, 2):
        cases = (".grid-at", ".grid-past", ".grid-beyond")
        yield "range", f"describe grid {'xyz'[axis]}", "twice", cases, _declares(_grid_axis(axis))


def lives() -> Iterator[Generated]:
    """Every fault of this file, on the reference device and on the CPU plugin's."""
    for device in ("reference", "cpu"):
        for kind, place, size, cases, plant in _rows():
            words = (*place.split(), *(case.strip(".-") for case in cases))
            yield Generated(kind, place, size, device, cases, words, plant)
    for kind, place, size, cases, plant in _of_limits():
        words = (*place.split(), *(case.strip(".-") for case in cases))
        yield Generated(kind, place, size, "cpu", cases, words, plant)
