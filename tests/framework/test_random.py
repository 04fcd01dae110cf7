"""The random stream is Philox4x32-10 as documented, the same jitted or not, and its numbers obey
their laws."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stack.framework as ht
import stack.framework.functional as F
from hal.core.errors import InvalidCall
from stack.framework import nn
from stack.framework.errors import TensorError


def philox(counter, key):
    """One block of Philox4x32-10, written down from its paper (Salmon et al., 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        low, high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            (high >> 32) ^ c[1] ^ k[0],
            high & 0xFFFFFFFF,
            (low >> 32) ^ c[3] ^ k[1],
            low & 0xFFFFFFFF,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def stream(seed, start, n):
    """Words start to start + n - 1 of a seed's stream."""
    key = (seed & 0xFFFFFFFF, seed >> 32)
    blocks = [
        philox((b & 0xFFFFFFFF, b >> 32, 0, 0), key)
        for b in range(start // 4, -(-(start + n) // 4))
    ]
    return [w for block in blocks for w in block][start % 4 :][:n]


KNOWN = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_block_function_of_this_test_gives_random123s_known_answers(counter, key, words):
    assert " ".join(f"{w:08x}" for w in philox(counter, key)) == words


def draw_words(n):
    """n words of the stream, through the public integers."""
    return ht.randint(0, 2**32, (n,)).tolist()


def test_seed_zero_begins_with_the_known_answer():
    ht.manual_seed(0)
    assert " ".join(f"{w:08x}" for w in draw_words(4)) == KNOWN[0][2]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**60), st.integers(0, 70))
