"""A device of 32 bits with one timeline and memory aligned to 16 bytes, and faults planted in it.

It is the reference device that says less of itself: what most cases ask of a device, this one has
not, and they have to find the same faults there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hal.core.description import DeviceInfo, DeviceSummary, Feature
from hal.core.dtypes import DType
from hal.core.spec import hookimpl
from hal.core.values import AllocOptions, OpenOptions
from hal.hosted.device import HostedDevice
from hal.hosted.order import AdversarialOrder
from hal.reference.describe import describe
from hal.reference.machine import ReferenceMachine
from tests.mutants.hooks import hooks
from tests.mutants.population import Generated, Hook, around, population

GRANULARITY = 16
PROGRESS_S = 0.1
WIDE = frozenset({DType.I64, DType.U64, DType.F64})
NOT_HAD = frozenset({Feature.COLLECTIVES, Feature.PEER_COPY, Feature.IPC})


@hookimpl
def enumerate_devices() -> Sequence[DeviceSummary]:
    return [DeviceSummary(0, "32 bits, one timeline")]


@hookimpl
def open_device(index: int, options: OpenOptions) -> HostedDevice:
    return HostedDevice(_info(), ReferenceMachine(0), AdversarialOrder(0))


def _info() -> DeviceInfo:
    info = describe(0, 1, 256 << 20, PROGRESS_S)
    accumulate = info.numeric.accumulate
    narrow = {k: v for k, v in accumulate.items() if not WIDE & {k, v}}
    return replace(
        info,
        name="narrow:0",
        plugin="narrow",
        limits=replace(info.limits, queues=1),
        spaces=tuple(replace(space, granularity=GRANULARITY) for space in info.spaces),
        dtypes={d: rate for d, rate in info.dtypes.items() if d not in WIDE},
        numeric=replace(info.numeric, accumulate=narrow),
        features=info.features - NOT_HAD,
    )


PLUGIN = SimpleNamespace(enumerate_devices=enumerate_devices, open_device=open_device)


def _axes_swapped(device: Any) -> None:
    """A launch takes the first two axes of its grid for each other."""

    def wrong(real: Hook, launchable: Any, grid: Any, *rest: Any) -> Any:
        x, y, z = grid
        return real(launchable, (y, x, z), *rest)

    around(device, "launch", wrong)


def _off_by(nbytes: int) -> Any:
    """Memory begins so many bytes behind what the device is aligned to."""

    def plant(device: Any) -> None:
        machine = device._session.machine
        real = machine.allocate

        def allocate(size: int, options: AllocOptions) -> Any:
            slab = real(size + 2 * GRANULARITY, options)
            start = -slab.array.ctypes.data % GRANULARITY + nbytes
            slab.array = slab.array[start : start + size]
            return slab

        machine.allocate = allocate

    return plant


AGAIN = (
    "swallowed machine run always",
    "swallowed machine hang always",
    "ignored copy.waits above 8 MiB",
    "ignored launch.waits above 64 instances",
    "dropped host_call words beyond 80",
    "dropped record after beyond 8",
    "wrapped launch grid x 2^8",
)
"""Faults of the reference device that are planted here, too."""


def narrow() -> Iterator[Generated]:
    """Every fault of this file."""
    yield Generated(
        "swapped", "launch grid", "x and y", "narrow", (".ids-",), ("ids",), _axes_swapped
    )
    for nbytes in (4, 8):
        yield Generated(
            "narrow", "alloc alignment", f"{nbytes} bytes late", "narrow", (".alloc-aligned",),
            ("modulo", "address"), _off_by(nbytes),
        )  # fmt: skip
    for fault in (*population(), *hooks()):
        if fault.name.removesuffix(" on reference") in AGAIN:
            yield replace(fault, device="narrow")
