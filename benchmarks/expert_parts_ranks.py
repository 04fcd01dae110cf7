"""A rank of two that trains a layer of experts whose tokens travel in 1, 2 and 4 parts, in turns:
`hal run -n 2 --devices cpu:0 -m benchmarks.expert_parts_ranks ROUNDS`. Rank 0 prints as JSON the
median seconds of a step in so many parts, until both ranks have ended it, and the median seconds of
its processor."""

from __future__ import annotations

import json
import statistics
import sys
from contextlib import ExitStack

import numpy as np

import stack.framework as ht
from benchmarks.timer import Step, timed
from stack.framework import nn, optim
from stack.parallel import Mesh, parallel
from stack.parallel.strategy import expert

RANKS, PARTS = 2, (1, 2, 4)
SEQUENCES, TOKENS, WIDTH, HIDDEN, EXPERTS = 8, 256, 256, 1024, 8


class Layer(nn.Module):
    """Experts that drop nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.mixture = nn.MixtureOfExperts(WIDTH, HIDDEN, EXPERTS, capacity=None)

    def forward(self, x: ht.Tensor) -> ht.Tensor:
        y, _ = self.mixture(x)
        return (y * y).mean()


def made(parts: int, stack: ExitStack) -> Step:
    """A captured step that ends with its loss on the host."""
    ht.manual_seed(4)
    layer = Layer()
    optimizer = optim.SGD(layer.parameters(), lr=0.01)
    strategy = expert(RANKS, "mixture", parts=parts)
    stack.enter_context(parallel(layer, Mesh.present(**strategy.sizes), strategy, optimizer))
    x = np.random.default_rng(8).standard_normal((SEQUENCES, TOKENS, WIDTH), np.float32)

    @ht.jit
    def step(x: ht.Tensor) -> ht.Tensor:
        optimizer.zero_grad()
        loss = layer(x)
        loss.backward()
        optimizer.step()
        return loss

    return lambda: step(x).item()


def main(rounds: int) -> None:
    mesh = Mesh.present(ranks=RANKS)
    with mesh.join("ranks") as meet, ExitStack() as stack:
        steps = {parts: made(parts, stack) for parts in PARTS}
        for step in steps.values():
            step()
            step()
        times = [[timed(step, meet.barrier) for step in steps.values()] for _ in range(rounds)]
    if mesh.rank == 0:
        for parts, each in zip(PARTS, zip(*times, strict=True), strict=True):
            print(json.dumps([parts, *map(statistics.median, zip(*each, strict=True))]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
