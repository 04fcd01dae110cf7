"""Every pair and triple of strategies against one device: python -m benchmarks.parallel_matrix
[RANKS [STEPS [DEVICES [OPTIMIZER [NAME ...]]]]].

Without names: on 4 ranks all strategies alone, all pairs and special models, on 8 all triples. Each
trains the small GPT of `tests/parallel/spread_gpt.py` with dropout by SGD (20 steps), and the
farthest loss and gradient of any step from those of cpu:0 are printed, with a digest of all values,
and whether what is whole has the same bits on all ranks. DEVICES are cpu:0, or those of the ranks
with commas between them. The exit status is the number of those that are farther than 1e-6, or
fail; where devices are of several kinds, or emulated, the bars are 1e-4 and 1e-3. OPTIMIZER is sgd
or adamw, whose first step is a sign: then gradients are those of the first step, and losses may be
ten times as far.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from tests.launch.running import HAL
from tests.parallel import spread_gpt

BAR, MIXED_BAR, EMULATED_BAR = 1e-6, 1e-4, 1e-3
DEADLINE_S = 1800

SPECIAL = [
    *(f"{n}@odd" for n in ("data", "zero1", "zero2", "zero3", "context", "ring", "zero3+ring")),
    *(f"{n}@odd" for n in ("data+pipeline", "zero3+pipeline")),
    *(f"{n}@tied" for n in ("zero3", "tensor", "data+tensor", "data+pipeline")),
    *(f"{n}@one" for n in ("expert", "data+expert", "zero3+expert", "expert+pipeline")),
    *(f"{n}@dropless" for n in ("expert", "data+expert", "tensor+expert")),
    *(f"{n}@shadowed" for n in ("expert", "data+expert", "zero3+expert")),
    *(f"{n}@parts" for n in ("expert", "data+expert", "zero3+expert")),
    *(f"{n}@uneven" for n in ("data", "data+tensor", "data+zero3")),
    *(f"{n}@unclipped" for n in ("data", "zero1", "zero2", "zero3")),
]
"""Strategies for models with something special."""


def names_for(ranks: int) -> list[str]:
    elements = tuple(name for name in spread_gpt.ELEMENTS if name != "context")
    if ranks < 8:
        pairs = spread_gpt.combinations(2, elements)
        alone = [name for name in spread_gpt.combinations(1) if name != "pipeline"]  # of two chunks
        return [*alone, *pairs, *SPECIAL]
    return spread_gpt.combinations(3, elements)


def bar_of(devices: str) -> float:
    kinds = {name.partition(":")[0] for name in devices.split(",")}
    return BAR if kinds == {"cpu"} else EMULATED_BAR if len(kinds) == 1 else MIXED_BAR


def measured(
    name: str, ranks: int, steps: int, devices: str, optimizer: str, wholes: dict[Any, Any]
) -> tuple[bool, str]:
    """Whether a strategy does what is promised, and what it did."""
    which = spread_gpt.model_of(name)
    if which not in wholes:
        wholes[which] = spread_gpt.trained(None, optimizer, steps, name)[0]
    with tempfile.TemporaryDirectory() as folder:
        rank = [spread_gpt.__file__, folder, optimizer, str(steps), name]
        command = [*HAL, "run", "-n", str(ranks), "--devices", devices, *rank]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        if done.returncode:
            return False, f"failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        loss, gradient = spread_gpt.farthest(folder, name, wholes[which], steps)
        if optimizer == "adamw":
            _, gradient = spread_gpt.farthest(folder, name, wholes[which], 1)
    said = [
        json.loads(line.partition("] ")[2]) for line in done.stdout.splitlines() if "] [" in line
    ]
    is_equal = len({digest for _, digest, _ in said}) == 1 and len(said) == ranks
    text = f"losses {loss:.1e}, gradients {gradient:.1e}, bits {said[0][1][:8]}"
    if not is_equal:
        text += ", ranks have other bits"
    bar = bar_of(devices)
    reached = max(loss / 10 if optimizer == "adamw" else loss, gradient)
    return (is_equal or bar == MIXED_BAR) and reached <= bar, text


def main(ranks: int, steps: int, devices: str, optimizer: str, names: Sequence[str]) -> int:
    wholes: dict[Any, Any] = {}
    failed = 0
    for name in names or names_for(ranks):
        fits, text = measured(name, ranks, steps, devices, optimizer, wholes)
        failed += not fits
        print(f"{name:24} {text}", flush=True)
    return failed


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    ranks, steps = int(given.get(1, 4)), int(given.get(2, 20))
    devices, optimizer = given.get(3, "cpu:0"), given.get(4, "sgd")
    sys.exit(main(ranks, steps, devices, optimizer, sys.argv[5:]))
