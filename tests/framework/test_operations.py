"""Operations beside PyTorch's: random programs of them, and what these found."""

import numpy as np
import pytest
import torch

import stack.framework as ht
from tests import draw
from tests.framework.operation_programs import program


@pytest.mark.filterwarnings("ignore")
def test_random_programs_of_operations_agree_with_pytorch():
    found = sum(program(seed) for seed in draw.sample("operations", range(10_000), 8))
    assert found > 8, "most steps give a value"


@pytest.mark.parametrize(
    "run",
    [
        lambda lib: lib.tensor([True, False]) ** 2,
        lambda lib: lib.tensor([True, False]) ** True,
        lambda lib: lib.square(lib.tensor([True, False])),
        lambda lib: lib.sign(lib.tensor([True, False])),
        lambda lib: lib.maximum(lib.tensor([True, False]), lib.tensor([False, False])),
        lambda lib: lib.minimum(lib.tensor([True, True]), lib.tensor([True, False])),
        lambda lib: lib.all(lib.tensor([3, 0], dtype=lib.uint8)),
        lambda lib: lib.any(lib.tensor([[3, 0]], dtype=lib.uint8), 0),
        lambda lib: lib.cat([lib.tensor([], dtype=lib.float16), lib.tensor([1, 2])]),
        lambda lib: lib.clamp(lib.tensor(2.5), lib.tensor([1]), lib.tensor([2.0]).to(lib.bfloat16)),
        lambda lib: lib.clamp(
            lib.tensor([True, False]), lib.tensor([True, True]), lib.tensor([3, 4])
        ),
    ],
)
def test_results_have_the_values_and_element_types_of_pytorchs(run):
    ours, theirs = run(ht), run(torch)
    assert ours.dtype is getattr(ht, str(theirs.dtype).removeprefix("torch."))
    np.testing.assert_array_equal(ours.to(ht.float64).numpy(), theirs.to(torch.float64).numpy())


@pytest.mark.parametrize("value", [2.0, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_softmax_of_one_number_is_pytorchs(name, value):
    """It was 1, or 0, of what is no number, too."""
    ours, theirs = (getattr(lib, name)(lib.tensor(value), 0).item() for lib in (ht, torch))
    np.testing.assert_equal(ours, theirs)
    with pytest.raises(IndexError):
        getattr(ht, name)(ht.zeros(0, 3), 2)
