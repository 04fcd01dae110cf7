"""Small pieces of work for cases about order and failure: operations that show whether they ran.

A `Work` can be submitted on any timeline. Kernels work on `N` elements in one instance.
"""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hal
from hal.core.description import Feature
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.core.values import Buffer, FillCommand, Point, Timeline, Waits
from hal.tile.build import Builder, add, const, mul
from hal.tile.kernel import Kernel
from hal.tile.numeric import NUMPY
from hal_conformance.alone import alone
from hal_conformance.expect import Unfit, Wrong
from hal_conformance.rig import Rig

N = 8
QUIET_S = 0.02
"""How long a case looks at what must not happen."""
LONG_S = 5.0
"""The deadline of waits that must end before it."""

KINDS = ("launch", "copy", "copy-in", "copy-out", "fill", "replay", "host_call")
"""Every way to submit an operation on one device."""

_OPEN = """
import hal
from hal.core.values import AllocOptions, OpenOptions, Point
device = hal.open(name, options=OpenOptions(settings=settings))
"""
_NEEDS = {"replay": Feature.GRAPH, "host_call": Feature.HOST_CALL}
_OLD, _NEW = 0x11, 0x22
_PREFERRED = (DType.I32, DType.I64, DType.U32, DType.I16, DType.U8, DType.I8, DType.F32)


@dataclass(frozen=True, slots=True)
class Work:
    """One operation, to be submitted as often as one likes, and whether it ran since it was made.

    `ran` reads the device's memory over the rig's own timeline.
    """

    hook: str
    submit: Callable[[Timeline, Waits], Point]
    ran: Callable[[], bool]


def lines(rig: Rig, count: int, device: Device | None = None) -> list[Timeline]:
    """New device timelines besides the rig's own. Where the device has just so many, the last one
    is the rig's, too; Unfit where it has fewer."""
    device = device or rig.device
    with suppress(InvalidCall):
        rig.timeline(device)
    made: list[Timeline] = []
    shared = False
    while len(made) < count:
        try:
            made.append(device.create_timeline(False))
        except InvalidCall as full:  # whether it gives as many as it declares is a case of group B
            if not rig.give_up(device):
                raise Unfit(f"it needs more timelines than the device has: {full}") from full
            shared = True
    if shared:
        rig.share(device, made[-1])
    return made


def some(rig: Rig, most: int) -> list[Timeline]:
    """So many new timelines, or as many as the device has."""
    return lines(rig, min(most, rig.info.limits.queues))


def pair(rig: Rig) -> tuple[Timeline, Timeline]:
    """Two new timelines for work of which the second waits for the first; the same one twice where
    the device has one, on which it comes behind it anyway."""
    first, *second = some(rig, 2)
    return first, (second or [first])[0]


def up_to(rig: Rig, most: int) -> list[Timeline]:
    """As many new timelines as the device has besides the rig's own, two at least."""
    return lines(rig, max(2, min(most, rig.info.limits.queues - 1)))


def still(rig: Rig, point: Point, what: str, device: Device | None = None) -> None:
    """The point stays open for a while."""
    if (device or rig.device).wait([point], QUIET_S, True):
        raise Wrong(f"{what} was reached too early")


@contextmanager
def meanwhile(call: Callable[[], None]) -> Iterator[None]:
    """Run a call in another thread while the body waits; it is over at the end."""
    thread = threading.Timer(QUIET_S, call)
    thread.start()
    try:
        yield
    finally:
        thread.join(LONG_S)


def elsewhere(rig: Rig, code: str) -> Any:
    """Run code in a process of its own, in which `device` is the device under test, opened there.

    Gives what the code assigned to `result`. Unfit where another process cannot open the device.
    """
    if rig.setting.registry is not hal.registry:
        raise Unfit("the plugin is not installed, so another process cannot open its device")
    text = _OPEN + textwrap.dedent(code)
    return alone(text, name=rig.name, settings=dict(rig.setting.settings))


def element(rig: Rig, ints: bool = False) -> DType:
    """An element type that the device has; an integer one if asked."""
    for dtype in _PREFERRED + tuple(DType):
        if dtype in rig.info.dtypes and (dtype.is_int or not ints) and dtype is not DType.BOOL:
            return dtype
    raise Unfit("the device has no integer element type for kernels")


def work(rig: Rig, kind: str, device: Device | None = None) -> Work:
    """The operation of that kind. Unfit where the device has not its feature."""
    device = device or rig.device
    if kind in _NEEDS and _NEEDS[kind] not in device.info.features:
        raise Unfit(f"the device does not declare {_NEEDS[kind].value}")
    make = {
        "launch": _launch,
        "copy": _copy,
        "copy-in": _copy_in,
        "copy-out": _copy_out,
        "fill": _fill,
        "replay": _replay,
        "host_call": _host_call,
    }
    return make[kind](rig, device)


