"""Which message is which, and in which orders the steps of all ranks can run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise

from hal.core.facts import dataclass
from stack.comm.plan.error import PlanError
from stack.comm.plan.go_on import GoOn, always
from stack.comm.plan.program import NOTHING, Op, Program, Span, Step, blocks
from stack.comm.plan.text import print_span


@dataclass(frozen=True, slots=True)
class StepOrder:
    """All steps of a program as nodes: step i of rank r is node `first[r] + i`.

    `partner` is the other end of a message, -1 for local steps. `nodes` lists every node once, so
    that each comes after what it waits for; the two ends of a message stand together, the SEND
    first, since neither can end without the other. `followers[n]` are the nodes that wait for node
    n, where a message is one node, its SEND: `head` of a node is that SEND, or itself.
    """

    first: tuple[int, ...]
    partner: tuple[int, ...]
    nodes: tuple[int, ...]
    rank_of: tuple[int, ...]
    head: tuple[int, ...]
    followers: tuple[tuple[int, ...], ...]

    def step(self, program: Program, node: int) -> tuple[int, int, Step]:
        """Rank, index and value of a node's step."""
        rank = self.rank_of[node]
        index = node - self.first[rank]
        return rank, index, program.steps[rank][index]

    def waiting(self) -> list[int]:
        """For each node the number of those that it waits for."""
        counts = [0] * len(self.partner)
        for later in chain.from_iterable(self.followers):
            counts[later] += 1
        return counts


def order_of(program: Program, go_on: GoOn = always) -> StepOrder:
    """An order in which the steps can run although no message is kept in between.

    Raises PlanError for messages that do not fit together, and for steps that wait for one another.
    """
    first, total = [], 0
    for steps in program.steps:
        first.append(total)
        total += len(steps)
    rank_of = tuple(rank for rank, steps in enumerate(program.steps) for _ in steps)
    channels = _channels(program, first, go_on)
    go_on()
    partner = [-1] * total
    for sends, receives in channels:
        for sent, received in zip(sends, receives, strict=True):
            partner[sent], partner[received] = received, sent
    all_steps = (step for steps in program.steps for step in steps)
    takes = (Op.RECV, Op.RECV_REDUCE)
    heads = [partner[node] if step.op in takes else node for node, step in enumerate(all_steps)]
    followers: list[list[int]] = [[] for _ in range(total)]
    for earlier, later in _edges(program, first, channels):
        followers[heads[earlier]].append(heads[later])
    go_on()
    every = tuple(map(tuple, followers))
    ready = StepOrder(tuple(first), tuple(partner), (), rank_of, tuple(heads), every)
    return replace(ready, nodes=_sorted(program, ready))


Channel = tuple[list[int], list[int]]
"""The nodes of the SENDs and of the receives from one rank to another, in order."""


def _channels(program: Program, first: Sequence[int], go_on: GoOn) -> list[Channel]:
    found: dict[tuple[int, int], Channel] = {}
    for rank, steps in enumerate(program.steps):
        for index, step in enumerate(steps):
            if step.peer >= 0:
                sends = step.op is Op.SEND
                pair = (rank, step.peer) if sends else (step.peer, rank)
                found.setdefault(pair, ([], []))[0 if sends else 1].append(first[rank] + index)
    for (source, dest), (sent_by, taken_by) in found.items():
        _check_number(source, dest, len(sent_by), len(taken_by), program)
        for sent, received in zip(sent_by, taken_by, strict=True):
            go_on()
            _check_fit(program, source, sent - first[source], dest, received - first[dest])
    return list(found.values())


def _check_number(source: int, dest: int, sent: int, received: int, program: Program) -> None:
    """Raise for the first message that the other side does not have."""
    if sent == received:
        return
    extra, other = (source, dest) if sent > received else (dest, source)
    steps = enumerate(program.steps[extra])
    mine = [i for i, s in steps if s.peer == other and (s.op is Op.SEND) == (extra == source)]
    raise PlanError(
        f"rank {source} sends {sent} messages to rank {dest}, which receives {received}",
        extra,
        mine[min(sent, received)],
    )


def _check_fit(program: Program, source: int, sent: int, dest: int, received: int) -> None:
    """Raise for a message that is not what its receiver expects."""
    src, receive = program.steps[source][sent].src, program.steps[dest][received]
    given, wanted = _blocks(program, source, src), _blocks(program, dest, receive.dst)
    where = f"the message of rank {source}, step {sent},"
    chunk = print_span(receive.dst) if receive.dst != NOTHING else ""
    if given != wanted:
        reason = f"{where} has the blocks {_list(given)}, it takes {_list(wanted)}"
        raise PlanError(reason, dest, received, chunk)


def _blocks(program: Program, rank: int, span: Span) -> tuple[int, ...]:
    return blocks(program, rank, span.place)[span.start : span.start + span.count]


def _list(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers)) or "none"


def _edges(
    program: Program, first: Sequence[int], channels: Sequence[Channel]
) -> Iterator[tuple[int, int]]:
    """What waits for what: by `after`, and as messages of one channel."""
    for rank, steps in enumerate(program.steps):
        for index, step in enumerate(steps):
            for earlier in step.after:
                yield first[rank] + earlier, first[rank] + index
    for sends, _ in channels:
        yield from pairwise(sends)


def _sorted(program: Program, order: StepOrder) -> tuple[int, ...]:
    """Kahn's algorithm on steps, where a message is one node."""
    waiting = order.waiting()
    ready = [node for node, head in enumerate(order.head) if head == node and not waiting[node]]
    nodes: list[int] = []
    for node in ready:  # which grows
        nodes += [node] if order.partner[node] < 0 else [node, order.partner[node]]
        for later in order.followers[node]:
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(later)
    if len(nodes) < len(order.partner):
        # Raise for steps that wait for one another, with the ring of them.
        done = set(nodes)
        stuck = {node for node in order.head if node not in done}
        waits_for = {
            later: node for node in stuck for later in order.followers[node] if later in stuck
        }
        path = [min(waits_for)]
        while waits_for[path[-1]] not in path:
            path.append(waits_for[path[-1]])
        ring = path[path.index(waits_for[path[-1]]) :]
        names = [
            f"rank {rank} step {index}" for rank, index, _ in (order.step(program, n) for n in ring)
        ]
        rank, index, _ = order.step(program, ring[0])
        chain = " waits for ".join([*names, names[0]])
        raise PlanError(f"deadlock: {chain}", rank, index)
    return tuple(nodes)
