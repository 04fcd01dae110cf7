"""Strategies on real ranks: losses and gradients of every step against those of one device."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import stack.framework as ht
from benchmarks.machine import ROOT
from hal.core.errors import InvalidCall
from stack.framework import nn, optim
from stack.parallel import Mesh, parallel
from stack.parallel.divide import check_axes, check_patterns, in_order, layouts_of
from stack.parallel.strategy import Strategy, data, pipeline
from tests.draw import stream
from tests.launch.running import Folder
from tests.parallel import spread_gpt

NAMES = ["data", "zero1", "zero3", "tensor", "context", "expert"]
NAMES += ["data@uneven", "zero3@odd", "tensor@tied"]
NAMES += ["expert@one", "expert@dropless", "expert@shadowed", "expert@parts"]
STEPS = 2


@pytest.mark.slow
@pytest.mark.turns
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


def test_a_parameter_that_two_optimizers_move_in_turns_is_there_at_the_end():
    nets = [nn.Linear(3, 2) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    both = [[optim.SGD(net.parameters(), lr=0.1), optim.Adam([net.weight], lr=0.1)] for net in nets]
    with parallel(nets[0], Mesh.of(None, data=1), data(1), *both[0]):
        for net, optimizers in zip(nets, both, strict=True):
            for optimizer in (*optimizers, *optimizers):
                net.zero_grad()
                net(ht.ones(1, 3)).square().mean().backward()
                optimizer.step()
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert one.tolist() == other.tolist()


def test_an_optimizer_of_a_pipeline_has_parameters_of_the_model_alone():
    net, other = nn.Linear(3, 2), nn.Linear(4, 4)
    optimizer = optim.SGD([*net.parameters(), other.weight], lr=0.1)
    with pytest.raises(InvalidCall, match=r"a parameter of shape .4, 4. that is none of the model"):
        parallel(net, Mesh.of(None, stage=1), pipeline(1, "gpipe 1", {"*": 0}), optimizer)


def test_what_is_no_model_mesh_strategy_or_optimizer_is_refused():
    net, mesh, text = nn.Linear(3, 2), Mesh.of(None, data=1), str(data(1))
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    for given, said in [
        (
            (net, mesh, text, optimizer),
            "a str for the strategy, .* Strategy.parse makes one of a text",
        ),
        ((net, data(1), mesh), "a Strategy for the mesh, .*; Mesh.present"),
        ((net, mesh, data(1), [optimizer]), "a list for the optimizer, .*; give each by itself"),
        ((net.forward, mesh, data(1)), "a method for the model, which is a Module; give"),
    ]:
        with pytest.raises(InvalidCall, match=said):
            parallel(*given)


def test_an_axis_that_divides_nothing_is_refused():
    """All its ranks would compute the same."""
    strategy = Strategy.parse("axis data 2\n  batch 0\naxis other 2")
    with pytest.raises(InvalidCall, match=r"axis 'other' divides nothing among its 2 ranks.*batch"):
        check_axes(strategy.sizes, strategy)
    check_axes({"data": 1}, Strategy.parse("axis data 1"))
