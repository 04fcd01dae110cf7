"""Faults that are generated: a class of fault, at every place where it can be, at several sizes.

The places are the hooks of a device, on the reference device (the template of every plugin) and on
the CPU plugin's, and the operations of tile IR in a device's own interpreter. No fault here is
written for a case, and no case for a fault.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.errors import HalError
from hal.core.spec import hookimpl
from hal.core.values import Buffer, Region
from hal.tile import evaluate, interpret, numeric

KIB, MIB = 1 << 10, 1 << 20
Hook = Callable[..., Any]
KEPT: list[object] = []
"""What leaking faults keep."""

_SHAPES: dict[str, Callable[[Hook], Hook]] = {
    "launch": lambda c: (
        lambda launchable, grid, timeline, waits: c(launchable, grid, timeline, waits)
    ),
    "copy": lambda c: lambda dst, src, timeline, waits: c(dst, src, timeline, waits),
    "fill": lambda c: lambda dst, pattern, timeline, waits: c(dst, pattern, timeline, waits),
    "replay": lambda c: lambda graph, slots, timeline, waits: c(graph, slots, timeline, waits),
    "host_call": lambda c: lambda function, timeline, waits: c(function, timeline, waits),
    "record": lambda c: lambda commands: c(commands),
    "bind": lambda c: lambda program, args: c(program, args),
    "load": lambda c: lambda source: c(source),
    "alloc": lambda c: lambda nbytes, options: c(nbytes, options),
    "create_timeline": lambda c: lambda host_driven: c(host_driven),
    "signal": lambda c: lambda timeline, value, failure: c(timeline, value, failure),
    "wait": lambda c: lambda points, timeout_s, wait_all: c(points, timeout_s, wait_all),
    "health": lambda c: lambda: c(),
    "free": lambda c: lambda handle: c(handle),
    "map": lambda c: lambda region, writable: c(region, writable),
    "import_host": lambda c: lambda memory: c(memory),
    "subscribe": lambda c: lambda callback: c(callback),
    "timestamps": lambda c: lambda point: c(point),
    "stats": lambda c: lambda space: c(space),
}
SUBMITTED = ("launch", "copy", "fill", "replay", "host_call")


@dataclass(frozen=True)
class Generated:
    """`plant` changes an opened device; `world` is entered while a case runs. `cases` are parts of
    the ids of the cases that exercise the place, in the order in which they are tried; `words` are
    those of which a message that points at the cause has one."""

    kind: str
    place: str
    size: str
    device: str
    cases: tuple[str, ...]
    words: tuple[str, ...]
    plant: Callable[[Any], object] = lambda device: None
    world: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext

    @property
    def name(self) -> str:
        return f"{self.kind} {self.place} {self.size} on {self.device}"


def around(device: Any, name: str, change: Callable[..., Any]) -> None:
    """Put `change(real, *arguments)` in the place of a hook."""
    real = getattr(device, name)
    setattr(device, name, hookimpl(_SHAPES[name](lambda *given: change(real, *given))))


# Hooks: which part of an argument a device may lose, wrap or ignore.


def _size_of(name: str, given: Sequence[Any]) -> int:
    """How large a submission is: bytes, instances or commands."""
    match name:
        case "launch":
            return int(np.prod(given[1]))
        case "copy":
            return next(s.nbytes for s in given[:2] if isinstance(s, Region))
        case "fill":
            return int(given[0].nbytes)
        case "replay":
            return int(given[0].commands)
    return 1


def _waits_dropped(name: str, most: int) -> Callable[[Any], None]:
    def plant(device: Any) -> None:
        around(device, name, lambda real, *a: real(*a[:-1], tuple(a[-1])[:most]))

    return plant


def _waits_ignored(name: str, above: int) -> Callable[[Any], None]:
    def wrong(real: Hook, *given: Any) -> Any:
        return real(*given[:-1], () if _size_of(name, given) > above else given[-1])

    return lambda device: around(device, name, wrong)


def _tail_lost(name: str, above: int) -> Callable[[Any], None]:
    """Transfers above a size lose their last 64 bytes."""

    def cut(side: Any, nbytes: int) -> Any:
        return (
            replace(side, nbytes=nbytes) if isinstance(side, Region) else memoryview(side)[:nbytes]
        )

    def wrong(real: Hook, to: Any, of: Any, timeline: Any, waits: Any) -> Any:
        size = _size_of(name, (to, of))
        if size > above:
            flat = of if isinstance(of, Region | bytes) else memoryview(of).cast("B")
            to = to if isinstance(to, Region) else memoryview(to).cast("B")
            return real(
                cut(to, size - 64), of if name == "fill" else cut(flat, size - 64), timeline, waits
            )
        return real(to, of, timeline, waits)

    return lambda device: around(device, name, wrong)


def _offset_wrapped(name: str, bits: int) -> Callable[[Any], None]:
    def wrapped(side: Any) -> Any:
        if not isinstance(side, Region) or side.offset + side.nbytes <= 1 << bits:
            return side
        return replace(side, offset=side.offset % (1 << bits))

    def wrong(real: Hook, to: Any, of: Any, *rest: Any) -> Any:
        return real(wrapped(to), wrapped(of), *rest)

    return lambda device: around(device, name, wrong)


def _bound_wrapped(bits: int) -> Callable[[Any], None]:
    def wrong(real: Hook, program: Any, args: Any) -> Any:
        return real(
            program,
            tuple(
                replace(a, offset=a.offset % (1 << bits)) if isinstance(a, Region) else a
                for a in args
            ),
        )

    return lambda device: around(device, "bind", wrong)


def _grid(change: Callable[[int], int], axis: int) -> Callable[[Any], None]:
    def wrong(real: Hook, launchable: Any, grid: Any, *rest: Any) -> Any:
        sizes = list(grid)
        sizes[axis] = change(sizes[axis]) if sizes[axis] else 0
        return real(launchable, tuple(sizes), *rest)

    return lambda device: around(device, "launch", wrong)


def _recorded_grid(change: Callable[[int], int]) -> Callable[[Any], None]:
    def changed(command: Any) -> Any:
        if not hasattr(command, "grid"):
            return command
        x, y, z = command.grid
        return replace(command, grid=(change(x) if x else 0, y, z))

    return lambda d: around(d, "record", lambda real, cs: real([changed(c) for c in cs]))


def _given_up(after_s: float) -> Callable[[Any], None]:
    def wrong(real: Hook, points: Any, timeout_s: float, wait_all: bool) -> Any:
        return real(points, min(timeout_s, after_s), wait_all)

    return lambda device: around(device, "wait", wrong)


def _let_go(name: str, after_s: float) -> Callable[[Any], None]:
    """An operation that waits for host-driven points goes ahead after a time."""

    def plant(device: Any) -> None:
        create, signal = device.create_timeline, device.signal

        def wrong(real: Hook, *given: Any) -> Any:
            waits = []
            for point in given[-1]:
                if not point.timeline.host_driven:
                    waits.append(point)
                    continue
                other = create(True)
                waits.append(replace(point, timeline=other, value=1))
                threading.Thread(
                    target=_follow, args=(device, signal, point, other, after_s), daemon=True
                ).start()
            return real(*given[:-1], tuple(waits))

        around(device, name, wrong)

    return plant


def _follow(device: Any, signal: Hook, point: Any, other: Any, after_s: float) -> None:
    failure = None
    try:
        device.wait([point], after_s, True)
    except HalError as error:
        failure = getattr(error, "failure", None)
    with contextlib.suppress(HalError):
        signal(other, 1, failure)


def _misaligned(granularity: int) -> Callable[[Any], None]:
    """A device that maps nothing declares an alignment that it does not keep."""

    def plant(device: Any) -> None:
        info = device.describe()
        spaces = tuple(replace(s, granularity=granularity) for s in info.spaces)
        told = replace(info, spaces=spaces, features=info.features - {Feature.MAP})
        device.describe = hookimpl(lambda: told)

    return plant


def _zero_beyond(above: int) -> Callable[[Any], None]:
    """Memory above a size is zeroed up to there."""

    def plant(device: Any) -> None:
        create, fill, wait = device.create_timeline, device.fill, device.wait

        def wrong(real: Hook, nbytes: int, options: Any) -> Buffer:
            buffer: Buffer = real(nbytes, options)
            if options.zero and nbytes > above:
                point = fill(buffer.region(above, nbytes - above), b"\x5a", create(False), ())
                wait((point,), 20.0, True)
            return buffer

        around(device, "alloc", wrong)

    return plant


def _signal_wrapped(bits: int) -> Callable[[Any], None]:
    def wrong(real: Hook, timeline: Any, value: int, failure: Any) -> Any:
        with contextlib.suppress(HalError):  # a value that does not grow any more
            return real(timeline, value % (1 << bits), failure)

    return lambda device: around(device, "signal", wrong)


def _points_wrapped(bits: int) -> Callable[[Any], None]:
    def wrong(real: Hook, points: Any, *rest: Any) -> Any:
        return real([replace(p, value=p.value % (1 << bits)) for p in points], *rest)

    return lambda device: around(device, "wait", wrong)


def _waits_wrapped(name: str, bits: int) -> Callable[[Any], None]:
    def wrong(real: Hook, *given: Any) -> Any:
        return real(*given[:-1], tuple(replace(p, value=p.value % (1 << bits)) for p in given[-1]))

    return lambda device: around(device, name, wrong)


def _points_dropped(most: int) -> Callable[[Any], None]:
    return lambda d: around(d, "wait", lambda real, points, *r: real(list(points)[:most], *r))


def _commands_dropped(most: int, kind: str) -> Callable[[Any], None]:
    def wrong(real: Hook, commands: Any) -> Any:
        kept = [c for i, c in enumerate(commands) if i < most or kind not in type(c).__name__]
        if len(kept) == len(commands):
            return real(commands)
        return replace(real([replace(c, after=None) for c in kept]), commands=len(commands))

    return lambda device: around(device, "record", wrong)


def _commands_reordered(first: int) -> Callable[[Any], None]:
    def wrong(real: Hook, commands: Any) -> Any:
        given = [replace(c, after=None) for c in commands]
        return real(commands if len(given) <= first + 1 else given[:first] + given[first:][::-1])

    return lambda device: around(device, "record", wrong)


def _failure_swallowed(name: str) -> Callable[[Any], None]:
    """What goes wrong in an operation is nobody's concern."""

    def host_call(real: Hook, function: Any, *rest: Any) -> Any:
        def quiet() -> None:
            with contextlib.suppress(Exception):
                function()

        return real(quiet, *rest)

    def wait(real: Hook, *given: Any) -> Any:
        try:
            return real(*given)
        except HalError as error:
            if not hasattr(error, "failure"):
                raise
            return True

    def signal(real: Hook, timeline: Any, value: int, failure: Any) -> Any:
        return real(timeline, value, None)

    def load(real: Hook, source: Any) -> Any:
        try:
            return real(source)
        except HalError:
            return last[-1] if last else real(source)

    last: list[Any] = []
    wrong = {"host_call": host_call, "wait": wait, "signal": signal, "load": load}[name]

    def plant(device: Any) -> None:
        if name == "load":
            around(device, name, lambda real, s: last.append(real(s)) or last[-1])
        around(device, name, wrong)

    return plant


