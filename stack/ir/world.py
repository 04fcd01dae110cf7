"""The interpreter over a world of ranks: what a graph of each of them means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import field

from hal.core.facts import dataclass
from hal.tile.node import Node, toposort
from stack.ir.interpret import checked, evaluated, expanded
from stack.ops import OPS, exchange_of, is_exchange, is_message
from stack.ops.error import GraphError
from stack.ops.operator import NDArray

Lines = Mapping[str, Sequence[Sequence[int]]]
"""For each name of a group the groups of that name, each as its ranks in order: the lines of a mesh
along an axis."""


@dataclass(frozen=True, slots=True)
class RankProgram:
    """What a rank computes: outputs, and arrays for the inputs that they depend on."""

    outputs: Sequence[Node]
    inputs: Mapping[Node, NDArray]


@dataclass(slots=True)
class _RankRun:
    """A rank on its way: the values that it has, and the exchanges that it has come to, by what
    they are and which of its like each one is."""

    outputs: list[Node]
    inputs: Mapping[Node, NDArray]
    left: list[Node]
    keys: Mapping[Node, Hashable]
    values: dict[Node, NDArray] = field(default_factory=dict)
    waiting: dict[Hashable, Node] = field(default_factory=dict)

    @staticmethod
    def of(program: RankProgram) -> _RankRun:
        outputs = expanded(program.outputs)
        order = list(toposort(outputs))
        seen: Counter[Hashable] = Counter()
        keys: dict[Node, Hashable] = {}
        for n in filter(is_exchange, order):
            what = n.op, tuple(a for a in n.attrs if a[0] not in OPS[n.op].marks), n.type
            keys[n] = what, seen[what]
            seen[what] += 1
        return _RankRun(outputs, program.inputs, order, keys)

    def go_on(self) -> None:
        """Evaluate what needs no other rank."""
        left = []
        for n in self.left:
            if any(s not in self.values for s in n.srcs):
                left.append(n)
            elif is_exchange(n):
                self.waiting[self.keys[n]] = n
            else:
                self.values[n] = evaluated(n, self.values, self.inputs)
        self.left = left


def interpret_world(programs: Sequence[RankProgram], lines: Lines) -> list[list[NDArray]]:
    """The outputs' values on every rank. Exchanges of a group meet where they are of one operator,
    type and attributes, and the ranks have come to equally many such ones before.

    Raises GraphError as `interpret`, and for exchanges that not all of their ranks come to.
    """
    ranks = [_RankRun.of(program) for program in programs]
    for rank in ranks:
        rank.go_on()
    while any(rank.waiting for rank in ranks):
        met = list(_met(ranks, lines))
        if not met:
            alone = {r: list(rank.waiting.values()) for r, rank in enumerate(ranks) if rank.waiting}
            raise GraphError(f"exchanges to which not all ranks come: {alone}")
        for line, taking_part, key in met:
            # Compute an exchange on the ranks of a group that take part.
            members = [ranks[r] if r in taking_part else None for r in line]
            nodes = [None if member is None else member.waiting.pop(key) for member in members]
            operands = [
                None if member is None or n is None else tuple(member.values[s] for s in n.srcs)
                for member, n in zip(members, nodes, strict=True)
            ]
            first = next(n for n in nodes if n is not None)
            results = exchange_of(first).together(first, operands)
            for member, n, result in zip(members, nodes, results, strict=True):
                if member is not None and n is not None:
                    member.values[n] = checked(n, result)
        for rank in ranks:
            rank.go_on()
    return [[rank.values[n] for n in rank.outputs] for rank in ranks]


def _met(
    ranks: Sequence[_RankRun], lines: Lines
) -> Iterator[tuple[Sequence[int], Sequence[int], Hashable]]:
    """The exchanges that can be done: the group, those of its ranks that take part, which one."""
    for key, n in {key: n for rank in ranks for key, n in rank.waiting.items()}.items():
        for line in lines.get(n["group"], ()):
            for taking_part in _parties(n, line):
                if all(key in ranks[r].waiting for r in taking_part):
                    yield line, taking_part, key


def _parties(n: Node, line: Sequence[int]) -> list[list[int]]:
    """The ranks that compute a node of a group together: all, but for messages those of pairs that
    have a rank in common."""
    if not is_message(n):
        return [list(line)]
    parties = [{rank} for rank in range(len(line))]
    for pair in n["pairs"]:
        joined = set[int]().union(*(p for p in parties if p & set(pair)))
        parties = [p for p in parties if not p & joined] + [joined]
    return [[line[rank] for rank in sorted(party)] for party in parties]
