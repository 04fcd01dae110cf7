"""The framework's tests run on an engine that interprets graphs with numpy: slow, and independent
of the compiler."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import stack.framework as ht
from hal.core.dtypes import DType
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from stack.compiler.program import GraphRequest
from stack.framework import devices as device
from stack.framework.cell import here
from stack.ir.interpret import interpret

torch.set_num_threads(1)  # tests share the machine; these tensors are small


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
        values = interpret(request.outputs, given)
        updates = dict(request.updates)
        results = []
        for i, value in enumerate(values):
            if i in updates:
                inputs[updates[i]].data = np.array(value)
                results.append(inputs[updates[i]])
            else:
                results.append(HostArray(value, request.outputs[i].dtype))
        return tuple(results)


class HostSnapshot:
    """What arrays hold now, of which an update makes new memory."""

    def __init__(self, arrays: Sequence[HostArray]) -> None:
        self._data = {id(a): a.data for a in arrays}

    def read(self, array: HostArray, pieces: Sequence[tuple[int, np.ndarray]]) -> None:
        for begin, out in pieces:
            out[:] = self._data[id(array)].reshape(-1).view(np.uint8)[begin : begin + out.size]

    def close(self) -> None:
        self._data.clear()


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

    def get_part(self, array: HostArray, begin: int, shape: tuple[int, ...]) -> np.ndarray:
        count = int(np.prod(shape))
        return array.data.reshape(-1)[begin : begin + count].reshape(shape).copy()

    def snapshot(self, arrays: Sequence[HostArray]) -> "HostSnapshot":
        return HostSnapshot(arrays)

    def empty(self, type: Type) -> HostArray:
        return HostArray(np.empty(type.shape, NUMPY[type.dtype]), type.dtype)

    def fill(self, array: HostArray, begin: int, count: int, value: np.ndarray) -> None:
        array.data.reshape(-1)[begin : begin + count] = value

    def copy(self, array: HostArray, begin: int, source: HostArray) -> None:
        array.data.reshape(-1)[begin : begin + source.data.size] = source.data.reshape(-1)

    def plan(
        self, request: GraphRequest, keep: bool = True, general: bool = True
    ) -> InterpretedPlan:
        assert len(request.inputs) == len(set(request.inputs))
        return self.cache.setdefault(request, InterpretedPlan(request, self))

    def sync(self, timeout_s: float | None = None) -> None:
        return None


@pytest.fixture(autouse=True)
def engine(monkeypatch) -> InterpretedEngine:
    """A fresh interpreted engine as the default device, for the test alone."""
    fresh = InterpretedEngine()
    monkeypatch.setitem(device.engines, "interpreter:0", fresh)
    monkeypatch.setattr(device, "_default", ["interpreter:0"])
    monkeypatch.setattr(here, "generators", {})
    return fresh


def _agree(ours, theirs, *arrays, gradient=True, rtol=2e-5, atol=2e-6):
    """Both functions give the same value, element type, shape and gradients for these arrays."""
    mine = [ht.tensor(a, requires_grad=gradient and a.dtype.kind == "f") for a in arrays]
    peer = [
        torch.tensor(np.asarray(a), requires_grad=gradient and a.dtype.kind == "f") for a in arrays
    ]
    y, expected = ours(*mine), theirs(*peer)
    assert y.dtype.short == SHORT[expected.dtype], (y.dtype, expected.dtype)
    assert y.shape == tuple(expected.shape)
    assert y.requires_grad == expected.requires_grad
    close(y.numpy(), expected.detach().numpy(), rtol, atol)
    if y.requires_grad:
        weights = np.random.default_rng(7).normal(size=y.shape).astype(y.numpy().dtype)
        y.backward(ht.tensor(weights))
        expected.backward(torch.tensor(weights))
        for mine_leaf, peer_leaf in zip(mine, peer, strict=True):
            if peer_leaf.grad is not None:
                assert mine_leaf.grad is not None
                close(mine_leaf.grad.numpy(), peer_leaf.grad.numpy(), rtol, atol)


def close(actual, expected, rtol, atol):
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)


SHORT = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}
"""Our short names of torch's element types."""


@pytest.fixture(scope="session")
def agree():
    """A function that compares one of ours with one of torch's, by values and gradients."""
    return _agree


@pytest.fixture
def draw_floats():
    """A function of shapes: normal float32 arrays, the same for a test however tests are run."""
    generator = np.random.default_rng(0)
    return lambda *shapes: [generator.normal(size=s).astype(np.float32) for s in shapes]
