"""Random programs of narrow floats, run twice: as they are, and with some values looked at on the
way. Nothing may depend on it, to the bit.

`python -m tests.framework.looked_programs COUNT SEED` runs many of them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import stack.framework as ht
import stack.framework.functional as F

Op = Callable[[random.Random, list[Any]], Any]

SHAPES = ((24, 40), (40, 24), (24, 1), (1, 40), (40,), (3, 24, 40))


def _fitting(rng: random.Random, x: Any, values: list[Any]) -> Any:
    """A value that broadcasts with x to x's shape."""
    rows = ((40,), (1, 40)[: x.ndim]) if x.shape[-1] == 40 else ()
    return rng.choice([v for v in values if v.shape == x.shape or v.shape in rows])


ONE: dict[str, Callable[[Any], Any]] = {
    "square": lambda x: x * x,
    "scaled": lambda x: x * 0.37 - 1.3,
    "divided": lambda x: x / 3,
    "tanh": lambda x: x.tanh(),
    "exp": lambda x: (x * 0.1).exp(),
    "root": lambda x: x.abs().sqrt(),
    "relu": F.relu,
    "gelu": F.gelu,
    "softmax": lambda x: F.softmax(x, -1),
    "floor": lambda x: x.floor(),
    "wide": lambda x: (x.float() * 1.1).to(x.dtype),
    "mean": lambda x: x.mean(-1, keepdim=True) + x,
    "sum": lambda x: x.sum(0, keepdim=True) * x,
    "amax": lambda x: x - x.amax(-1, keepdim=True),
    "turned": lambda x: x.transpose(-1, -2) if x.ndim > 1 else x,
    "flip": lambda x: x.flip(-1),
    "rolled": lambda x: ht.cat([x[..., 1:], x[..., :1]], -1),
    "cumsum": lambda x: (x * 0.01).cumsum(-1),
}
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (y.abs() + 1),
    "max": lambda x, y: ht.maximum(x, y),
    "where": lambda x, y: ht.where(x < y, x, y),
    "lerp": lambda x, y: ht.lerp(x, y.expand_as(x), 0.3),
}


def program(seed: int, kind: Any, length: int, looks: float) -> list[Any]:
    """The values of a program at its end, as float32. `looks` is the chance of looking at one."""
    rng, eyes = random.Random(seed), random.Random(f"{seed} looks")
    data = np.random.default_rng(seed)
    values = [ht.tensor(data.standard_normal(s).astype(np.float32) * 2).to(kind) for s in SHAPES]
    grown = len(values)
    if gradients := rng.random() < 0.4:
        values = [v.requires_grad_() for v in values]
    for _ in range(length):
        x = rng.choice(values)
        what = rng.choice(["one", "one", "two", "two", "two", "product", "write"])
        if what == "one":
            made = ONE[rng.choice(sorted(ONE))](x)
        elif what == "two":
            made = TWO[rng.choice(sorted(TWO))](x, _fitting(rng, x, values))
        elif what == "product" and x.ndim > 1:
            made = x @ (x.transpose(-1, -2) * 0.05) @ x
        elif what == "product":
            weight = values[0 if x.shape[-1] == 40 else 1]
            made = F.linear(x, weight, weight[:, 0])
        else:
            made = x * 1
            made[..., : max(1, made.shape[-1] // 2)].mul_(1.7).add_(x[..., :1])
        values.append(made)
        if eyes.random() < looks:
            eyes.choice(values).detach().numpy()
    found = values[grown:]
    if gradients:
        sum(v.float().mean() for v in found).backward()
        found = [*found, *(v.grad for v in values[:grown] if v.grad is not None)]
    return [v.detach().float().numpy() for v in found]


def check(seed: int, length: int = 8) -> None:
    """Raise AssertionError where a program depends on what was looked at."""
    for kind in (ht.bfloat16, ht.float16):
        plain, looked = (program(seed, kind, length, looks) for looks in (0.0, 0.5))
        for i, (a, b) in enumerate(zip(plain, looked, strict=True)):
            np.testing.assert_array_equal(a, b, f"value {i} of program {seed} of {kind}")


if __name__ == "__main__":
    count, first = int(sys.argv[1]), int(sys.argv[2])
    wrong = []
    for number in range(first, first + count):
        try:
            check(number)
        except AssertionError as error:
            wrong.append(number)
            sys.stdout.write(f"{error}\n")
    sys.stdout.write(f"{count} programs, {len(wrong)} depend on what was looked at: {wrong}\n")
