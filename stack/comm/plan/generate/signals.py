"""Dissemination: a barrier in ceil(log2(n)) turns (Hensgen, Finkel and Manber, 1988)."""

from __future__ import annotations

from stack.comm.plan.generate.request import Request, draft
from stack.comm.plan.program import Program


def barrier(request: Request) -> Program:
    """In turn k a rank tells rank + 2^k that it, and all whom it has heard of, have come."""
    made = draft("dissemination", request, 1)
    distance = 1
    while distance < request.size:
        for rank in range(request.size):
            made.signal(rank, (rank + distance) % request.size)
        made.fence()
        distance *= 2
    return made.program()
