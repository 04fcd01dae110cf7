"""Pipelines on real ranks, bit for bit what one process computes; and what is refused."""

import numpy as np
import pytest

import stack.framework as ht
from hal.core.errors import InvalidCall
from stack.framework import nn
from stack.parallel import Mesh
from stack.parallel.pipeline import Pipeline
from stack.parallel.schedule import gpipe
from tests.draw import stream
from tests.launch.running import Folder
from tests.parallel import pipe


@pytest.mark.slow
def test_two_ranks_compute_bit_for_bit_what_one_process_does(tmp_path):
    """Losses and gradients of steps of AdamW, by a schedule that is drawn."""
    name = stream("pipeline").choice(sorted(pipe.SCHEDULES))
    whole = pipe.alone()
    done = Folder(tmp_path).run("-n", 2, "--devices", "cpu:0", pipe.__file__, tmp_path, name)
    assert (done.code, done.err) == (0, [])
    found = [dict(np.load(tmp_path / f"{name}.{rank}.npz")) for rank in range(2)]
    assert set(found[0]) | set(found[1]) == set(whole)
    for own in found:
        for key, value in own.items():
            assert value.tobytes() == whole[key].tobytes(), (name, key)


def alone(model, batches=2):
    return Pipeline(model, Mesh.of(None, stage=1), "stage", gpipe(1, batches), lambda name: 0)


def test_a_pipeline_of_one_rank_gathers_what_backward_does():
    layer, x = nn.Linear(3, 1), np.ones((4, 3), np.float32)
    pipeline = alone(layer)

    @ht.jit
    def step(x):
        loss = pipeline.backward(lambda x: layer(x).square().sum(), x)
        return loss, layer.weight.grad

    loss, gradient = step(x)
    layer.zero_grad()
    whole = layer(ht.tensor(x)).square().sum()
    whole.backward()
    np.testing.assert_allclose(loss.numpy(), whole.numpy(), rtol=1e-6)
    np.testing.assert_allclose(gradient.numpy(), layer.weight.grad.numpy(), rtol=1e-6)


def test_what_cannot_be_a_pipeline_is_refused():
    layer, dropped = nn.Linear(3, 1), nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.5))
    with pytest.raises(InvalidCall, match="the schedule is for 2 ranks, and there are 1"):
        Pipeline(layer, Mesh.of(None, stage=1), "stage", gpipe(2, 2), lambda name: 0)
    with pytest.raises(InvalidCall, match="call it in a function under jit"):
        alone(layer).backward(lambda x: layer(x).sum(), ht.ones(4, 3))
    for model, rows, said in [
        (layer, 3, r"argument 0 of the loss has shape .3, 3., whose first axis 2 micro-batches"),
        (dropped, 4, "draws random numbers"),
    ]:
        pipeline = alone(model)
        with pytest.raises(InvalidCall, match=said):
            ht.jit(lambda x, p=pipeline, m=model: p.backward(lambda x: m(x).sum(), x))(
                np.ones((rows, 3), np.float32)
            )
