"""Plugins that a test installs into a folder: small real devices, most of them wrong."""

from dataclasses import dataclass
from pathlib import Path

MANIFEST = """
name = "{name}"
contract = [1, 1]
features = ["map", "graph", "host-call", "stats", "timestamps"]
description = "a test"
"""

DEVICE = """
import os
from dataclasses import replace

import hal.core.errors

from hal.core.description import DeviceSummary, Feature
from hal.core.spec import hookimpl
from hal.hosted.device import HostedDevice
from hal.hosted.order import AdversarialOrder
from hal.reference.describe import describe
from hal.reference.machine import ReferenceMachine

FEATURES = (Feature.MAP, Feature.GRAPH, Feature.HOST_CALL, Feature.STATS, Feature.TIMESTAMPS)


@hookimpl
def enumerate_devices():
    return [DeviceSummary(0, "a test")]


@hookimpl
def open_device(index, options):
    info = describe(0, 1, 1 << 20, 0.5)
    info = replace(info, name="{name}:0", plugin="{name}", features=frozenset(FEATURES))
    return HostedDevice(info, ReferenceMachine(0), AdversarialOrder(0))
"""

GOOD = DEVICE

TALKS = "print('a driver greets you')\n" + DEVICE.replace(
    "    info = describe", "    os.write(1, b'and once more')\n    info = describe"
)
"""Prints when it is imported, and when it opens a device past Python's own files."""

FORKS = (
    DEVICE
    + """

if os.fork() == 0:
    import time
    time.sleep(600)
"""
)
"""Leaves a child behind when it is imported."""

CRASHES = "import ctypes\nctypes.string_at(0)\n"

HANGS = "import time\ntime.sleep(600)\n"

LEAKS = DEVICE.replace(
    "    info = describe", '    os.open("/dev/null", os.O_RDONLY)\n    info = describe'
)

LIES = DEVICE.replace(
    "    return HostedDevice(info, ReferenceMachine(0)",
    """    (space, *others) = info.spaces
    limits = replace(info.limits, alloc_nbytes=4 << 20)
    info = replace(info, limits=limits, spaces=(replace(space, nbytes=8 << 20), *others))
    return HostedDevice(info, Small(0)""",
)
LIES += """

class Small(ReferenceMachine):
    def allocate(self, nbytes, options):
        if nbytes > 1 << 20:
            raise hal.core.errors.OutOfMemory(f"no {nbytes} bytes", nbytes, 1 << 20)
        return super().allocate(nbytes, options)
"""
"""Has one MiB, whatever the description says."""

DIES = DEVICE.replace("ReferenceMachine(0)", "Mortal(0)")
DIES += """

class Mortal(ReferenceMachine):
    def allocate(self, nbytes, options):
        if nbytes == 1 << 20:
            os.abort()
        return super().allocate(nbytes, options)
"""
"""Dies of an allocation of all its memory."""


@dataclass
class Site:
    """A folder on the import path; `install` does what pip would do with a plugin's wheel."""

    path: Path

    def install(self, name, code=GOOD, about_the_suite=""):
        package = f"hal_plugin_{name}"
        folder = self.path / package
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "plugin.py").write_text(code.replace("{name}", name))
        (folder / "hal-plugin.toml").write_text(MANIFEST.format(name=name))
        if about_the_suite:
            (folder / "hal-conformance.toml").write_text(about_the_suite)
        info = self.path / f"{package}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[hal.plugins]\n{name} = {package}.plugin\n")
