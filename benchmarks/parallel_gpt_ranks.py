"""A rank of two that trains the GPT of `benchmarks.gpt` alone and under strategies, in turns, with
the same whole batch: `hal run -n 2 --devices cpu:0 -m benchmarks.parallel_gpt_ranks ROUNDS [NAME
...]`. Rank 0 prints as JSON, for each strategy, the seconds of every step until both ranks have
ended it: first those in which rank 0 trains alone and the other one sleeps, then of both."""

from __future__ import annotations

import json
import sys
import time

import stack.framework as ht
from benchmarks import gpt
from benchmarks.data_parallel_ranks import GPT, Step, decay_groups, model, training_step
from stack.comm.group import Group
from stack.framework import optim
from stack.parallel import Mesh, Sharded, Strategy, parallel
from stack.parallel.spread import Parallel
from stack.parallel.strategy import pipeline, tensor, zero

RANKS, MICRO_BATCHES = 2, 8
SHARDS = {"*.qkv.*": Sharded(0, 3), "token.weight": Sharded(0), "head.weight": Sharded(0)}
SHARDS |= {"*.out.weight": Sharded(1), "*.up.*": Sharded(0), "*.down.weight": Sharded(1)}
CHUNKS = {f"blocks.{i}.*": i * RANKS // gpt.LAYERS for i in range(gpt.LAYERS)}
CHUNKS |= {"token.*": 0, "position.*": 0, "*": RANKS - 1}
WAYS: dict[str, Strategy] = {
    "tensor": tensor(RANKS, SHARDS),
    "zero3": zero(3, RANKS),
    "1f1b": pipeline(RANKS, f"1f1b {MICRO_BATCHES}", CHUNKS),
}


def timed(step: Step, meet: Group) -> float:
    meet.barrier()
    start = time.perf_counter()
    step()
    meet.barrier()
    return time.perf_counter() - start


def main(rounds: int, names: list[str]) -> None:
    mesh = Mesh.present(ranks=RANKS)
    alone: Step = training_step(model(), None) if mesh.rank == 0 else lambda: None
    with mesh.join("ranks") as meet:
        for name in names or WAYS:
            strategy, net = WAYS[name], model()
            groups = decay_groups(net, gpt.WEIGHT_DECAY)
            optimizer = optim.AdamW(groups, lr=gpt.RATE, betas=gpt.BETAS)
            with parallel(net, Mesh.present(**strategy.sizes), strategy, optimizer) as spread:
                shared = _step(net, optimizer, spread)
                for step in (alone, shared):
                    step()
                times = [[timed(step, meet) for step in (alone, shared)] for _ in range(rounds)]
            if mesh.rank == 0:
                print(json.dumps([name, times]), flush=True)


def _step(net: GPT, optimizer: optim.AdamW, spread: Parallel) -> Step:
    """A captured step that ends with its loss on the host."""

    def part_of_loss(tokens: ht.Tensor, targets: ht.Tensor) -> ht.Tensor:
        return net.loss(tokens, targets) / spread.micro_batches

    @ht.jit
    def step(tokens: ht.Tensor, targets: ht.Tensor) -> ht.Tensor:
        optimizer.zero_grad()
        loss = spread.backward(part_of_loss, tokens, targets)
        optimizer.step()
        return loss

    batch = gpt.batch()
    return lambda: step(*batch).item()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
