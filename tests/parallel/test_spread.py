"""Strategies on real ranks: losses and gradients of every step against those of one device."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from tests.launch.running import Folder
from tests.parallel import spread_gpt

NAMES = ["data", "zero1", "zero3", "tensor", "context"]
STEPS = 2


@pytest.mark.slow
def test_a_strategy_on_two_ranks_trains_as_one_device(tmp_path):
    name = random.SystemRandom().choice(NAMES)
    script, folder = Path(spread_gpt.__file__), Folder(tmp_path)
    done = folder.run("-n", 2, "--devices", "cpu:0", script, tmp_path, "sgd", STEPS, name)
    assert (done.code, done.err) == (0, [])
    one, other = (json.loads(line.partition("] ")[2]) for line in done.out)
    assert one == other, "ranks have other values"
    assert_trained_alike(dict(np.load(tmp_path / f"{name}.npz")), name)


def assert_trained_alike(found, name):
    """Losses within 1e-6, and each gradient of each step within 1e-6 of its norm; one that is
    nearly 0 of the model's."""
    whole, _ = spread_gpt.trained(None, "sgd", STEPS)
    count = sum(key.startswith("0.") for key in whole)
    for step in range(STEPS):
        np.testing.assert_allclose(found[f"{step}.0"], whole[f"{step}.0"], rtol=1e-6)
        norms = [np.linalg.norm(whole[f"{step}.{i}"]) for i in range(2, count)]
        total = float(np.linalg.norm(norms))
        for i, norm in enumerate(norms, 2):
            error = np.linalg.norm(found[f"{step}.{i}"] - whole[f"{step}.{i}"])
            limit = 1e-6 * (norm if norm > 1e-6 * total else total)
            assert error <= limit, (name, step, i)
