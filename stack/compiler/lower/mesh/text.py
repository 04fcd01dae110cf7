"""A product as C for cores that have scratchpads and may pass pieces along a mesh.

Pieces of both operands come by DMA, the next ones while the cores multiply. Where a mesh works
together, as many steps as it has rows or columns are one: core t of a row has a's piece of step t,
core t of a column b's, and one after the other broadcasts its own (SUMMA, van de Geijn and Watts,
1997).

In the text `s` counts such steps, `t` turns, `k` is where along k a piece begins, `depth` how much
of k it has; `asked` and `given` count transfers that were begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

from stack.compiler.lower.mesh.kernel import define_multiply, sums_of
from stack.compiler.lower.mesh.loop import ProductLoop, same_block
from stack.compiler.lower.mesh.pieces import OperandPieces
from stack.compiler.lower.scratchpad.transfer import arrive
from stack.compiler.text.c.memory import pointer
from stack.compiler.text.c.scope import Scope


class Text:
    """The text of one product."""

    def __init__(self, scope: Scope, p: ProductLoop, vector_nbytes: int) -> None:
        self.scope, self.out, self.p = scope, scope.out, p
        tag = self.out.name("p")
        self.a, self.b = self.sides = OperandPieces.of(p, tag)
        self.came, self.sent = f"hal_came_{tag}", f"hal_sent_{tag}"
        words = f"static __thread_local athread_rply_t {self.came}, {self.sent};\n"
        self.out.functions.define(self.came, words)
        self.multiply = define_multiply(self.out, f"hal_multiply_{tag}", sums_of(p), vector_nbytes)

    def write(self) -> None:
        """Declare what lies in the scratchpad, and write the loop."""
        out = self.out
        with out.block():
            self.scope = self.scope.inner()
            for side in self.sides:
                side.declare(out)
                side.declare_extent(self.scope)
            out.do("long asked = 0;")
            if self.p.together is None:
                self._alone()
                return
            with out.block(f"if ({same_block(prod(self.p.together))})"):
                self._together(min(self.p.together))
            with out.block("else"):
                self._alone()

    @contextmanager
    def _at(self, k: str, condition: str = "") -> Iterator[Scope]:
        """A block for the step of k that begins there, where a condition holds."""
        p, out = self.p, self.out
        with out.block(f"if ({condition})" if condition else ""):
            out.do(f"const long k = {k};")
            out.do(f"const long depth = {p.stop} - k < {p.step} ? {p.stop} - k : {p.step};")
            inner = self.scope.inner()
            inner.scalars[p.index] = "k"
            yield inner

    def _multiply(self, what: str, slot: str) -> None:
        """Add the product of two pieces."""
        places = (
            x.array("own", "0") if x.turned and what == "in" else x.array(what, slot)
            for x in self.sides
        )
        a, b = (x.multiplied(self.out, at) for x, at in zip(self.sides, places, strict=True))
        left, right = self.sides
        down, along = (left.depth, "1") if left.x.run == left.x.depth else ("1", left.count)
        sums = pointer(self.p.sums)
        self.out.do(
            f"{self.multiply}({sums}, {a}, {down}, {along}, {b}, {right.count}, na, nb, depth);"
        )

    def _arrive(self) -> None:
        """Wait for the pieces that were asked for a step ago."""
        with self.out.block("if (s >= 0)"):
            self.out.do(f"athread_dma_wait_value(&{self.came}, asked);")
            if any(side.x.packing for side in self.sides):
                arrive(self.scope, "get")

    # each core for itself

    def _alone(self) -> None:
        out, step = self.out, self.p.step
        steps = -(-self.p.stop // step)
        out.do(f"{self.came} = 0;")
        with out.block(f"for (long s = -1; na > 0 && nb > 0 && s < {steps}; ++s)"):
            self._arrive()
            with self._at(f"(s + 1) * {step}", f"s + 1 < {steps}") as inner:
                for side in self.sides:
                    side.fetch(inner, "(s + 1) % 2", self.came)
            with self._at(f"s * {step}", "s >= 0"):
                for side in self.sides:
                    side.turn(out, "s % 2")
                self._multiply("in", "s % 2")

    # a mesh together

    def _together(self, turns: int) -> None:
        out = self.out
        steps = -(-self.p.stop // (self.p.step * turns))
        out.do(f"{self.came} = {self.sent} = 0;")
        with out.block(f"for (long s = -1; s < {steps}; ++s)"):
            self._arrive()
            for side in self.sides:
                if side.turned:
                    with self._mine(side, "s", turns, "s >= 0 && "):
                        side.turn(out, "s % 2")
                with self._mine(side, "(s + 1)", turns) as inner:
                    side.fetch(inner, "(s + 1) % 2", self.came)
            out.do("if (s < 0) continue;")
            # nobody gives before all have cleared the words that replies count in
            words = (f"{side.came}[{i}]" for side in self.sides for i in (0, 1))
            out.do(" = ".join([*words, "0;"]))
            out.do("athread_ssync_array();")
            out.do("long given = 0;")
            step = self.p.step
            left = f"({self.p.stop} - s * {step * turns} + {step - 1}) / {step}"
            out.do(f"const long left = {left}, turns = left < {turns} ? left : {turns};")
            with out.block("for (long t = -1; t < turns; ++t)"):
                self._turn(turns)
            out.do(f"athread_rma_wait_value(&{self.sent}, given);")
            out.do(f"{self.sent} = 0;")

    @contextmanager
    def _mine(
        self, side: OperandPieces, s: str, turns: int, condition: str = ""
    ) -> Iterator[Scope]:
        """A block for a core's own piece of a step, if it has one."""
        k = f"({s} * {turns} + {side.place}) * {self.p.step}"
        has = f"{side.place} < {turns} && {side.n} > 0 && {k} < {self.p.stop}"
        with self._at(k, condition + has) as inner:
            yield inner

    def _turn(self, turns: int) -> None:
        """All give what the next turn needs, and multiply what this one has.

        They wait for each other before pieces go where others may still be in use.
        """
        out, step = self.out, self.p.step
        with out.block("if (t >= 0)"):
            for side in self.sides:
                wait = f"athread_rma_wait_value(&{side.came}[t % 2], t / 2 + 1);"
                out.do(f"if ({side.n} > 0) {wait}")
            out.do("athread_ssync_array();")
        with self._at(f"(s * {turns} + t + 1) * {step}", "t + 1 < turns"):
            for side in self.sides:
                with out.block(f"if ({side.place} == t + 1 && {side.n} > 0)"):
                    side.give(out, "s % 2", "(t + 1) % 2", self.sent)
        with self._at(f"(s * {turns} + t) * {step}", "t >= 0 && na > 0 && nb > 0"):
            self._multiply("got", "t % 2")
