"""A training run that loses its device, resets it and ends with the numbers of an undisturbed one.

The model is a handful of integers, so that every device gives the same bits: `out` = 3 x + w + k is
the forward step, and the gradient and the update are of the same form. The host keeps a checkpoint
after each whole step, as training does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.errors import DeviceLost, FailureKind, Scope
from hal.core.facts import dataclass
from hal.core.values import Buffer, Graph, Launchable, LaunchCommand, Point, Timeline
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.faults import LOST, RESET_REQUIRED, caught, lost_error, plant, planted
from hal_conformance.rig import Rig
from hal_conformance.steps import N, element, lines, mix

failure_training = Cases("I", Level.RESILIENT)

NEEDS = (Feature.INJECT, Feature.RESET)
STEPS = 6
Array = NDArray[Any]


@dataclass
class Run:
    """The model on the device: made anew after each reset, from the last checkpoint."""

    rig: Rig
    dtype: DType
    data: list[Array]
    weights: Array
    x: Buffer = field(init=False)
    w: Buffer = field(init=False)
    launchables: list[Launchable] = field(init=False)
    line: Timeline = field(init=False)

    def __post_init__(self) -> None:
        self.restore()

    def restore(self) -> None:
        """Load the program and the weights, and begin a timeline for the steps."""
        (self.line,) = lines(self.rig, 1)
        rig, nbytes = self.rig, N * self.dtype.nbytes
        program = rig.program(mix(self.dtype))
        self.x, out, grad, new = (rig.buffer(nbytes) for _ in range(4))
        self.w = rig.buffer(self.weights)
        calls = [
            (self.x, self.w, out),
            (out, self.x, grad),
            (grad, self.w, new),
            (new, new, self.w),
        ]
        self.launchables = [rig.device.bind(program, (*call, k)) for k, call in enumerate(calls)]

    def step(self, number: int) -> Point:
        """Submit one step."""
        device, line = self.rig.device, self.line
        device.copy(self.x.region(), self.data[number].tobytes(), line, ())
        for launchable in self.launchables:
            point = device.launch(launchable, (1, 1, 1), line, ())
        return point

    def replay(self, graph: Graph, number: int) -> Point:
        """Submit one step as a graph."""
        device, line = self.rig.device, self.line
        device.copy(self.x.region(), self.data[number].tobytes(), line, ())
        return device.replay(graph, (), line, ())

    def checkpoint(self, point: Point) -> None:
        """Keep the weights on the host."""
        self.rig.done(point)
        self.weights = self.rig.array(self.w, self.dtype).copy()

    def recover(self) -> None:
        """Reset the device and begin again from the checkpoint."""
        self.rig.reset()
        self.restore()


def _golden(data: list[Array], w: Array) -> Array:
    """The weights after all steps, in numpy."""
    for x in data:
        out = x * 3 + w
        grad = out * 3 + x + 1
        new = grad * 3 + w + 2
        w = new * 4 + 3
    return w


def _start(rig: Rig) -> tuple[Run, Array]:
    """A run, and the weights that it must end with."""
    dtype = element(rig, ints=True)
    data = [rig.random.integers(0, 9, N).astype(NUMPY[dtype]) for _ in range(STEPS)]
    weights = np.arange(N).astype(NUMPY[dtype])
    return Run(rig, dtype, data, weights), _golden(data, weights)


@failure_training.case(
    "training-goes-on-after-loss",
    "reset.works",
    "failure.loss",
    needs=NEEDS,
    at=(1, 7, 14, 24),
)
def _(rig: Rig, at: int) -> None:
    """The device is lost at launch `at` of 24; the step is run again from its checkpoint."""
    run, golden = _start(rig)
    failure = plant(rig.device, planted(rig.device, LOST), "launch", at)
    number = losses = 0
    while number < STEPS:
        try:
            run.checkpoint(run.step(number))
        except DeviceLost as error:
            lost_error(error, failure)
            run.recover()
            losses += 1
            continue
        number += 1
    expect.equal(losses, 1, "how often the device was lost")
    expect.same(run.weights, golden, "the weights at the end")


@failure_training.case("training-loses-every-step", "reset.works", "failure.loss", needs=NEEDS)
def _(rig: Rig) -> None:
    run, golden = _start(rig)
    for number in range(STEPS):
        failure = planted(rig.device, RESET_REQUIRED, f"step {number}")
        plant(rig.device, failure, "launch", number % 4 + 1)
        step: Callable[[int], None] = lambda n: run.checkpoint(run.step(n))
        lost_error(expect.raises(DeviceLost, step, number), failure)
        run.recover()
        run.checkpoint(run.step(number))
    expect.same(run.weights, golden, "the weights at the end")


@failure_training.case(
    "training-graph-after-loss", "reset.works", "replay.same", needs=(*NEEDS, Feature.GRAPH)
)
def _(rig: Rig) -> None:
    """The same with a step that is recorded once in each epoch."""
    run, golden = _start(rig)
    failure = plant(rig.device, planted(rig.device, LOST, hook="replay"), "replay", 3)
    graph = _recorded(run)
    for number in range(STEPS):
        if number == 2:
            lost_error(caught(rig.device, run.replay(graph, number)), failure)
            run.recover()
            graph = _recorded(run)
        run.checkpoint(run.replay(graph, number))
    expect.same(run.weights, golden, "the weights at the end")


@failure_training.case(
    "training-goes-on-after-corruption", "submit.apart", "inject.true", needs=(Feature.INJECT,)
)
def _(rig: Rig) -> None:
    """A failure of one operation needs no reset: a new timeline and the checkpoint are enough."""
    run, golden = _start(rig)
    how = (FailureKind.DATA_CORRUPTION, Scope.OPERATION)
    failure = plant(rig.device, planted(rig.device, how), "launch", 10)
    for number in range(STEPS):
        if number == 2:
            expect.equal(caught(rig.device, run.step(number)).failure, failure, "the failure")
            run.restore()
        run.checkpoint(run.step(number))
    expect.same(run.weights, golden, "the weights at the end")


def _recorded(run: Run) -> Graph:
    commands = [LaunchCommand(launchable, (1, 1, 1)) for launchable in run.launchables]
    return run.rig.device.record(commands)
