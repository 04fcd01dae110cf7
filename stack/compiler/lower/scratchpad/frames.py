"""Where each access of a kernel stands: the loops around it, and what is defined inside of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from hal.core.facts import dataclass
from hal.tile.kernel import GLOBAL, For, If, Load, Memory, Statement, Store
from hal.tile.node import Node
from hal.tile.walk import accesses, defines, statements


@dataclass(frozen=True, slots=True)
class AccessSite:
    """A load or store with the loops around it, from the outermost; `free` is the number of them
    that conditions stand outside of: only the loops from there on may be crossed."""

    statement: Load | Store
    loops: tuple[For, ...]
    free: int


@dataclass(slots=True)
class Frames:
    """The places of a body, and how many loops are around the definition of each variable."""

    places: list[AccessSite] = field(default_factory=list)
    depths: dict[Node, int] = field(default_factory=dict)

    @classmethod
    def of(cls, body: Sequence[Statement]) -> Frames:
        found = cls()
        found._block(body, (), 0)
        return found

    def _block(self, block: Sequence[Statement], loops: tuple[For, ...], free: int) -> None:
        for s in block:
            self.depths.update(dict.fromkeys(defines(s), len(loops)))
            if isinstance(s, Load | Store) and memory_of(s).space == GLOBAL:
                self.places.append(AccessSite(s, loops, free))
            elif isinstance(s, For):
                inside = (s.index, *(c.var for c in s.carried))
                self.depths.update(dict.fromkeys(inside, len(loops) + 1))
                self._block(s.body, (*loops, s), free)
            elif isinstance(s, If):
                self._block(s.then, loops, len(loops))
                self._block(s.orelse, loops, len(loops))

    def depth(self, variables: frozenset[Node]) -> int:
        """The loops around the innermost of the definitions."""
        return max((self.depths.get(v, 0) for v in variables), default=0)


def memory_of(s: Load | Store) -> Memory:
    """What a load or store touches."""
    return s.source.memory if isinstance(s, Load) else s.target.memory


def touching(body: Sequence[Statement], m: Memory) -> Iterator[tuple[Statement, bool]]:
    """The statements that touch a memory, in order, with: does it write."""
    for s in statements(tuple(body)):
        for touched, _, writes in accesses(s):
            if touched == m:
                yield s, writes


def may_cross(s: Load | Store, loop: For, instances: bool) -> bool:
    """Whether all steps of a loop may have their loads before the first of them, or their stores
    after the last. `instances` says that the steps are instances, which do not see each other."""
    others = [x for x in touching(loop.body, memory_of(s)) if x[0] is not s]
    if isinstance(s, Load):
        return all(not writes or _updates(s, x, loop) for x, writes in others)
    if any(writes for _, writes in others):
        return False
    return all(isinstance(x, Load) and _updates(x, s, loop) for x, _ in others)


def _updates(load: Load, store: Statement, loop: For) -> bool:
    """Whether a store writes in each step just what the same step has loaded before."""
    if not isinstance(store, Store) or store.target != load.source:
        return False
    inner = next((b for b in _blocks(loop.body) if load in b and store in b), None)
    return inner is not None and inner.index(load) < inner.index(store)


def _blocks(block: Sequence[Statement]) -> Iterator[Sequence[Statement]]:
    yield block
    for s in block:
        if isinstance(s, For):
            yield from _blocks(s.body)
