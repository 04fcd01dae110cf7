"""A rank of two that trains a small transformer with PyTorch's own parallel code, over backend hal
and over gloo in turns: python -m benchmarks.torch_ranks RANK STORE-FILE ROUNDS. Rank 0 prints the
seconds of every step as JSON: {way of training: [[of hal...], [of gloo...]]}."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import stack.bridge.torch

RANKS = 2
WIDTH, TOKENS, BATCH, BLOCKS, PARTS = 256, 64, 4, 4, 4
Step = Callable[[], object]


class Block(nn.Module):
    """A feed-forward block of a transformer, with attention over one head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        attend = nn.functional.scaled_dot_product_attention
        x = x + self.o(attend(self.q(y), self.k(y), self.v(y), is_causal=True))
        return x + self.down(nn.functional.gelu(self.up(x)))


def sharded(mesh: DeviceMesh) -> Step:
    """FSDP2."""
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    for block in model:
        fully_shard(block, mesh=mesh)
    return _steps(fully_shard(model, mesh=mesh))


def averaged(mesh: DeviceMesh) -> Step:
    """DDP, whose buckets travel during the backward pass."""
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    return _steps(nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group()))


def split(mesh: DeviceMesh) -> Step:
    """Tensor parallelism by DTensor."""
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    across, along = ColwiseParallel, RowwiseParallel
    for block in model:
        plan = {"q": across(), "k": across(), "v": across(), "o": along()}
        parallelize_module(block, mesh, plan | {"up": across(), "down": along()})
    return _steps(model)


def staged(mesh: DeviceMesh) -> Step:
    """A pipeline with the 1F1B schedule."""
    group = mesh.get_group()
    rank = dist.get_rank(group)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS // RANKS)))
    stage = PipelineStage(model, rank, RANKS, torch.device("cpu"), group=group)
    schedule = Schedule1F1B(
        stage, n_microbatches=PARTS, loss_fn=lambda y, t: (y - t).square().mean()
    )
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    data = torch.randn(BATCH * PARTS, TOKENS, WIDTH)

    def step() -> None:
        schedule.step(*([] if rank else [data]), **({"target": data} if rank else {}))
        optimizer.step()
        optimizer.zero_grad()

    return step


def _steps(model: Any) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    data = torch.randn(BATCH, TOKENS, WIDTH)

    def step() -> None:
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main(rank: int, path: str, rounds: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    stack.bridge.torch.register()
    store = dist.FileStore(path, RANKS)
    dist.init_process_group(
        "hal", store=store, rank=rank, world_size=RANKS, timeout=timedelta(0, 120)
    )
    groups = [dist.group.WORLD, dist.new_group(backend="gloo")]
    meshes = [DeviceMesh.from_group(group, "cpu") for group in groups]
    found: dict[str, list[list[float]]] = {}
    for way in (averaged, sharded, split, staged):
        steps = [way(mesh) for mesh in meshes]
        for step in steps:
            step()
        found[way.__name__] = [[], []]
        for _ in range(rounds):
            for step, times in zip(steps, found[way.__name__], strict=True):
                dist.barrier()
                start = time.perf_counter()
                step()
                times.append(time.perf_counter() - start)
    if rank == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
