"""Loops whose operands of matrix units are on their way to the staging area while earlier ones are
multiplied: asynchronous copies in several stages.

A stage is a step's operands. Each step waits for its own stage and begins the copies of a later
step, which go into the stage that the step before has read; one barrier for both. Operands that are
the same in every step are staged once, before the loop.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hal.core.facts import dataclass
from hal.tile.kernel import For, Gather, Load
from hal.tile.node import Node, toposort
from hal.tile.walk import reads
from stack.compiler.lower.simt import vectors, wide
from stack.compiler.lower.simt.apart import changed_by
from stack.compiler.lower.simt.dialect import Asynchronous
from stack.compiler.lower.simt.group import GroupText, guarded
from stack.compiler.lower.simt.layout import Layout
from stack.compiler.lower.simt.mapping import is_by_unit
from stack.compiler.lower.simt.memory import limits_beside
from stack.compiler.lower.simt.product import Lined, line_axis, lined, lines
from stack.compiler.text.c.memory import element
from stack.compiler.text.c.scope import Scope
from stack.compiler.text.c.types import register

STAGES = (4, 3, 2, 1)
"""How many a kernel's loops may have, the best first: more would hide no more, and take room that
lets another group run on the unit. One is none."""

_COPY = """\
{function} void {name}({kind} *to, const {kind} *from, int count) {{
    if ((ulong)from % {nbytes} == 0) {{
        {copy}
    }} else {{
        {loop} to[e] = e < count ? from[e] : 0;
    }}
}}
"""
"""Of the first `count` elements, with zeros for the rest. What is copied one by one is there at the
next barrier, as is what a lane has waited for."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A load of a step, its shape in the staging area, and where it begins in a stage. `pitch` are
    the elements from a line to the next, or from a row of blocks to the next."""

    load: Load
    inner: int
    pitch: int
    turned: bool
    start: int
    blocks: bool = False

    def place(self, outer: str, inner: str) -> str:
        """The number of an element."""
        if self.blocks:
            return wide.place(outer, inner, self.pitch)
        return f"{outer} * {self.pitch} + {inner}"

    def staged(self, name: str) -> Lined | wide.Blocks:
        """It, at an address."""
        return (wide.Blocks if self.blocks else Lined)(name, self.pitch, self.turned)


class Pipeline:
    """The stages of a loop: `begin` before it, `step` at the beginning of its body, `end` behind
    it. In between `Lined` operands are in the group's `piped`; `still` are those that no step
    changes."""

    def __init__(
        self,
        group: GroupText,
        copies: Asynchronous,
        operands: list[_Operand],
        still: dict[Node, Lined],
        nbytes: int,
    ) -> None:
        self._group, self._copies, self._operands = group, copies, operands
        self._still, self._nbytes, self._stages = still, nbytes, group.stages
        self._slot = group.out.name("z")
        self._from = 0
        for name, text in copies.functions:
            group.out.functions.define(name, text)

    def begin(self, scope: Scope, s: For, bounds: tuple[str, str, str]) -> None:
        """Start the copies of the first steps, all but one stage."""
        group, (start, stop, step) = self._group, bounds
        out, kind = group.out, register(group.out.dialect, s.index.dtype)
        self._from = group.reserve(self._stages * self._nbytes)
        for operand in self._operands:
            group.fence.read(operand.load.source.memory, None)
        ahead, to = out.name("n"), out.name("z")
        out.do(f"int {self._slot} = 0;")
        with out.block(f"for (int {to} = 0; {to} < {self._stages - 1}; ++{to})"):
            out.do(f"const {kind} {ahead} = {start} + {to} * {step};")
            self._start(scope, s, ahead, stop, to)

    def step(self, scope: Scope, s: For, at: str, stop: str, step: str) -> None:
        """Wait for this step's stage, and start the copies of a later step."""
        group, stages = self._group, self._stages
        out, kind = group.out, register(group.out.dialect, s.index.dtype)
        out.do(f"{self._copies.wait.format(stages - 2)};")
        if self._operands[0].blocks:
            wide.staged(group)
        group.fence.barrier()
        ahead, to = out.name("n"), out.name("z")
        with out.block():
            out.do(f"const {kind} {ahead} = {at} + {stages - 1} * {step};")
            out.do(f"const int {to} = ({self._slot} + {stages - 1}) % {stages};")
            self._start(scope, s, ahead, stop, to)
        group.piped.update(self._still)
        for operand in self._operands:
            x = operand.load.result
            name = group.place_of(x.dtype, self._place(self._slot, operand))
            group.piped[x] = operand.staged(name)
        out.do(f"{self._slot} = ({self._slot} + 1) % {stages};")

    def end(self) -> None:
        """The stages are free; who stages anew waits for those that read the last one."""
        self._group.piped.clear()
        self._group.unreserve()

    def _place(self, slot: str, operand: _Operand) -> str:
        """The byte at which an operand of a stage begins."""
        return f"{self._from + operand.start} + {slot} * {self._nbytes}"

    def _start(self, scope: Scope, s: For, at: str, stop: str, slot: str) -> None:
        group = self._group
        inner = scope.inner()
        inner.scalars[s.index] = at
        with group.out.block(f"if ({at} < {stop})"):
            for operand in self._operands:
                self._copy(inner, operand, slot)
        group.out.do(f"{self._copies.commit};")

    def _copy(self, scope: Scope, operand: _Operand, slot: str) -> None:
        group, s = self._group, operand.load
        layout, dtype, axis = group.mapping.tiles[s.result], s.result.dtype, operand.inner
        many = vectors.width(group, layout, axis, dtype)
        name = group.place_of(dtype, self._place(slot, operand))
        nest = vectors.nest_of(group, scope, layout, axis, dtype)
        source = element(scope, s.source, nest.position)
        rest, limit = limits_beside(scope, s.source, nest, axis)
        here = nest.position[axis].text
        count = str(many)
        if limit is not None:
            left = f"{limit} - {here}"
            count = f"({left} >= {many} ? {many} : {left} > 0 ? (int)({left}) : 0)"
        if rest:
            count = f"({' && '.join(rest)} ? {count} : 0)"
        place = operand.place(nest.position[1 - axis].text, here)
        valid = group.within(layout, nest.position) + group.first(layout)
        call = self._function(register(group.out.dialect, dtype), many, many * dtype.nbytes)
        nest.do(guarded(valid, f"{call}(&{name}[{place}], &{source}, {count});"))
        nest.emit()

    def _function(self, kind: str, width: int, nbytes: int) -> str:
        group, name = self._group, f"hal_async_{kind}{width}"
        loop = f"{group.groups.unrolled}for (int e = 0; e < {width}; ++e)"
        copy = self._copies.copy.format(nbytes=nbytes, size=nbytes // width)
        given = {"name": name, "kind": kind, "nbytes": nbytes, "copy": copy, "loop": loop}
        text = _COPY.format(function=group.out.dialect.function, **given)
        return group.out.functions.define(name, text)


def pipeline(group: GroupText, scope: Scope, s: For) -> Pipeline | None:
    """The stages of a loop that writes no memory, and that multiplies on a unit what it loads for
    that alone; None for others, and where nothing can be copied so. What such a loop multiplies in
    every step has been staged then."""
    copies = group.groups.asynchronous
    plain = all(isinstance(x, Load | Gather) for x in s.body)
    if copies is None or group.stages < 2 or not plain:
        return None
    roots = [*(c.next for c in s.carried), *(n for x in s.body for n in reads(x))]
    nodes = list(toposort(roots))
    users = Counter(x for n in nodes for x in n.srcs)
    loads = {x.result: x for x in s.body if isinstance(x, Load)}
    operands, still, start = list[_Operand](), list[tuple[Node, Layout, int]](), 0
    changing = changed_by(s)
    others = changing - {s.index}
    for n in nodes:
        if n.op != "dot" or not is_by_unit(n):
            continue
        for x, layout, depth in zip(n.srcs[:2], group.mapping.operands[n][:2], (1, 0), strict=True):
            if x in loads and users[x] == 1 and x not in roots:
                if not others.isdisjoint(toposort(list(reads(loads[x])))):
                    continue  # where it lies is only known in its own step
                found = _operand(group, loads[x], depth, start)
                if found is not None:
                    operands.append(found)
                    start += lines(x, found.inner)[1]
            elif changing.isdisjoint(toposort([x])):
                still.append((x, layout, depth))
    if not operands:
        return None
    if group.mapping.wide is not None and len(operands) == 2:
        first, second = operands
        start = wide.nbytes(first.load.result, first.inner)
        operands = [in_blocks(first, 0), in_blocks(second, start)]
        start += wide.nbytes(second.load.result, second.inner)
    staged = {x: lined(group, scope, x, layout, depth) for x, layout, depth in dict.fromkeys(still)}
    return Pipeline(group, copies, operands, staged, start)


def in_blocks(operand: _Operand, start: int) -> _Operand:
    """The same for a unit of several subgroups."""
    pitch = wide.below(operand.load.result, operand.inner)
    return replace(operand, pitch=pitch, start=start, blocks=True)


def _operand(group: GroupText, load: Load, depth: int, start: int) -> _Operand | None:
    """A load as an operand that is copied, to a byte of a stage."""
    x = load.result
    layout = group.mapping.tiles[x]
    inner = line_axis(layout, depth)
    near, width = load.source.strides[inner], vectors.width(group, layout, inner, x.dtype)
    other = load.other
    is_zero = other is None or (other.op == "const" and not other["value"])
    if near.op != "const" or near["value"] != 1 or not is_zero:
        return None
    if width * x.dtype.nbytes < 4 or load.source.memory in group.fence.written:
        return None
    return _Operand(load, inner, lines(x, inner)[0], inner != depth, start)
