"""Loops that ranks along an axis of a mesh compute together: each of them makes all steps, of its
part of what these carry, read and give.

How the values of a step lie follows from one of them: the rules of operators carry a placement to
all values that have to do with it, and what a step carries lies alike before and behind it. Ranks
exchange nothing in a loop, so where a step would have to every rank computes the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from hal.core.facts import dataclass
from hal.tile.node import Node, toposort
from stack.ops import LoopBody, results_of
from stack.ops.sharding import outer_size
from stack.parallel.placement import (
    WHOLE,
    Packed,
    Part,
    Partial,
    Placement,
    Sharded,
    fits,
    plain,
    single,
)
from stack.parallel.way import Candidates, Way

Ways = Callable[[Node, Candidates, int], Sequence[Way]]
"""`stack.parallel.ways.ways`, which asks here for those of a loop."""

Seeds = tuple[tuple[int, Placement], ...]
"""Inputs of a body by their numbers, and how they lie."""


@dataclass(frozen=True, slots=True)
class Steps:
    """How a loop's body is computed: where its inputs and outputs are, and the way of each node."""

    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]
    chosen: Mapping[Node, Way]


def divided_steps(n: Node, known: Candidates, ranks: int, ways: Ways) -> Iterator[Steps]:
    """The bodies of a loop of which each rank computes a part, by what is thought of for its
    carried values and its rows."""
    for i in range(n["consts"], len(n.srcs)):
        for p in known[n.srcs[i]]:
            inner = _within(n, i, p)
            if isinstance(inner, Sharded):
                found = _steps(n["body"], n["consts"], n["carried"], ((i, inner),), ranks, ways)
                if found is not None:
                    yield found


def steps_of(n: Node, operands: Sequence[Placement], ranks: int, ways: Ways) -> Steps:
    """How the body is computed where the loop's operands lie so, as `divided_steps` gave it."""
    inner = [(i, _within(n, i, p)) for i, p in enumerate(operands)]
    seeds = tuple((i, p) for i, p in inner if p is not None and p != WHOLE)
    found = _steps(n["body"], n["consts"], n["carried"], seeds, ranks, ways)
    assert found is not None, "what one value tells of a body all of them tell"
    return found


def operands_of(n: Node, steps: Steps) -> tuple[Placement, ...]:
    """Where the loop's operands are."""
    first = n["consts"] + n["carried"]
    return tuple(p if i < first else _stacked(p) for i, p in enumerate(steps.inputs))


def result_of(n: Node, steps: Steps, ranks: int) -> Placement:
    """Where the node's results are, which lie one after the other."""
    results, carried = results_of(dict(n.attrs)), n["carried"]
    parts = []
    for i, _ in results.places(n.dtype):
        p, type = steps.outputs[i], results.types[i]
        p = _stacked(p) if i >= carried else p
        local = type.size
        if isinstance(p, Sharded):
            p = replace(p, axis=0, major=outer_size(type.shape, p.axis, p.major))
            local //= ranks
        parts.append(Part(type.size, type.size, p, local))
    return plain(single(parts[0]) if len(parts) == 1 else Packed(tuple(parts)))


def is_divided(operands: Sequence[Placement]) -> bool:
    """Whether each rank computes a part of the steps of a loop whose operands lie so."""
    return any(p != WHOLE for p in operands)


def _within(n: Node, i: int, p: Placement) -> Placement | None:
    """Where a step has its part of an operand so placed; None where it has none."""
    if not isinstance(p, Sharded) or i < n["consts"] + n["carried"]:
        return p
    return replace(p, axis=p.axis - 1) if p.axis else None


def _stacked(p: Placement) -> Placement:
    return replace(p, axis=p.axis + 1) if isinstance(p, Sharded) else p


@lru_cache(maxsize=1024)
def _steps(
    body: LoopBody, consts: int, carried: int, seeds: Seeds, ranks: int, ways: Ways
) -> Steps | None:
    """How a body is computed where these inputs lie so; None where ranks would have to exchange
    something."""
    placed = _placed(body, consts, carried, seeds, ranks, ways)
    inputs = tuple(placed.get(x, WHOLE) for x in body.inputs)
    have = dict(zip(body.inputs, inputs, strict=True))
    chosen: dict[Node, Way] = {}
    for n in toposort(body.outputs):
        if n.op == "input":
            continue
        options = [
            way
            for way in _known_ways(n, placed, ranks, ways)
            if all(_is_free(have[s], p) for s, p in zip(n.srcs, way.operands, strict=True))
            and way.result in (placed.get(n, WHOLE), WHOLE)
        ]
        if not options:
            return None
        chosen[n] = max(options, key=lambda way: way.result != WHOLE)
        have[n] = chosen[n].result
    outputs = (
        *inputs[consts : consts + carried],
        *(have[n] for n in body.outputs[carried:]),
    )
    if all(_is_free(have[n], p) for n, p in zip(body.outputs, outputs, strict=True)):
        return Steps(inputs, outputs, chosen)
    return None


def _is_free(a: Placement, b: Placement) -> bool:
    """Whether nothing is exchanged to have b of a."""
    return a == b or (a == WHOLE and isinstance(b, Sharded | Partial))


def _known_ways(n: Node, placed: Mapping[Node, Placement], ranks: int, ways: Ways) -> list[Way]:
    """Those whose placements are whole or those that were found."""
    known = {x: dict.fromkeys((WHOLE, placed.get(x, WHOLE))) for x in (*n.srcs, n)}
    return list(ways(n, known, ranks))


def _placed(
    body: LoopBody, consts: int, carried: int, seeds: Seeds, ranks: int, ways: Ways
) -> dict[Node, Placement]:
    """The values of a body that are not whole, by what follows from the seeds. A value for which
    two things follow has the first one, which `_steps` finds."""
    twins: dict[Node, list[Node]] = {}
    for before, after in zip(body.inputs[consts:], body.outputs[:carried], strict=False):
        twins.setdefault(before, []).append(after)
        twins.setdefault(after, []).append(before)
    readers: dict[Node, list[Node]] = {}
    for n in toposort(body.outputs):
        for s in dict.fromkeys(n.srcs):
            readers.setdefault(s, []).append(n)
    placed: dict[Node, Placement] = {}
    left: list[Node] = []

    def place(x: Node, p: Placement) -> None:
        if p == WHOLE or x in placed or x.op == "const" or not fits(x.type, p, ranks):
            return
        placed[x] = p
        left.extend(readers.get(x, ()))
        if x.op != "input":
            left.append(x)
        for twin in twins.get(x, ()):
            place(twin, p)

    for i, p in seeds:
        place(body.inputs[i], p)
    while left:
        n = left.pop()
        sides = (*n.srcs, n)
        for way in _known_ways(n, placed, ranks, ways):
            found = (*way.operands, way.result)
            if all(placed.get(x, p) == p for x, p in zip(sides, found, strict=True)):
                for x, p in zip(sides, found, strict=True):
                    place(x, p)
                break
    return placed
