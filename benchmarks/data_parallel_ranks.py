"""A rank of two that trains the GPT of `benchmarks.gpt`, in turns alone and in data parallel, each
time with a whole batch of its own: `hal run -n 2 --devices cpu:0 -m benchmarks.data_parallel_ranks
ROUNDS`. Rank 0 prints as JSON, for each way, the seconds of every step until both ranks have ended
it, and the seconds that this rank's process computed in it."""

from __future__ import annotations

import json
import sys

from benchmarks import gpt
from benchmarks.machine import ROOT
from benchmarks.timer import Step, timed

sys.path.insert(0, str(ROOT / "examples"))

from gpt import GPT, GPTConfig, decay_groups

import stack.framework as ht
from stack.comm.group import Group
from stack.framework import optim
from stack.parallel import DataParallel, Mesh, data_parallel


def model() -> GPT:
    """The same values on all ranks."""
    ht.manual_seed(0)
    return GPT(GPTConfig(gpt.LAYERS, gpt.WIDTH, gpt.HEADS, gpt.CONTEXT, gpt.VOCABULARY))


def training_step(trained: GPT, parallel: DataParallel | None) -> Step:
    """A jitted step that ends with its loss on the host."""
    groups = decay_groups(trained, gpt.WEIGHT_DECAY)
    optimizer = optim.AdamW(groups, lr=gpt.RATE, betas=gpt.BETAS)

    def train(tokens: ht.Tensor, targets: ht.Tensor) -> ht.Tensor:
        optimizer.zero_grad()
        loss = trained.loss(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss.detach() if parallel is None else parallel.mean(loss)

    step, batch = ht.jit(train), gpt.batch()
    return lambda: step(*batch).item()


def measure(rounds: int, rank: int, meet: Group, alone: Step, shared: Step) -> None:
    """One rank while the other sleeps, both at once without a word to each other, and both in data
    parallel; in turns."""
    ways: dict[str, Step] = {
        "one": alone if rank == 0 else lambda: None,
        "both": alone,
        "parallel": shared,
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for step in (alone, shared):
        step()
    for _ in range(rounds):
        for name, step in ways.items():
            found[name].append(timed(step, meet.barrier))
    if rank == 0:
        print(json.dumps(found), flush=True)


def main(rounds: int) -> None:
    mesh, other = Mesh.present(), model()
    alone = training_step(model(), None)
    with mesh.join("data") as meet, data_parallel(other, mesh) as parallel:
        measure(rounds, mesh.rank, meet, alone, training_step(other, parallel))


if __name__ == "__main__":
    main(int(sys.argv[1]))
