"""Exchanges on tensors between processes, eager and captured, against one process that exchanges
nothing."""

from pathlib import Path

import numpy as np
import pytest

import hal
import stack.framework as ht
from hal.core.errors import InvalidCall
from stack.parallel import Mesh, Ranks
from tests.draw import sample
from tests.launch.running import Folder
from tests.parallel import grid, spread

SCRIPT = Path(spread.__file__)


def devices():
    """Those of two plugins, of which the second is drawn: each compiles all for itself."""
    listed = [d.name for d in hal.registry().devices()]
    others = [n for n in ("opencl:0", "sunway:0") if n in listed]
    known = ["cpu:0", *sample("other devices", others, 1)]
    return [known[i % len(known)] for i in range(spread.SIZE)]


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """What each rank has written."""
    folder = Folder(tmp_path_factory.mktemp("spread"))
    done = folder.run("-n", spread.SIZE, "--devices", ",".join(devices()), SCRIPT)
    assert (done.code, done.err) == (0, [])
    return [dict(np.load(folder.path / f"rank{r}.npz")) for r in range(spread.SIZE)]


@pytest.mark.slow
@pytest.mark.turns("exchanges on ranks")
def test_values_and_gradients_are_those_of_one_process(worked):
    for found, wanted in zip(worked, spread.alone(), strict=True):
        for way in range(3):
            for i, value in enumerate(wanted):
                scale = max(np.abs(value).max(), 1e-6)
                np.testing.assert_allclose(found[f"{way}.{i}"] / scale, value / scale, atol=2e-6)


@pytest.mark.slow
@pytest.mark.turns("exchanges on ranks")
def test_stages_of_a_pipeline_train_as_one_process_does(worked):
    for found, wanted in zip(worked, spread.whole_steps(), strict=True):
        for way in ("eager", "jit"):
            for i, p in enumerate(wanted):
                np.testing.assert_allclose(found[f"{way}.{i}"], p, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.turns("exchanges on ranks")
def test_no_message_is_taken_for_another_one(worked):
    sender, receiver = worked[:2]
    np.testing.assert_array_equal(receiver["equal"], [[1, 0], [2, 1]])
    np.testing.assert_array_equal(receiver["named"], [[1, 0], [2, 1]])
    np.testing.assert_array_equal(sender["named"], [[10, 10], [1, 1]])
    captured, backward = sender["alike"]
    assert "2 messages ((0, 1), (1, 2), (2, 0)) among 'data' are called 'shift by 1 of" in captured
    assert "2 messages ((1, 0),) among 'data' are called 'gradient of message of" in backward
    assert [len(found["alike"]) for found in worked] == [2, 1, 1]


@pytest.mark.slow
@pytest.mark.turns("exchanges on ranks")
def test_what_does_not_fit_is_refused_before_it_begins(worked):
    for rank, found in enumerate(worked):
        shapes, axis, root, itself, rows, differ, *others = found["refused"]
        assert "axis 0 of a tensor of shape [4, 2] cannot be divided among the 3 ranks" in shapes
        assert axis == "axis 2 is none of a tensor of shape [4, 2]"
        assert root == "rank 3 is none of the 3 along 'data'"
        assert itself == f"rank {rank} along 'data' sends nothing to itself"
        assert "takes (3, most rows, ...), not [4, 2]" in rows
        assert "different strategies: rank 0 has nothing where rank 1 has line 3: states" in differ
        (models, optimizers, one, divided, none, graphs, *others) = others
        batch, memory, text, mesh, drop, values, labels, over, apart = others
        assert "models: rank 0 has nothing where rank 2 has 1.weight: float32[6, 6]" in models
        assert "optimizers: rank 0 has group 0 of optimizer 0: lr=0.1 where rank 1" in optimizers
        said = "graphs of 'step': rank 0 has input 0: f32[3,6] where rank 1 has input 0: f32"
        assert f"{said}[6,6]" in one
        assert f"{said}[4,6]" in divided
        assert "of shape [4, 6], cannot be divided among 3 ranks along 'data'" in none
        assert "graphs of 'step': rank 0 has " in graphs
        assert "no argument of 'step' has an axis 2, which `batch 2` of 'data' divides" in batch
        modules = "rank 0 has 1, a Dropout: p=0.1 where rank 1 has 1, a Dropout: p=0.2"
        assert f"graphs of 'step': {modules}; call the same functions" in drop
        said = "ranks call 'step' with other values of argument {}, of shape {}: rank 1 has not"
        assert values.startswith(said.format(0, [3, 6]))
        assert labels.startswith(said.format(1, [3]))
        # A setting that differs elsewhere is no cause
        assert "rank 0 has fact: False where rank 2 has fact: True" in apart
        # What one rank alone refuses, all hear
        for said, who, why in (
            (memory, 2, "a call of step may take 64 bytes, and takes "),
            (text, 1, "line 2 of the strategy is 'bach 0'"),
            (mesh, 2, "a mesh of data=2 takes 2 ranks, but this job has 3"),
            (over, 1, "takes 7 bytes"),  # the most of all ranks
        ):
            assert said.startswith(why if rank == who else f"rank {who}: {why}")


def test_a_line_of_one_rank_gives_its_own_values_and_gradients_back():
    ranks = Ranks.join(Mesh.of(None), "data", "cpu:0")
    x = ht.tensor(np.arange(6.0).reshape(1, 3, 2), requires_grad=True)
    outputs = [
        *(ranks.all_reduce(x), ranks.all_reduce(x, "avg"), ranks.reduce(x, 0)),
        *(ranks.broadcast(x, 0), ranks.all_gather(x, 1), ranks.reduce_scatter(x, 2)),
        *(ranks.all_to_all(x, 1, 2), ranks.shift(x)),
    ]
    for y in outputs:
        np.testing.assert_array_equal(y.numpy(), x.numpy())
    kept = ranks.all_to_all_v(x, ht.tensor(np.array([2])))
    np.testing.assert_array_equal(kept.numpy(), [[[0, 1], [2, 3], [0, 0]]])
    (sum(y.sum() for y in outputs) + kept.sum()).backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[[9, 9], [9, 9], [8, 8]]])
    with pytest.raises(InvalidCall, match="rank 1 is none of the 1 along 'data'"):
        ranks.send(x, 1)
    ranks.leave()


@pytest.mark.slow
@pytest.mark.turns
def test_a_model_spread_along_two_axes_trains_as_one_process_does(tmp_path):
    """Data parallel along one, parts of its hidden features along the other, with dropout."""
    folder = Folder(tmp_path)
    done = folder.run("-n", 4, "--devices", "cpu:0", Path(grid.__file__))
    assert (done.code, done.err) == (0, [])
    losses, (first, second) = grid.alone()
    half = grid.HIDDEN // 2
    for rank in range(4):
        found = np.load(tmp_path / f"rank{rank}.npz")
        assert found["way"] == "mapped"  # in the memory of the pool, which the ranks share
        own = slice(found["place"] * half, (found["place"] + 1) * half)
        for way in ("False", "True"):
            np.testing.assert_allclose(found[f"{way}.losses"], losses, rtol=2e-6)
            for i, whole in enumerate((first, second)):
                np.testing.assert_allclose(found[f"{way}.{i}"], whole[own], rtol=1e-5, atol=1e-6)
