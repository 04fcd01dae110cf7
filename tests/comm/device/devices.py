"""Devices for the ranks of a test: those that are installed, and one whose memory no host sees."""

from dataclasses import replace

import hal
from hal.core.description import Feature
from hal.core.device import Device
from hal.core.wrappers.validation import validate
from hal.hosted.device import HostedDevice
from hal.hosted.order import Order
from hal.reference.describe import describe as reference_info
from hal.reference.machine import ReferenceMachine
from tests.hosted.conftest import TinyMachine, describe

FAR = "tiny"
"""The name of devices whose memory is copied to the host and back."""
HIDDEN = "hidden"
"""That of such a one that runs kernels: a reference device whose memory the host does not see."""


def open_device(name, wrappers=(validate,)):
    """The device of that name; every "tiny" is one of its own."""
    if name == HIDDEN:
        info = reference_info(0, 2, 1 << 28, 2.0)
        info = replace(info, spaces=tuple(replace(s, host_visible=False) for s in info.spaces))
        return Device(HostedDevice(info, ReferenceMachine(0), Order()), "reference:0", wrappers)
    if not name.startswith(FAR):
        return hal.open(name, wrappers)
    info = describe("tiny:0")
    limits = replace(info.limits, alloc_nbytes=1 << 26, progress_s=0.0)
    info = replace(
        info,
        limits=limits,
        spaces=(replace(info.spaces[0], nbytes=1 << 26),),
        features=info.features - {Feature.IMPORT_HOST},
    )
    return Device(HostedDevice(info, TinyMachine(), Order()), "tiny:0", wrappers)


def mixed(size):
    """The names of `size` devices of as many plugins as there are here."""
    listed = [d.name for d in hal.registry().devices()]
    known = [n for n in ("cpu:0", "opencl:0", "sunway:0") if n in listed]
    names = [*known, FAR, "reference:0"]
    return [names[i % len(names)] for i in range(size)]
