"""Why a program is refused."""

from __future__ import annotations


class PlanError(ValueError):
    """A program, its text or a wish for one cannot be used.

    `rank` and `step` say where, -1 where the fault is not of one rank or of one step; `chunk` is
    its text, such as "out[3]", or empty.
    """

    def __init__(self, reason: str, rank: int = -1, step: int = -1, chunk: str = "") -> None:
        self.reason, self.rank, self.step, self.chunk = reason, rank, step, chunk
        where = [f"rank {rank}"] if rank >= 0 else []
        where += [f"step {step}"] if step >= 0 else []
        where += [chunk] if chunk else []
        super().__init__(f"{', '.join(where)}: {reason}" if where else reason)
