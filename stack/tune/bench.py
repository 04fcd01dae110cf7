"""Candidates on an open device: built, run, compared, timed. Nothing but the contract is used."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import HalError, OperationFailed
from hal.core.facts import dataclass
from hal.core.values import AllocOptions, Buffer, Launchable, Point, Program
from hal.tile.numeric import NUMPY
from stack.tune.check import difference
from stack.tune.orders import Answer, BeginProblem, Extent, Order, Prepare, Refusal, Stage, Trial

Bytes = npt.NDArray[np.uint8]
LONG_S = 0.02
"""Seconds of a run from which on one time is enough."""
LOOKS = 3
"""Times of which the least is the answer."""
AHEAD = 32
"""Launches after which the one so many before is waited for: a device's queue is not endless."""
UNWRITTEN = b"\xff"
"""What fills results before they are computed: NaN, so that a missing one is seen."""


@dataclass(frozen=True, slots=True)
class _Ready:
    program: Program
    launchable: Launchable
    trial: Trial


class LateError(Exception):
    """The device did not finish in time."""


class Bench:
    """A problem's buffers on a device and the candidates that are prepared. Every wait of an order
    ends within its `limit_s`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._timeline = device.create_timeline(False)
        self._extents: tuple[Extent, ...] = ()
        self._buffers: list[Buffer] = []
        self._contents: list[Bytes] = []
        self._expected: list[Bytes] = []
        self._ready: dict[int, _Ready] = {}
        self._ends = 0.0

    def answer(self, order: Order, limit_s: float) -> Answer:
        """Do what is ordered. A refusal by the device or for a wrong result is an answer."""
        self._ends = time.monotonic() + limit_s
        try:
            if isinstance(order, BeginProblem):
                for old in self._ready.values():
                    self._device.free(old.launchable)
                    self._device.free(old.program)
                for memory in self._buffers:
                    self._device.free(memory)
                self._ready, self._expected, self._buffers, self._contents = {}, [], [], []
                for seed, extent in enumerate(order.extents):
                    buffer = self._device.alloc(extent.nbytes, AllocOptions(label="tuning"))
                    content = contents(extent, seed)
                    self._buffers.append(buffer)
                    self._contents.append(content)
                    self._wait(self._device.copy(buffer.region(), content.data, self._timeline, ()))
                self._extents = tuple(order.extents)
                return 0.0
            if isinstance(order, Prepare):
                program = self._device.load(order.trial.source)
                launchable = self._device.bind(
                    program, [self._buffers[i] for i in order.trial.args]
                )
                ready = self._ready[order.number] = _Ready(program, launchable, order.trial)
                self._restore(UNWRITTEN)
                self._wait(self._run(ready))
                # How the results differ from those of candidate 0; "" where they do not.
                found = [self._read(i) for i, e in enumerate(self._extents) if e.written]
                if order.number == 0:
                    self._expected = found
                written = [e.dtype for e in self._extents if e.written]
                triples = zip(found, self._expected, written, strict=True)
                said = (difference(values(f, d), values(e, d), d) for f, e, d in triples)
                wrong = next((text for text in said if text), "")
                if wrong:
                    return Refusal(Stage.RESULT, wrong)
                return self._least(ready, 1)
            return self._least(self._ready[order.number], order.repeats)
        except LateError:
            return Refusal(Stage.HANG, f"did not end within {limit_s:g} s", lasting=True)
        except OperationFailed as error:
            return Refusal(Stage.LAUNCH, str(error), lasting=True)
        except HalError as error:
            return Refusal(Stage.BUILD, str(error))

    def _least(self, ready: _Ready, repeats: int) -> float:
        """The least of a few times, since other work on the machine only ever adds to one; a
        single time where a run takes long."""
        least = self._timed(ready, repeats)
        for _ in range(LOOKS - 1 if least < LONG_S else 0):
            least = min(least, self._timed(ready, repeats))
        return least

    def _timed(self, ready: _Ready, repeats: int) -> float:
        self._restore()
        self._wait(self._run(ready))  # with everything warm
        start = time.perf_counter()
        before = point = self._run(ready)
        for i in range(1, repeats):
            point = self._run(ready)
            if i % AHEAD == 0:
                self._wait(before)
                before = point
        self._wait(point)
        return (time.perf_counter() - start) / repeats

    def _restore(self, unwritten: bytes = b"") -> None:
        """Put the contents that kernels changed back, or `unwritten` where they only write."""
        for buffer, content, extent in zip(
            self._buffers, self._contents, self._extents, strict=True
        ):
            if extent.written:
                self._wait(self._device.copy(buffer.region(), content.data, self._timeline, ()))
        if not unwritten:
            return
        read: set[int] = set()
        for ready in self._ready.values():
            pairs = zip(ready.trial.args, ready.trial.source.params, strict=True)
            read |= {i for i, param in pairs if param.reads}
        for i in {i for i, e in enumerate(self._extents) if e.written} - read:
            self._wait(self._device.fill(self._buffers[i].region(), unwritten, self._timeline, ()))

    def _run(self, ready: _Ready) -> Point:
        return self._device.launch(ready.launchable, ready.trial.grid, self._timeline, ())

    def _read(self, number: int) -> Bytes:
        buffer = self._buffers[number]
        host = np.empty(buffer.nbytes, np.uint8)
        self._wait(self._device.copy(host.data, buffer.region(), self._timeline, ()))
        return host

    def _wait(self, point: Point) -> None:
        left = max(0.0, self._ends - time.monotonic())
        if not self._device.wait([point], left, True):
            raise LateError


def contents(extent: Extent, seed: int) -> Bytes:
    """What a buffer holds at first: floats between a half and one and a half, whose sums,
    products and roots are ordinary numbers; integers from 0 to 3; zeros, which index any axis."""
    count, rng = extent.nbytes // extent.dtype.nbytes, np.random.default_rng(seed)
    if extent.dtype.is_float:
        drawn = rng.random(count, np.float32) + np.float32(0.5)
        return drawn.astype(NUMPY[extent.dtype]).view(np.uint8)
    most = 0 if extent.index else 1 if extent.dtype is DType.BOOL else 3
    return rng.integers(0, most + 1, count).astype(NUMPY[extent.dtype]).view(np.uint8)


def values(content: Bytes, dtype: DType) -> npt.NDArray[np.generic]:
    """The elements of a buffer."""
    return content.view(NUMPY[dtype])
