"""Training steps on a tape: gradients, clipping and optimizers' steps are found again as other
operations are, and give what nodes give, whoever looks at what and when."""

import numpy as np
import pytest
import torch

import stack.framework as ht
from stack.framework import functional, nn, optim
from stack.framework.errors import RangeError
from stack.framework.realize import realize
from tests.draw import sample
from tests.framework.training_programs import check

DATA = np.arange(12, dtype=np.float32).reshape(3, 4) / 10


@pytest.fixture
def model():
    made = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    realize(*made.parameters())
    return made


def is_on_tape(value):
    """Of what was computed from values that are there."""
    return value.recording is not None


@pytest.mark.parametrize("seed", sample("training programs", range(2000), 3))
def test_training_programs_agree_with_torch(seed):
    check(seed)


def test_a_step_on_a_known_path_makes_no_node(engine, model):
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    x, labels = ht.tensor(DATA), ht.tensor([0, 2, 1])
    realize(*optimizer.cells().values(), optimizer.shards[0].flat.cell)
    plans = len(engine.cache)
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), labels)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        known = engine.runs
        points = loss.recording.tape.tree.points
        assert [is_on_tape(t) for t in (loss, norm, optimizer.shards[0].flat.cell)] == [True] * 3
        loss.item()
    assert engine.runs == known + 1, "one plan for all"
    assert len(engine.cache) == plans + 1
    assert is_on_tape(loss), "though its value is there"
    assert loss.recording.tape.tree.points == points


def test_steps_with_batch_norms_stay_on_the_tape_and_give_what_torch_gives(engine):
    weights = np.random.default_rng(0)
    shapes = [(4, 2, 3, 3), (4,), (4,), (4,), (3, 144), (3,)]
    start = [weights.normal(size=s).astype(np.float32) / 3 for s in shapes]
    images, wanted = weights.normal(size=(5, 2, 8, 8)), weights.normal(size=(5, 3))

    def trained(lib):
        n = lib.nn
        grown = (n.Upsample(scale_factor=2), n.AvgPool2d(2), n.Flatten())
        model = n.Sequential(
            n.Conv2d(2, 4, 3), n.BatchNorm2d(4), n.ReLU(), *grown, n.Linear(144, 3)
        )
        with lib.no_grad():
            for p, drawn in zip(model.parameters(), start, strict=True):
                p.copy_(lib.tensor(drawn))
        x, y = (lib.tensor(a.astype(np.float32)) for a in (images, wanted))
        optimizer, losses, taped = lib.optim.SGD(model.parameters(), lr=0.05), [], []
        for _ in range(4):
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            taped.append(lib is ht and is_on_tape(loss) and is_on_tape(model[1].running_var))
            losses.append(loss.item())
        return losses, [t.detach().numpy() for t in model.state_dict().values()], taped

    (ours, state, taped), (theirs, their_state, _) = trained(ht), trained(torch)
    assert taped[2:] == [True, True], "the first steps begin with constants"
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    for a, b in zip(state, their_state, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_what_was_computed_is_differentiated_on_the_next_tape(model):
    x, weight = ht.tensor(DATA), model[0].weight
    for _ in range(2):
        weight.grad = None
        hidden = model(x)
        one, other = hidden.sum(), (hidden * hidden).sum()
        float(hidden[0, 0]), one.item()
        (one + other).backward()
        assert is_on_tape(weight.grad)
    w = [torch.tensor(p.numpy(), requires_grad=True) for p in model.parameters()]
    theirs = torch.tanh(torch.tensor(DATA) @ w[0].T + w[1]) @ w[2].T + w[3]
    (theirs.sum() + (theirs * theirs).sum()).backward()
    np.testing.assert_allclose(weight.grad.numpy(), w[0].grad.numpy(), rtol=1e-4, atol=1e-5)


def test_a_leaf_that_changed_is_another_one_from_then_on():
    w = ht.tensor([2.0, 3.0], requires_grad=True)
    for _ in range(3):
        w.grad = None
        (w * w).sum().backward()
        before = w.numpy().copy()
        with ht.no_grad():
            w -= 0.25 * w.grad
        (w * 3).sum().backward()
        assert is_on_tape(w.grad)
        np.testing.assert_allclose(w.grad.numpy(), 2 * before + 3, rtol=1e-6)
        np.testing.assert_allclose(w.numpy(), before / 2, rtol=1e-6)


def test_labels_are_looked_at_on_known_paths_too(model):
    x = ht.tensor(DATA)
    for _ in range(3):
        functional.cross_entropy(model(x), ht.tensor([[0, 2, 1]]).view(-1)).backward()
    with pytest.raises(RangeError, match=r"index 3 .*\n.*test_taped_training"):
        functional.cross_entropy(model(x), ht.tensor([[0, 3, 1]]).view(-1))


def test_a_hook_sees_what_comes_after_it(model):
    x, seen = ht.tensor(DATA), []
    model(x).sum().backward()
    model[0].weight.register_hook(lambda gradient: seen.append(gradient.shape))
    assert model[0].bias.grad.numpy().shape == (5,)
    assert not seen
    model(x).sum().backward()
    assert seen == [(5, 4)]


def test_a_plan_in_place_leaves_the_history_of_values_alone(model):
    optimizer, x = optim.SGD(model.parameters(), lr=0.5), ht.tensor(DATA)
    realize(optimizer.shards[0].flat.cell)

    @ht.jit
    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    loss = (model(x) ** 2).sum()
    before = loss.item()
    assert is_on_tape(loss)
    step()
    assert loss.item() == before
    assert not is_on_tape(loss)


def test_steps_that_nobody_looks_at_are_computed(engine, model):
    optimizer, x = optim.SGD(model.parameters(), lr=0.01), ht.tensor(DATA)
    for _ in range(20):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    assert engine.runs >= 9


def test_parts_of_a_flat_array_have_no_node_before_somebody_asks(model):
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    flat, weight = optimizer.shards[0].flat, model[0].weight
    before = weight.numpy()
    model(ht.tensor(DATA)).sum().backward()
    optimizer.step()
    assert weight.part is not None
    assert weight.shape == (5, 4)
    gradient = weight.grad.numpy()
    np.testing.assert_allclose(weight.numpy(), before - 0.5 * gradient, rtol=1e-5, atol=1e-6)
    with ht.no_grad():
        weight.zero_()
    optimizer.zero_grad()
    model(ht.tensor(DATA)).sum().backward()
    optimizer.step()
    assert weight.part is not None
    np.testing.assert_allclose(weight.numpy(), -0.5 * weight.grad.numpy(), rtol=1e-5, atol=1e-6)
    assert flat.cell.shape == (flat.layout.size,)


def test_dropout_on_a_tape_drops_what_nodes_drop(model):
    x = ht.ones(64)
    realize(x)

    def drop(x):
        return [functional.dropout(x * 2, 0.3) for _ in range(3)]

    found = []
    for run in (drop, ht.jit(drop), drop):
        ht.manual_seed(4)
        ht.rand(1).item()
        parts = run(x)
        if run is drop:
            assert all(map(is_on_tape, parts))
        found.append(np.stack([t.numpy() for t in parts]))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    assert 0 < (found[0] == 0).mean() < 1
