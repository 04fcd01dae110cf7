"""Strategies on real ranks: losses and gradients of every step against those of one device."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.machine import ROOT
from stack.parallel.divide import check_patterns, in_order, layouts_of
from stack.parallel.strategy import Strategy
from tests.draw import stream, waits_its_turn
from tests.launch.running import Folder
from tests.parallel import spread_gpt

NAMES = ["data", "zero1", "zero3", "tensor", "context", "expert"]
NAMES += ["data@uneven", "zero3@odd", "tensor@tied"]
NAMES += ["expert@one", "expert@dropless", "expert@shadowed", "expert@parts"]
STEPS = 2


@pytest.mark.slow
@pytest.mark.skipif(waits_its_turn("strategy"), reason="another run does this")
def test_a_strategy_on_two_ranks_trains_as_one_device(tmp_path):
    name = stream("strategy").choice(NAMES)
    script, folder = Path(spread_gpt.__file__), Folder(tmp_path)
    done = folder.run("-n", 2, "--devices", "cpu:0", script, tmp_path, "sgd", STEPS, name)
    assert (done.code, done.err) == (0, [])
    one, other = (json.loads(line.partition("] ")[2]) for line in done.out)
    assert one == other, "ranks have other values"
    found, (whole, _) = (
        np.load(tmp_path / f"{name}.npz"),
        spread_gpt.trained(None, "sgd", STEPS, name),
    )
    for loss, gradient in spread_gpt.distances(dict(found), whole, STEPS):
        assert loss <= 1e-6, name
        assert gradient <= 1e-6, name


def test_every_strategy_of_the_guide_fits_its_model():
    guide = (ROOT / "docs/parallel.md").read_text()
    texts = re.findall(r"^```\n(axis .*?)^```$", guide, re.MULTILINE | re.DOTALL)
    texts += [path.read_text() for path in (ROOT / "examples/strategies").glob("*.txt")]
    assert len(texts) >= 7 + 5
    for text in texts:
        strategy = Strategy.parse(text)
        model = spread_gpt.model(experts=spread_gpt.EXPERTS if "mixture" in text else 0)
        check_patterns(model, strategy)
        assert layouts_of(model, in_order(strategy), [])