def _run_swallowed(device: Any) -> None:
    """A hosted machine's launches end well, whatever happened."""
    machine = device._session.machine
    real = machine.run

    def run(program: Any, args: Any, grid: Any) -> Any:
        with contextlib.suppress(Exception):
            return real(program, args, grid)

    machine.run = run


def _hangs_unseen(device: Any) -> None:
    """Nobody notices a machine that does not return."""
    device._scheduler._watch._lose = lambda doing, steps: None


class _Stuck:
    """What a thread works on, as one sees it who never hears that it goes on."""

    steps = 0

    def __init__(self, doing: Any) -> None:
        self._doing = doing

    @property
    def operation(self) -> str:
        return str(self._doing.operation and "work")


def _steps_lost(device: Any) -> None:
    """What a device reports of its progress from one operation to the next is lost, and its machine
    says nothing of its own."""
    device._session.machine._beat = lambda: None
    watch = device._scheduler._watch
    watch._doing = _Stuck(watch._doing)


def _stale_program(same: Callable[[Any], object]) -> Callable[[Any], None]:
    """A program is taken for an earlier one that has the same of something."""

    def plant(device: Any) -> None:
        known: dict[object, Any] = {}

        def wrong(real: Hook, source: Any) -> Any:
            made = real(source)
            first = known.setdefault((same(source), source.params), made)
            return replace(made, native=first.native)

        around(device, "load", wrong)

    return plant


