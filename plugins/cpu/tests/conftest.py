"""Opened devices, small programs and the moves that most tests make."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hal_plugin_cpu.device import CpuDevice
from hal_plugin_cpu.plugin import open_device

from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, Scope
from hal.core.values import (
    LLVM_IR,
    AllocOptions,
    Buffer,
    KernelSource,
    OpenOptions,
    Param,
    ParamKind,
    Point,
    Program,
    Timeline,
)

_LOOP = """
define void @{entry}(ptr %args, ptr %grid, i64 %begin, i64 %end) {{
entry:
{loads}
  br label %loop
loop:
  %i = phi i64 [%begin, %entry], [%next, %body_end]
{body}
  br label %body_end
body_end:
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def loop_text(entry: str, kinds: str, body: str) -> str:
    """A program of `body` for each index %i; %pk is parameter k, a "b"uffer or an "i"64."""
    loads = []
    for k, kind in enumerate(kinds):
        loads.append(f"  %s{k} = getelementptr i64, ptr %args, i64 {k}")
        loads.append(f"  %p{k} = load {'ptr' if kind == 'b' else 'i64'}, ptr %s{k}")
    return _LOOP.format(entry=entry, loads="\n".join(loads), body=body)


def at(name: str, parameter: int, kind: str, index: str = "%i") -> str:
    return f"  %{name} = getelementptr {kind}, ptr %p{parameter}, i64 {index}\n"


ADD = loop_text(
    "add",
    "bbb",
    at("a", 0, "float") + at("b", 1, "float") + at("c", 2, "float")
    + "  %x = load float, ptr %a\n  %y = load float, ptr %b\n  %z = fadd float %x, %y\n"
    "  store float %z, ptr %c",
)  # fmt: skip
COUNT = loop_text(
    "count", "b", at("a", 0, "i32") + "  %old = atomicrmw add ptr %a, i32 1 monotonic"
)
INCREMENT = loop_text(
    "increment",
    "bi",
    at("a", 0, "i64") + "  %x = load i64, ptr %a\n  %y = add i64 %x, %p1\n  store i64 %y, ptr %a",
)
MIX = loop_text(
    "mix",
    "bbbi",
    at("a", 0, "i64") + at("b", 1, "i64") + at("c", 2, "i64")
    + "  %x = load i64, ptr %a\n  %y = load i64, ptr %b\n  %x3 = mul i64 %x, 3\n"
    "  %t = add i64 %x3, %y\n  %z = add i64 %t, %p3\n  store i64 %z, ptr %c",
)  # fmt: skip
SPIN = """
define void @spin(ptr %args, ptr %grid, i64 %begin, i64 %end) {
entry:
  %count = load i64, ptr %args
  %room = alloca i64
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  store volatile i64 %i, ptr %room
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
_READ = {"b": ParamKind.BUFFER, "i": ParamKind.SCALAR}


class Rig:
    """A device with a timeline of its own and short words for the common moves."""

    def __init__(self, device: CpuDevice) -> None:
        self.device = device
        self.timeline: Timeline = device.create_timeline(False)

    def load(self, text: str, entry: str, kinds: str) -> Program:
        params = tuple(
            Param(f"p{k}", _READ[kind], DType.I64, True, kind == "b")
            for k, kind in enumerate(kinds)
        )
        return self.device.load(KernelSource(LLVM_IR, text, entry, params))

    def upload(self, array: np.ndarray) -> Buffer:
        buffer = self.device.alloc(array.nbytes, AllocOptions())
        self.wait(self.device.copy(buffer.region(), array.view(np.uint8).data, self.timeline, ()))
        return buffer

    def download(self, buffer: Buffer, dtype: np.dtype | type) -> np.ndarray:
        self.wait(self.host_point())
        out = np.empty(buffer.nbytes // np.dtype(dtype).itemsize, dtype)
        timeline = self.device.create_timeline(False)
        point = self.device.copy(out.view(np.uint8).data, buffer.region(), timeline, ())
        assert self.device.wait((point,), 10.0, True)
        self.device.free(timeline)
        return out

    def wait(self, *points: Point, timeout_s: float = 20.0) -> None:
        if not points:
            points = (self.host_point(),)
        assert self.device.wait(points, timeout_s, True)

    def host_point(self) -> Point:
        """A point behind everything on the rig's timeline."""
        empty = self.device.alloc(0, AllocOptions())
        point = self.device.fill(empty.region(), b"\0", self.timeline, ())
        self.device.free(empty)
        return point


@pytest.fixture
def open_cpu() -> Iterator[Callable[..., CpuDevice]]:
    """Open devices that the test closes or that end with it."""
    opened: list[CpuDevice] = []

    def open_one(index: int = 0, cache_dir: str = "", **settings: str) -> CpuDevice:
        settings.setdefault("threads", "3")
        opened.append(open_device(index, OpenOptions(cache_dir, settings)))
        return opened[-1]

    yield open_one
    for device in opened:
        device.close()


@pytest.fixture
def rig(open_cpu: Callable[..., CpuDevice]) -> Rig:
    """A device with three workers, whatever the machine has."""
    return Rig(open_cpu())


@pytest.fixture
def open_rig(open_cpu: Callable[..., CpuDevice]) -> Callable[..., Rig]:
    """As `open_cpu`, with a rig around the device."""
    return lambda **settings: Rig(open_cpu(**settings))


@pytest.fixture
def pair(open_cpu: Callable[..., CpuDevice], monkeypatch: pytest.MonkeyPatch) -> list[Rig]:
    """Two CPU devices of one process."""
    monkeypatch.setenv("HAL_CPU_DEVICES", "2")
    return [Rig(open_cpu(index, threads="2")) for index in range(2)]


@pytest.fixture
def failure() -> Callable[..., Failure]:
    """Distinct failures, so that "the first cause" can be told."""
    numbers = itertools.count()

    def make(
        kind: FailureKind = FailureKind.LAUNCH_FAULT, scope: Scope = Scope.OPERATION
    ) -> Failure:
        return Failure(kind, scope, "cpu:0", "test", f"planted {next(numbers)}")

    return make


@pytest.fixture
def texts() -> dict[str, str]:
    return {"add": ADD, "count": COUNT, "increment": INCREMENT, "mix": MIX, "spin": SPIN}


@pytest.fixture(scope="module")
def four_rigs() -> Iterator[list[Rig]]:
    """Four CPU devices of one process, for a module's tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HAL_CPU_DEVICES", "4")
        devices = [open_device(i, OpenOptions(settings={"threads": "2"})) for i in range(4)]
        yield [Rig(device) for device in devices]
        for device in devices:
            device.close()


def _until_inside_wait(thread: threading.Thread) -> None:
    """Return once the thread waits for points of a device that were good when it began."""
    for _ in range(2000):
        frame = sys._current_frames().get(thread.ident or 0)
        # The handles are checked once, before this variable has its value.
        if frame and frame.f_code.co_name == "wait" and "until_ns" in frame.f_locals:
            return
        time.sleep(0.01)
    raise AssertionError(f"{thread.name} does not get as far as to wait")


@pytest.fixture
def until_inside_wait() -> Callable[[threading.Thread], None]:
    return _until_inside_wait
