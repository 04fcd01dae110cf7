"""Stores past the caches, as C text.

Whether a launch writes enough follows from the grid, at the kernel's head; whether a vector is
aligned, at each store.
"""

from __future__ import annotations

from collections.abc import Mapping

from hal.tile.kernel import Store
from stack.compiler.text.c import control, memory
from stack.compiler.text.c.scope import ZERO, Scope, StatementRule
from stack.compiler.text.c.types import register
from stack.compiler.text.c.writer import CWriter
from stack.compiler.text.streamed import LEAST_VECTOR_NBYTES, instances


def rules(out: CWriter, stores: Mapping[Store, int]) -> Mapping[type, StatementRule]:
    """How to write stores, given those that go past the caches if a launch writes enough, with the
    bytes that an instance writes; writes the tests of this at the kernel's head."""
    grid = out.dialect.grid.format(0)
    flags = {}
    for s, nbytes in stores.items():
        flags[s] = out.name("t")
        out.do(f"const int {flags[s]} = {grid} >= {instances(nbytes)}L;")

    def store(scope: Scope, s: Store) -> None:
        if s in flags:
            flag = flags[s]
            value, dtype = s.value, s.value.dtype
            if value not in scope.arrays or scope.arrays[value].find is not None:
                scope.arrays[value] = control.copied(scope, value)
            array, out = scope.arrays[value], scope.out
            place = memory.element(scope, s.target, (ZERO,) * len(value.shape))
            aligned = f"((ulong)&{place} & {LEAST_VECTOR_NBYTES - 1}) == 0"
            kind, widths = register(out.dialect, dtype), (LEAST_VECTOR_NBYTES // dtype.nbytes,)
            nest, places = memory.by_vectors(scope, array.shape, widths)
            for at, width in places:
                vector = out.functions.load(kind, width, "", f"&{array.at(at)}")
                target = f"&{memory.element(scope, s.target, at)}"
                nest.do(f"{out.functions.stream(kind, width, target, vector)};")
            with out.block(f"if ({flag} && {aligned})"):
                nest.emit()
            with out.block("else"):
                memory.store(scope, s)
        else:
            memory.store(scope, s)

    return {Store: store} if flags else {}


def end(out: CWriter) -> None:
    """What follows the last statement: what the instance wrote is there for whoever is told that
    it is over."""
    name = "HAL_STREAMED"
    out.do(f"{out.functions.define(name, out.dialect.streamed_end)}();")
