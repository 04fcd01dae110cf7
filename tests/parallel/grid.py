"""A model that is spread along two axes of a mesh, and the same by one process: hal run -n 4
grid.py. Along "tensor" each rank has a part of the hidden features, along "data" of the batch;
masks of dropout are those of the whole batch, and equal along "tensor"."""

import numpy as np

import stack.framework as ht
from stack.framework import nn, optim
from stack.parallel import Mesh, Ranks, data_parallel

ROWS, WIDTH, HIDDEN, STEPS = 8, 6, 12, 4


class Layers(nn.Module):
    """Two layers; of the hidden features part `place` of `size`."""

    def __init__(self, place, size):
        super().__init__()
        rng = np.random.default_rng(3)
        first, second = rng.standard_normal((2, HIDDEN, WIDTH), np.float32) / 4
        own = slice(place * HIDDEN // size, (place + 1) * HIDDEN // size)
        self.first = nn.Parameter(ht.tensor(first[own]))
        self.second = nn.Parameter(ht.tensor(second[own]))
        self.dropout = nn.Dropout(0.3)

    def forward(self, x, tensor):
        """`tensor` sums over the parts."""
        hidden = (self.dropout(x) @ self.first.transpose(0, 1)).tanh()
        return tensor.all_reduce(hidden @ self.second)


def batches():
    rng = np.random.default_rng(4)
    return rng.standard_normal((STEPS, ROWS, WIDTH), np.float32)


def train(layers, tensor, part, mean, jitted):
    """The losses, and the parameters at the end. Every rank of a line along "tensor" has the whole
    loss, so each takes its part of the gradient."""
    optimizer = optim.SGD(layers.parameters(), lr=0.5, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = ((layers(x, tensor) - x) ** 2).mean()
        (loss / tensor.size).backward()
        optimizer.step()
        return mean(loss)

    run = ht.jit(step) if jitted else step
    losses = [run(ht.tensor(part(batch))).item() for batch in batches()]
    return losses, [p.numpy() for p in layers.parameters()]


def alone():
    ht.manual_seed(11)
    line = Ranks.join(Mesh.of(None), "data", "cpu:0")
    return train(Layers(0, 1), line, lambda x: x, lambda x: x.detach(), True)


def main():
    mesh, found = Mesh.present(data=2, tensor=2), {}
    for jitted in (False, True):
        layers = Layers(mesh.place("tensor"), mesh.size("tensor"))
        tensor = Ranks.join(mesh, "tensor", layers.first.device)
        with data_parallel(layers, mesh, "data") as parallel:
            ht.manual_seed(11)
            losses, parameters = train(layers, tensor, parallel.part, parallel.mean, jitted)
            tensor.all_reduce(ht.ones(1 << 20) * 2).sum().item()
            found["way"] = tensor.group.way
        tensor.leave()
        found |= {f"{jitted}.{i}": p for i, p in enumerate(parameters)}
        found[f"{jitted}.losses"] = losses
    np.savez(f"rank{mesh.rank}.npz", place=mesh.place("tensor"), **found)


if __name__ == "__main__":
    main()
