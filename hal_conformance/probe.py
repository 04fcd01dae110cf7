"""Probes: what a device does not declare, it refuses, and nothing changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from hal.core.description import Feature
from hal.core.device import Device
from hal.core.errors import Unsupported
from hal.core.spec import OPTIONAL, DeviceSpec
from hal.core.values import AllocOptions
from hal_conformance import expect
from hal_conformance.rig import Rig


def check_refused(rig: Rig, feature: Feature) -> None:
    """Everything that belongs to an undeclared feature raises `Unsupported` and allocates nothing.

    Feature.GROUP_IPC alone has no call of its own: a member's process is not in its name.
    """
    before = _live(rig.device)
    for hook in (hook for hook, owner in OPTIONAL.items() if owner is feature):
        expect.raises(Unsupported, getattr(rig.device, hook), *_arguments(hook))
    if feature in _WIDENED:
        _WIDENED[feature](rig)
    expect.equal(_live(rig.device), before, f"the memory held after refusing {feature.value}")


def _arguments(hook: str) -> list[None]:
    """An undeclared hook refuses whatever it is given."""
    return [None] * (len(inspect.signature(getattr(DeviceSpec, hook)).parameters) - 1)


def _live(device: Device) -> int:
    return device.stats("").live_buffers if Feature.STATS in device.info.features else 0


def _shareable(rig: Rig) -> None:
    expect.raises(Unsupported, rig.device.alloc, 16, AllocOptions(shareable=True))


def _peer_copy(rig: Rig) -> None:
    """A copy from each peer that the device says it is linked to."""
    linked = {link.peer for link in rig.info.links} - {rig.name}
    for name in sorted(linked & set(rig.setting.peers)):
        peer = rig.open(name)
        theirs, ours = rig.buffer(16, peer).region(), rig.buffer(16).region()
        expect.raises(Unsupported, rig.device.copy, ours, theirs, rig.timeline(), ())
        rig.device.free(ours.buffer)


_WIDENED: dict[Feature, Callable[[Rig], None]] = {
    Feature.IPC: _shareable,
    Feature.PEER_COPY: _peer_copy,
}