def test_the_stream_is_the_documented_one(seed, block, n):
    generator, offset = ht.default_generator(), 4 * block
    generator.set_state(seed, offset)
    assert draw_words(n) == stream(seed, offset, n)
    assert generator.get_state() == (seed, offset + -(-n // 4) * 4)


def test_an_offset_at_which_no_draw_begins_is_refused():
    with pytest.raises(TensorError, match="multiple of 4, as `get_state` gives it, not 6"):
        ht.default_generator().set_state(1, 6)


def test_fractions_are_the_high_bits_of_the_words():
    ht.manual_seed(5)
    words = stream(5, 0, 8)
    assert ht.rand(8).tolist() == [(w >> 8) / 2**24 for w in words]
    ht.manual_seed(5)
    assert ht.rand(8, dtype=ht.bfloat16).float().tolist() == [(w >> 24) / 2**8 for w in words]
    ht.manual_seed(5)
    assert ht.rand(8, dtype=ht.float16).float().tolist() == [(w >> 21) / 2**11 for w in words]
    ht.manual_seed(5)
    wide = [
        ((a >> 5) * 2**26 + (b >> 6)) / 2**53 for a, b in zip(words[::2], words[1::2], strict=True)
    ]
    assert ht.rand(4, dtype=ht.float64).tolist() == wide


def test_normal_numbers_are_the_documented_transform():
    ht.manual_seed(9)
    u = [(w >> 8) / 2**24 for w in stream(9, 0, 8)]
    expected = [
        math.sqrt(-2 * math.log(1 - a)) * math.cos(2 * math.pi * b)
        for a, b in zip(u[::2], u[1::2], strict=True)
    ]
    np.testing.assert_allclose(ht.randn(4).numpy(), expected, rtol=1e-4, atol=1e-6)


def test_draws_do_not_depend_on_when_they_run():
    ht.manual_seed(1)
    late = [ht.rand(3), ht.rand(5)]
    together = [t.tolist() for t in late]
    ht.manual_seed(1)
    assert [ht.rand(3).tolist(), ht.rand(5).tolist()] == together


def test_a_jitted_function_draws_the_same_stream():
    draw = ht.jit(lambda: (ht.rand(3), ht.randn(2)))
    for state in (0, 1):
        ht.manual_seed(7)
        jitted = [[t.tolist() for t in draw()] for _ in range(3)]
        ht.manual_seed(7)
        plain = [[ht.rand(3).tolist(), ht.randn(2).tolist()] for _ in range(3)]
        assert jitted == plain, state
    assert draw.traced == 1


def test_uniform_numbers_fill_the_unit_interval_evenly():
    ht.manual_seed(0)
    x = ht.rand(4_000).numpy()
    assert 0 <= x.min() < x.max() < 1
    counts = np.histogram(x, bins=16, range=(0, 1))[0]
    chi2 = ((counts - 250) ** 2 / 250).sum()
    assert chi2 < 37.7  # the 0.1 % point of chi-squared with 15 degrees of freedom


def test_normal_numbers_have_their_moments():
    ht.manual_seed(0)
    x = ht.randn(4_000).numpy().astype(np.float64)
    assert abs(x.mean()) < 4 / math.sqrt(4_000)
    assert abs(x.var() - 1) < 4 * math.sqrt(2 / 4_000)
    assert abs((x**4).mean() - 3) < 4 * math.sqrt(96 / 4_000)


@given(st.integers(-(2**31), 2**31), st.integers(1, 2**32))
def test_integers_stay_in_their_range(low, choices):
    x = ht.randint(low, low + choices, (50,)).numpy()
    assert low <= x.min() <= x.max() < low + choices


def test_an_empty_or_too_wide_range_is_refused():
    with pytest.raises(ht.TensorError, match=r"1 to 2\*\*32 choices, got \[3, 3\)"):
        ht.randint(3, 3, (1,))


def test_a_permutation_has_every_number_once():
    ht.manual_seed(0)
    assert sorted(ht.randperm(100).tolist()) == list(range(100))
    assert ht.randperm(100).tolist() != list(range(100))


def test_dropout_keeps_scales_and_differentiates():
    ht.manual_seed(0)
    x = ht.ones(4000, requires_grad=True)
    y = F.dropout(x, 0.25)
    y.sum().backward()
    values, counts = np.unique(y.numpy(), return_counts=True)
    np.testing.assert_allclose(values, [0, 4 / 3], rtol=1e-6)
    assert abs(counts[1] - 3000) < 4 * math.sqrt(4000 * 0.25 * 0.75)
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())


def test_dropout_at_its_ends():
    x = ht.ones(10)
    assert F.dropout(x, 0.0) is x
    assert F.dropout(x, 0.7, training=False) is x
    assert F.dropout(x, 1.0).sum().item() == 0
    with pytest.raises(ht.TensorError, match=r"p is a probability, got 1.5"):
        F.dropout(x, 1.5)


def test_bernoulli():
    assert ht.bernoulli(ht.tensor([0.0, 1.0])).tolist() == [0, 1]


def test_equal_seeds_make_equal_models():
    models = []
    for _ in range(2):
        ht.manual_seed(4)
        models.append([p.numpy() for p in nn.Linear(5, 3).parameters()])
    for a, b in zip(*models, strict=True):
        np.testing.assert_array_equal(a, b)
    assert abs(models[0][0]).max() <= 1 / math.sqrt(5)


def test_draws_are_divided_by_axis_whoever_comes_and_goes_first():
    """A draw of 12 among 2 ranks along one axis and 3 along another one; the ranks' parts, one
    after the other, are the whole, and users of one axis do not count twice."""
    generator = ht.default_generator()
    ht.manual_seed(5)
    whole, parts = ht.rand(12).tolist(), []
    for row in range(2):
        for column in range(3):
            generator.divide("row", row, 2)
            generator.divide("column", column, 3)
            generator.divide("row", row, 2)
            generator.unite("row")
            assert generator.part == (3 * row + column, 6)
            ht.manual_seed(5)
            parts += ht.rand(2).tolist()
            generator.unite("row")
            assert generator.part == (column, 3)
            generator.unite("column")
    assert parts == whole
    assert generator.part == (0, 1)


def test_an_axis_that_is_divided_in_two_ways_is_refused():
    generator = ht.default_generator()
    generator.divide("row", 0, 2)
    try:
        with pytest.raises(
            InvalidCall, match="along 'row' are those of rank 0 of 2, not of rank 1"
        ):
            generator.divide("row", 1, 2)
    finally:
        generator.unite("row")
    assert generator.part == (0, 1)
