"""A GPT on a pipeline of ranks, and the same by one process that takes its micro-batches one after
the other: hal run -n 2 --devices cpu:0 pipe.py PATH."""

import re
import sys
from pathlib import Path

import numpy as np

import stack.framework as ht
from stack.framework import optim
from stack.parallel import Mesh
from stack.parallel.pipeline import Pipeline
from stack.parallel.schedule import gpipe, interleaved, one_f_one_b, zb_h1, zb_v

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from gpt import GPT, GPTConfig

LAYERS, ROWS, CONTEXT, VOCABULARY, STEPS, BATCHES = 4, 8, 8, 32, 3, 4

SCHEDULES = {
    "gpipe": gpipe(2, BATCHES),
    "1f1b": one_f_one_b(2, BATCHES),
    "interleaved": interleaved(2, BATCHES, 2),
    "zb-h1": zb_h1(2, BATCHES),
    "zb-v": zb_v(2, BATCHES),
}


def model():
    ht.manual_seed(5)
    return GPT(GPTConfig(LAYERS, 16, 2, CONTEXT, VOCABULARY))


def chunk_of(depth):
    """Equal numbers of blocks, the embeddings with the first and the head with the last ones."""

    def chunk(name):
        block = re.match(r"blocks\.(\d+)\.", name)
        if block:
            return int(block[1]) * depth // LAYERS
        return 0 if name.startswith(("token", "position")) else depth - 1

    return chunk


def batches():
    rng = np.random.default_rng(6)
    found = [rng.integers(0, VOCABULARY, (ROWS, CONTEXT + 1)) for _ in range(STEPS)]
    return [(x[:, :-1].copy(), x[:, 1:].copy()) for x in found]


def train(net, parameters, gather):
    """Losses and gradients of every step, by the name of the parameter."""
    names = {p.serial: name for name, p in net.named_parameters()}
    optimizer = optim.AdamW(parameters, lr=1e-2)

    @ht.jit
    def step(tokens, targets):
        optimizer.zero_grad()
        loss = gather(tokens, targets)
        found = [p.grad for p in parameters]
        optimizer.step()
        return [loss, *found]

    found = {}
    for number, batch in enumerate(batches()):
        loss, *grads = step(*batch)
        found[f"{number}.loss"] = loss.numpy()
        pairs = zip(parameters, grads, strict=True)
        found |= {f"{number}.{names[p.serial]}": d.numpy() for p, d in pairs}
    return found


def alone():
    net = model()

    def gather(tokens, targets):
        total = None
        for x, y in zip(tokens.chunk(BATCHES), targets.chunk(BATCHES), strict=True):
            loss = net.loss(x, y)
            loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        return total

    return train(net, list(net.parameters()), gather)


def on_ranks(mesh, schedule):
    net = model()
    pipeline = Pipeline(net, mesh, "stage", schedule, chunk_of(schedule.depth))
    found = train(net, pipeline.parameters, lambda x, y: pipeline.backward(net.loss, x, y))
    pipeline.close()
    return found


if __name__ == "__main__":
    path, *names = sys.argv[1:]
    mesh = Mesh.present(stage=Mesh.present().size("data"))
    for name in names:
        found = on_ranks(mesh, SCHEDULES[name])
        np.savez(f"{path}/{name}.{mesh.rank}.npz", **found)
        print(name, flush=True)  # noqa: T201
