"""What a case works with: sessions of the device under test and short words for common moves.

Everything that a rig opened ends with the case. Kernels are written once, in tile IR, and lowered
to the format that the device likes best; what they must compute comes from the interpreter.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

import hal
from hal.core.description import DeviceInfo
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import DeviceLost, Failure, OperationFailed, StaleHandle
from hal.core.facts import dataclass
from hal.core.values import (
    AllocOptions,
    Argument,
    Buffer,
    Grid,
    KernelSource,
    OpenOptions,
    Point,
    Program,
    Region,
    Timeline,
)
from hal.tile.interpret import interpret
from hal.tile.kernel import Kernel
from hal.tile.numeric import NUMPY
from hal_conformance import busy
from hal_conformance.case import Case
from hal_conformance.expect import Unfit, Wrong
from stack.compiler.targets import choose

if TYPE_CHECKING:
    from hal_conformance.mixed import Rendezvous

_FAR = 1 << 30
"""A value of a timeline that no case reaches: it fails as soon as the timeline has failed."""

WAIT_S = 10.0
"""How long a rig waits for work that must finish: far beyond what any of it takes alone."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a run opens devices: names of all devices of the plugin, their settings, where programs
    are kept, and the seed of everything random. `floors` are the figures of declared performance
    that the plugin keeps to, whatever it declares. With a `rendezvous` the names are those of the
    members of mixed groups."""

    name: str
    peers: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    cache_dir: str = ""
    seed: int = 0
    registry: Callable[[], hal.Registry] = hal.registry
    floors: Mapping[str, float] = field(default_factory=dict)
    rendezvous: Rendezvous | None = None


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Gate:
    """A host-driven point that holds back what waits for it, until `open` or `fail`."""

    device: Device
    timeline: Timeline

    @property
    def point(self) -> Point:
        """What operations wait for."""
        return Point(self.timeline, 1)

    def open(self) -> None:
        """Let them run."""
        self.device.signal(self.timeline, 1, None)

    def fail(self, failure: Failure) -> None:
        """Fail them."""
        self.device.signal(self.timeline, 1, failure)

    def closed(self) -> bool:
        """Whether it holds back what waits for it."""
        try:
            return not self.device.wait([self.point], 0, True)
        except (OperationFailed, StaleHandle):
            return False


def waited(device: Device, point: Point, timeout_s: float) -> bool:
    """Wait for a point so long, and longer where the machine is busy; raises as `Device.wait`. A
    wait that gave up before is not made up for."""
    end_s = time.monotonic() + timeout_s
    if device.wait([point], timeout_s, True):
        return True
    return time.monotonic() >= end_s and device.wait([point], busy.longer(timeout_s), True)


class Rig:
    """One case's sessions. What a case measures it leaves in `figures`, by name."""

    def __init__(self, case: Case, setting: Setting) -> None:
        self.case = case
        self.setting = setting
        self.name = setting.name
        self.random = np.random.default_rng([setting.seed, zlib.crc32(case.id.encode())])
        self.figures: dict[str, float] = {}
        self._opened: list[Device] = []
        self._shared: set[Device] = set()
        self._gates: WeakSet[Gate] = WeakSet()

    # sessions

    @cached_property
    def device(self) -> Device:
        """The device under test, opened for this case."""
        return self.open(self.name)

    @property
    def info(self) -> DeviceInfo:
        """What the device says about itself."""
        return self.device.info

    def open(
        self,
        name: str = "",
        wrappers: Sequence[Any] = hal.DEFAULT_WRAPPERS,
        cache_dir: str | None = None,
    ) -> Device:
        """Another session of the device, or of the device `name`."""
        where = self.setting.cache_dir if cache_dir is None else cache_dir
        name = name or self.name
        ours = name.partition(":")[0] == self.name.partition(":")[0]
        options = OpenOptions(where, self.setting.settings if ours else {})
        device = self._device(name, wrappers, options)
        self._opened.append(device)
        return device

    def devices(self, count: int) -> list[Device]:
        """The device under test and `count - 1` more devices of its plugin."""
        others = list(self.setting.peers)
        others.remove(self.name)
        if len(others) < count - 1:
            raise Unfit(f"it needs {count} devices, the plugin has {len(others) + 1}")
        return [self.device, *(self.open(name) for name in others[: count - 1])]

    def reset(self, device: Device | None = None) -> int:
        """Reset a device, and forget the rig's timeline on it; gives the new epoch."""
        device = device or self.device
        self._timelines.pop(device, None)
        self._shared.discard(device)
        return device.reset()

    def close(self) -> None:
        """End every session."""
        for device in reversed(self._opened):
            device.close()

    def _device(self, name: str, wrappers: Sequence[Any], options: OpenOptions) -> Device:
        registry, rendezvous = self.setting.registry(), self.setting.rendezvous
        if rendezvous is not None:
            return rendezvous.open(registry, name, wrappers, options)
        return registry.open(name, wrappers, options)

    # memory

    def buffer(
        self, content: int | bytes | NDArray[Any], device: Device | None = None, space: str = ""
    ) -> Buffer:
        """A buffer of that many bytes, or with that content."""
        device = device or self.device
        if isinstance(content, int):
            return device.alloc(content, AllocOptions(space=space))
        data = content.tobytes() if isinstance(content, np.ndarray) else content
        buffer = device.alloc(len(data), AllocOptions(space=space))
        self.write(buffer.region(), data, device)
        return buffer

    def noise(self, nbytes: int) -> bytes:
        """Random bytes of this case's seed."""
        return self.random.bytes(nbytes)

    def write(self, region: Region, data: bytes, device: Device | None = None) -> None:
        """Copy to the device and wait."""
        device = device or self.device
        self.done(device.copy(region, data, self.timeline(device), ()), device)

    def read(
        self, region: Region | Buffer, device: Device | None = None, waits: Sequence[Point] = ()
    ) -> bytes:
        """Copy from the device after `waits` and wait."""
        device = device or self.device
        if isinstance(region, Buffer):
            region = region.region()
        host = bytearray(region.nbytes)
        self.done(device.copy(host, region, self.timeline(device), waits), device)
        return bytes(host)

    def array(
        self, region: Region | Buffer, dtype: DType, waits: Sequence[Point] = ()
    ) -> NDArray[Any]:
        """As `read`, as a one-dimensional array."""
        return np.frombuffer(self.read(region, waits=waits), NUMPY[dtype])

    # order

    def timeline(self, device: Device | None = None) -> Timeline:
        """The rig's own device timeline on a device, made at its first use. On a device that has
        none for it, it is the last one that the case has: see `share`."""
        device = device or self.device
        if device in self._shared:
            self._shared_anew(device)
        if device not in self._timelines:
            self._timelines[device] = device.create_timeline(False)
        return self._timelines[device]

    def give_up(self, device: Device) -> bool:
        """Free the rig's own timeline, so that the case has one more; whether there was one."""
        if device in self._shared or device not in self._timelines:
            return False
        device.free(self._timelines.pop(device))
        return True

    def share(self, device: Device, line: Timeline) -> None:
        """The rig uses a timeline of the case, too, as its own. While a gate is closed, which may
        hold it, the case is unfit; once it has failed or was freed the rig has another one."""
        self._timelines[device] = line
        self._shared.add(device)

    def _shared_anew(self, device: Device) -> None:
        line = self._timelines[device]
        try:
            if any(gate.closed() for gate in tuple(self._gates) if gate.device is device):
                raise Unfit("it looks at memory while the device's last timeline may be held")
            device.wait([Point(line, _FAR)], 0, True)
        except DeviceLost:
            return
        except OperationFailed:
            device.free(line)
        except StaleHandle:
            pass
        else:
            return
        self._shared.discard(device)
        self._timelines[device] = device.create_timeline(False)

    @cached_property
    def _timelines(self) -> dict[Device, Timeline]:
        return {}

    def gate(self, device: Device | None = None) -> Gate:
        """A closed gate."""
        device = device or self.device
        gate = Gate(device, device.create_timeline(True))
        self._gates.add(gate)
        return gate

    def done(self, point: Point, device: Device | None = None, timeout_s: float = WAIT_S) -> None:
        """The point is reached in time."""
        if not waited(device or self.device, point, timeout_s):
            raise Wrong(f"a point that must be reached was not, in {timeout_s} s")

    def failed(
        self, point: Point, device: Device | None = None, timeout_s: float = WAIT_S
    ) -> Failure:
        """The point fails in time; gives the failure."""
        try:
            reached = waited(device or self.device, point, timeout_s)
        except OperationFailed as error:
            return error.failure
        if reached:
            raise Wrong("a point that must fail was reached")
        raise Wrong(f"a point that must fail was still open after {timeout_s} s")

    def pending(self, point: Point, device: Device | None = None) -> bool:
        """Whether the point is neither reached nor failed now."""
        return not (device or self.device).wait([point], 0, True)

    def until(self, holds: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait for the host side to see something, longer where the machine is busy."""
        end_s = time.monotonic() + timeout_s
        longer = False
        while not holds():
            if time.monotonic() > end_s:
                if longer:
                    raise Wrong(f"{what} did not happen in {timeout_s} s")
                longer, end_s = True, time.monotonic() + busy.longer(timeout_s)
            time.sleep(0.001)

    # programs

    def source(self, kernel: Kernel, device: Device | None = None) -> KernelSource:
        """The kernel in the format that the device likes best."""
        info = (device or self.device).info
        return choose(info).writer(info)(kernel, info)

    def program(self, kernel: Kernel, device: Device | None = None) -> Program:
        """The kernel, loaded."""
        return (device or self.device).load(self.source(kernel, device))

    def launch(
        self,
        program: Program,
        args: Sequence[Argument],
        grid: Grid = (1, 1, 1),
        waits: Sequence[Point] = (),
        timeline: Timeline | None = None,
        device: Device | None = None,
    ) -> Point:
        """Bind and launch, on the rig's own timeline unless another one is given."""
        device = device or self.device
        launchable = device.bind(program, args)
        return device.launch(launchable, grid, timeline or self.timeline(device), waits)

    def run(
        self,
        kernel: Kernel,
        arguments: Mapping[str, NDArray[Any] | float],
        grid: Grid = (1, 1, 1),
    ) -> dict[str, NDArray[Any]]:
        """Run a kernel on copies of these arrays; gives what the buffers hold afterwards."""
        arrays = {k: v for k, v in arguments.items() if isinstance(v, np.ndarray)}
        buffers = {name: self.buffer(array) for name, array in arrays.items()}
        args: list[Any] = [buffers.get(p.name, arguments[p.name]) for p in kernel.params]
        point = self.launch(self.program(kernel), args, grid)
        return {
            name: np.frombuffer(self.read(buffers[name], waits=[point]), array.dtype)
            for name, array in arrays.items()
        }

    def golden(
        self,
        kernel: Kernel,
        arguments: Mapping[str, NDArray[Any] | float],
        grid: Grid = (1, 1, 1),
    ) -> dict[str, NDArray[Any]]:
        """What the interpreter makes of the same run."""
        copies = {k: v.copy() for k, v in arguments.items() if isinstance(v, np.ndarray)}
        scalars = {k: v for k, v in arguments.items() if not isinstance(v, np.ndarray)}
        interpret(kernel, grid, copies, scalars)
        return copies
