"""New tensors: integers in even steps, and keywords that change nothing."""

import pytest
import torch

import stack.framework as ht


@pytest.mark.parametrize(
    ("start", "end", "steps"), [(0, 15, 5), (-5, 7, 6), (9, -4, 7), (0.5, 9.7, 4), (3, 8, 1)]
)
@pytest.mark.parametrize("dtype", ["int64", "int16"])
def test_integers_in_even_steps_are_those_of_torch(start, end, steps, dtype):
    found = ht.linspace(start, end, steps, dtype=getattr(ht, dtype))
    expected = torch.linspace(start, end, steps, dtype=getattr(torch, dtype))
    assert (found.dtype, found.tolist()) == (getattr(ht, dtype), expected.tolist())


def test_the_layout_of_memory_may_be_asked_for():
    x = ht.ones(2, 3)
    assert ht.zeros_like(x, memory_format=ht.preserve_format).tolist() == [[0] * 3] * 2
    assert ht.empty(2, 3, pin_memory=True, layout=ht.strided).shape == (2, 3)
    assert ht.randn(4, layout=ht.strided).shape == (4,)
    assert ht.tensor([1.0], pin_memory=False).tolist() == [1]
    with pytest.raises(TypeError, match="layuot"):
        ht.zeros(2, layuot=ht.strided)


def test_modules_of_distributions_are_attributes():
    normal = ht.distributions.normal.Normal(0.0, 1.0)
    assert ht.distributions.kl.kl_divergence(normal, normal).item() == 0