def _stale_scalars(every: int) -> Callable[[Any], None]:
    """Of more than so many launchables of a program, later ones have earlier numbers."""

    def plant(device: Any) -> None:
        seen: dict[int, list[Any]] = {}

        def wrong(real: Hook, program: Any, args: Any) -> Any:
            old = seen.setdefault(id(program), [])
            old.append((program, args))
            if len(old) > every:
                first = old[len(old) % every][1]
                numbers = (int, float)
                args = [
                    f if isinstance(a, numbers) else a for a, f in zip(args, first, strict=True)
                ]
            return real(program, args)

        around(device, "bind", wrong)

    return plant


def _stale_slots(device: Any) -> None:
    """A graph keeps the slots of its first replay."""
    first: dict[int, Any] = {}

    def wrong(real: Hook, graph: Any, slots: Any, *rest: Any) -> Any:
        KEPT.append(graph)
        return real(graph, first.setdefault(id(graph), slots), *rest)

    around(device, "replay", wrong)


def _leaking(name: str, nbytes: int) -> Callable[[Any], None]:
    def wrong(real: Hook, *given: Any) -> Any:
        KEPT.append(bytearray(b"\1" * nbytes))
        return real(*given)

    return lambda device: around(device, name, wrong)


def _slow(name: str, seconds: float) -> Callable[[Any], None]:
    def wrong(real: Hook, *given: Any) -> Any:
        time.sleep(seconds)
        return real(*given)

    return lambda device: around(device, name, wrong)


def _late(device: Any, name: str) -> None:
    """Submission waits for the work: it is not asynchronous."""
    wait = device.wait

    def wrong(real: Hook, *given: Any) -> Any:
        point = real(*given)
        with contextlib.suppress(HalError):
            wait((point,), 8.0, True)
        return point

    around(device, name, wrong)


