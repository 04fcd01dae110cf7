"""Trainings on the device: forward, backward, optimizers, checkpoints."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stack.framework as ht
import stack.framework.functional as F
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import need
from hal_conformance.rig import Rig
from hal_conformance.seat import NumpyEngine, engine_on, near, seat
from stack.framework import checkpoint, nn, optim

stack_training = Cases("J", Level.RESILIENT)

F32, F64 = DType.F32, DType.F64
Values = NDArray[Any]
ROWS, IN, HIDDEN, OUT = 5, 6, 7, 3


def weights(rig: Rig, dtype: DType) -> list[Values]:
    """Two layers: w1, b1, w2, b2."""
    shapes = ((HIDDEN, IN), (HIDDEN,), (OUT, HIDDEN), (OUT,))
    return [(rig.random.standard_normal(s) * 0.5).astype(NUMPY[dtype]) for s in shapes]


def perceptron(parameters: list[Values]) -> nn.Sequential:
    """The two layers with a tanh between them."""
    w1, b1, w2, b2 = (ht.tensor(p) for p in parameters)
    model = nn.Sequential(nn.Linear(IN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUT))
    model.to(w1.dtype)
    model.load_state_dict({"0.weight": w1, "0.bias": b1, "2.weight": w2, "2.bias": b2})
    return model


def by_hand(x: Values, target: Values, parameters: list[Values]) -> tuple[Values, list[Values]]:
    """The output and the gradients of the squared error, in float64."""
    w1, b1, w2, b2 = (p.astype(np.float64) for p in parameters)
    x = x.astype(np.float64)
    h = np.tanh(x @ w1.T + b1)
    y = h @ w2.T + b2
    dy = 2 * (y - target.astype(np.float64))
    dh = (dy @ w2) * (1 - h * h)
    return y, [dh.T @ x, dh.sum(0), dy.T @ h, dy.sum(0)]


def data(rig: Rig, dtype: DType) -> tuple[Values, Values]:
    """Inputs and targets."""
    x, y = (rig.random.standard_normal((ROWS, n)).astype(NUMPY[dtype]) for n in (IN, OUT))
    return x, y


@stack_training.case("perceptron", "launch.exact", "submit.order", dtype=(F32, F64))
def _(rig: Rig, dtype: DType) -> None:
    """Forward and backward of two layers against the formulas."""
    need(rig, dtype)
    parameters, (x, target) = weights(rig, dtype), data(rig, dtype)
    wanted, slopes = by_hand(x, target, parameters)
    with seat(engine_on(rig)):
        model = perceptron(parameters)
        y = model(ht.tensor(x))
        (y - ht.tensor(target)).square().sum().backward()
        near(rig, y.numpy(), wanted, dtype, "the output")
        for (name, p), slope in zip(model.named_parameters(), slopes, strict=True):
            assert p.grad is not None
            near(rig, p.grad.numpy() / 10, slope / 10, dtype, f"the gradient of {name}")


@stack_training.case("descent", "launch.exact", "submit.order")
def _(rig: Rig) -> None:
    """Ten captured steps of plain descent against the same in numpy."""
    need(rig, F32)
    parameters, (x, target) = weights(rig, F32), data(rig, F32)
    mirror = [p.astype(np.float64) for p in parameters]
    with seat(engine_on(rig)):
        model = perceptron(parameters)
        optimizer = optim.SGD(model.parameters(), lr=0.01)

        @ht.jit
        def step(x: ht.Tensor, target: ht.Tensor) -> ht.Tensor:
            optimizer.zero_grad()
            loss: ht.Tensor = (model(x) - target).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        for i in range(10):
            y, slopes = by_hand(x, target, mirror)
            wanted = np.asarray(((y - target) ** 2).sum())
            near(rig, step(ht.tensor(x), ht.tensor(target)).numpy(), wanted, F32, f"loss {i}")
            mirror = [p - 0.01 * slope for p, slope in zip(mirror, slopes, strict=True)]
        for (name, p), value in zip(model.named_parameters(), mirror, strict=True):
            near(rig, p.numpy(), value, F32, f"{name} after ten steps")


def classifier_losses(half: bool) -> Values:
    """The losses of a captured training with random numbers from seed 0."""
    ht.default_generator().set_state(0, 0)
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
    optimizer = optim.AdamW(model.parameters(), lr=0.02)

    @ht.jit
    def step(tokens: ht.Tensor) -> ht.Tensor:
        optimizer.zero_grad()
        with ht.autocast(DType.BF16 if half else None):
            loss = F.cross_entropy(model(tokens[:-1]), tokens[1:])
        loss.backward()
        optimizer.step()
        return loss

    tokens = ht.tensor(np.arange(9) * 4 % 11)
    return np.array([step(tokens).item() for _ in range(2)])


@stack_training.case("classifier", "launch.exact", "submit.order", half=(False, True))
def _(rig: Rig, half: bool) -> None:
    """The same training on the device and by the operations' definitions."""
    need(rig, F32, DType.I64, DType.U64, DType.U32, *([DType.BF16] if half else []))
    with seat(engine_on(rig)):
        got = classifier_losses(half)
    with seat(NumpyEngine()):
        wanted = classifier_losses(half)
    expect.near(got, wanted, (0.02 if half else 1e-4) * wanted, "the losses")


