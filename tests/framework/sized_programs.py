"""Random programs of operations that come again with other sizes and numbers, run by the framework
and by PyTorch.

`python -m tests.framework.sized_programs COUNT SEED` runs many of them.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import torch

import stack.framework as ht

ROUNDS = 6
"""How often each program is run, with sizes and numbers of its own."""

ROWS = (1, 2, 3, 5, 8, 17, 260, 700)
COLUMNS = (2, 3, 4, 7, 16, 33)
"""Sizes on both sides of where kernels take rows together (256) and share the work (8,192
elements)."""


class Program:
    """Steps drawn from a seed. What they do is one thing in all rounds; the sizes (a, b), the place
    of a window and the numbers are those of a round."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.steps = [(rng.choice(STEPS), rng.random()) for _ in range(rng.randint(3, 9))]
        self.looks = rng.random() < 0.3
        self.learns = rng.random() < 0.3

    def run(self, lib: Any, made: int) -> list[np.ndarray[Any, Any]]:
        rng = random.Random(made)
        a, b = rng.choice(ROWS), rng.choice(COLUMNS)
        values = np.random.default_rng(made)
        x = lib.tensor(values.standard_normal((a, b)).astype(np.float64))
        y = lib.tensor(values.standard_normal((a, b)).astype(np.float64))
        w = lib.tensor(values.standard_normal((b, b)).astype(np.float64), requires_grad=self.learns)
        found = []
        for step, choice in self.steps:
            at = rng.randrange(a)
            number = rng.choice((0.5, 2, -3.0, 0.0, 7, rng.random()))
            x, y = step(lib, x, y, w, at, number, choice)
            if self.looks and choice < 0.3:
                found.append(x.detach().numpy().copy())
        if self.learns and x.requires_grad:
            (x * x).mean().backward()
            found.append(w.grad.numpy().copy())
        return [*found, x.detach().numpy().copy(), y.detach().numpy().copy()]


def _scaled(lib: Any, x: Any, y: Any, w: Any, at: int, number: float, choice: float) -> Any:
    return x * number + y, y


def _product(lib: Any, x: Any, y: Any, w: Any, at: int, number: float, choice: float) -> Any:
    return lib.tanh(x @ w), y


def _row(lib: Any, x: Any, y: Any, w: Any, at: int, number: float, choice: float) -> Any:
    return x + y[at : at + 1], y


def _head(lib: Any, x: Any, y: Any, w: Any, at: int, number: float, choice: float) -> Any:
    return x + y[: at + 1].sum(0), y


def _written(lib: Any, x: Any, y: Any, w: Any, at: int, number: float, choice: float) -> Any:
    y = y.clone()
    y[at : at + 1] = x[0:1].detach()
    return x, y


def _changed(lib: Any, x: Any, y: Any, w: Any, at: int, number: float, choice: float) -> Any:
    y = y * 1
    y[at].mul_(number)
    return x, y


def _grown(lib: Any, x: Any, y: Any, w: Any, at: int, number: float, choice: float) -> Any:
    return lib.cat([x, y[at : at + 1]], 0)[1:], y


def _turned(lib: Any, x: Any, y: Any, w: Any, at: int, number: float, choice: float) -> Any:
    return (x.t().reshape(-1) + number).reshape(x.shape[1], x.shape[0]).t(), y


def _summed(lib: Any, x: Any, y: Any, w: Any, at: int, number: float, choice: float) -> Any:
    dim = 0 if choice < 0.5 else 1
    # The mean, and bounded: sums of sums of all rows grew, until a mean cancelled all but rounding.
    mean = x.sum().detach() / (x.shape[0] * x.shape[1])
    return x - x.mean(dim, keepdim=True), y + lib.tanh(mean)


def _picked(lib: Any, x: Any, y: Any, w: Any, at: int, number: float, choice: float) -> Any:
    where = lib.arange(x.shape[0])[at : at + 1]
    return x + y[where], y


def _masked(lib: Any, x: Any, y: Any, w: Any, at: int, number: float, choice: float) -> Any:
    rows = lib.arange(x.shape[0]) <= at
    return lib.where(rows.reshape(-1, 1), x, y * number), y


def _softmax(lib: Any, x: Any, y: Any, w: Any, at: int, number: float, choice: float) -> Any:
    scores = lib.softmax((x @ y.t()) * number, -1)
    return scores @ x, y


STEPS = (
    *(_scaled, _product, _row, _head, _written, _changed, _grown, _turned, _summed, _picked),
    *(_masked, _softmax),
)


def check(seed: int) -> None:
    """Run the program of a seed in each round on both sides, and compare."""
    program = Program(seed)
    for made in range(seed * ROUNDS, (seed + 1) * ROUNDS):
        ours, theirs = program.run(ht, made), program.run(torch, made)
        names = [step.__name__ for step, _ in program.steps]
        for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            np.testing.assert_allclose(
                *(mine, other), 1e-9, 1e-9, err_msg=f"seed {seed}, round {made}, {i} of {names}"
            )


def main() -> None:
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    for one in range(seed, seed + count):
        check(one)
    sys.stdout.write(f"{count} programs agree\n")


if __name__ == "__main__":
    main()
