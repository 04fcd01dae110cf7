"""A few of the scripts of `models`, drawn anew for each commit; `make models` runs all of them."""

import pytest
import torch

from tests.draw import stream
from tests.journeys.models.run import NAMES, compare

SMALL = ["linear_regression", "logistic_regression", "matrix_factorization", "hooks"]
"""Those whose kernels any device compiles in a moment."""
DRAW = stream("models")
CHOSEN = [("cpu:0", DRAW.choice(NAMES))]
CHOSEN += [(DRAW.choice(("opencl:0", "sunway:0")), DRAW.choice(SMALL))]


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    ("device", "name"), CHOSEN, ids=[f"{i}-{device}" for i, (device, _) in enumerate(CHOSEN)]
)
def test_a_script_written_for_pytorch_gives_its_losses(device, name, monkeypatch):
    monkeypatch.setattr("stack.framework.devices._default", [])
    # PyTorch's own testing modules, which other tests import, freeze flags that scripts set.
    thawed = torch.backends.__allow_nonbracketed_mutation
    try:
        with thawed():
            assert compare(name, device).agree
    except Exception as error:
        error.add_note(f"{name} on {device}")
        raise


def test_there_are_scripts_of_forty_kinds():
    assert len(NAMES) >= 40
