"""What a builder writes once: loads of the same elements."""

from __future__ import annotations

import numpy as np

from hal.core.dtypes import DType
from hal.tile.build import Builder, add
from hal.tile.interpret import interpret
from hal.tile.kernel import Kernel, Load
from hal.tile.verify import verify
from hal.tile.walk import statements


def kernel(stores_between: bool) -> Kernel:
    """y[0:4] = x[0:4] + what x[0:4] is then, in a loop and behind it."""
    b = Builder("twice")
    x = b.buffer("x", DType.F32, writes=True)
    y = b.buffer("y", DType.F32, writes=True)

    def twice() -> None:
        first = b.load(x, 0, (4,), (1,))
        if stores_between:
            b.store(x, 0, add(first, 1.0), (1,))
        b.store(y, 0, add(first, b.load(x, 0, (4,), (1,))), (1,))

    b.loop(0, 3, 1, lambda i: twice())
    twice()
    return b.kernel()


def test_the_same_elements_are_loaded_once_in_a_block() -> None:
    found = kernel(stores_between=False)
    assert sum(isinstance(s, Load) for s in statements(found.body)) == 2


def test_what_may_have_been_written_is_loaded_again() -> None:
    found = kernel(stores_between=True)
    verify(found)
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    interpret(found, (1, 1, 1), {"x": x, "y": y}, {})
    np.testing.assert_array_equal(x, np.arange(4) + 4)
    np.testing.assert_array_equal(y, 2 * np.arange(4) + 7)
