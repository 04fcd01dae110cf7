"""What copies and collectives between core groups move over the ring, and how long that takes.

Core groups read from each other's memory. A collective is a few phases, one after the other, in
each of which every member reads from others at once; which phases these are is the choice of this
module, by the algorithms that MPI libraries use for long messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hal.core.values import Collective, CollectiveKind
from hal_plugin_sunway.chip import Chip
from hal_plugin_sunway.ring import Remedies, Request, flow

MOST_REQUESTS = 3072
"""Of a phase that are followed one by one; of more, time goes on as between two thirds of them and
all of them."""

_READ_ADD_WRITE = 3
_LARGE_NBYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Move:
    """Member `reader` reads `nbytes` from the memory of member `owner`."""

    reader: int
    owner: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Phase:
    """Moves at the same time; then each member adds `added` bytes to as many of its own."""

    moves: tuple[Move, ...]
    added: int = 0


def phases(call: Collective, size: int) -> list[Phase]:
    """The phases of a collective among `size` members."""
    one = call.dtype.nbytes_of(call.count)
    return _PHASES[call.kind](call, size, one) if size > 1 else []


def cycles(chip: Chip, remedies: Remedies, parts: Sequence[Phase], places: Sequence[int]) -> float:
    """CPE cycles of phases whose members are the core groups `places`, by rank."""
    memory = chip["memory_nbytes_s"] / chip["cpe_hz"] * (1 - chip["lost_share"])
    known: dict[Phase, float] = {}
    for part in parts:
        if part not in known:
            moved = _moving(chip, remedies, part.moves, places)
            known[part] = moved + _READ_ADD_WRITE * part.added / memory
    return sum(known[part] for part in parts)


def link_nbytes_s(chip: Chip, hops: int) -> float:
    """Bytes/s at which a core group reads the memory of another one so many hops away, alone."""
    half, whole = (
        cycles(chip, Remedies(), (Phase((Move(0, 1, nbytes),)),), (0, hops))
        for nbytes in (_LARGE_NBYTES // 2, _LARGE_NBYTES)
    )
    return _LARGE_NBYTES / 2 / chip.seconds(whole - half)


def _moving(chip: Chip, remedies: Remedies, moves: Sequence[Move], places: Sequence[int]) -> float:
    line = chip.count("line_nbytes")
    lines = [-(-move.nbytes // line) for move in moves]
    if not sum(lines):
        return 0.0

    def simulated(share: float) -> float:
        whole = [max(int(n * share), 1) if n else 0 for n in lines]
        # The lines that each core group asks for: of its moves by turns, as they go on at once,
        # in runs that a controller can merge
        groups = chip.count("core_groups")
        asked: list[list[Request]] = [[] for _ in range(groups)]
        left, run = whole, 4
        while any(left):
            for index, move in enumerate(moves):
                here, there = places[move.reader], places[move.owner]
                asked[here] += [Request(here, there, line)] * min(left[index], run)
                left[index] -= min(left[index], run)
        return flow(chip, asked, remedies).cycles

    if sum(lines) <= MOST_REQUESTS:
        return simulated(1.0)
    share = MOST_REQUESTS / sum(lines)
    less, more = simulated(share * 2 / 3), simulated(share)
    return more + (more - less) * (1 - share) / (share / 3)


def _neighbours(size: int, nbytes: int, added: int = 0) -> list[Phase]:
    """Every member reads from the one before it, until all have been round."""
    moves = tuple(Move(rank, (rank - 1) % size, nbytes) for rank in range(size))
    return [Phase(moves, added)] * (size - 1)


def _part(nbytes: int, size: int) -> int:
    return -(-nbytes // size)


def _from_all(root: int, size: int, nbytes: int) -> Phase:
    """The root reads from every other member."""
    return Phase(tuple(Move(root, rank, nbytes) for rank in range(size) if rank != root))


def _from_root(root: int, size: int, nbytes: int) -> Phase:
    """Every other member reads from the root."""
    return Phase(tuple(Move(rank, root, nbytes) for rank in range(size) if rank != root))


def _all_reduce(call: Collective, size: int, one: int) -> list[Phase]:
    part = _part(one, size)
    return [*_neighbours(size, part, added=part), *_neighbours(size, part)]


def _reduce(call: Collective, size: int, one: int) -> list[Phase]:
    part = _part(one, size)
    return [*_neighbours(size, part, added=part), _from_all(call.root, size, part)]


def _broadcast(call: Collective, size: int, one: int) -> list[Phase]:
    """A part to each, which all then pass round."""
    part = _part(one, size)
    return [_from_root(call.root, size, part), *_neighbours(size, part)]


def _exchanged(nbytes: Sequence[Sequence[int]]) -> list[Phase]:
    """`nbytes[i][j]` go from member i to member j; each begins with the one behind it."""
    ranks = range(len(nbytes))
    pairs = ((here, (here - apart) % len(ranks)) for apart in ranks[1:] for here in ranks)
    return [Phase(tuple(Move(to, by, nbytes[by][to]) for to, by in pairs))]


_PHASES: Mapping[CollectiveKind, Callable[[Collective, int, int], list[Phase]]] = {
    CollectiveKind.ALL_REDUCE: _all_reduce,
    CollectiveKind.REDUCE: _reduce,
    CollectiveKind.BROADCAST: _broadcast,
    CollectiveKind.ALL_GATHER: lambda call, size, one: _neighbours(size, one),
    CollectiveKind.GATHER: lambda call, size, one: [_from_all(call.root, size, one)],
    CollectiveKind.REDUCE_SCATTER: lambda call, size, one: _neighbours(size, one, added=one),
    CollectiveKind.SCATTER: lambda call, size, one: [_from_root(call.root, size, one)],
    CollectiveKind.ALL_TO_ALL: lambda call, size, one: _exchanged(
        [[one] * size for _ in range(size)]
    ),
    CollectiveKind.ALL_TO_ALL_V: lambda call, size, one: _exchanged(
        [[n * call.dtype.nbytes for n in row] for row in call.counts]
    ),
    CollectiveKind.BARRIER: lambda call, size, one: _neighbours(size, 1),
}