# Tile operations: a device's own interpreter, wrong in one operation.

_own = threading.local()


@contextlib.contextmanager
def _running() -> Iterator[None]:
    _own.runs = True
    try:
        yield
    finally:
        _own.runs = False


def interpreter(device: Any) -> None:
    """Mark the thread in which the device interprets: the suite's own interpreter stays right."""
    machine = device._session.machine
    real = machine.run

    def run(program: Any, args: Any, grid: Any) -> Any:
        with _running():
            return real(program, args, grid)

    machine.run = run


def _minding_offsets(device: Any) -> None:
    """The device adds in another order where its data do not begin at a multiple of 64 bytes."""
    machine = device._session.machine
    real = machine.run

    def run(program: Any, args: Any, grid: Any) -> Any:
        _own.turned = any(getattr(a, "offset", 0) % 64 for a in args)
        with _running():
            return real(program, args, grid)

    machine.run = run


def _turned(real: Any, n: Any, x: Any, *rest: Any) -> Any:
    if getattr(_own, "turned", False) and x.dtype.kind == "f":
        axis = n["axis"] if n.op == "reduce" else 1
        return real(n, np.flip(x, axis), *(np.flip(y, 0) if y is rest[0] else y for y in rest))
    return real(n, x, *rest)


def in_table(module: Any, table: str, key: Any, change: Callable[..., Any]) -> Any:
    """Put `change(real, *arguments)` at an entry of an interpreter's table."""
    real = getattr(module, table)[key]

    def wrong(*given: Any) -> Any:
        return change(real, *given) if getattr(_own, "runs", False) else real(*given)

    return lambda: patch.object(module, table, {**getattr(module, table), key: wrong})


def in_module(module: Any, name: str, change: Callable[..., Any]) -> Any:
    real = getattr(module, name)

    def wrong(*given: Any) -> Any:
        return change(real, *given) if getattr(_own, "runs", False) else real(*given)

    return lambda: patch.object(module, name, wrong)


def _as_other_sign(x: Any) -> Any:
    """The bits of an integer array, read with the other sign."""
    if x.dtype.kind not in "iu":
        return x
    return np.asarray(x).view(
        np.dtype(("u" if x.dtype.kind == "i" else "i") + str(x.dtype.itemsize))
    )


def _dot_cut(most: int) -> Callable[..., Any]:
    return lambda real, n, a, b, acc: real(n, a[:, :most], b[:most], acc)


def _dot_sign(dtype: DType) -> Callable[..., Any]:
    def wrong(real: Any, n: Any, a: Any, b: Any, acc: Any) -> Any:
        if a.dtype == numeric.NUMPY[dtype]:
            a = _as_other_sign(a)
        return real(n, a, b, acc)

    return wrong


def _dot_narrow(most: int) -> Callable[..., Any]:
    """Beyond so many terms sums are kept in the narrow type."""

    def wrong(real: Any, n: Any, a: Any, b: Any, acc: Any) -> Any:
        if n.dtype not in (DType.F16, DType.BF16) and a.dtype.itemsize != 2:
            return real(n, a, b, acc)
        if a.shape[1] <= most:
            return real(n, a, b, acc)
        total = acc.astype(a.dtype)
        for k in range(a.shape[1]):
            total = (total + a[:, k, None] * b[None, k, :]).astype(a.dtype)
        return numeric.convert(total, n.dtype)

    return wrong


def _reduce_cut(most: int) -> Callable[..., Any]:
    def wrong(real: Any, n: Any, x: Any) -> Any:
        return real(n, np.take(x, range(min(most, x.shape[n["axis"]])), axis=n["axis"]))

    return wrong


def _reduce_narrow(most: int) -> Callable[..., Any]:
    def wrong(real: Any, n: Any, x: Any) -> Any:
        if x.dtype.itemsize != 2 or n["kind"] != "sum" or x.shape[n["axis"]] <= most:
            return real(n, x)
        slices = np.moveaxis(x, n["axis"], 0)
        if slices.dtype.kind in "iu":
            return real(n, x)
        total = slices[0]
        for one in slices[1:]:
            total = (total + one).astype(x.dtype)
        return np.asarray(total)

    return wrong


def _reduce_sign(dtype: DType, kinds: tuple[str, ...]) -> Callable[..., Any]:
    def wrong(real: Any, n: Any, x: Any) -> Any:
        if x.dtype != numeric.NUMPY[dtype] or n["kind"] not in kinds:
            return real(n, x)
        got = evaluate._combine(n["kind"], _as_other_sign(x), n["axis"])
        return np.asarray(list(got)[-1]).view(x.dtype)

    return wrong


