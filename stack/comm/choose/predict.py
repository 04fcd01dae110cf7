"""How long a program takes on a network, by a walk over its steps (LogGP with ports; Alexandrov,
Ionescu, Schauser and Scheiman, 1995).

A step begins when what it waits for is over and what it uses is free: a rank's processor for copies
and sums; for a message the sending and the receiving port, which are the ranks' own inside a host,
and the hosts' across. A message occupies its ports for as long as its bytes take, and arrives a
latency later. Each rank begins one step after the other, an overhead apart; what it has begun goes
on by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field
from heapq import heappop, heappush

from hal.core.facts import dataclass
from stack.comm.choose.network import Network
from stack.comm.plan.check_order import StepOrder
from stack.comm.plan.go_on import GoOn, always
from stack.comm.plan.program import REDUCING, ChunkPlace, Op, Program, Span, offsets

Port = tuple[str, object]


@dataclass(frozen=True, slots=True)
class Element:
    """Bytes of an element, and of an accumulator."""

    nbytes: int
    wide_nbytes: int


def predict(
    program: Program,
    order: StepOrder,
    lengths: Sequence[int],
    element: Element,
    network: Network,
    go_on: GoOn = always,
) -> float:
    """Seconds from the common start of all ranks to the end of the last one.

    `order` is that of the program (`order_of`), `lengths` are those of the extents.
    """
    return _Walk(program, order, lengths, element, network, go_on).run()


@dataclass(slots=True)
class _Walk:
    """When each step ends, and when each processor and port is free again."""

    program: Program
    order: StepOrder
    lengths: Sequence[int]
    element: Element
    network: Network
    go_on: GoOn
    starts: list[dict[ChunkPlace, tuple[int, ...]]] = field(init=False)
    ends: list[float] = field(init=False)
    processor: list[float] = field(init=False)
    beginning: list[float] = field(init=False)
    ready: list[float] = field(init=False)
    queue: list[tuple[float, int, int]] = field(default_factory=list)
    port: dict[Port, float] = field(default_factory=lambda: defaultdict(float))

    def __post_init__(self) -> None:
        size = self.program.size
        self.ends = [0.0] * len(self.order.partner)
        self.ready = [0.0] * len(self.order.partner)
        self.processor = [0.0] * size
        self.beginning = [0.0] * size
        self.starts = [
            {p: offsets(self.program, rank, p, self.lengths) for p in ChunkPlace}
            for rank in range(size)
        ]

    def run(self) -> float:
        """The end of the last step. What can begin first does; else the steps' order counts."""
        waiting = self.order.waiting()
        for node in {node for node in self.order.head if not waiting[node]}:
            self._await(node, 0.0)
        while self.queue:
            self.go_on()
            at, index, node = heappop(self.queue)
            if node < 0:
                rank, _, step = self.order.step(self.program, ~node)
                seconds = self._nbytes(rank, step.dst) / self.network.added[rank]
                self.ends[~node] = self._work(rank, at, seconds)
            else:
                start = self._start(node)
                if at < start and self.queue and self.queue[0][0] < start:
                    heappush(self.queue, (start, index, node))
                    continue
                if not self._do(node):
                    continue
            for later in self.order.followers[self.order.head[node if node >= 0 else ~node]]:
                waiting[later] -= 1
                if not waiting[later]:
                    # All that a step waits for is over, and so it is at the other end of a
                    # message.
                    for end in (later, self.order.partner[later]):
                        if end >= 0:
                            rank, _, step = self.order.step(self.program, end)
                            first = self.order.first[rank]
                            over = [self.ends[first + earlier] for earlier in step.after]
                            self.ready[end] = max(over, default=0.0)
                    self._await(later, self._start(later))
        return max(self.ends, default=0.0)

    def _await(self, node: int, at: float) -> None:
        """Come back to a node at that time; ~node stands for the arrival of its message."""
        real = max(node, ~node)
        heappush(self.queue, (at, real - self.order.first[self.order.rank_of[real]], node))

    def _start(self, node: int) -> float:
        """When a step that waits for nothing more could begin."""
        rank, partner = self.order.rank_of[node], self.order.partner[node]
        if partner < 0:
            return max(self.ready[node], self.processor[rank])
        out, into = self._ports(rank, self.order.rank_of[partner])
        return max(self.ready[node], self.ready[partner], self.port[out], self.port[into])

    def _do(self, node: int) -> bool:
        """Do a step; whether it is over with that, or a message has to arrive first."""
        rank, _, step = self.order.step(self.program, node)
        if step.op is Op.SEND:
            network, partner = self.network, self.order.partner[node]
            _, _, receive = self.order.step(self.program, partner)
            wire = network.wires[rank][step.peer]
            ends = ((rank, node), (step.peer, partner))
            posted = [self._begin(where, self.ready[end]) for where, end in ends]
            out, into = self._ports(rank, step.peer)
            seconds = self._nbytes(rank, step.src) / wire.bandwidth
            over = max(*posted, self.port[out], self.port[into]) + seconds
            self.port[out] = self.port[into] = self.ends[node] = over
            self.ends[partner] = over + wire.latency_s
            if receive.op is Op.RECV:
                return True
            self._await(~partner, self.ends[partner])
            return False
        nbytes = self._nbytes(rank, step.dst)
        speeds = self.network.copied if step.op is Op.COPY else self.network.added
        begun = self._begin(rank, self.ready[node])
        self.ends[node] = self._work(rank, begun, nbytes / speeds[rank])
        return True

    def _begin(self, rank: int, at: float) -> float:
        """When a rank has begun a step that is ready by then."""
        self.beginning[rank] = max(at, self.beginning[rank]) + self.network.overhead_s
        return self.beginning[rank]

    def _work(self, rank: int, at: float, seconds: float) -> float:
        """Occupy the rank's processor, from `at` on at the earliest; gives the end."""
        self.processor[rank] = max(at, self.processor[rank]) + seconds
        return self.processor[rank]

    def _ports(self, source: int, dest: int) -> tuple[Port, Port]:
        here, there = self.network.places[source], self.network.places[dest]
        if here == there:
            return ("out of rank", source), ("into rank", dest)
        return ("out of host", here), ("into host", there)

    def _nbytes(self, rank: int, span: Span) -> int:
        of = self.starts[rank][span.place]
        wide = self.program.kind in REDUCING and span.place is ChunkPlace.SCRATCH
        each = self.element.wide_nbytes if wide else self.element.nbytes
        return (of[span.start + span.count] - of[span.start]) * each if span.count else 0
