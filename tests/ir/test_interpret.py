"""The interpreter's own promises; what operations mean is tested with their records."""

from dataclasses import replace

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Type
from stack import ops as g
from stack.ir.interpret import interpret
from stack.ops import OPS
from stack.ops.error import GraphError

X = g.input(0, Type((2, 3), DType.F32))
ONES = np.ones((2, 3), np.float32)


def test_outputs_come_in_order_and_shared_nodes_are_computed_once(monkeypatch):
    calls = []
    counted = OPS["exp"].reference

    def counting(n, operands):
        calls.append(n)
        return counted(n, operands)

    monkeypatch.setitem(OPS, "exp", replace(OPS["exp"], reference=counting))
    y = g.exp(X)
    total, same = interpret([g.add(y, y), y], {X: ONES})
    np.testing.assert_array_equal(same, counted(y, (ONES,)))
    np.testing.assert_array_equal(total, same + same)
    assert calls == [y]


def test_a_graph_of_any_depth_is_interpreted():
    n = X
    for _ in range(5000):
        n = g.neg(n)
    assert (interpret([n], {X: ONES})[0] == ONES).all()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"no array was given for input\(slot=0\)"),
        ({X: ONES.astype(np.float64)}, r"input.*was given an array of float64\[2, 3\]"),
        ({X: ONES[0]}, r"input.*was given an array of float32\[3\]"),
    ],
)
def test_inputs_of_another_type_are_refused(inputs, message):
    with pytest.raises(GraphError, match=message):
        interpret([g.neg(X)], inputs)
