"""Copies past the cache, and how long threads rest that give way."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stack.storage.memory import copy_past_cache
from stack.storage.threads import SHARE, pause

MOST = 6 * 4096
"""Bytes: some pages, of which a copy takes whole lines, then bytes."""


@given(st.integers(0, MOST), st.integers(0, 70), st.integers(0, 70), st.integers(0, 2**32 - 1))
def test_a_copy_past_the_cache_is_the_bytes_and_no_others(nbytes, to, at, seed):
    data = np.random.default_rng(seed).integers(0, 256, (2, MOST + 140), np.uint8)
    out, source = data[0].copy(), data[1]
    copy_past_cache(out[to : to + nbytes], source[at : at + nbytes])
    assert out[to : to + nbytes].tobytes() == source[at : at + nbytes].tobytes()
    assert out[:to].tobytes() == data[0, :to].tobytes()
    assert out[to + nbytes :].tobytes() == data[0, to + nbytes :].tobytes()


@given(st.floats(0, 10), st.floats(0, 100), st.integers(1, 16))
def test_threads_that_give_way_take_no_more_than_their_share(busy, waited, count):
    took = busy + waited
    rest = pause(busy, took, count)
    assert busy * count <= SHARE * (took + rest) * (1 + 1e-12)
    assert rest == 0 or busy * count >= SHARE * took
