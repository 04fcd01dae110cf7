"""The framework on the device under test, and on numpy for the truth."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY, quiet
from hal_conformance import busy, expect
from hal_conformance.rig import WAIT_S, Rig
from stack.compiler.program import GraphRequest
from stack.framework import devices as framework
from stack.framework.random import drop_generator
from stack.ir.interpret import interpret
from stack.runtime.engine import Engine
from stack.runtime.opening import engine_of

Values = NDArray[Any]
RELATIVE = {DType.F64: 1e-12, DType.F32: 1e-5, DType.F16: 2e-3, DType.BF16: 2e-2}
RELATIVE |= {DType.F8E4M3FN: 0.13, DType.F8E5M2: 0.26}
"""How near results of some operations must be, relative to the greater of 1 and the value."""

_serial = itertools.count()


def engine_on(rig: Rig, device: Device | None = None) -> Engine:
    """A new engine on a device; it ends with the case."""
    return engine_of(device or rig.device, timeout_s=WAIT_S + busy.longer(WAIT_S))


@contextmanager
def seat(engine: Any) -> Iterator[str]:
    """Within the block the framework computes on this engine; gives its name there."""
    name = f"conformance:{next(_serial)}"
    with framework.default_engine(name, engine):
        try:
            yield name
        finally:
            drop_generator(name)


def near(rig: Rig, got: Values, wanted: Values, dtype: DType, what: str) -> None:
    """The same shape and, within the device's profile, values; exact for all but floats."""
    expect.equal(got.shape, wanted.shape, f"the shape of {what}")
    if dtype not in RELATIVE:
        return expect.same(got, wanted, what)
    profile = max(rig.info.numeric.ulp.values()) * 2.0**-20
    relative = max(RELATIVE[dtype], profile if dtype is not DType.F64 else 0.0)
    tolerance = relative * np.maximum(1, np.abs(wanted.astype(np.float64)))
    return expect.near(got, wanted, tolerance, what)


def run(
    engine: Engine, outputs: Sequence[Node], inputs: Sequence[tuple[Node, Values]]
) -> list[Values]:
    """The values of graph nodes, computed by the engine."""
    plan = engine.plan(GraphRequest(tuple(outputs), tuple(n for n, _ in inputs)))
    return [engine.get(a) for a in plan.run([engine.put(x, n.dtype) for n, x in inputs])]


def truth(outputs: Sequence[Node], inputs: Sequence[tuple[Node, Values]]) -> list[Values]:
    """The same by the operations' references in numpy."""
    with quiet():
        return interpret(outputs, dict(inputs))


class NumpyArray:
    """A numpy array in the place of device memory."""

    def __init__(self, data: Values, dtype: DType) -> None:
        self.data = np.array(data, NUMPY[dtype], order="C")
        self.type = Type(self.data.shape, dtype)


@dataclass(frozen=True, slots=True)
class NumpyPlan:
    """A request, interpreted at each run."""

    request: GraphRequest
    launches: int = 1

    def run(self, inputs: Sequence[NumpyArray]) -> tuple[NumpyArray, ...]:
        """The outputs; an updated one is its input's own array."""
        given = [(n, a.data) for n, a in zip(self.request.inputs, inputs, strict=True)]
        values, updates = truth(self.request.outputs, given), dict(self.request.updates)
        results = []
        for i, (value, output) in enumerate(zip(values, self.request.outputs, strict=True)):
            array = inputs[updates[i]] if i in updates else NumpyArray(value, output.dtype)
            array.data = np.array(value)
            results.append(array)
        return tuple(results)


class NumpyEngine:
    """What the framework needs of an engine, on numpy: the truth that trainings are held to."""

    def put(self, data: Values, dtype: DType) -> NumpyArray:
        """A copy."""
        return NumpyArray(data, dtype)

    def write(self, array: NumpyArray, data: Values) -> None:
        """Overwrite."""
        array.data = NumpyArray(data, array.type.dtype).data

    def get(self, array: NumpyArray) -> Values:
        """A copy."""
        return array.data.copy()

    def plan(self, request: GraphRequest, keep: bool = True, general: bool = True) -> NumpyPlan:
        """The request itself."""
        return NumpyPlan(request)

    def sync(self, timeout_s: float | None = None) -> None:
        """Nothing is ever outstanding."""
