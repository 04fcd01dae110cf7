"""A small training as a job: training.py OUT STEPS [HELD].

Its ranks share every batch. Rank 0 writes each step's number and loss, all bits of it, behind
OUT/losses. They save every second step and when they are asked to end, and go on from the newest
that was saved. After step HELD they wait for OUT/go.
"""

import signal
import sys
import time
from pathlib import Path

import numpy as np

import stack.framework as ht
from stack.framework import nn, optim
from stack.framework.checkpoints import TreeCheckpoints
from stack.parallel import Mesh, data_parallel
from stack.storage import NoCheckpoint

ROWS, WIDTH = 16, 24
HELD_S = 600.0


def main() -> int:
    out, steps = Path(sys.argv[1]), int(sys.argv[2])
    held = int(sys.argv[3]) if len(sys.argv) > 3 else steps + 1
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    mesh = Mesh.present()
    ht.manual_seed(3)
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, WIDTH))
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    parallel = data_parallel(model, mesh)

    def train(x: ht.Tensor, y: ht.Tensor) -> ht.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return parallel.mean(loss)

    compiled = ht.jit(train)
    with TreeCheckpoints(out / "saved", mesh.join("data"), keep=2) as saves:
        first, ending = 0, False
        try:
            first, state = saves.load()
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        except NoCheckpoint:
            pass
        for step in range(first + 1, steps + 1):
            x, y = np.random.default_rng(step - 1).standard_normal((2, ROWS, WIDTH), np.float32)
            loss = compiled(parallel.part(x), parallel.part(y)).item()
            if parallel.rank == 0:
                with (out / "losses").open("a") as losses:
                    losses.write(f"{step} {loss.hex()}\n")
            ending = parallel.any(bool(asked))
            until_s = time.monotonic() + HELD_S
            while not ending and step >= held and parallel.any(not (out / "go").exists()):
                assert time.monotonic() < until_s, "nobody lets the training go on"
                time.sleep(0.1)
                ending = parallel.any(bool(asked))
            if ending or step % 2 == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                saves.save(step, state, later="remove").wait_committed()
            if ending:
                break
    return 143 if ending else 0


if __name__ == "__main__":
    sys.exit(main())
