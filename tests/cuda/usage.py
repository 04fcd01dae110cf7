"""What the compiler reports of a kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """What one thread of a kernel takes: registers, bytes of its stack, and bytes of the stores and
    loads by which registers are spilled. `shared_nbytes` is what a block has of shared memory."""

    registers: int
    stack_nbytes: int
    spill_store_nbytes: int
    spill_load_nbytes: int
    shared_nbytes: int


def usage(log: str) -> Usage:
    """By the report that was asked for; of the last kernel, if there are several."""
    return Usage(
        *(
            int((re.findall(pattern, log) or ["0"])[-1])
            for pattern in (
                r"Used (\d+) registers",
                r"(\d+) bytes stack frame",
                r"(\d+) bytes spill stores",
                r"(\d+) bytes spill loads",
                r"(\d+) bytes smem",
            )
        )
    )
