"""Random work on several timelines, against a shadow model that runs it one by one.

Each operation waits for what its result depends on and for nothing else: the writer of each cell
that it reads, and for a cell that it writes its writer and its readers since. Each timeline starts
behind a gate of its own, and the gates open one after the other, so that a device which forgets a
wait, or the order of a timeline, works on cells too early.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.description import Feature
from hal.core.facts import dataclass
from hal.core.values import Buffer, FillCommand, Point, Program, Waits
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.expect import Unfit
from hal_conformance.rig import Rig
from hal_conformance.steps import N, element, lines, mix, turn

order_random = Cases("F", Level.ASYNC)

CELLS = 5
LINES = 4


@dataclass
class Cell:
    """A buffer, what it must hold in the end, and the points that touched it."""

    buffer: Buffer
    shadow: NDArray[Any]
    wrote: list[Point] = field(default_factory=list)
    read: list[Point] = field(default_factory=list)


class Work:
    """Random operations of the kinds that one case asks for."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.dtype = element(rig, ints=True)
        self.lines = lines(rig, LINES)
        self.gates = [rig.gate() for _ in self.lines]
        self.fresh = set(range(LINES))
        kinds = NUMPY[self.dtype]
        arrays = [rig.random.integers(0, 99, N).astype(kinds) for _ in range(CELLS)]
        self.cells = [Cell(rig.buffer(array), array) for array in arrays]
        self.outs: list[tuple[bytearray, bytes]] = []
        self.programs: dict[str, Program] = {}
        self.points: list[Point] = []

    def add(self, kind: str) -> None:
        """Submit one operation of that kind on random cells of a random timeline."""
        to, of, by = (self.cells[int(i)] for i in self._pick(3))
        reads, writes = {
            "mix": ([of, by], [to]),
            "turn": ([to], [to]),
            "copy": ([of], [to]),
            "out": ([of], []),
        }.get(kind, ([], [to]))
        index = int(self.rig.random.integers(LINES))
        waits = [p for cell in reads for p in cell.wrote]
        waits += [p for cell in writes for p in cell.wrote + cell.read]
        if index in self.fresh:
            self.fresh.discard(index)
            waits.append(self.gates[index].point)
        point = self._submit(kind, index, waits, to, of, by)
        for cell in reads:
            cell.read.append(point)
        for cell in writes:
            cell.wrote, cell.read = [point], []
        self.points.append(point)

    def finish(self) -> None:
        """Open the gates in a random order, and compare with the shadow."""
        for index in self.rig.random.permutation(LINES):
            self.gates[index].open()
            self.rig.device.wait(self.points, 0.002, True)
        for point in self.points:
            self.rig.done(point)
        for number, cell in enumerate(self.cells):
            found = self.rig.array(cell.buffer, self.dtype)
            expect.same(found, cell.shadow, f"cell {number} after {len(self.points)} operations")
        for number, (found_bytes, wanted) in enumerate(self.outs):
            expect.same_bytes(bytes(found_bytes), wanted, f"copy {number} to the host")

    def _pick(self, count: int) -> NDArray[Any]:
        return self.rig.random.choice(CELLS, count, replace=False)

    def _submit(self, kind: str, index: int, waits: Waits, to: Cell, of: Cell, by: Cell) -> Point:
        device, line, k = self.rig.device, self.lines[index], int(self.rig.random.integers(50))
        target = to.buffer.region()
        match kind:
            case "mix":
                args = (of.buffer, by.buffer, to.buffer, k)
                to.shadow = of.shadow * 3 + by.shadow + k
                return self.rig.launch(self._program(kind), args, waits=waits, timeline=line)
            case "turn":
                to.shadow = to.shadow * 3 + k
                return self.rig.launch(
                    self._program(kind), (to.buffer, k), waits=waits, timeline=line
                )
            case "copy":
                to.shadow = of.shadow.copy()
                return device.copy(target, of.buffer.region(), line, waits)
            case "out":
                self.outs.append((bytearray(of.buffer.nbytes), of.shadow.tobytes()))
                return device.copy(self.outs[-1][0], of.buffer.region(), line, waits)
            case "in":
                to.shadow = self.rig.random.integers(0, 99, N).astype(to.shadow.dtype)
                return device.copy(target, to.shadow.tobytes(), line, waits)
        to.shadow = np.full(N, k, to.shadow.dtype)
        pattern = to.shadow[:1].tobytes()
        if kind == "graph":
            graph = device.record([FillCommand(target, pattern)])
            return device.replay(graph, (), line, waits)
        return device.fill(target, pattern, line, waits)

    def _program(self, kind: str) -> Program:
        if kind not in self.programs:
            kernel = mix(self.dtype) if kind == "mix" else turn(self.dtype)
            self.programs[kind] = self.rig.program(kernel)
        return self.programs[kind]


def _run(rig: Rig, count: int, kinds: tuple[str, ...]) -> None:
    work = Work(rig)
    for _ in range(count):
        work.add(kinds[int(rig.random.integers(len(kinds)))])
    work.finish()


@order_random.case("random-moves", "submit.waits", "submit.order", seed=range(6))
def _(rig: Rig, seed: int) -> None:
    _run(rig, 60, ("copy", "copy", "fill", "in", "out"))


@order_random.case("random-kernels", "submit.waits", "submit.order", seed=range(4))
def _(rig: Rig, seed: int) -> None:
    _run(rig, 30, ("mix", "turn", "copy", "fill"))


@order_random.case("random-writes-over-reads", "submit.waits", seed=range(3))
def _(rig: Rig, seed: int) -> None:
    """Mostly copies to the host and fills: a write must not overtake the reads before it."""
    _run(rig, 60, ("out", "out", "out", "fill", "in"))


@order_random.case("random-writes-over-writes", "submit.waits", seed=range(3))
def _(rig: Rig, seed: int) -> None:
    """Nothing but writes: the last one of each cell wins."""
    _run(rig, 60, ("fill", "in"))


@order_random.case(
    "random-everything", "submit.waits", "submit.order", "replay.same", seed=range(3)
)
def _(rig: Rig, seed: int) -> None:
    if Feature.GRAPH not in rig.info.features:
        raise Unfit("the device does not declare graph")
    _run(rig, 40, ("mix", "turn", "copy", "fill", "in", "out", "graph"))
