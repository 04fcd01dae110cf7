"""What fault tolerance costs where nothing fails, in processor time of the GPT's steps.

    python -m benchmarks.fault_cost [STEPS] [--ranks 4]

Trains the GPT of examples/gpt.py (131 MB of state) under `hal run --least`, and says how much of
the time of a rank's steps it takes to copy its state, and to compare it; and what the launcher and
the agent take of that of all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import gpt
from benchmarks.machine import ROOT

sys.path.insert(0, str(ROOT / "examples"))

from gpt import GPT, GPTConfig, decay_groups

import stack.framework as ht
from stack.fault import Training
from stack.fault.compare import COMPARE_EVERY
from stack.framework import optim

WARM = 3
"""Steps that do not count."""
LONGEST_S = 1800.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Timed(Training):
    """Writes the processor time of this process for each copy and comparison."""

    copies: list[float]
    compared: list[float]

    def _keep(self) -> None:
        self._state.look()
        self._state.compute()  # the step itself, which may be under way
        began_s = time.process_time()
        super()._keep()
        self.copies.append(time.process_time() - began_s)

    def _compare(self) -> bool:
        began_s = time.process_time()
        found = super()._compare()
        self.compared.append(time.process_time() - began_s)
        return found


def rank(folder: Path, steps: int) -> None:
    """What a rank runs."""
    ht.manual_seed(0)
    model = GPT(GPTConfig(gpt.LAYERS, gpt.WIDTH, gpt.HEADS, gpt.CONTEXT, gpt.VOCABULARY))
    optimizer = optim.AdamW(decay_groups(model, gpt.WEIGHT_DECAY), lr=gpt.RATE, betas=gpt.BETAS)
    ends: list[float] = []
    with Timed(model, parts=4, optimizer=optimizer) as training:
        training.copies, training.compared = [], []
        train, batch = training.gradients(model.loss, optimizer.step), gpt.batch()

        def step() -> None:
            ends.append(time.process_time())
            train(*batch).item()

        training.each(step, until=steps)
        ends.append(time.process_time())
        lasted = [after - before for before, after in pairwise(ends)]
        row = {"steps": lasted[WARM:], "copies": training.copies[-len(lasted) :][WARM:]}
        row |= {"compared": training.compared, "nbytes": training._state.nbytes}
        (folder / f"{training.rank}.json").write_text(json.dumps(row))


def spent_s(process: int) -> float:
    """Processor time of a process until now, without its children's."""
    fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def supervision_s(launcher: subprocess.Popen[bytes], events: Path) -> float:
    """Processor time of the launcher and its agent from the first step to the end."""
    began: dict[int, float] | None = None
    last: dict[int, float] = {}
    until_s = time.monotonic() + LONGEST_S
    while launcher.poll() is None and time.monotonic() < until_s:
        time.sleep(0.2)
        with suppress(OSError):
            children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text()
            last = {one: spent_s(one) for one in (launcher.pid, *map(int, children.split()))}
        text = events.read_text() if events.exists() else ""
        if began is None and f'"step": {WARM},' in text:
            began = last
    if began is None:
        raise SystemExit("the job did no steps")
    return sum(last[one] - began.get(one, 0.0) for one in last)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("steps", type=int, nargs="?", default=35)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.out is not None:
        rank(given.out, given.steps)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = str(given.ranks)
        command = [sys.executable, "-m", "hal", "run", "-n", ranks, "--least", ranks]
        command += ["--devices", "cpu:0", "--events", str(folder / "events")]
        command += ["-m", "benchmarks.fault_cost", str(given.steps), "--out", name]
        job = subprocess.Popen(command, cwd=ROOT)
        try:
            watch_s = supervision_s(job, folder / "events")
        finally:
            job.kill()
            job.wait(timeout=LONGEST_S)
        rows: list[dict[str, Any]] = [json.loads(f.read_text()) for f in folder.glob("*.json")]
    copy, step = (
        statistics.median(s for row in rows for s in row[of]) for of in ("copies", "steps")
    )
    compared = statistics.median(s for row in rows for s in row["compared"]) / COMPARE_EVERY
    all_s = sum(s for row in rows for s in row["steps"])
    mb = rows[0]["nbytes"] / 1e6
    print(f"{len(rows)} ranks, {len(rows[0]['steps'])} steps, {mb:.0f} MB of state")
    print(f"a rank's step {step * 1e3:.0f} ms, copy {copy * 1e3:.1f} ms: {copy / step:.1%}")
    print(f"comparing every {COMPARE_EVERY} steps {compared * 1e3:.2f} ms: {compared / step:.2%}")
    print(f"launcher and agent {watch_s:.2f} s beside {all_s:.1f} s: {watch_s / all_s:.2%}")


if __name__ == "__main__":
    main()
