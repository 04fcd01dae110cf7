"""What running jobs could leave for one that waits."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import field

from hal.core.facts import dataclass
from stack.scheduler.gang import Gang, Holding
from stack.scheduler.tally import Tally
from stack.scheduler.topology import lowest


@dataclass(slots=True, eq=False)
class Offer:
    """Devices that a running job could leave, by stopping or by going on with fewer ranks; `tally`
    is what its queue would count as leaving."""

    gang: Gang
    masks: Holding
    stop: bool = False
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        leaving: dict[str, int] = {}
        for leaf, mask in self.masks.items():
            leaving[leaf.kind] = leaving.get(leaf.kind, 0) + mask.bit_count()
        self.tally = Tally(leaving=leaving)


def rest_of(gang: Gang, offered: Holding) -> Offer:
    """All that a job has beyond what it offered before, for which it must stop."""
    masks = {leaf: mask & ~offered.get(leaf, 0) for leaf, mask in gang.holding.items()}
    return Offer(gang, masks, stop=True)


def surpluses(heir: Gang, elastic: list[Gang], kind: str) -> Iterator[Offer]:
    """Ranks that elastic jobs of no higher priority can do without, a leaf at a time, always from
    the job with the most ranks for each that it needs; the emptiest leaves first, so that hosts
    fall free."""
    heap = []
    for gang in elastic:
        if gang.spec.priority <= heir.spec.priority:
            leaves = sorted(gang.holding.items(), key=lambda item: -item[1].bit_count())
            heap.append((-gang.ranks / gang.spec.fewest, gang.seq, gang.ranks, gang, leaves))
    heapq.heapify(heap)
    while heap:
        _, seq, ranks, gang, leaves = heapq.heappop(heap)
        leaf, mask = leaves.pop()
        fewer = min(mask.bit_count() // gang.spec.devices, ranks - gang.spec.fewest)
        if fewer <= 0:
            continue
        if leaf.kind == kind:
            yield Offer(gang, {leaf: lowest(mask, fewer * gang.spec.devices)})
        ranks -= fewer
        if leaves and ranks > gang.spec.fewest:
            heapq.heappush(heap, (-ranks / gang.spec.fewest, seq, ranks, gang, leaves))
