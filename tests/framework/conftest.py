"""The framework's tests run on an engine that interprets graphs with numpy: slow, and independent
of the compiler."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

import stack.framework as ht
from hal.core.dtypes import DType
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from stack.compiler.program import GraphRequest
from stack.framework import device
from stack.ir.interpret import interpret
from stack.ops import OPS


class HostArray:
    """A numpy array in the place of device memory."""

    def __init__(self, data: np.ndarray, dtype: DType) -> None:
        self.data = np.array(data, NUMPY[dtype], order="C")
        self.type = Type(self.data.shape, dtype)


@dataclass(frozen=True)
class InterpretedPlan:
    request: GraphRequest
    engine: "InterpretedEngine"
    launches: int = 1

    def run(self, inputs: Sequence[HostArray]) -> tuple[HostArray, ...]:
        request, self.engine.runs = self.request, self.engine.runs + 1
        self.engine.nodes_run.append(len(request.outputs))
        given = {n: a.data for n, a in zip(request.inputs, inputs, strict=True)}
        values = interpret(request.outputs, given, OPS)
        updates = dict(request.updates)
        results = []
        for i, value in enumerate(values):
            if i in updates:
                inputs[updates[i]].data = np.array(value)
                results.append(inputs[updates[i]])
            else:
                results.append(HostArray(value, request.outputs[i].dtype))
        return tuple(results)


class InterpretedEngine:
    """The engine's API on numpy. `plans` and `runs` count what was asked for."""

    def __init__(self) -> None:
        self.cache: dict[GraphRequest, InterpretedPlan] = {}
        self.runs = 0
        self.nodes_run: list[int] = []

    def put(self, data: np.ndarray, dtype: DType) -> HostArray:
        return HostArray(data, dtype)

    def write(self, array: HostArray, data: np.ndarray) -> None:
        array.data = HostArray(data, array.type.dtype).data

    def get(self, array: HostArray) -> np.ndarray:
        return array.data.copy()

    def plan(self, request: GraphRequest) -> InterpretedPlan:
        assert len(request.inputs) == len(set(request.inputs))
        return self.cache.setdefault(request, InterpretedPlan(request, self))

    def sync(self, timeout_s: float | None = None) -> None:
        return None


@pytest.fixture(autouse=True)
def engine() -> InterpretedEngine:
    """A fresh interpreted engine as the default device."""
    device.engines["interpreter:0"] = InterpretedEngine()
    ht.set_default_device("interpreter:0")
    return device.engines["interpreter:0"]
