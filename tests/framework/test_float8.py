"""Tensors of 8-bit floats: conversions, arithmetic, products, checkpoints."""

import ml_dtypes
import numpy as np
import pytest

import stack.framework as ht
from stack.framework.errors import TensorError

TYPES = {
    ht.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    ht.float8_e5m2: ml_dtypes.float8_e5m2,
}


@pytest.fixture(params=TYPES, ids=str)
def dtype(request):
    return request.param


def same(found, expected):
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("source", [np.float32, np.float16, np.float64])
def test_numbers_are_rounded_as_ml_dtypes_does(dtype, source):
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        x = (rng.standard_normal(4000) * 2.0 ** rng.integers(-20, 20, 4000)).astype(source)
        x = np.concatenate([x, np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], source)])
        same(ht.tensor(x).to(dtype).numpy(), x.astype(np.float32).astype(TYPES[dtype]))


def test_numbers_are_rounded_as_pytorch_does(dtype):
    torch = pytest.importorskip("torch")
    # Beyond the largest number PyTorch 2.13 gives that one for e4m3fn, where ml_dtypes gives NaN.
    x = np.random.default_rng(1).uniform(-dtype.largest, dtype.largest, 4000).astype(np.float32)
    x *= np.float32(2.0) ** np.random.default_rng(2).integers(-20, 1, 4000)
    expected = torch.from_numpy(x).to(getattr(torch, dtype.numpy)).to(torch.float32).numpy()
    found = ht.tensor(x).to(dtype)
    np.testing.assert_array_equal(found.to(ht.float32).numpy(), expected)


def test_all_numbers_become_wide(dtype):
    x = np.arange(256, dtype=np.uint8).view(TYPES[dtype])
    assert ht.tensor(x).dtype is dtype
    same(ht.tensor(x).to(ht.float32).numpy(), x)
    same(ht.tensor(x).numpy(), x)


def test_arithmetic_is_rounded_once(dtype):
    x = np.random.default_rng(2).standard_normal((2, 300)).astype(np.float32)
    a, b = x.astype(TYPES[dtype])
    wide = a.astype(np.float32) * b.astype(np.float32)
    same((ht.tensor(a) * ht.tensor(b)).numpy(), wide.astype(TYPES[dtype]))


def test_products_accumulate_in_float32(dtype):
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in ((40, 70), (70, 30)))
    found = ht.tensor(a).to(dtype) @ ht.tensor(b).to(dtype)
    assert found.dtype is dtype
    with np.errstate(all="ignore"):
        same(found.numpy(), (a @ b).astype(TYPES[dtype]))


def test_gradients_reach_what_was_converted(dtype):
    x = ht.tensor(np.float32([0.5, 2.0, -1.0]), requires_grad=True)
    (x.to(dtype).to(ht.float32) * 3.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.float32([3, 3, 3]))


def test_types_without_a_common_one_are_refused(dtype):
    with pytest.raises(TensorError, match=f"{dtype.numpy} and float32 have no common"):
        ht.ones(3).to(dtype) + ht.ones(3)


def test_a_checkpoint_keeps_them(dtype, tmp_path):
    x = np.arange(256, dtype=np.uint8).view(TYPES[dtype])
    ht.save(tmp_path / "x.safetensors", {"x": ht.tensor(x)})
    found = ht.load(tmp_path / "x.safetensors")["x"]
    assert found.dtype is dtype
    np.testing.assert_array_equal(found.numpy().view(np.uint8), x.view(np.uint8))
