"""What survivors of a rank's death say, under each strategy: python -m benchmarks.parallel_kills
[TRIALS [NAME ...]].

A job of two ranks trains a small GPT; rank 1 kills itself (SIGKILL) at a moment of its third step
that is drawn. The survivor says how long after that its step has raised, and what. Under `hal run`
this file is the job's script.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hal.core.errors import HalError
from stack.comm.world import World
from stack.parallel import Mesh, parallel
from tests.launch.running import HAL
from tests.parallel import pipe, spread_gpt

NAMES = ["data", "zero1", "zero3", "tensor", "context", "expert", "1f1b", "zb-v"]
DEADLINE_S = 120
LATEST_S = 0.02
"""A step takes about so long."""


def train(name: str, moment: Path, after_s: float) -> None:
    """A rank of the job."""
    if name in pipe.SCHEDULES:
        strategy, net = pipe.SCHEDULES[name], pipe.model()
        optimizer = pipe.optimizer_of(net, "sgd")
        (batch, *_) = pipe.batches()
    else:
        strategy = spread_gpt.STRATEGIES[name](2)
        net = spread_gpt.model(experts=spread_gpt.experts_of(name))
        step, optimizer = spread_gpt.stepper(net, "sgd", gradients=False)
        (batch,) = spread_gpt.batches(1)
    mesh = Mesh.present(**strategy.sizes)
    with parallel(net, mesh, strategy, optimizer) as spread:
        if name in pipe.SCHEDULES:
            step = pipe.stepper(net, optimizer, spread.backward)
        for _ in range(2):
            [t.numpy() for t in step(*batch)]
        if mesh.rank == 1:
            threading.Thread(target=die, args=(moment, after_s), daemon=True).start()
        try:
            while True:
                [t.numpy() for t in step(*batch)]
        except HalError as error:
            raised_s = time.time()
            for _ in range(30_000):
                if moment.exists():
                    break
                time.sleep(0.001)
            late_s = raised_s - float(moment.read_text())
            print(json.dumps([late_s, type(error).__name__, str(error)]), flush=True)
            os._exit(0)


def die(moment: Path, after_s: float) -> None:
    time.sleep(after_s)
    moment.write_text(repr(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def main(trials: int, names: list[str]) -> int:
    draw, failed = random.Random(), 0
    for name in names:
        late: list[float] = []
        for _ in range(trials):
            with tempfile.TemporaryDirectory() as folder:
                after_s = draw.uniform(0, LATEST_S)
                rank = [__file__, name, f"{folder}/moment", str(after_s)]
                command = [*HAL, "run", "-n", "2", "--devices", "cpu:0", *rank]
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
                )
            said = [line for line in done.stdout.splitlines() if line.startswith("[0] [")]
            if not said or "rank 1" not in said[0]:
                failed += 1
                print(f"{name}: rank 1 is not named: {done.stdout}{done.stderr}")
                continue
            late.append(json.loads(said[0][4:])[0])
        each = ", ".join(f"{s * 1e3:.0f}" for s in late)
        print(f"{name:10} named rank 1 {len(late)} of {trials} times, after {each} ms", flush=True)
    return failed


if __name__ == "__main__":
    if World.present() is not None:
        train(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
    else:
        chosen = sys.argv[2:] or NAMES
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, chosen))
