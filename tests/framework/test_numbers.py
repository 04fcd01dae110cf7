"""Numbers that an element type does not have: an error, or what PyTorch gives, and never another
number."""

import math

import pytest
import torch

import stack.framework as ht
from stack.framework.errors import TensorError

NAMES = ("bool", "uint8", "int8", "int32", "int64", "float16", "float32")
ROUNDING = ("bool", "float16", "float32")
"""Types in which every number has a nearest value; PyTorch refuses some."""
VALUES = (
    *(True, -1, -200, -256, 128, 300, 1 << 31, -(1 << 31) - 1, 1 << 40, 1 << 63, 1 << 64),
    *(-(1 << 63) - 1, 1 << 1200, 2.7, -2.7, -0.5, 65504.0, 1e30, math.inf, -math.inf, math.nan),
    *("5", None, 1j, b"5"),
)
USES = {
    "tensor": lambda m, v, d: m.tensor([v], dtype=d),
    "beside -1": lambda m, v, d: m.tensor([-1, v], dtype=d),
    "beside 0.5": lambda m, v, d: m.tensor([0.5, v], dtype=d),
    "full": lambda m, v, d: m.full((1,), v, dtype=d),
    "where": lambda m, v, d: m.where(m.tensor([True]), v, m.tensor([1], dtype=d)),
    "fill_": lambda m, v, d: m.zeros(1, dtype=d).fill_(v),
    "masked_fill": lambda m, v, d: m.zeros(1, dtype=d).masked_fill(m.tensor([True]), v),
    "masked_fill_": lambda m, v, d: m.zeros(1, dtype=d).masked_fill_(m.tensor([True]), v),
    "clamp": lambda m, v, d: m.tensor([1], dtype=d).clamp(min=v),
    "add": lambda m, v, d: m.tensor([1], dtype=d) + v,
}


def outcome(use, module, value, name):
    try:
        return use(module, value, getattr(module, name)).tolist()
    except (TensorError, TypeError, ValueError, RuntimeError, OverflowError):
        return "refused"


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_the_type_lacks_is_refused_or_as_in_torch(use, name):
    for value in VALUES:
        got, truth = (outcome(USES[use], module, value, name) for module in (ht, torch))
        if truth == "refused" and isinstance(value, float | int) and name in ROUNDING:
            continue  # it rounds to infinity, or True
        if got != "refused":
            assert repr(got) == repr(truth), f"{use} of {value!r} as {name}"


def test_integers_beyond_64_bits_are_no_floats():
    for data in ([1 << 63, -1], [1 << 63], [1 << 70, 1], 1 << 64):
        with pytest.raises(TensorError, match="cannot be converted to int64 without overflow"):
            ht.tensor(data)


def test_the_number_that_does_not_fit_is_named():
    with pytest.raises(
        TensorError, match="1099511627776 cannot be converted to int32 without overflow"
    ):
        ht.tensor([[1, 2], [3, 1 << 40]], dtype=ht.int32)
    with pytest.raises(TensorError, match="None is not a number"):
        ht.tensor([1.0, None], dtype=ht.float32)
