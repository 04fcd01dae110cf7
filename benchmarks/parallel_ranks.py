"""A rank of two that trains the small transformer of `benchmarks.torch_ranks` under strategies, in
turns with PyTorch's own parallel code over gloo: `hal run -n 2 --devices cpu:0 -m
benchmarks.parallel_ranks STORE-FILE ROUNDS [NAME ...]`. Rank 0 prints as JSON, for each way of
training, the seconds of every step until both ranks have ended it and those that this rank's
process computed in it, first ours and then PyTorch's."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import stack.framework as ht
from benchmarks import torch_ranks as peer
from benchmarks.timer import Step, timed
from stack.framework import nn, optim
from stack.framework.nn import functional as F
from stack.parallel import Mesh, Sharded, Strategy, parallel
from stack.parallel.strategy import data, pipeline, tensor, zero

SHARDS = {f"*.{name}.*": Sharded(0) for name in ("q", "k", "v", "up")}
SHARDS |= {f"*.{name}.weight": Sharded(1) for name in ("o", "down")}
CHUNKS = {f"{i}.*": i * peer.RANKS // peer.BLOCKS for i in range(peer.BLOCKS)}


class Block(nn.Module):
    """PyTorch's, whose attention has two heads where it is divided among two ranks."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        width, self.heads = peer.WIDTH, heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: ht.Tensor) -> ht.Tensor:
        y = self.norm(x)
        rows, tokens, width = x.shape

        def split(z: ht.Tensor) -> ht.Tensor:
            return z.reshape(rows, tokens, self.heads, width // self.heads).transpose(1, 2)

        q, k, v = split(self.q(y)), split(self.k(y)), split(self.v(y))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(seen.transpose(1, 2).reshape(rows, tokens, width))
        return x + self.down(F.gelu(self.up(x)))


WAYS: dict[str, tuple[Strategy, int, int, Callable[[DeviceMesh], Step]]] = {
    "data": (data(peer.RANKS), 1, 1, peer.averaged),
    "zero3": (zero(3, peer.RANKS), 1, 1, peer.sharded),
    "tensor": (tensor(peer.RANKS, SHARDS), 2, 1, peer.split),
    "1f1b": (pipeline(peer.RANKS, f"1f1b {peer.PARTS}", CHUNKS), 1, peer.PARTS, peer.staged),
}
"""By name: our strategy, heads, micro-batches, and PyTorch's way."""


@contextmanager
def ours(strategy: Strategy, heads: int, micro_batches: int) -> Iterator[Step]:
    """A captured step that ends with its loss on the host."""
    ht.manual_seed(0)
    net = nn.Sequential(*(Block(heads) for _ in range(peer.BLOCKS)))
    optimizer = optim.SGD(net.parameters(), lr=1e-3)
    batch = peer.BATCH * (
        micro_batches if micro_batches > 1 else peer.RANKS if strategy.axes[0].batch == 0 else 1
    )
    x = np.random.default_rng(0).standard_normal((batch, peer.TOKENS, peer.WIDTH), np.float32)

    def loss_of(x: ht.Tensor) -> ht.Tensor:
        return net(x).square().mean() / micro_batches

    with parallel(net, Mesh.present(**strategy.sizes), strategy, optimizer) as spread:

        @ht.jit
        def step(x: ht.Tensor) -> ht.Tensor:
            optimizer.zero_grad()
            loss = spread.backward(loss_of, x)
            optimizer.step()
            return loss

        yield lambda: step(x).item()


def main(path: str, rounds: int, names: list[str]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = Mesh.present().rank
    store = dist.FileStore(path, peer.RANKS)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=peer.RANKS, timeout=timedelta(0, 120)
    )
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    for name in names or WAYS:
        strategy, heads, micro_batches, way = WAYS[name]
        theirs = way(mesh)
        found: list[list[tuple[float, float]]] = [[], []]
        with ours(strategy, heads, micro_batches) as own:
            for _ in range(2):
                own()
                theirs()
            for _ in range(rounds):
                for step, times in zip((own, theirs), found, strict=True):
                    times.append(timed(step, dist.barrier))
        if rank == 0:
            print(json.dumps([name, found]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
