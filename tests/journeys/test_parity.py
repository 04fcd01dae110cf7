"""The example trains as PyTorch does."""

import pytest

from tests.journeys.conftest import TEXT
from tests.journeys.twin import GPTConfig, compare

SMALL = GPTConfig(layers=2, width=64, heads=2, context=32)


@pytest.fixture(scope="module")
def exact():
    return compare(SMALL, rows=4, steps=20, dtype="float32", text=(TEXT,))


@pytest.mark.slow
@pytest.mark.turns
def test_float32_losses_and_weights_are_pytorchs(exact):
    assert exact.loss < 1e-4
    assert exact.weight < 1e-3
    ours, _ = exact.losses
    assert ours[-1] < 0.95 * ours[0], "the model must learn, or there is little to compare"


@pytest.mark.slow
@pytest.mark.turns
def test_bfloat16_losses_are_those_of_pytorchs_autocast(exact):
    apart = compare(SMALL, rows=4, steps=20, dtype="bfloat16", text=(TEXT,))
    assert apart.loss < 2e-2
    assert apart.losses[0] != exact.losses[0], "autocast must round"