def _scan_cut(most: int) -> Callable[..., Any]:
    def wrong(real: Any, n: Any, x: Any) -> Any:
        got = np.array(real(n, x))
        axis = n["axis"]
        if x.shape[axis] > most:
            moved = np.moveaxis(got, axis, 0)
            moved[most:] = np.moveaxis(x, axis, 0)[most:]
        return got

    return wrong


def _elementwise_sign(op: str, dtype: DType) -> Callable[..., Any]:
    def wrong(real: Any, name: str, *xs: Any) -> Any:
        if name != op or xs[0].dtype != numeric.NUMPY[dtype]:
            return real(name, *xs)
        got = real(name, *(_as_other_sign(np.ascontiguousarray(x)) for x in xs))
        return got if got.dtype == bool else np.asarray(got).view(xs[0].dtype)

    return wrong


def _elementwise_large(op: str, beyond: float, dtype: DType) -> Callable[..., Any]:
    """NaN for arguments beyond a size."""

    def wrong(real: Any, name: str, *xs: Any) -> Any:
        got = real(name, *xs)
        if name == op and xs[0].dtype == numeric.NUMPY[dtype]:
            return np.where(np.abs(xs[0]) > beyond, got.dtype.type(np.nan), got)
        return got

    return wrong


def _elementwise_narrow(op: str) -> Callable[..., Any]:
    """float64 by way of float32."""

    def wrong(real: Any, name: str, *xs: Any) -> Any:
        if name == op and xs[0].dtype == np.float64:
            return real(name, *(x.astype(np.float32) for x in xs)).astype(np.float64)
        return real(name, *xs)

    return wrong


def _flushed(op: str) -> Callable[..., Any]:
    def wrong(real: Any, name: str, *xs: Any) -> Any:
        got = real(name, *xs)
        if name == op and got.dtype == np.float32:
            return np.where(np.abs(got) < 2.0**-126, np.float32(0), got)
        return got

    return wrong


def _index_wrapped(bits: int) -> Callable[..., Any]:
    """Places of one kind of access wrap."""

    def wrong(real: Any, s: Any, x: Any) -> Any:
        values = evaluate.value_of(s, x.index)
        s.values[x.index] = (values.astype(np.int64) % (1 << bits)).astype(values.dtype)
        try:
            return real(s, x)
        finally:
            s.values[x.index] = values

    return wrong


def _block_wrapped(bits: int) -> Callable[..., Any]:
    def wrong(real: Any, s: Any, access: Any, shape: Any) -> Any:
        indices, valid = real(s, access, shape)
        return indices % (1 << bits), valid

    return wrong


def _leaf_wrapped(bits: int, axis: int | None) -> Callable[..., Any]:
    def wrong(real: Any, s: Any, n: Any) -> Any:
        got = real(s, n)
        if axis is not None and n["axis"] != axis:
            return got
        if got.dtype.kind not in "iu":
            return got
        return (got.astype(np.int64) % (1 << bits)).astype(got.dtype)

    return wrong


def _rounds_cut(most: int) -> Callable[..., Any]:
    """All loops of an instance make so many rounds together, and each later one a single one."""

    of: Any = None
    left = most

    def wrong(real: Any, s: Any, x: Any) -> Any:
        nonlocal of, left
        if s.pending is not of:  # one of an instance and its inner blocks
            of, left = s.pending, most
        rounds = len(range(*(int(evaluate.value_of(s, n)) for n in (x.start, x.stop, x.step))))
        now, left = left, max(1, left - rounds)
        return _loop_cut(now)(real, s, x)

    return wrong


def _loop_cut(most: int) -> Callable[..., Any]:
    """A loop ends after so many rounds."""

    def wrong(real: Any, s: Any, x: Any) -> Any:
        start, stop, step = (int(evaluate.value_of(s, n)) for n in (x.start, x.stop, x.step))
        if step > 0 and (stop - start) > most * step:
            before, s.values[x.stop] = s.values[x.stop], np.asarray(start + most * step)
            try:
                return real(s, x)
            finally:
                s.values[x.stop] = before
        return real(s, x)

    return wrong


def population() -> tuple[Generated, ...]:
    """Every generated fault."""
    return (*_of_hooks("reference"), *_of_hooks("cpu"), *_of_machine(), *_of_tiles())


_TRANSFERS = {
    "copy": (".copy-of-mib", ".copy-large", ".copy-size"),
    "fill": (".fill-of-mib", ".fill-large", ".fill-"),
}
_SIZES = (64 * KIB, MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB)
_COUNTS = (16, 50, 64, 128, 256, 500, 1000, 1024)


