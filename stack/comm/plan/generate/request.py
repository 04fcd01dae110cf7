"""What a generator is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from hal.core.facts import dataclass
from stack.comm.plan.draft import Chunk, Draft
from stack.comm.plan.go_on import GoOn, always
from stack.comm.plan.program import PlanKind, Program


@dataclass(frozen=True, slots=True)
class Request:
    """A program of `kind` among `size` ranks.

    `wide` asks for partial sums in the accumulator type, which float16 and bfloat16 need. `cut` is
    into how many parts an algorithm that works by turns cuts what it moves at once, so that one
    part's turn overlaps the next one's. `places[r]` says where rank r is, from the outermost group
    to the innermost: () for a flat group, (host,) for two levels, (supernode, host) for three.
    Hierarchical algorithms need them, rings follow them. `go_on` is asked at every step.
    """

    kind: PlanKind
    size: int
    root: int = 0
    target: int = 0
    in_place: bool = False
    wide: bool = False
    cut: int = 1
    places: tuple[tuple[int, ...], ...] = ()
    go_on: GoOn = field(default=always, compare=False, repr=False)


Generator = Callable[[Request], Program]


def draft(name: str, request: Request, pieces: int) -> Draft:
    """An empty program for the request."""
    r = request
    return Draft(name, r.kind, r.size, pieces, r.root, r.target, r.in_place, r.go_on)


class Partials:
    """Where each rank's part of the sum of each block is: at first in INPUT.

    `wide` keeps sums that are not finished out of OUTPUT.
    """

    def __init__(self, draft: Draft, wide: bool) -> None:
        self._draft = draft
        self._wide = wide
        self._at: dict[tuple[int, int], Chunk] = {}

    def at(self, rank: int, blocks: list[int]) -> list[Chunk]:
        """The chunks that hold the rank's sums now."""
        return [self._at.get((rank, b)) or self._draft.given(rank, b) for b in blocks]

    def room(self, rank: int, blocks: list[int], final: bool = False) -> list[Chunk]:
        """Chunks to write the rank's next sums to, and from then on where they are: the same ones
        each time. `final` ones go to OUTPUT where it has them."""
        kept = [
            b for b in blocks if not ((final or not self._wide) and self._draft.has_result(rank, b))
        ]
        missing = [b for b in kept if (rank, b) not in self._at]
        made = self._draft.scratch(rank, missing)
        self._at.update(((rank, b), chunk) for b, chunk in zip(missing, made, strict=True))
        self._at.update(
            ((rank, b), self._draft.result(rank, b)) for b in blocks if b not in set(kept)
        )
        return self.at(rank, blocks)
