"""Blocks of statements: loops, branches, and two versions of a block where limits might cut it.

In the version for whole blocks every limit that is known on entry is assumed to reach its size, so
that nothing is masked; the other version masks. Only the first is divided further, so code grows
with depth, not exponentially.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.kernel import (
    Alloc,
    Atomic,
    Barrier,
    Copy,
    For,
    Gather,
    If,
    Load,
    Scatter,
    Statement,
    Store,
    Wait,
)
from hal.tile.node import Node, toposort
from hal.tile.ops import ELEMENTWISE
from stack.compiler.text.llvm import ahead, indexed, loads, tile_registers
from stack.compiler.text.llvm.addresses import proven
from stack.compiler.text.llvm.bounds import bounds, loop_range
from stack.compiler.text.llvm.contents import accesses, nested, operands
from stack.compiler.text.llvm.guards import guarded
from stack.compiler.text.llvm.statements import Pending, store
from stack.compiler.text.llvm.tiles import TileValues, columns
from stack.compiler.text.llvm.types import memory
from stack.compiler.text.math import FUNCTIONS

Outs = Sequence[Node]
"""Nodes whose pieces a block computes at its end."""


@dataclass(slots=True)
class Body:
    """A function body while its statements are written. `masked` is True inside a version that
    masks."""

    tiles: TileValues
    pending: Pending
    defined: set[Node]
    masked: bool = False

    def block(self, statements: Sequence[Statement], outs: Outs = ()) -> list[str]:
        """Write statements; give the pieces of `outs`."""
        before = list(self.pending.variables)
        values = self._rest(statements, 0, outs)
        self.pending.variables = before
        return values

    def _rest(self, statements: Sequence[Statement], first: int, outs: Outs) -> list[str]:
        for i in range(first, len(statements)):
            if not self.masked:
                limits = dict(self._unproven(statements, i))
                if limits:
                    return self._versions(statements, i, outs, limits)
            s = statements[i]
            t = self.tiles
            if isinstance(s, Load) and s in t.env.asked:
                loads.ask(t, s.source, s.result.shape, cache=loads.SECOND)
            elif isinstance(s, Load | Gather):
                self.pending.add(s)
                self.defined.add(s.result)
            elif isinstance(s, Store):
                store(t, self.pending, s)
            elif isinstance(s, For):
                self._force_before([s])
                self._compute_between(statements[:i], statements[i:], outs)
                if ahead.multiplies(s) and not any(map(ahead.multiplies, statements[:i])):
                    self._ask_behind(statements[i + 1 :])
                self._loop(s)
            elif isinstance(s, If):
                self._force_before([s])
                out = self.tiles.out
                condition = self.tiles.scalar(s.condition)
                then, orelse, after = out.label("then"), out.label("else"), out.label("end")
                out.branch(condition, then, orelse)
                for label, branch in ((then, s.then), (orelse, s.orelse)):
                    out.begin(label)
                    with self.tiles.scope():
                        self.block(branch)
                    out.jump(after)
                out.begin(after)
            elif isinstance(s, Alloc):
                m = s.memory
                t.env.pointers[m.name] = t.out.alloca(memory(m.dtype), max(m.size, 1), 64)
            elif isinstance(s, Scatter | Atomic | Copy):
                self.pending.force()
                _WRITES[type(s)](t, s)
            else:
                assert isinstance(s, Wait | Barrier)
        return [p for n in outs for p in tile_registers.values(self.tiles, n)]

    def _ask_behind(self, block: Sequence[Statement]) -> None:
        """Ask for what a block behind a loop touches, but what it writes past the caches."""
        t = self.tiles
        groups: dict[tuple[Node, ...], list[ahead.Behind]] = {}
        for x in ahead.behind(block, t.env.ranges):
            if x.statement not in t.env.streamed:
                groups.setdefault(x.conditions, []).append(x)
        for conditions, group in groups.items():
            holds: str | None = None
            for n in conditions:
                one = t.scalar(n)
                holds = one if holds is None else t.out.put(f"and i1 {holds}, {one}")

            def write(group: Sequence[ahead.Behind] = group) -> None:
                for x in group:
                    loads.ask(t, x.access, x.shape, isinstance(x.statement, Store))

            guarded(t, holds, write)

    # versions

    def _unproven(self, statements: Sequence[Statement], i: int) -> Iterator[tuple[Node, int]]:
        """If statement i has limits that are known here and not proven: those of all that
        follow."""
        if any(True for _ in self._limits(statements[i])):
            sizes: dict[Node, int] = {}
            for s in statements[i:]:
                for limit, size in self._limits(s):
                    sizes[limit] = max(size, sizes.get(limit, 0))
            yield from sizes.items()

    def _limits(self, s: Statement) -> Iterator[tuple[Node, int]]:
        """The limits of a statement that are known here and not proven, with the sizes to reach."""
        for access, shape in accesses(s):
            for limit, size in zip(access.limits, shape, strict=True):
                if limit is None or proven(self.tiles, limit, size):
                    continue
                if all(n in self.defined for n in toposort([limit]) if n.op == "var"):
                    yield limit, size

    def _versions(
        self, statements: Sequence[Statement], i: int, outs: Outs, limits: dict[Node, int]
    ) -> list[str]:
        t, out = self.tiles, self.tiles.out
        tests = [f"icmp sge i64 {t.scalar(n)}, {size}" for n, size in limits.items()]
        whole = out.put(tests[0])
        for test in tests[1:]:
            whole = out.put(f"and i1 {whole}, {out.put(test)}")
        fast, slow, after = out.label("whole"), out.label("masked"), out.label("joined")
        out.branch(whole, fast, slow)
        pending, assumed = list(self.pending.variables), dict(t.env.assumed)
        t.env.assumed.update(limits)
        values = [self._version(statements, i, outs, fast, after)]
        t.env.assumed = assumed
        self.pending.variables, self.masked = pending, True
        values.append(self._version(statements, i, outs, slow, after))
        self.masked = False
        out.begin(after)
        kinds = [k for n in outs for k in tile_registers.types(t, n)]
        (a, from_a), (b, from_b) = values
        return [
            out.put(f"phi {kind} [{x}, %{from_a}], [{y}, %{from_b}]")
            for kind, x, y in zip(kinds, a, b, strict=True)
        ]

    def _version(
        self, statements: Sequence[Statement], i: int, outs: Outs, label: str, after: str
    ) -> tuple[list[str], str]:
        out = self.tiles.out
        out.begin(label)
        with self.tiles.scope():
            values = self._rest(statements, i, outs)
        last = out.block
        out.jump(after)
        return values, last

    # statements

    def _force_before(self, statements: Sequence[Statement]) -> None:
        """Pending loads happen before a nested block that uses them or may change what they
        read."""
        inside = list(nested(statements))
        if any(isinstance(s, Store | Scatter | Atomic | Copy) for s in inside):
            self.pending.force()
        else:
            roots = [n for s in inside for n in operands(s)]
            self.pending.force_used(frozenset(n for n in toposort(roots) if n.op == "var"))

    def _compute_between(
        self, before: Sequence[Statement], after: Sequence[Statement], outs: Outs
    ) -> None:
        """Compute what combines the results of loops before, where nothing else reads them: while
        the next loop runs, one then waits for its use and not all."""
        results = [c.result for s in before if isinstance(s, For) for c in s.carried]
        ripe = {n for n in results if n.type.size > self.tiles.lanes}
        if len(ripe) < 2:
            return
        roots = [*(n for s in nested(after) for n in operands(s)), *outs]
        order = list(toposort(roots))
        readers = Counter([*roots, *(x for n in order for x in n.srcs)])
        for n in order:
            combines = n.op in ELEMENTWISE and len(n.srcs) > 1
            if combines and all(x in ripe and readers[x] == 1 for x in n.srcs):
                ripe.add(n)
                self.tiles.pieces(n)

    def _compute_before(self, s: For) -> None:
        """Compute what each step of a loop would compute again, where it fills no more than a
        register: what reductions and slow operations of things outside give, quotients of indices,
        and masks."""
        t, inner = self.tiles, set(_variables([s]))
        varying, slow, masks = set(inner), set[Node](), dict[Node, None]()
        used = [n for i in nested([s]) for n in operands(i)]
        for n in toposort(used):
            if not varying.isdisjoint(n.srcs):
                varying.add(n)
                masks |= dict.fromkeys(x for x in n.srcs if x not in varying)
            elif n in inner or n.type.size > t.lanes:
                continue
            elif n.dtype is DType.I64 and n.op in _QUOTIENTS and not n.shape:
                t.pieces(n)
            elif n.dtype.is_float and (n.op in _SLOW or not slow.isdisjoint(n.srcs)):
                slow.add(n)
                t.pieces(n)
        masks |= dict.fromkeys(x for x in used if x not in varying)
        for n in masks:
            width = columns(n.shape)
            # Registers hold no other numbers of lanes from block to block.
            whole = 1 < width == n.type.size <= t.lanes and width & (width - 1) == 0
            if whole and n.dtype is DType.BOOL and n.op not in _PLAIN:
                t.pieces(n)

    def _loop(self, s: For) -> None:
        t, out = self.tiles, self.tiles.out
        self._compute_before(s)
        start, stop, step = (t.scalar(n) for n in (s.start, s.stop, s.step))
        for c in s.carried:
            tile_registers.mark(t, c)
        first = [p for c in s.carried for p in tile_registers.begun(t, c)]
        ranges = [bounds(n, t.env.ranges) for n in (s.start, s.stop, s.step)]
        runs = ranges[1][0] > ranges[0][1]
        before, body, after = out.block, out.label("body"), out.label("after")
        if runs:
            out.jump(body)
        else:
            out.branch(out.put(f"icmp slt i64 {start}, {stop}"), body, after)
        out.begin(body)
        index, index_place = out.name(), out.hole()
        kinds = [k for c in s.carried for k in tile_registers.types(t, c.var)]
        names = [out.name() for _ in kinds]
        places = [out.hole() for _ in kinds]
        t.env.ranges[s.index] = loop_range(*ranges)
        with t.scope():
            self._define([s.index], [index])
            self._define([c.var for c in s.carried], names)
            last = self.block(s.body, [c.next for c in s.carried])
        end = out.block
        following = out.put(f"add nsw i64 {index}, {step}")
        again = out.put(f"icmp slt i64 {following}, {stop}")
        out.branch(again, body, after)
        out.fill(index_place, f"{index} = phi i64 [{start}, %{before}], [{following}, %{end}]")
        for place, name, kind, a, b in zip(places, names, kinds, first, last, strict=True):
            out.fill(place, f"{name} = phi {kind} [{a}, %{before}], [{b}, %{end}]")
        out.begin(after)
        if not runs:
            last = [
                out.put(f"phi {kind} [{a}, %{before}], [{b}, %{end}]")
                for kind, a, b in zip(kinds, first, last, strict=True)
            ]
        self._define([c.result for c in s.carried], last)

    def _define(self, variables: Sequence[Node], values: list[str]) -> None:
        """Say what the pieces of several variables are."""
        first = 0
        for v in variables:
            count = len(tile_registers.types(self.tiles, v))
            tile_registers.define(self.tiles, v, values[first : first + count])
            self.defined.add(v)
            first += count


def _variables(statements: Sequence[Statement]) -> Iterator[Node]:
    """The variables that statements define inside them."""
    for s in nested(statements):
        if isinstance(s, Load | Gather):
            yield s.result
        elif isinstance(s, For):
            yield s.index
            yield from (v for c in s.carried for v in (c.var, c.result))


_SLOW = frozenset({"reduce", "div", "sqrt", *FUNCTIONS})
"""Operations that cost more than a register to keep their results."""

_QUOTIENTS = frozenset({"div", "rem"})

_PLAIN = frozenset({"const", "broadcast"})
"""Masks that are as quickly made anew."""

_WRITES: dict[type[Statement], Callable[..., None]] = {
    Scatter: indexed.scatter,
    Atomic: indexed.atomic,
    Copy: indexed.copy,
}
