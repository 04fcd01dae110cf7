"""Peak bytes of a rank's pool under ZeRO 0 to 3, against the formulas: python -m
benchmarks.parallel_memory [RANKS].

A chain of equal linear layers trains by AdamW in float32 on a batch so small that its activations
are nothing beside the layers (of 8 rows they are 0.4 % of what stage 3 needs on 4 ranks). With P
bytes of parameters on N ranks there are parameters, their gradients and two moments: 4 P;
2 P + 2 P / N by stage 1; P + 3 P / N by stage 2; 4 P / N by stage 3 (Rajbhandari et al., arXiv
1910.02054). The exit status is the number of stages that need more than 1.05 times as much. Under
`hal run` this file is the job's script.

Stages 1 and 2 both need P + 2 P / N here, and some buckets: gradients are in rows as soon as they
are summed, a bucket's rows are updated as soon as they are there, and what is gathered of them is
put into its place. Where gradients are clipped by the norm of all, their rows are there, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import stack.framework as ht
from stack.comm.world import World
from stack.framework import nn, optim
from stack.framework.devices import engine
from stack.parallel import Mesh, parallel
from stack.parallel.strategy import data, zero
from tests.launch.running import HAL

LAYERS, WIDTH, ROWS = 48, 512, 4
MOST = 1.05
DEADLINE_S = 900


def formula(stage: int, ranks: int) -> float:
    """Bytes of parameters, gradients and moments, in those of the parameters."""
    shared = {0: 0, 1: 2, 2: 3, 3: 4}[stage]
    return 4 - shared + shared / ranks


def train(stage: int) -> None:
    """A rank of the job, which says its peak."""
    mesh = Mesh.present()
    ranks = mesh.size("data")
    ht.manual_seed(1)
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    optimizer = optim.AdamW(net.parameters(), lr=1e-3)
    batch = np.ones((ROWS, WIDTH), np.float32)
    strategy = zero(stage, ranks) if stage else data(ranks)

    @ht.jit
    def step(x: ht.Tensor) -> ht.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with parallel(net, mesh, strategy, optimizer):
        step(batch).item()
        pool = engine("cpu:0").pool
        pool.reset_peak()
        step(batch).item()
        print(json.dumps([pool.stats().peak_nbytes, 4 * LAYERS * WIDTH * WIDTH]), flush=True)


def main(ranks: int) -> int:
    failed = 0
    for stage in range(4):
        command = [*HAL, "run", "-n", str(ranks), "--devices", "cpu:0", __file__, str(stage)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        said = [line.partition("] ")[2] for line in done.stdout.splitlines() if "] [" in line]
        if done.returncode or len(said) != ranks:
            print(f"stage {stage} failed:\n{done.stdout}{done.stderr}")
            failed += 1
            continue
        peak, parameters = max(json.loads(line) for line in said)
        share = peak / parameters / formula(stage, ranks)
        failed += share > MOST
        print(f"stage {stage}: {peak} bytes, {share:.3f} of the formula's", flush=True)
    return failed


if __name__ == "__main__":
    if World.present() is not None:
        train(int(sys.argv[1]))
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2))
