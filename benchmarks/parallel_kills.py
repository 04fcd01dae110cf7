"""What survivors of a rank's death say, under each strategy: python -m benchmarks.parallel_kills
[TRIALS [NAME ...]].

A job of two ranks (four for names with a +) trains a small GPT; a rank that is drawn is killed
(SIGKILL) at a moment of its third step that is drawn. Each survivor says how long after that its
step has raised, and what. The exit status is the number of survivors that did not name the rank, or
later than BAR_S. Under `hal run` this file is the job's script.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hal.core.errors import HalError
from stack.comm.world import World
from stack.parallel import Mesh, parallel
from tests.launch.running import HAL
from tests.parallel import pipe, spread_gpt

ALONE = ["data", "zero1", "zero2", "zero3", "tensor", "context", "ring", "ulysses", "expert"]
NAMES = [*ALONE, *pipe.SCHEDULES, "data+tensor", "zero3+ring", "tensor+pipeline"]
DEADLINE_S = 400
"""How long a trial may take on a busy machine, on which ranks compile for most of it."""
BAR_S = 0.2
LATEST_S = 0.02
"""A step takes about so long."""
STUCK_S = 3.0
"""A rank whose step takes so long writes where each of its threads is, before it is killed."""


def train(name: str, moment: Path, after_s: float, victim: int) -> None:
    """A rank of the job."""
    # The launcher asks survivors to end as soon as it knows of the death: they have to say first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rank = Mesh.present().rank
    if name in pipe.SCHEDULES:
        strategy, net = pipe.SCHEDULES[name], pipe.model()
        optimizer = pipe.optimizer_of(net, "sgd")
        (batch, *_) = pipe.batches()
    else:
        strategy = spread_gpt.composed(name, ranks_of(name))
        net = spread_gpt.model(experts=spread_gpt.experts_of(name))
        (batch,) = spread_gpt.batches(1, spread_gpt.rows_of(name))
        count = spread_gpt.micro_batches_of(name)
        step, optimizer = spread_gpt.stepper(
            net, "sgd", False, lambda *given: spread.backward(*given), count
        )
    mesh = Mesh.present(**strategy.sizes)
    with parallel(net, mesh, strategy, optimizer) as spread:
        if name in pipe.SCHEDULES:
            step = pipe.stepper(net, optimizer, spread.backward)
        for _ in range(2):
            [t.numpy() for t in step(*batch)]
        if rank == victim:
            stdin = killer(moment, after_s).stdin
            assert stdin is not None
            stdin.write("\n")
            stdin.flush()
        try:
            while True:
                faulthandler.dump_traceback_later(STUCK_S)
                [t.numpy() for t in step(*batch)]
        except HalError as error:
            faulthandler.cancel_dump_traceback_later()
            raised_s = time.time()
            for _ in range(30_000):
                if moment.exists():
                    break
                time.sleep(0.001)
            late_s = raised_s - float(moment.read_text())
            print(json.dumps([late_s, type(error).__name__, str(error)]), flush=True)
            os._exit(0)


KILLER = """
import os, pathlib, select, sys, time
moment, after_s, pid = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
print(flush=True)
if not select.select([sys.stdin], [], [], 60)[0]:
    sys.exit()
time.sleep(after_s)
moment.write_text(repr(time.time()))
os.kill(pid, 9)
"""
"""A process of its own: a thread of the rank would wait for the interpreter's lock after it wrote
down when the rank dies."""


def killer(moment: Path, after_s: float) -> subprocess.Popen[str]:
    """What kills this process so long after a line is written to it; it is ready."""
    command = [sys.executable, "-S", "-c", KILLER, str(moment), str(after_s), str(os.getpid())]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    select.select([process.stdout], [], [], DEADLINE_S)
    return process


def culprit(line: str) -> int:
    """The number in the job of the rank that an error names first."""
    text = json.loads(line)[2].rpartition("': ")[2].partition(" (found by ")[0]
    numbers = re.findall(r"rank (\d+)", text.partition(" (told by ")[0])
    return int(numbers[-1]) if numbers else -1  # "rank 0 (rank 2 of the job)"


def ranks_of(name: str) -> int:
    return 4 if "+" in name else 2


def main(trials: int, names: list[str]) -> int:
    draw, failed = random.Random(), 0
    for name in names:
        late: list[float] = []
        ranks = ranks_of(name)
        for _ in range(trials):
            victim = draw.randrange(ranks)
            with tempfile.TemporaryDirectory() as folder:
                after_s = draw.uniform(0, LATEST_S)
                rank = [__file__, name, f"{folder}/moment", str(after_s), str(victim)]
                command = [*HAL, "run", "-n", str(ranks), "--devices", "cpu:0", *rank]
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
                )
            said = [line.partition("] ")[2] for line in done.stdout.splitlines() if "] [" in line]
            named = [line for line in said if culprit(line) == victim]
            if len(named) != ranks - 1:
                print(f"{name}: not all name rank {victim}: {done.stdout}{done.stderr}")
            late += [json.loads(line)[0] for line in named]
            for line in named:
                if json.loads(line)[0] > BAR_S:
                    print(f"{name}: late: {line}\n{done.stderr}", flush=True)
        survivors = trials * (ranks - 1)
        in_time = sum(s <= BAR_S for s in late)
        failed += survivors - in_time
        worst = max(late, default=float("nan"))
        print(
            f"{name:16} {len(late)} of {survivors} survivors named the rank that died, {in_time} "
            f"within {BAR_S * 1e3:.0f} ms, at most {worst * 1e3:.0f} ms after that",
            flush=True,
        )
    return failed


if __name__ == "__main__":
    if World.present() is not None:
        train(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
    else:
        chosen = sys.argv[2:] or NAMES
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, chosen))
