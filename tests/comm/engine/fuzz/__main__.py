"""python -m tests.comm.engine.fuzz FRAMES SEED: what `make fuzz` runs."""

import sys
import tempfile
from pathlib import Path

from tests.comm.engine.fuzz import build, fuzz

DEADLINE_S = 3600

with tempfile.TemporaryDirectory() as folder:
    status, text = fuzz(build(Path(folder)), int(sys.argv[1]), int(sys.argv[2]), DEADLINE_S)
print(text, end="")  # noqa: T201  it is what the command is for
sys.exit(status)
