"""What a rank of the tests does: hal run -n 2 --devices cpu:0 rank.py WHAT."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import stack.framework as ht
from hal.core.errors import DeadlineExceeded, HalError, OperationFailed
from stack.comm.store import Store
from stack.framework import nn, optim
from stack.parallel import Mesh, data_parallel

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from gpt import GPT, GPTConfig, decay_groups

ROWS, CONTEXT, STEPS = 4, 64, 4


def gpt(width=16):
    ht.manual_seed(5)
    return GPT(GPTConfig(1, width, 2, CONTEXT, vocabulary=32))


class Pairs(nn.Module):
    """Guesses each number from the one before."""

    def __init__(self):
        super().__init__()
        ht.manual_seed(5)
        self.embed, self.dropout = nn.Embedding(32, 8), nn.Dropout(0.2)
        self.head = nn.Linear(8, 32)

    def loss(self, tokens, targets):
        logits = self.head(self.dropout(self.embed(tokens)))
        return nn.functional.cross_entropy(logits.reshape(-1, 32), targets.reshape(-1))


def batches():
    """The whole batch of each step."""
    rng = np.random.default_rng(6)
    return [rng.integers(0, 32, (ROWS, CONTEXT + 1)) for _ in range(STEPS)]


def train(trained, path, parts):
    """Train with AdamW and clipping, each batch in so many parts one after the other on each rank;
    write every step's loss, gradient norm and gradients, and the parameters."""
    found = {}
    optimizer = optim.AdamW(decay_groups(trained, 0.1), lr=1e-2)
    with data_parallel(trained, Mesh.present()) as parallel:

        @ht.jit
        def step(tokens):
            optimizer.zero_grad()
            losses = []
            for part in tokens.chunk(parts):
                loss = trained.loss(part[:, :-1], part[:, 1:]) / parts
                losses.append(loss.detach())
                if len(losses) < parts:
                    with parallel.local_gradients():
                        loss.backward()
                else:
                    loss.backward()
            gradients = [p.grad for p in trained.parameters()]
            norm = nn.utils.clip_grad_norm_(trained.parameters(), 0.5)
            optimizer.step()
            return [parallel.mean(sum(losses[1:], losses[0])), norm, *gradients]

        for number, batch in enumerate(batches()):
            each = np.split(batch, parts)
            own = np.concatenate([parallel.part(rows) for rows in each])
            found |= {f"{number}.{i}": t.numpy() for i, t in enumerate(step(own))}
        found |= {name: t.numpy() for name, t in trained.state_dict().items()}
        if parallel.rank == 0:
            np.savez(path, **found)


def work():
    """A GPT, a model with dropout with each batch in two parts, and what else there is to see."""
    train(gpt(), "plain.npz", 1)
    train(Pairs(), "dropout.npz", 2)
    print(json.dumps([trouble() | {"swapped": swapped()}, *eager(), unusual()]), flush=True)  # noqa: T201
    last()