def stamp(dtype: DType) -> Kernel:
    """x = _NEW in every byte of an integer, or a number of that size."""
    build = Builder("stamp")
    x = build.buffer("x", dtype, reads=False, writes=True)
    build.store(x, 0, const(_NEW, dtype, (N,)), strides=(1,))
    return build.kernel()


def turn(dtype: DType) -> Kernel:
    """x = 3 x + k: the result tells in which order the runs came."""
    build = Builder("turn")
    x = build.buffer("x", dtype, writes=True)
    k = build.scalar("k", dtype)
    build.store(x, 0, add(mul(build.load(x, 0, (N,), (1,)), 3), k), strides=(1,))
    return build.kernel()


def turned(start: NDArray[Any], numbers: Sequence[int]) -> NDArray[Any]:
    """What runs of `turn` with these numbers make of an array, with integers that wrap."""
    for k in numbers:
        start = start * start.dtype.type(3) + start.dtype.type(k)
    return start


def mix(dtype: DType) -> Kernel:
    """c = 3 a + b + k."""
    build = Builder("mix")
    a, b = build.buffer("a", dtype), build.buffer("b", dtype)
    c = build.buffer("c", dtype, reads=False, writes=True)
    k = build.scalar("k", dtype)
    left = mul(build.load(a, 0, (N,), (1,)), 3)
    build.store(c, 0, add(add(left, build.load(b, 0, (N,), (1,))), k), strides=(1,))
    return build.kernel()


def cells(rig: Rig, dtype: DType, count: int) -> tuple[list[Buffer], list[NDArray[Any]]]:
    """Buffers of N random elements, and their contents."""
    arrays = [rig.random.integers(0, 100, N).astype(NUMPY[dtype]) for _ in range(count)]
    return [rig.buffer(a) for a in arrays], arrays


def _shows(rig: Rig, device: Device, target: Buffer, new: bytes) -> Callable[[], bool]:
    old = bytes([_OLD]) * target.nbytes

    def ran() -> bool:
        found = rig.read(target, device)
        if found not in (old, new):
            raise Wrong(
                f"the target holds {found[:16]!r}..., neither what was there nor the result"
            )
        return found == new

    return ran


def _target(rig: Rig, device: Device, nbytes: int = 64) -> Buffer:
    return rig.buffer(bytes([_OLD]) * nbytes, device)


def _launch(rig: Rig, device: Device) -> Work:
    dtype = element(rig)
    target = _target(rig, device, N * dtype.nbytes)
    bound = device.bind(rig.program(stamp(dtype), device), (target,))
    new = np.full(N, _NEW, NUMPY[dtype]).tobytes()
    return Work(
        "launch",
        lambda line, waits: device.launch(bound, (1, 1, 1), line, waits),
        _shows(rig, device, target, new),
    )


def _copy(rig: Rig, device: Device) -> Work:
    target, new = _target(rig, device), bytes([_NEW]) * 64
    source = rig.buffer(new, device)
    return Work(
        "copy",
        lambda line, waits: device.copy(target.region(), source.region(), line, waits),
        _shows(rig, device, target, new),
    )


def _copy_in(rig: Rig, device: Device) -> Work:
    target, new = _target(rig, device), bytes([_NEW]) * 64
    return Work(
        "copy",
        lambda line, waits: device.copy(target.region(), new, line, waits),
        _shows(rig, device, target, new),
    )


def _copy_out(rig: Rig, device: Device) -> Work:
    host, new = bytearray([_OLD]) * 64, bytes([_NEW]) * 64
    source = rig.buffer(new, device)
    return Work(
        "copy",
        lambda line, waits: device.copy(host, source.region(), line, waits),
        lambda: host == new,
    )


def _fill(rig: Rig, device: Device) -> Work:
    target, new = _target(rig, device), bytes([_NEW]) * 64
    return Work(
        "fill",
        lambda line, waits: device.fill(target.region(), new[:1], line, waits),
        _shows(rig, device, target, new),
    )


def _replay(rig: Rig, device: Device) -> Work:
    target, new = _target(rig, device), bytes([_NEW]) * 64
    graph = device.record([FillCommand(target.region(), new[:1])])
    return Work(
        "replay",
        lambda line, waits: device.replay(graph, (), line, waits),
        _shows(rig, device, target, new),
    )


def _host_call(rig: Rig, device: Device) -> Work:
    calls: list[int] = []
    return Work(
        "host_call",
        lambda line, waits: device.host_call(lambda: calls.append(1), line, waits),
        lambda: bool(calls),
    )
