"""Every pair and triple of strategies against one device: python -m benchmarks.parallel_matrix
[RANKS [STEPS [NAME ...]]].

Without names: all pairs on 4 ranks, on 8 all triples with a pipeline. Each trains the small GPT of
`tests/parallel/spread_gpt.py` with dropout by SGD (20 steps), and the farthest loss and gradient of
any step are printed, and whether what is whole has the same bits on all ranks. The exit status is
the number of those that are farther than 1e-6, or fail.
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

BAR = 1e-6
DEADLINE_S = 900


def names_for(ranks: int) -> list[str]:
    elements = tuple(name for name in spread_gpt.ELEMENTS if name != "context")
    if ranks < 8:
        return spread_gpt.combinations(2, elements)
    return [n for n in spread_gpt.combinations(3, elements) if "pipeline" in n]


def measured(name: str, ranks: int, steps: int, wholes: dict[Any, Any]) -> tuple[bool, str]:
    """Whether a strategy does what is promised, and what it did."""
    which = spread_gpt.model_of(name)
    if which not in wholes:
        wholes[which] = spread_gpt.trained(None, "sgd", steps, name)[0]
    with tempfile.TemporaryDirectory() as folder:
        rank = [spread_gpt.__file__, folder, "sgd", str(steps), name]
        command = [*HAL, "run", "-n", str(ranks), "--devices", "cpu:0", *rank]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        if done.returncode:
            return False, f"failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        loss, gradient = spread_gpt.farthest(folder, name, wholes[which], steps)
    said = [
        json.loads(line.partition("] ")[2]) for line in done.stdout.splitlines() if "] [" in line
    ]
    is_equal = len({digest for _, digest, _ in said}) == 1 and len(said) == ranks
    text = f"losses {loss:.1e}, gradients {gradient:.1e}"
    if not is_equal:
        text += ", ranks have other bits"
    return is_equal and max(loss, gradient) <= BAR, text


def main(ranks: int, steps: int, names: Sequence[str]) -> int:
    wholes: dict[Any, Any] = {}
    failed = 0
    for name in names or names_for(ranks):
        fits, text = measured(name, ranks, steps, wholes)
        failed += not fits
        print(f"{name:24} {text}", flush=True)
    return failed


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    sys.exit(main(int(given.get(1, 4)), int(given.get(2, 20)), sys.argv[3:]))
