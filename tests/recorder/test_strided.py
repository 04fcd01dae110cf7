"""Windows by strides show what numpy shows by them."""

import numpy as np
import pytest

from hal.core.dtypes import DType
from hal.tile.node import Type
from stack import ops as g
from stack.ir.interpret import interpret
from stack.recorder.strided import places, strided
from tests.draw import stream


def _view(draw, whole):
    """Some view of a part of a row, as people cut it."""
    first = draw.randint(0, 6)
    size = draw.randint(1, whole.size - first)
    x = whole[first : first + size]
    rows = draw.choice([d for d in range(1, size + 1) if size % d == 0])
    x = x.reshape(rows, -1)
    for _ in range(4):
        kind = draw.randrange(6)
        if kind == 0:
            x = x.transpose(draw.sample(range(x.ndim), x.ndim))
        elif kind == 1:
            x = x[draw.randint(0, x.shape[0] - 1) :]
        elif kind == 2:
            x = x[:: draw.randint(1, 3)]
        elif kind == 3 and x.shape[-1] > 1:
            x = x[..., :-1]
        elif kind == 4 and x.ndim < 4:
            x = np.broadcast_to(x, (2, *x.shape))
        elif kind == 5:
            x = x[:, None]
    return x


def _strides(whole, x):
    offset = (x.__array_interface__["data"][0] - whole.__array_interface__["data"][0]) // 4
    return tuple(s // 4 for s in x.strides), offset


@pytest.mark.slow
def test_a_window_shows_and_takes_what_numpy_does():
    draw, found, tried = stream("strided"), 0, 200
    for _ in range(tried):
        whole = np.arange(draw.choice([7, 12, 30, 60]), dtype=np.float32)
        x = _view(draw, whole)
        strides, offset = _strides(whole, x)
        n = g.input(0, Type(whole.shape, DType.F32))
        at = interpret([places(x.shape, strides, offset)], {})[0]
        assert (whole[at].reshape(x.shape) == x).all()
        window = strided(whole.size, x.shape, strides, offset)
        if window is None:
            continue
        found += 1
        assert (interpret([window.read(n)], {n: whole})[0] == x).all(), (x.shape, strides, offset)
        if all(s for m, s in zip(x.shape, strides, strict=True) if m > 1):
            new = np.float32(1000) + np.arange(x.size, dtype=np.float32).reshape(x.shape)
            p = g.input(1, Type(x.shape, DType.F32))
            written = interpret([window.write(n, p)], {n: whole, p: new})[0]
            wanted = whole.copy()
            np.lib.stride_tricks.as_strided(wanted[offset:], x.shape, x.strides)[...] = new
            assert (written == wanted).all(), (x.shape, strides, offset)
    assert found > 0.8 * tried


def test_overlapping_and_backward_strides_are_no_windows():
    assert strided(10, (3, 3), (1, 1), 0) is None
    assert strided(10, (4,), (-1,), 9) is None
    assert strided(10, (4,), (3,), 3) is None  # the last element lies behind the row
