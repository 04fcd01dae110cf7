"""Operands of different element types meet as in torch."""

import itertools

import pytest
import torch

import stack.framework as ht
from hal.core.dtypes import DType

PAIRS = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I16: torch.int16,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}
BACK = {v: k for k, v in PAIRS.items()}


@pytest.mark.parametrize("a", PAIRS)
def test_two_tensors(a):
    for b, *ranks in itertools.product(PAIRS, (0, 1), (0, 1)):
        x, y = (ht.ones((2,) * r, dtype=d) for r, d in zip(ranks, (a, b), strict=True))
        p, q = (torch.ones((2,) * r, dtype=PAIRS[d]) for r, d in zip(ranks, (a, b), strict=True))
        assert (x * y).dtype is BACK[torch.result_type(p, q)], (a, b, ranks)


@pytest.mark.parametrize("a", PAIRS)
def test_a_python_number_only_raises_the_category(a):
    for number, rank in itertools.product((True, 3, 2.5), (0, 1)):
        x, p = ht.ones((2,) * rank, dtype=a), torch.ones((2,) * rank, dtype=PAIRS[a])
        assert (x * number).dtype is BACK[torch.result_type(p, number)], (number, rank)
        assert (number * x).dtype is BACK[torch.result_type(p, number)], (number, rank)


def test_uint64_meets_no_signed_integer():
    with pytest.raises(ht.TensorError, match=r"no element type holds both uint64 and int32"):
        ht.ones(2, dtype=ht.uint64) + ht.ones(2, dtype=ht.int32)


@pytest.mark.parametrize("dtype", PAIRS)
def test_conversion(dtype):
    values = [0.0, 1.0, 3.7, 100.2]
    expected = torch.tensor(values).to(PAIRS[dtype]).to(torch.float64)
    assert ht.tensor(values).to(dtype).double().tolist() == expected.tolist()


def test_host_data_gets_torchs_element_types():
    assert ht.tensor([1, 2]).dtype is ht.int64
    assert ht.tensor([1.0, 2]).dtype is ht.float32
    assert ht.tensor([True]).dtype is ht.bool
    assert ht.tensor(torch.ones(2).double().numpy()).dtype is ht.float64
    with pytest.raises(ht.TensorError, match="str"):
        ht.tensor("text")
