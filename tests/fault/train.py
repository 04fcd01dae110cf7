"""A small training for `hal run --least ...`: each rank writes what it sees of every step, and how
much it has compiled until then.

train.py OUT STEPS [SEAT.START@STEP ...]   the processes that kill themselves in the step, or
                                           (SEAT.START@device) whose devices are lost
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np

import stack.framework as ht
from stack.fault import Training
from stack.framework import nn, optim
from stack.runtime import engine_for

PARTS, ROWS, WIDTH = 4, 16, 24


class Batches:
    """A batch follows from its number; the number is the position."""

    def __init__(self):
        self.at = 0

    def next(self):
        rng = np.random.default_rng(self.at)
        self.at += 1
        return rng.standard_normal((2, ROWS, WIDTH), np.float32)

    def state_dict(self):
        return self.at

    def load_state_dict(self, state):
        self.at = state


def main():
    out, steps, kills = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    member = os.environ.get("HAL_WORLD_MEMBER", "alone")
    if f"{member}@device" in kills:
        engine_for(ht.default_device(), ["faults:device-lost at replay nth 60"])
    ht.manual_seed(3)
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, WIDTH))
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    data = Batches()
    compiled = engine_for(ht.default_device()).families.compiled
    random = ht.default_generator()
    declared = {"optimizer": optimizer, "schedule": schedule, "data": data, "random": random}
    with Training(model, parts=PARTS, **declared) as training:
        train = training.gradients(lambda x, y: ((model(x) - y) ** 2).mean(), optimizer.step)

        def step():
            value = train(*data.next())
            for ending, number in (("", signal.SIGKILL), ("!", signal.SIGSTOP)):
                if f"{member}@{training.step}{ending}" in kills:
                    os.kill(os.getpid(), number)
            loss = value.item()
            schedule.step()
            with (out / f"{member}.txt").open("a") as file:
                line = (training.step, training.size, training.rank, float(loss).hex())
                file.write(" ".join(map(str, (*line, compiled.total()))) + "\n")

        training.each(step, until=steps)
        values = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
        if training.rank == 0:
            (out / "final.bin").write_bytes(values.tobytes())


if __name__ == "__main__":
    main()
