"""The loop over a core's windows: the transfers of the next one go while one is computed.

The arrays of a window's transfers are there twice, and windows take turns. What a window has
written goes home while the next one is computed. What is the same for all windows comes once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from hal.core.facts import dataclass
from hal.tile.build import index
from hal.tile.kernel import Memory
from hal.tile.node import toposort
from stack.compiler.lower.scratchpad.deal import COUNT, FIRST
from stack.compiler.lower.scratchpad.transfer import Get, Transfer, arrive, start
from stack.compiler.lower.scratchpad.windows import Windowed
from stack.compiler.text.c import control
from stack.compiler.text.c.memory import pointer
from stack.compiler.text.c.scope import Scope
from stack.compiler.text.c.types import register

RUN = """\
    const long *hal_grid = hal_raw;
    const long hal_all = hal_grid[0] * hal_grid[1] * hal_grid[2];
    const long hal_stop = hal_all * (_PEN + 1) / $cores;
    long hal_at = hal_all * _PEN / $cores, hal_half = 0;
"""
"""The run of a core: instances from `hal_at` to `hal_stop`."""


@dataclass(frozen=True)
class WindowPipeline:
    """The windows of a kernel, none of which may contain a multiple of a number of `bounds` but as
    its first instance."""

    scope: Scope
    found: Windowed
    bounds: Sequence[int]

    def write(self) -> None:
        """Write the loop."""
        out, found = self.scope.out, self.found
        # The arrays: those of windows twice.
        for m in _arrays(self._once):
            self._array(m, pointer(m), 1)
        for m in _arrays((*self._gets, *self.found.puts)):
            self._array(m, f"{m.name}_both[2]", 2)
        if found.gets:
            with out.block("if (hal_at < hal_stop)"):
                start(self.scope.inner(), self._once)
                self._ahead("hal_at", "0")
        with out.block("while (hal_at < hal_stop)"):
            inner = self._window("hal_at", "hal_half", (*self._gets, *found.puts))
            if found.gets:
                arrive(inner, "get")
            if self._gets:
                out.do("const long hal_next = hal_at + hal_count;")
                with out.block("if (hal_next < hal_stop)"):
                    self._ahead("hal_next", "!hal_half")
            control.block(inner, found.body)
            if found.puts:
                arrive(inner, "put")
                start(inner, found.puts)
            out.do("hal_at += hal_count, hal_half = !hal_half;")
        if found.puts:
            arrive(self.scope, "put")

    @cached_property
    def _once(self) -> Sequence[Get]:
        """The gets that are the same for all windows."""
        return [t for t in self.found.gets if _is_same(t) and t.main not in self.found.written]

    @cached_property
    def _gets(self) -> Sequence[Get]:
        """Those that each window has."""
        return [t for t in self.found.gets if t not in self._once]

    def _ahead(self, at: str, half: str) -> None:
        """The gets of a window."""
        if self._gets:
            start(self._window(at, half, self._gets), self._gets)

    def _window(self, at: str, half: str, transfers: Sequence[Transfer]) -> Scope:
        """A block's names for a window, which begins at an instance."""
        out = self.scope.out
        out.do(f"const long hal_first = {at} % hal_grid[0], hal_rest = {at} / hal_grid[0];")
        out.do("const long hal_id1 = hal_rest % hal_grid[1], hal_id2 = hal_rest / hal_grid[1];")
        out.do(f"long hal_count = {self.found.most};")
        ends = [f"hal_stop - {at}", "hal_grid[0] - hal_first"]
        for end in (*ends, *(f"{n} - hal_first % {n}" for n in self.bounds)):
            out.do(f"if (hal_count > {end}) hal_count = {end};")
        for m in _arrays(transfers):
            kind = register(out.dialect, m.dtype)
            out.do(f"{kind} *const {pointer(m)} = {m.name}_both[{half}];")
        inner = self.scope.inner()
        inner.scalars.update({FIRST: "hal_first", COUNT: "hal_count"})
        return inner

    def _array(self, m: Memory, name: str, count: int) -> None:
        out, size = self.scope.out, -(-max(m.size, 1) // 64) * 64
        out.fixed_nbytes += count * size * m.dtype.nbytes
        kind = register(out.dialect, m.dtype)
        out.scratch.append(f"{kind} {name}[{size}] {out.dialect.aligned};")


def _arrays(transfers: Sequence[Transfer]) -> Sequence[Memory]:
    return list(dict.fromkeys(t.local for t in transfers))


def _is_same(t: Transfer) -> bool:
    """Whether a transfer depends on no window."""
    values = (t.offset, *(index(r.length) for r in t.runs))
    leaves = (n for n in toposort(values) if not n.srcs)
    return all(n.op == "const" or (n.op == "scalar" and n not in (FIRST, COUNT)) for n in leaves)
