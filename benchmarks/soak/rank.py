"""A rank of `benchmarks.soak.kills`: it joins, trains a little, and saves again and again."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import stack.framework as ht
from hal.core.errors import HalError
from stack.comm.world import World
from stack.framework import nn, optim
from stack.parallel import Mesh, data_parallel

CHECKPOINT = "checkpoint.safetensors"
WIDTH, SAVED = 32, 1 << 20


def be_a_rank(pipe: Connection, world: World, folder: str) -> None:
    """Join, train and save until an error comes, and tell it."""
    os.environ.update({**world.environment(), "HAL_WORLD_PROCESS": str(os.getpid())})
    os.environ["TMPDIR"] = f"{folder}/tmp"
    os.chdir(folder)
    try:
        pipe.send("joining")
        _train(pipe)
    except (HalError, ht.CheckpointError) as error:
        pipe.send((type(error).__name__, getattr(error, "rank", None), str(error)))
    except BaseException as error:
        pipe.send((f"raw {type(error).__name__}", None, str(error)))
        raise


def _train(pipe: Connection) -> None:
    ht.manual_seed(1)
    ht.set_default_device("cpu:0")
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    optimizer = optim.AdamW(model.parameters())
    x = ht.tensor(np.ones((6, WIDTH), np.float32))
    large = ht.tensor(np.ones(SAVED, np.float32))
    pipe.send("meeting")
    with data_parallel(model, Mesh.present()) as parallel:
        for step in range(10**6):
            if step == 2:
                pipe.send("training")
            optimizer.zero_grad()
            loss = (model(parallel.part(x)) ** 2).mean()
            loss.backward()
            optimizer.step()
            parallel.mean(loss).item()
            if step % 3 == 0 and parallel.rank == 0:
                pipe.send("saving")
                ht.save(CHECKPOINT, {"step": step, "model": model.state_dict(), "large": large})


def save_again(folder: str) -> None:
    """What a killed save has left is whole or not there, and the next one tidies up."""
    path = Path(folder, CHECKPOINT)
    if path.exists():
        assert ht.load(path)["large"].shape == (SAVED,)
    ht.save(path, {"step": 0})
    left = sorted(p.name for p in Path(folder).iterdir() if p.name != "tmp")
    assert left == [CHECKPOINT], left
    assert not list(Path(folder, "tmp").iterdir())