def _text(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"


def _of_hooks(device: str) -> Iterator[Generated]:
    def one(
        kind: str,
        place: str,
        size: object,
        cases: tuple[str, ...],
        words: tuple[str, ...],
        plant: Any,
    ) -> Generated:
        return Generated(kind, place, str(size), device, cases, words, plant)

    waiting = (".every-wait", ".many-waits", ".waits-beyond")
    for name in SUBMITTED:
        for most in _COUNTS:
            yield one(
                "dropped",
                f"{name}.waits",
                f"beyond {most}",
                waiting,
                ("wait",),
                _waits_dropped(name, most),
            )
        for bits in (8, 16, 31, 32):
            yield one(
                "wrapped",
                f"{name}.waits",
                f"2^{bits}",
                (".signal-beyond",),
                ("value", "wait"),
                _waits_wrapped(name, bits),
            )
        yield one(
            "slow",
            name,
            "until done",
            (".returns-at-once", ".submit", ".async", "long-queue", "every-wait", "gate"),
            ("submit", "wait", "return", "s", "gate"),
            lambda d, name=name: _late(d, name),
        )
    for name in ("copy", "fill"):
        for above in _SIZES:
            yield one(
                "dropped",
                f"{name} bytes",
                f"above {_text(above)}",
                _TRANSFERS[name],
                ("bytes",),
                _tail_lost(name, above),
            )
            yield one(
                "ignored",
                f"{name}.waits",
                f"above {_text(above)}",
                (".large-",),
                (name, "wait"),
                _waits_ignored(name, above),
            )
        for bits in (12, 16, 20, 24):
            yield one(
                "wrapped",
                f"{name} offset",
                f"2^{bits}",
                (".offset-beyond", ".copy-odd", ".fill"),
                ("offset", "from", "to", "bytes"),
                _offset_wrapped(name, bits),
            )
    for bits in (12, 16, 20, 24):
        yield one(
            "wrapped",
            "bind offset",
            f"2^{bits}",
            (".offset-beyond", ".arguments", ".region"),
            ("offset", "region", "bytes"),
            _bound_wrapped(bits),
        )
    for above in (1, 64, 300, 1000):
        yield one(
            "ignored",
            "launch.waits",
            f"above {above} instances",
            (".large-launch", ".waits-"),
            ("launch", "wait"),
            _waits_ignored("launch", above),
        )
        yield one(
            "ignored",
            "replay.waits",
            f"above {above} commands",
            (".large-graph", ".graph-beyond"),
            ("graph", "wait", "replay"),
            _waits_ignored("replay", above),
        )
    for axis in range(3):
        top = {"reference": ((8, 10, 11), (4, 5), (4, 5)), "cpu": ((8, 15, 16), (8, 15), (8, 15))}
        for bits in top[device][axis]:
            grids = (".grid-beyond", ".grid-at-limit", ".grid-of-many", ".ids")
            yield one(
                "wrapped",
                f"launch grid {'xyz'[axis]}",
                f"2^{bits}",
                grids,
                ("instances", "ids"),
                _grid(lambda n, m=1 << bits: n % m or m, axis),
            )
            yield one(
                "dropped",
                f"launch grid {'xyz'[axis]}",
                f"beyond 2^{bits}",
                grids,
                ("instances", "ids"),
                _grid(lambda n, m=1 << bits: min(n, m), axis),
            )
    for bits in ((8, 10, 11), (8, 15, 16))[device == "cpu"]:
        yield one(
            "wrapped",
            "record grid x",
            f"2^{bits}",
            (".grid-beyond-in-a-graph",),
            ("graph", "instances", "ids"),
            _recorded_grid(lambda n, m=1 << bits: n % m or m),
        )
    for after_s in (1.0, 2.0):
        yield one(
            "dropped",
            "wait",
            f"after {after_s:g} s",
            (".held-for-seconds",),
            ("wait", "gate"),
            _given_up(after_s),
        )
        for name in SUBMITTED:
            yield one(
                "dropped",
                f"{name}.waits",
                f"after {after_s:g} s",
                (".held-for-seconds",),
                (name, "gate", "operation"),
                _let_go(name, after_s),
            )
    if device == "cpu":  # programs of the other have no addresses
        for granularity in (4 * KIB, 64 * KIB, 2 * MIB):
            yield one(
                "ignored",
                "alloc granularity",
                _text(granularity),
                (".alloc-aligned",),
                ("address", "aligned"),
                _misaligned(granularity),
            )
    for above in _SIZES:
        yield one(
            "dropped",
            "alloc zero",
            f"above {_text(above)}",
            (".zeroed", ".alloc-zero"),
            ("zero",),
            _zero_beyond(above),
        )
    for bits in (8, 16, 31, 32):
        yield one(
            "wrapped",
            "signal value",
            f"2^{bits}",
            (".signal-beyond",),
            ("value", "reached", "point"),
            _signal_wrapped(bits),
        )
        yield one(
            "wrapped",
            "wait value",
            f"2^{bits}",
            (".signal-beyond", ".values-beyond"),
            ("value",),
            _points_wrapped(bits),
        )
    for most in _COUNTS:
        yield one(
            "dropped",
            "wait points",
            f"beyond {most}",
            (".two-hundred", ".points-beyond"),
            ("points",),
            _points_dropped(most),
        )
        for kind in ("Launch", "Copy", "Fill"):
            yield one(
                "dropped",
                f"record {kind.lower()}",
                f"beyond {most}",
                (".graph-beyond", ".graph-is"),
                ("graph", "replay"),
                _commands_dropped(most, kind),
            )
        yield one(
            "reordered",
            "record",
            f"beyond {most}",
            (".graph-beyond", ".graph-is"),
            ("graph", "replay"),
            _commands_reordered(most),
        )
    for name, cases in {
        "host_call": (".real-fault-in-a-host-call", "host-call"),
        "wait": ("gate-fail", "fails", "real-fault", "signal", "poison", "failed"),
        "signal": ("signal", "fail"),
        "load": ("damaged", "load-"),
    }.items():
        yield one(
            "swallowed",
            name,
            "always",
            cases,
            ("fail", "raise", "return", "reached", "Error"),
            _failure_swallowed(name),
        )
    alive = (".alive-", ".load-", ".bound-apart")
    for what, same in {
        "entry": lambda s: s.entry,
        "length of text": lambda s: len(s.text),
        "first 200 characters": lambda s: s.text[:200],
    }.items():
        yield one(
            "stale", "load", f"by {what}", alive, ("program", "x +", "handle"), _stale_program(same)
        )
    for every in (4, 32, 250):
        yield one(
            "stale",
            "bind scalars",
            f"beyond {every}",
            (".bound-apart", ".argument", ".graph-beyond"),
            ("launchable", "argument", "scalar", "graph"),
            _stale_scalars(every),
        )
    yield one(
        "stale",
        "replay slots",
        "first",
        (".slot", "graph"),
        ("slot", "replay", "cell", "graph"),
        _stale_slots,
    )
    for name in sorted(_SHAPES.keys() - {"subscribe"}):  # a session keeps its subscribers
        for nbytes in (4 * KIB, 64 * KIB):
            if name in ("signal", "load", "free") and nbytes == 4 * KIB:
                continue
            cases = (f".grows-not-{_GROWS.get(name, name)}", ".load-distinct")
            yield one(
                "leaked", name, f"{_text(nbytes)} a call", cases, ("bytes",), _leaking(name, nbytes)
            )
    yield one("slow", "health", "80 ms", ("health",), ("s,",), _slow("health", 0.08))
    yield one(
        "slow",
        "wait",
        "60 ms",
        ("deadline", "wakes-soon", "interrupt"),
        ("late", "woke"),
        _slow("wait", 0.06),
    )


_GROWS = {"create_timeline": "timeline", "signal": "gate", "free": "bind"}


def _of_machine() -> Iterator[Generated]:
    """Of the part that a vendor writes."""
    yield Generated(
        "swallowed",
        "machine run",
        "always",
        "reference",
        (".real-fault",),
        ("fail", "reached"),
        _run_swallowed,
    )
    yield Generated(
        "swallowed",
        "machine hang",
        "always",
        "reference",
        (".real-hang",),
        ("progress",),
        _hangs_unseen,
    )
    yield Generated(
        "swallowed",
        "machine progress",
        "between operations",
        "reference",
        (".getting-on",),
        ("gets on",),
        _steps_lost,
    )

    def kept(nbytes: int) -> Callable[[Any], None]:
        def plant(device: Any) -> None:
            machine = device._session.machine
            machine.unload = lambda program: KEPT.append(bytearray(b"\1" * nbytes))

        return plant

    for nbytes in (64 * KIB, 256 * KIB, MIB):
        yield Generated(
            "leaked",
            "machine unload",
            f"{_text(nbytes)} a program",
            "reference",
            (".load-and-free", ".load-distinct"),
            ("bytes",),
            kept(nbytes),
        )

    for op in ("reduce", "dot"):
        world = in_table(evaluate, "_STRUCTURAL", op, _turned)
        yield Generated(
            "reordered",
            op,
            "by the offset of its data",
            "reference",
            (".deterministic",),
            ("run",),
            _minding_offsets,
            world,
        )


def _of_tiles() -> Iterator[Generated]:
    def one(place: str, kind: str, size: object, cases: tuple[str, ...], world: Any) -> Generated:
        words = tuple(case.strip(".") for case in cases)
        return Generated(kind, place, str(size), "reference", cases, words, interpreter, world)

    table = "_STRUCTURAL"
    dots = (".dot",)
    for most in (8, 16, 64, 128, 256, 999):
        yield one(
            "dot",
            "dropped",
            f"beyond k={most}",
            dots,
            in_table(evaluate, table, "dot", _dot_cut(most)),
        )
    for dtype in (DType.I8, DType.U8):
        yield one(
            "dot", "sign", dtype.short, dots, in_table(evaluate, table, "dot", _dot_sign(dtype))
        )
    for most in (0, 30, 100, 250):
        yield one(
            "dot",
            "narrow",
            f"beyond k={most}",
            dots,
            in_table(evaluate, table, "dot", _dot_narrow(most)),
        )
    sums = (".reduce", ".sum-long")
    for most in (5, 32, 64, 128, 1000, 4096):
        yield one(
            "reduce",
            "dropped",
            f"beyond {most}",
            sums,
            in_table(evaluate, table, "reduce", _reduce_cut(most)),
        )
    for most in (8, 64, 128, 1000):
        yield one(
            "reduce",
            "narrow",
            f"beyond {most}",
            sums,
            in_table(evaluate, table, "reduce", _reduce_narrow(most)),
        )
    integers = [d for d in DType if d.is_int and d is not DType.BOOL]
    for dtype in integers:
        yield one(
            "reduce",
            "sign",
            dtype.short,
            sums,
            in_table(evaluate, table, "reduce", _reduce_sign(dtype, ("min", "max"))),
        )
        for op in ("lt", "le", "min", "max", "div", "rem", "shr"):
            yield one(
                op,
                "sign",
                dtype.short,
                (".integer",),
                in_module(evaluate, "elementwise", _elementwise_sign(op, dtype)),
            )
    for most in (4, 8):
        yield one(
            "scan",
            "dropped",
            f"beyond {most}",
            (".scan",),
            in_table(evaluate, table, "scan", _scan_cut(most)),
        )
    for op, beyond in (
        ("tanh", 355),
        ("tanh", 20),
        ("exp", 100),
        ("log", 1e6),
        ("erf", 20),
        ("sqrt", 1e6),
        ("rsqrt", 1e6),
        ("recip", 1e6),
        ("sin", 1e4),
        ("cos", 1e4),
    ):
        for dtype in (DType.F32, DType.F64):
            if dtype is DType.F32 and beyond > 1e3 and op in ("tanh",):
                continue
            yield one(
                op,
                "range",
                f"{dtype.short} beyond {beyond:g}",
                (f".math-{dtype.short}-{op}",),
                in_module(evaluate, "elementwise", _elementwise_large(op, beyond, dtype)),
            )
    for op in ("add", "mul", "div", "exp", "tanh", "pow"):
        yield one(
            op,
            "narrow",
            "f64 by f32",
            (f".math-f64-{op}",),
            in_module(evaluate, "elementwise", _elementwise_narrow(op)),
        )
        yield one(
            op,
            "range",
            "denormals lost",
            (f".math-f32-{op}", ".denormal"),
            in_module(evaluate, "elementwise", _flushed(op)),
        )
    for bits in (4, 8, 15, 16, 18):
        places = (".index-beyond", ".gather", ".scatter", ".atomic")
        for statement in ("Gather", "Scatter", "Atomic"):
            if statement == "Atomic" and bits < 5:
                continue
            key = getattr(interpret, statement)
            yield one(
                statement.lower(),
                "wrapped",
                f"2^{bits}",
                places,
                in_table(interpret, "_RUN", key, _index_wrapped(bits)),
            )
        yield one(
            "load and store",
            "wrapped",
            f"2^{bits}",
            (".index-beyond", ".tail", ".strided"),
            in_module(interpret, "_block", _block_wrapped(bits)),
        )
    for bits in (3, 8, 11):
        yield one(
            "program_id x",
            "wrapped",
            f"2^{bits}",
            (".ids", ".grid"),
            in_table(evaluate, "_LEAF", "program_id", _leaf_wrapped(bits, 0)),
        )
        yield one(
            "num_programs x",
            "wrapped",
            f"2^{bits}",
            (".ids", ".grid"),
            in_table(evaluate, "_LEAF", "num_programs", _leaf_wrapped(bits, 0)),
        )
    for bits in (3, 5):
        for axis in (1, 2):
            yield one(
                f"program_id {'xyz'[axis]}",
                "wrapped",
                f"2^{bits}",
                (".ids", ".grid"),
                in_table(evaluate, "_LEAF", "program_id", _leaf_wrapped(bits, axis)),
            )
    for bits in (4, 5):
        yield one(
            "arange",
            "wrapped",
            f"2^{bits}",
            (".arange", ".gather"),
            in_table(evaluate, "_LEAF", "arange", _leaf_wrapped(bits, None)),
        )
    for most in (8, 100, 256):
        yield one(
            "loop",
            "dropped",
            f"beyond {most}",
            (".loop",),
            in_table(interpret, "_RUN", interpret.For, _loop_cut(most)),
        )
    yield one(
        "rounds of all loops",
        "dropped",
        "beyond 270",
        (".rounds",),
        in_table(interpret, "_RUN", interpret.For, _rounds_cut(270)),
    )
