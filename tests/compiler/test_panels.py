"""Matrices that lie in panels are read where they are, and those of loops are laid out so, once."""

from __future__ import annotations

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Node, Type, toposort
from stack import ops as g
from stack.compiler.graph.panels import ROWS, with_panels
from stack.ir.interpret import interpret
from stack.ir.verify import verify
from stack.ops import LoopBody, loop
from tests.compiler.lowered import run_lowered


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(-4, 5, shape).astype(np.float32)


def leaf(slot: int, array: np.ndarray) -> Node:
    return g.input(slot, Type(array.shape, DType.F32))


@pytest.mark.parametrize(
    ("m", "k", "n", "width", "in_place"),
    [
        *((m, 16, 48, 16, True) for m in (2, 5, 17, 32)),
        (9, 264, 160, 32, True),
        (6, 8, 16, 8, False),  # narrower than a register tile
        (5, 12, 48, 16, False),  # a step of the depth reaches beyond the last row
    ],
)
def test_products_read_panels_where_they_lie(
    m: int, k: int, n: int, width: int, in_place: bool
) -> None:
    a, panels, c = numbers(m, k), numbers(n // width, k, width), numbers(m, n)
    x, p, z = (leaf(i, v) for i, v in enumerate((a, panels, c)))
    product = g.matmul(x, g.reshape(g.permute(p, (1, 0, 2)), (k, n)))
    (found,), program = run_lowered([g.add(product, z)], [x, p, z], [a, panels, c])
    np.testing.assert_array_equal(found, a @ panels.transpose(1, 0, 2).reshape(k, n) + c)
    texts = [str(call.kernel) for call in program.calls if "matmul" in call.kernel.name]
    assert len(texts) == 1
    assert ("packed_b" not in texts[0]) is in_place


def stepped(w: np.ndarray, steps: int, turned: bool, rows: int = 3) -> tuple[list[Node], ...]:
    """h = h @ w + row for each of some rows, and what it read."""
    first = g.input(0, Type(w.shape, DType.F32))
    k = w.shape[1] if turned else w.shape[0]
    h, row = (g.input(i, Type((rows, k), DType.F32)) for i in (1, 2))
    matrix = g.permute(first, (1, 0)) if turned else first
    after = g.add(g.matmul(h, matrix), row)
    body = LoopBody((first, h, row), (after, g.mul(after, after)))
    own = [first, h, g.input(2, Type((steps, rows, k), DType.F32))]
    return list(loop(body, steps, own[:1], own[1:2], own[2:], False, False, False)), own


@pytest.mark.parametrize("turned", [True, False])
def test_a_matrix_of_all_steps_is_laid_out_once(turned: bool) -> None:
    w, steps = numbers(32, 32) / 64, 5
    outputs, own = stepped(w, steps, turned)
    made = with_panels(tuple(outputs), lambda x: 16)
    verify(made)
    (found,) = {n["body"] for n in toposort(made) if n.op == "loop"}
    assert [x.type.shape for x in found.inputs[:2]] == [(32, 32), (2, 32, 16)]
    arrays = dict(zip(own, (w, numbers(3, 32), numbers(steps, 3, 32)), strict=True))
    for a, b in zip(interpret(outputs, arrays), interpret(made, arrays), strict=True):
        np.testing.assert_array_equal(a, b)


def test_other_loops_are_as_they_were() -> None:
    for outputs, _ in (
        stepped(numbers(32, 32), 3, True),  # too few steps
        stepped(numbers(24, 24), 5, True),  # neither whole panels nor a whole depth
        stepped(numbers(32, 32), 5, True, rows=ROWS + 1),
        stepped(numbers(32, 32), 5, True, rows=1),
    ):
        assert with_panels(tuple(outputs), lambda x: 16) == tuple(outputs)
    outputs, _ = stepped(numbers(32, 32), 5, True)
    assert with_panels(tuple(outputs), lambda x: 0) == tuple(outputs)
