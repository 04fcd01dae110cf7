"""Random training programs, run by the framework and by PyTorch: what is looked at, and when,
changes nothing.

`python -m tests.framework.training_programs COUNT SEED` runs many of them.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import torch

import stack.framework as ht
from stack.framework import functional, nn, optim
from stack.framework.devices import default_engine
from tests.framework.conftest import InterpretedEngine

# A step of Adam's kind is a sign where eps is small, and makes of a rounding what it likes.
OPTIMIZERS = {
    "AdamW": {"lr": 1e-2, "eps": 1e-3},
    "Adam": {"lr": 1e-2, "eps": 1e-3, "amsgrad": True},
    "SGD": {"lr": 2e-2, "momentum": 0.9, "nesterov": True},
    "RMSprop": {"lr": 1e-3, "eps": 1e-3},
    "": {},  # by hand
}
STEPS = 7


class Side:
    """One of the two libraries, with a model and an optimizer of its own."""

    def __init__(self, ours: bool, kind: str, weights: np.random.Generator) -> None:
        self.ours = ours
        self.lib: Any = ht if ours else torch
        self.nn: Any = nn if ours else torch.nn
        self.F: Any = functional if ours else torch.nn.functional
        n = self.nn
        self.model = n.Sequential(n.Linear(6, 8), n.Tanh(), n.LayerNorm(8), n.Linear(8, 8))
        self.table, self.head = n.Embedding(5, 6), n.Linear(8, 5)
        self.params = [p for m in (self.table, self.model, self.head) for p in m.parameters()]
        with self.lib.no_grad():
            for p in self.params:
                drawn = weights.standard_normal(tuple(p.shape)) / 3  # tanh does not saturate
                p.copy_(self.tensor(drawn.astype(np.float32)))
        made: Any = getattr(optim if ours else torch.optim, kind) if kind else None
        self.optimizer = made(self.params, **OPTIMIZERS[kind]) if kind else None
        self.seen: list[Any] = []
        self.kept: list[Any] = []

    def tensor(self, values: Any) -> Any:
        return self.lib.tensor(values)

    def look(self, value: Any) -> None:
        self.seen.append(value.detach().numpy().copy())

    def zero(self, to_none: bool) -> None:
        if self.optimizer is not None:
            self.optimizer.zero_grad(to_none)
            return
        for p in self.params:
            p.grad = None

    def forward(self, tokens: Any, labels: Any) -> tuple[Any, Any]:
        h = self.model(self.table(self.tensor(tokens)))
        logits = self.head(h).view(-1, 5)
        return h, self.F.cross_entropy(logits, self.tensor(labels).view(-1))

    def clip(self, most: float) -> Any:
        return self.nn.utils.clip_grad_norm_(self.params, most)

    def step(self) -> None:
        if self.optimizer is not None:
            self.optimizer.step()
            return
        with self.lib.no_grad():
            for p in self.params:
                if p.grad is not None:
                    p -= 0.05 * p.grad


def train(seed: int, ours: bool) -> Side:
    """All that the program looks at."""
    rng = random.Random(seed)
    kind = rng.choice([*OPTIMIZERS])
    data = np.random.default_rng(seed)
    side = Side(ours, kind, data)
    often = rng.random() < 0.5  # one way of looking in every step, or another one in each
    habits = {what: rng.random() for what in ("hidden", "loss", "weight", "gradient", "sum", "end")}
    for _ in range(STEPS):

        def does(what: str, chance: float = 0.4) -> bool:
            drawn = rng.random()
            return (habits.get(what, drawn) if often else drawn) < chance

        side.zero(rng.random() < 0.8)
        for _part in range(1 + (rng.random() < 0.3)):
            tokens, labels = data.integers(0, 5, (2, 3)), data.integers(0, 5, (2, 3))
            h, loss = side.forward(tokens, labels)
            if does("hidden"):
                side.look(h)
            if does("loss"):
                side.look(loss)
            if does("tied", 0.2):
                loss = loss + (side.params[1] * side.params[1]).sum() * 0.1
            if does("again", 0.15):
                loss.backward(retain_graph=True)
            if does("weight", 0.2):
                side.look(side.params[1])
            loss.backward()
        if does("sum", 0.5):
            norm = side.clip(0.5)
            if does("norm", 0.3):
                side.look(norm)
        if does("scaled", 0.2):
            grad = side.params[2].grad
            if grad is not None:
                grad.mul_(0.5)
        if does("gradient", 0.3) and side.params[3].grad is not None:
            side.look(side.params[3].grad)
        side.step()
        if does("frozen", 0.15):
            side.params[1].requires_grad_(not side.params[1].requires_grad)
        if does("changed", 0.15):
            with side.lib.no_grad():
                side.params[4].mul_(0.9)
        if does("rate", 0.2) and side.optimizer is not None:
            for group in side.optimizer.param_groups:
                group["lr"] *= 0.8
        if does("kept", 0.3):
            side.kept.append(loss)
        if does("end", 0.7):
            side.look(loss)
    for value in (*side.kept, *side.params):
        side.look(value)
    return side


def check(seed: int) -> None:
    """Raise AssertionError where the two differ."""
    ours, theirs = train(seed, True), train(seed, False)
    assert len(ours.seen) == len(theirs.seen)
    for i, (a, b) in enumerate(zip(ours.seen, theirs.seen, strict=True)):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6, err_msg=f"seed {seed}, look {i}")


def main() -> None:
    count, first = (int(a) for a in (*sys.argv[1:], "100", "0")[:2])
    failed = 0
    with default_engine("interpreter:0", InterpretedEngine()):
        for seed in range(first, first + count):
            try:
                check(seed)
            except AssertionError as error:
                failed += 1
                if failed <= 3:
                    sys.stderr.write(f"{error}\n")
    sys.stderr.write(f"{count} programs, {failed} differ\n")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