def attended(x: Values) -> Values:
    """Causal attention, with weights of seed 0."""
    ht.default_generator().set_state(0, 0)
    result: Values = nn.CausalSelfAttention(4, 2, bias=False)(ht.tensor(x)).numpy()
    return result


@stack_training.case("attention", "launch.exact", "submit.order")
def _(rig: Rig) -> None:
    need(rig, F32, DType.I64, DType.U64, DType.U32)
    x = rig.random.standard_normal((2, 5, 4)).astype(np.float32)
    with seat(engine_on(rig)):
        got = attended(x)
    with seat(NumpyEngine()):
        near(rig, got, attended(x), F32, "what was attended to")


class Training:
    """A training whose whole state goes through a checkpoint: weights, moments, random numbers."""

    def __init__(self, parameters: list[Values]) -> None:
        self.model = perceptron(parameters)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=0.05)

    def run(self, steps: int, x: Values) -> list[float]:
        """Losses with dropped out inputs."""
        losses = []
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.model(F.dropout(ht.tensor(x), 0.3)).square().sum()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def save(self, path: Path) -> None:
        """Write everything."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        random = list(ht.default_generator().get_state())
        checkpoint.save(path, {**state, "random": random})

    def load(self, path: Path) -> None:
        """Go on from there."""
        state = checkpoint.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        ht.default_generator().set_state(*state["random"])


def _resumed(rig: Rig, other: Device) -> tuple[list[float], list[float]]:
    """The losses of a training that goes on, and of one that is resumed on another device."""
    need(rig, F32, DType.U64, DType.U32)
    parameters, (x, _) = weights(rig, F32), data(rig, F32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        with seat(engine_on(rig)):
            ht.default_generator().set_state(7, 0)
            training = Training(parameters)
            training.run(2, x)
            training.save(path)
            on = training.run(2, x)
        with seat(engine_on(rig, other)):
            again = Training([np.zeros_like(p) for p in parameters])
            again.load(path)
            return on, again.run(2, x)


@stack_training.case("checkpoint-resumed", "launch.deterministic", "open.sessions", timeout_s=60)
def _(rig: Rig) -> None:
    """In another session of the device: to the last bit where the device is deterministic."""
    on, again = _resumed(rig, rig.open())
    if rig.info.numeric.deterministic:
        expect.equal(again, on, "the losses after the checkpoint")
    near(rig, np.array(again), np.array(on), F32, "the losses after the checkpoint")


@stack_training.case("checkpoint-moved", "launch.exact", "copy.exact", devices=2, timeout_s=60)
def _(rig: Rig) -> None:
    """On another device of the plugin."""
    on, again = _resumed(rig, rig.devices(2)[1])
    near(rig, np.array(again), np.array(on), F32, "the losses after the checkpoint")