def trouble():
    """What is refused, in words."""
    mesh, said = Mesh.present(), {}

    def odd_rows():
        with data_parallel(Pairs(), mesh) as parallel:
            parallel.part(np.zeros((3, 2)))

    def absent():
        layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        with data_parallel(layers, mesh):
            x = layers[0](ht.ones(1, 2))
            (layers[1](x) if mesh.rank else x).sum().backward()
            layers[0].bias.grad.tolist()

    def uneven():
        layer = nn.Linear(2, 2)
        with data_parallel(layer, mesh):
            rows = np.ones((8 + 4 * mesh.rank, 2), np.float32)
            layer(ht.tensor(rows)).mean().backward()
            layer.bias.grad.tolist()

    def uneven_in_a_plan():
        layer = nn.Linear(2, 2)
        optimizer = optim.SGD(layer.parameters(), 0.1)
        with data_parallel(layer, mesh):

            @ht.jit
            def step(x):
                optimizer.zero_grad()
                layer(x).mean().backward()
                optimizer.step()
                return layer.bias.sum()

            step(np.ones((6, 2), np.float32)).item()
            step(np.ones((6, 2), np.float32)).item()
            step(np.ones((8 + 4 * mesh.rank, 2), np.float32)).item()

    attempts = {
        "absent": absent,
        "uneven": uneven,
        "planned": uneven_in_a_plan,
        "width": lambda: data_parallel(gpt(width=16 + 16 * mesh.rank), mesh),
        "fixed": lambda: data_parallel(gpt().requires_grad_(mesh.rank > 0), mesh),
        "rows": odd_rows,
        "whole": lambda: data_parallel(Pairs(), Mesh.of(None)).mean(ht.arange(2)),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except HalError as error:
            said[name] = str(error)
    return said


def swapped():
    """What a rank is told whose captured step begins equal exchanges in another order than that of
    the other rank, as it computes something else."""
    with data_parallel(nn.Linear(1, 1), Mesh.present()) as parallel:

        @ht.jit
        def step(x):
            early = parallel.mean(x.sin().cos() if parallel.rank else x)
            return parallel.mean(x.sin()), early

        try:
            return [t.tolist() for t in step(np.zeros(3, np.float32))]
        except HalError as error:
            return str(error)


def eager():
    """Values and gradients without `jit`; the second model begins with other values on rank 1."""
    mesh = Mesh.present()
    layer = nn.Linear(3, 2)
    ht.manual_seed(mesh.rank)
    other = nn.Linear(2, 2)
    with data_parallel(layer, mesh) as parallel, data_parallel(other, mesh):
        x = ht.tensor(np.full((1, 3), 1.0 + parallel.rank, np.float32))
        other(layer(x)).sum().backward()
        found = [layer.bias.grad, other.weight.grad, other.weight, parallel.mean(x)]
        flags = [parallel.any(mesh.rank == 1), parallel.any(False)]
        return [[t.tolist() for t in found], flags]


def unusual():
    """Two models at once of which the first one leaves first, the second is held by nobody, has a
    parameter that learns only from now on, and is there until the process ends; draws, also of a
    function that was traced before; means at which rank 0 alone looks in between; lines of several
    meshes in turns."""
    for sizes in ({"data": 1, "stage": 2}, {"data": 2}):
        Mesh.present(**sizes).join("data").close()
    mesh, layer, draw = Mesh.present(), nn.Linear(3, 2), ht.jit(lambda: ht.rand(2))
    draw()
    layer.bias.requires_grad_(False)
    first = data_parallel(nn.Linear(1, 1), mesh)
    data_parallel(layer, mesh)
    layer.bias.requires_grad_(True)
    ht.manual_seed(9)
    with first.local_gradients():
        drawn = [draw()]
    late = first.mean(deep(mesh.rank))
    if mesh.rank == 0:
        late.item()
    means = [late, first.mean(ht.ones(1) * 10 * mesh.rank)]
    first.close()
    drawn.append(ht.rand(2))
    (layer(ht.ones(1, 3)) * (1 + mesh.rank)).sum().backward()
    shown = [[t.tolist() for t in found] for found in ((layer.bias.grad, *means), drawn)]
    return [*shown, ways()]


def ways():
    """Means of the numbers from 0 on, each at the end of another way through one graph; that to the
    first one goes through what is drawn."""
    parallel = data_parallel(nn.Linear(1, 1), Mesh.present())

    @ht.jit
    def step(x):
        found = [parallel.mean(ht.rand(4) * 0)]
        for number in range(1, 9):
            x = x.flip(0).cumsum(0) if number % 2 else x.sin()
            found.append(parallel.mean(x * 0 + number))
        return found

    with parallel:
        return [t.tolist()[0] for t in step(np.ones(4, np.float32))]


def last():
    """Rank 1 ends while rank 0 is still to begin the last exchange."""
    parallel = data_parallel(nn.Linear(1, 1), Mesh.present())
    if parallel.rank == 0:
        time.sleep(0.2)
    mean = parallel.mean(ht.ones(1) * parallel.rank)
    assert parallel.rank or mean.item() == 0.5


def deep(rank):
    """The rank as a number at the end of a long way through the graph."""
    x = ht.tensor(np.full(4, 1.0 + rank, np.float32))
    for _ in range(4):
        x = x.flip(0).cumsum(0)
    return x[-1:] / x[-1:].detach() * rank


def die():
    """Rank 1 is killed within a step; rank 0 says what it gets."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    trained, mesh, three = Pairs(), Mesh.present(), lambda: ht.ones(3).sum().item()
    optimizer = optim.SGD(trained.parameters(), lr=1e-2)
    with data_parallel(trained, mesh) as parallel:

        @ht.jit
        def step(tokens):
            optimizer.zero_grad()
            loss = trained.loss(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
            return parallel.mean(loss)

        own = parallel.part(batches()[0])
        step(own).item()
        assert three() == 3.0  # compiled now: the launcher's patience with rank 0 is short
        if mesh.rank == 1:
            step(own)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            for _ in range(10**6):
                step(own).item()
        except OperationFailed as error:
            print("OperationFailed", error, error.failure.ranks, flush=True)  # noqa: T201
        print("goes on with", three(), flush=True)  # noqa: T201


def late():
    """Rank 1 comes when rank 0 has given up, which comes again. How often each of them came is what
    they say, when they have met twice."""
    mesh, tries = Mesh.present(), 0
    store = Store.of(mesh.world)
    if mesh.rank == 1:
        store.get("rank 0 has given up", 120)
    group = None
    while group is None:
        tries += 1
        try:
            group = mesh.join("data")
        except DeadlineExceeded:
            if tries == 20:
                raise
            store.set("rank 0 has given up", b"")
    store.close()
    counts = group.all_gather(np.array([tries])).tolist()
    group.close()
    with mesh.join("data") as again:
        again.barrier()
    print(json.dumps(counts), flush=True)  # noqa: T201


if __name__ == "__main__":
    {"work": work, "die": die, "late": late}[sys.argv[1]]()
