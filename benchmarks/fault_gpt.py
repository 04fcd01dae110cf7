"""Kill ranks of the GPT's training at random steps, and compare it with an undisturbed one.

    python -m benchmarks.fault_gpt KILLS STEPS [SEED]

Losses and final parameters are to have the bits of one process that nobody disturbs; every step is
to be there. Ends with 1 where they differ.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from stack.framework.checkpoints import TreeCheckpoints
from stack.framework.tensor import Tensor

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "train_gpt.py"
LONGEST_S = 7200.0


def trained(out: Path, steps: int, *options: str) -> float:
    """Train under `hal run` with these options; gives the seconds that it took."""
    command = [sys.executable, "-m", "hal", "run", *options, "--devices", "cpu:0", str(SCRIPT)]
    command += ["--steps", str(steps), "--out", str(out), "--json", str(out / "steps.json")]
    out.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    began_s = time.monotonic()
    with (out / "output").open("wb") as output:
        subprocess.run(
            command,
            check=True,
            timeout=LONGEST_S,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    return time.monotonic() - began_s


def losses(out: Path) -> dict[int, set[float]]:
    """All losses that ranks 0 have written for each step."""
    found: dict[int, set[float]] = {}
    for line in (out / "steps.json").read_text().splitlines():
        row = json.loads(line)
        if "loss" in row:
            found.setdefault(row["step"], set()).add(row["loss"])
    return found


def parameters(out: Path) -> list[bytes]:
    with TreeCheckpoints(out / "checkpoints", None) as checkpoints:
        _, state = checkpoints.load()
    return [_bytes(state["model"][name]) for name in sorted(state["model"])]


def _bytes(value: Any) -> bytes:
    return (value.numpy() if isinstance(value, Tensor) else np.asarray(value)).tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kills", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    given = parser.parse_args()
    at = sorted(random.Random(given.seed).sample(range(1, given.steps), given.kills))
    plan = "; ".join([f"seed {given.seed}", *(f"kill at step nth {step}" for step in at)])
    with tempfile.TemporaryDirectory() as name:
        alone, killed = Path(name) / "alone", Path(name) / "killed"
        alone_s = trained(alone, given.steps, "-n", "1", "--least", "1")
        options = ["-n", "4", "--least", "1", "--spares", "1", "--restarts", str(given.kills)]
        events = Path(name) / "events"
        killed_s = trained(killed, given.steps, *options, "--events", str(events), "--faults", plan)
        lines = [json.loads(line) for line in events.read_text().splitlines()]
        struck = sum(e["event"] == "fault" for e in lines)
        sizes = sorted({len(e["epoch"]["members"]) for e in lines if e["event"] == "form"})
        wanted, found = losses(alone), losses(killed)
        other = sorted(step for step in wanted if found.get(step) != wanted[step])
        same = parameters(alone) == parameters(killed)
    print(f"{struck} kills in {given.steps} steps (seed {given.seed}), epochs of {sizes} ranks")
    print(f"{alone_s:.0f} s alone, {killed_s:.0f} s with kills; load {os.getloadavg()[0]:.1f}")
    print(f"losses that differ: {other or 'none'}; parameters: {'equal' if same else 'other'} bits")
    sys.exit(0 if same and not other and struck == given.kills else 1)


if __name__ == "__main__":
    main()
