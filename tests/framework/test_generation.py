"""Turning features by their places, drawing tokens, and numbers in fewer bits."""

import numpy as np
import pytest
import torch

import stack.framework as ht
import stack.framework.functional as F


def drawn(*shape):
    return np.random.default_rng(6).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_embedding_multiplies_by_complex_numbers(interleaved):
    x = drawn(2, 3, 5, 8)
    cos, sin = F.rotary_angles(ht.arange(5), 8)
    y = F.rotary_embedding(ht.tensor(x), cos, sin, interleaved).numpy()
    turn = np.exp(1j * np.outer(np.arange(5), 10000.0 ** (-np.arange(0, 8, 2) / 8)))
    pairs = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :4], x[..., 4:])
    z = (pairs[0] + 1j * pairs[1]) * turn
    parts = [z.real, z.imag]
    joined = np.stack(parts, -1).reshape(x.shape) if interleaved else np.concatenate(parts, -1)
    np.testing.assert_allclose(y, joined, atol=2e-6)


def test_tokens_that_are_not_among_the_likely_ones_are_left_out():
    logits = np.log(np.array([[0.1, 0.5, 0.05, 0.3, 0.05]], np.float32))
    kept = {
        (0, 1.0): [0, 1, 2, 3, 4],
        (2, 1.0): [1, 3],
        (0, 0.45): [1],
        (0, 0.75): [1, 3],
        (0, 0.85): [0, 1, 3],
        (2, 0.9): [1, 3],
    }
    for (k, p), places in kept.items():
        found = F.top_k_top_p(ht.tensor(logits), k, p).numpy()[0]
        assert np.flatnonzero(np.isfinite(found)).tolist() == places, (k, p)


def test_tokens_are_drawn_by_their_chances():
    logits = ht.tensor(np.log(np.array([0.1, 0.5, 0.05, 0.35], np.float32))).expand(4000, 4)
    ht.manual_seed(4)
    counts = np.bincount(F.sample(logits, top_p=0.8).numpy(), minlength=4) / 4000
    np.testing.assert_allclose(counts, [0, 0.5 / 0.85, 0, 0.35 / 0.85], atol=0.04)
    assert set(F.sample(logits, temperature=0).tolist()) == {1}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quantised_numbers(dtype):
    x, scale, zero = drawn(3, 4) * 3, 0.03, {"int8": -5, "uint8": 120}[dtype]
    mine = F.quantize(ht.tensor(x), scale, zero, getattr(ht, dtype))
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    expected = np.clip(np.rint(x / np.float32(scale)) + zero, low, high)
    np.testing.assert_array_equal(mine.numpy(), expected)
    back = F.dequantize(mine, scale, zero).numpy()
    inside = (low < expected) & (expected < high)
    np.testing.assert_allclose(back[inside], x[inside], atol=scale * 0.51)


def test_a_scale_for_each_channel_and_float8():
    x = drawn(4, 6)
    scales = ht.tensor(np.abs(x).max(1) / 127)
    q = F.quantize(ht.tensor(x), scales, dim=0)
    assert np.abs(q.numpy()).max(1).tolist() == [127] * 4
    np.testing.assert_allclose(F.dequantize(q, scales, dim=0).numpy(), x, atol=0.02)
    small = F.quantize(ht.tensor(x * 1e4), 100.0, dtype=ht.float8_e4m3fn)
    theirs = (torch.tensor(x * 1e4) / 100.0).to(torch.float8_e4m3fn).float()
    np.testing.assert_array_equal(F.dequantize(small, 100.0).numpy(), theirs.numpy() * 100)


def test_groups_of_four_bits():
    x = drawn(3, 64)
    packed, scales = F.quantize_groups(ht.tensor(x), 32)
    assert (packed.shape, packed.dtype, scales.shape) == ((3, 32), ht.uint8, (3, 2))
    groups = x.reshape(3, 2, 32)
    by = np.abs(groups).max(-1, keepdims=True) / 7
    expected = (np.rint(groups / by) * by).reshape(3, 64)
    np.testing.assert_allclose(F.dequantize_groups(packed, scales).numpy(), expected, rtol=1e-5)
    assert not F.dequantize_groups(*F.quantize_groups(ht.zeros(1, 32))).numpy().any()


def test_faked_quantisation_and_its_gradient():
    x = drawn(3, 5) * 4
    for mine, theirs in (
        (lambda t, v: t.fake_quantize_per_tensor_affine(v, 0.1, 3, -20, 20),) * 2,
        (
            lambda t, v: t.fake_quantize_per_channel_affine(
                v, t.tensor([0.1, 0.2, 0.05]), t.tensor([0, 1, 2], dtype=t.int32), 0, -16, 15
            ),
        )
        * 2,
    ):
        a, b = ht.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        y, z = mine(ht, a), theirs(torch, b)
        y.sum().backward(), z.sum().backward()
        np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), atol=1e-6)
        np.testing.assert_array_equal(a.grad.numpy(), b.grad.numpy())
