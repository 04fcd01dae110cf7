"""Data parallelism between processes that `hal run` starts, against one process."""

import json
from pathlib import Path

import numpy as np
import pytest

import stack.framework as ht
from tests.launch.running import Folder
from tests.parallel import rank

pytestmark = pytest.mark.slow
SCRIPT = Path(rank.__file__)


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """The folder of two ranks that have done their work, and what each one said; it has what one
    process does, too, which goes first, so that the ranks find its kernels compiled."""
    folder = Folder(tmp_path_factory.mktemp("ranks"))
    rank.train(rank.gpt(), folder.path / "halves.npz", 2)
    rank.train(rank.gpt(), folder.path / "at_once.npz", 1)
    rank.train(rank.Pairs(), folder.path / "whole.npz", 2)
    done = folder.run("-n", 2, "--devices", "cpu:0", SCRIPT, "work")
    assert (done.code, done.err) == (0, [])
    return folder.path, [json.loads(line.partition("] ")[2]) for line in done.out]


def loaded(path):
    with np.load(path) as found:
        return dict(found)


def distance(a, b):
    """The norm of the difference of two arrays, relative to that of the first."""
    return np.linalg.norm(a.astype(np.float64) - b) / np.linalg.norm(a.astype(np.float64))


@pytest.mark.turns("data on ranks")
def test_ranks_compute_bit_for_bit_what_one_does_in_as_many_parts(worked):
    ranks, halves = loaded(worked[0] / "plain.npz"), loaded(worked[0] / "halves.npz")
    assert len(halves) > rank.STEPS * 15
    for name, value in halves.items():
        np.testing.assert_array_equal(ranks[name], value, name)


@pytest.mark.turns("data on ranks")
def test_ranks_compute_what_one_does_with_the_whole_batch_at_once(worked):
    ranks, at_once = loaded(worked[0] / "plain.npz"), loaded(worked[0] / "at_once.npz")
    for name, value in at_once.items():
        if name[0].isdigit():  # a loss, a norm, a gradient; Adam moves keys' biases by roundings
            assert distance(value, ranks[name]) < 1e-6, name
    weights = [name for name in at_once if at_once[name].ndim == 2 and name.startswith("0.")]
    assert sum((at_once[name] == ranks[name]).all() for name in weights) >= len(weights) / 2


@pytest.mark.turns("data on ranks")
def test_dropout_and_parts_of_a_batch_are_those_of_one_process(worked):
    ranks, whole = loaded(worked[0] / "dropout.npz"), loaded(worked[0] / "whole.npz")
    for name, value in whole.items():
        exact = name.startswith("0.")  # later gradients are of parameters that Adam has moved
        assert distance(value, ranks[name]) < (1e-6 if exact else 1e-4), name


@pytest.mark.turns("data on ranks")
def test_gradients_and_values_are_shared_without_a_plan_too(worked):
    (_, first, flags, _), (_, *second, _) = worked[1]
    assert second == [first, flags]
    bias_gradient, weight_gradient, weight, mean = map(np.array, first)
    assert flags == [True, False]
    np.testing.assert_array_equal(mean, [[1.5] * 3])
    np.testing.assert_allclose(bias_gradient, weight.sum(0), rtol=1e-6)
    assert weight_gradient.shape == weight.shape


@pytest.mark.turns("data on ranks")
def test_any_order_of_models_looks_and_exchanges_gives_what_one_process_does(worked):
    (values, first, ways), (others, second, same) = (unusual for *_, unusual in worked[1])
    assert values == others == [[1.5, 1.5], [0.5], [5.0]]
    assert ways == same == list(range(9))
    ht.manual_seed(9)
    for one, other in zip(first, second, strict=True):
        assert one + other == ht.rand(4).tolist()


@pytest.mark.turns("data on ranks")
def test_what_cannot_be_is_refused_on_every_rank(worked):
    for number, (refused, *_) in enumerate(worked[1]):
        assert "rank 0 has token.weight: float32[32, 16] where rank 1 has" in refused["width"]
        assert "float32[32, 32]; build the same model on all ranks" in refused["width"]
        assert "float32[32, 16], not learned where rank 1 has" in refused["fixed"]
        assert "3 rows cannot be divided by 2 ranks; take a multiple of 2" in refused["rows"]
        assert refused["whole"] == "mean takes floats, not int64; pass x.float()"
        assert "gradients of 0.weight to 1.bias" in refused["absent"]
        for uneven in (refused["uneven"], refused["planned"]):
            assert f"gradients of weight to bias from {8 + 4 * number} rows" in uneven
    assert any("none for 1.weight, 1.bias)" in refused["absent"] for refused, *_ in worked[1])


@pytest.mark.turns("data on ranks")
def test_captured_steps_that_begin_exchanges_in_two_orders_end_in_both_names(worked):
    """Else each rank would get one exchange's values for the other's, and nobody would know."""
    for refused, *_ in worked[1]:
        assert "mean of float32[3]: exchange 0 of 'step'" in refused["swapped"]
        assert "mean of float32[3]: exchange 1 of 'step'" in refused["swapped"]


def test_a_rank_that_is_killed_within_a_step_is_named_at_once(tmp_path):
    done = Folder(tmp_path).run("-n", 2, "--devices", "cpu:0", SCRIPT, "die")
    assert done.code == 128 + 9
    error, after = sorted(done.out)
    assert error.startswith("[0] OperationFailed cpu:0: peer-lost in all-reduce of ")
    assert error.endswith("the process of rank 1 has ended (1,)")
    assert after == "[0] goes on with 3.0"
