"""Optimizers take torch's steps."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import stack.framework as ht
from stack import ops as g
from stack.framework import nn, optim
from stack.framework.flat import FlatLayout
from tests.draw import stream

CASES = {
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd_decay": ("SGD", {"lr": 0.1, "weight_decay": 0.1}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    "adamw": ("AdamW", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6}),
    "adamw_defaults": ("AdamW", {}),
    "dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}),
    "amsgrad": ("Adam", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    "adamax": ("Adamax", {"lr": 0.01, "weight_decay": 0.1}),
    "radam": ("RAdam", {"lr": 0.01, "betas": (0.8, 0.9)}),
    "nadam": ("NAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adagrad": ("Adagrad", {"lr": 0.1, "lr_decay": 0.2, "initial_accumulator_value": 0.1}),
    "adadelta": ("Adadelta", {"weight_decay": 0.1}),
    "rmsprop": ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True}),
    "rprop": ("Rprop", {}),
}
COUNTING = ["dampening", "adam", "amsgrad", "adamax", "radam", "nadam", "adagrad", "rprop"]
"""Those whose steps are of another size at first."""
SHAPES = [(3, 5), (7,), (), (16, 2)]


def twins(draw_floats):
    arrays = draw_floats(*SHAPES)
    mine = [nn.Parameter(ht.tensor(a)) for a in arrays]
    return mine, [torch.nn.Parameter(torch.tensor(a)) for a in arrays]


def set_gradients(mine, theirs, step, missing=()):
    generator = np.random.default_rng(step)
    for i, (p, q) in enumerate(zip(mine, theirs, strict=True)):
        d = generator.normal(size=p.shape).astype(np.float32)
        p.grad = None if i in missing else ht.tensor(d)
        q.grad = None if i in missing else torch.tensor(d)


def same(mine, theirs, rtol=1e-5, atol=1e-6):
    for p, q in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", CASES)
def test_ten_steps(name, draw_floats):
    kind, settings = CASES[name]
    mine, theirs = twins(draw_floats)
    ours, peer = (
        getattr(optim, kind)(mine, **settings),
        getattr(torch.optim, kind)(theirs, **settings),
    )
    for step in range(10):
        set_gradients(mine, theirs, step)
        ours.step(), peer.step()
    same(mine, theirs)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_groups_have_settings_of_their_own(kind, draw_floats):
    mine, theirs = twins(draw_floats)
    extra = (
        {"momentum": 0.5, "nesterov": True} if kind == "SGD" else {"betas": (0.5, 0.7), "eps": 1e-3}
    )

    def groups(p):
        return [
            {"params": p[:2], "weight_decay": 0.3},
            {"params": p[2:3], "lr": 0.2, **extra},
            {"params": p[3:]},
        ]

    ours = getattr(optim, kind)(groups(mine), lr=0.05, weight_decay=0.0)
    peer = getattr(torch.optim, kind)(groups(theirs), lr=0.05, weight_decay=0.0)
    for step in range(5):
        set_gradients(mine, theirs, step)
        ours.step(), peer.step()
    same(mine, theirs)


def test_parameters_without_a_gradient_stay(draw_floats):
    mine, theirs = twins(draw_floats)
    ours, peer = optim.AdamW(mine), torch.optim.AdamW(theirs)
    for step in range(4):
        set_gradients(mine, theirs, step, missing={1})
        ours.step(), peer.step()
    same(mine, theirs)
    before = [p.numpy() for p in mine]
    ours.zero_grad()
    ours.step()
    for p, q in zip(mine, before, strict=True):
        np.testing.assert_array_equal(p.numpy(), q)


def missing_by_chance(name, steps=7):
    """For each step the parameters that have no gradient."""
    draw = stream(f"gradients of {name}")
    return [{i for i in range(len(SHAPES)) if draw.random() < 0.5} for _ in range(steps)]


def same_counts(ours, peer, mine, theirs):
    for p, q in zip(mine, theirs, strict=True):
        expected = peer.state[q].get("step", 0) if peer.state[q] else 0
        assert ours.state[p]["step"].item() == float(expected)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", COUNTING)
def test_each_parameter_counts_its_own_steps(name, jitted, draw_floats):
    kind, settings = CASES[name]
    mine, theirs = twins(draw_floats)

    def made(space, params):
        parts = params[:2], params[2:3], params[3:]
        groups = [{"params": p, "lr": 0.01 * (k + 1)} for k, p in enumerate(parts)]
        return getattr(space, kind)(groups, **settings)

    ours, peer = made(optim, mine), made(torch.optim, theirs)

    @ht.jit
    def step(gradients):
        for p, d in zip(mine, gradients, strict=True):
            p.grad = d
        ours.step()

    for number, missing in enumerate(missing_by_chance(name)):
        set_gradients(mine, theirs, number, missing)
        step([p.grad for p in mine]) if jitted else ours.step()
        peer.step()
    same(mine, theirs)
    if kind != "SGD":
        same_counts(ours, peer, mine, theirs)


def test_parameters_that_thaw_begin_to_count_then(draw_floats):
    mine, theirs = twins(draw_floats)
    ours, peer = optim.Adam(mine, lr=0.1), torch.optim.Adam(theirs, lr=0.1)
    for step in range(6):
        set_gradients(mine, theirs, step, missing={0, 2} if step < 2 else {3} if step < 4 else ())
        ours.step(), peer.step()
        same_counts(ours, peer, mine, theirs)
    same(mine, theirs)


def test_frozen_parameters_leave_one_count_to_the_others(draw_floats, engine):
    mine, theirs = twins(draw_floats)
    ours, peer = optim.Adam(mine, lr=0.1), torch.optim.Adam(theirs, lr=0.1)
    for step in range(3):
        set_gradients(mine, theirs, step, missing={0, 2})
        ours.step(), peer.step()
    same(mine, theirs)
    same_counts(ours, peer, mine, theirs)
    assert ours.shards[0].together == (False, True, False, True)


@pytest.mark.parametrize("through", ["state_dict", "deepcopy", "torch"])
def test_counts_that_differ_are_copied(through, draw_floats):
    mine, theirs = twins(draw_floats)
    ours, peer = optim.NAdam(mine, lr=0.1), torch.optim.NAdam(theirs, lr=0.1)
    for step, missing in enumerate([{1, 2}, {1}, {0, 1}]):
        set_gradients(mine, theirs, step, missing)
        ours.step(), peer.step()
    if through == "deepcopy":
        mine, ours = copy.deepcopy((mine, ours))
    else:
        state = ours.state_dict()
        if through == "torch":
            state = peer.state_dict()
            state["state"] = {
                i: {k: ht.tensor(v.numpy()) for k, v in s.items()}
                for i, s in state["state"].items()
            }
        ours = optim.NAdam(mine, lr=0.1)
        ours.load_state_dict(state)
    same_counts(ours, peer, mine, theirs)
    for step in range(3, 6):
        set_gradients(mine, theirs, step, {2} if step == 4 else ())
        ours.step(), peer.step()
    same(mine, theirs)


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "Adamax", "RAdam", "NAdam"])
def test_who_goes_on_from_a_state_goes_on_to_the_bit(kind, draw_floats):
    """Corrections that were kept by a recurrence differed from those of the count in a last bit."""
    mine, theirs = twins(draw_floats)
    ours = getattr(optim, kind)(mine, lr=0.01)
    for step in range(40):
        with ht.no_grad():
            other = [ht.tensor(p.numpy()).requires_grad_() for p in mine]
        again = getattr(optim, kind)(other, lr=0.01)
        again.load_state_dict(ours.state_dict())
        missing = {1} if 20 <= step < 23 else ()
        set_gradients(mine, theirs, step, missing), set_gradients(other, theirs, step, missing)
        ours.step(), again.step()
        for p, q in zip(mine, other, strict=True):
            np.testing.assert_array_equal(p.numpy(), q.numpy(), err_msg=f"step {step + 1}")


@pytest.mark.parametrize("history", [2, 100])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_finds_the_same_way_down(search, history):
    """Rosenbrock's valley: the search has to grow, to bracket and to come nearer."""
    begin = np.array([-1.5, 1.5, -0.7, 0.3], np.float64)
    settings = {"lr": 0.002 if search is None else 1.0, "max_iter": 6, "history_size": history}
    ways = []
    for space in (ht, torch):
        p = space.nn.Parameter(space.tensor(begin))
        optimizer = space.optim.LBFGS([p], line_search_fn=search, **settings)

        def closure(p=p, optimizer=optimizer):
            optimizer.zero_grad()
            x, y = p[:2], p[2:]
            loss = (100 * (y - x * x) ** 2 + (1 - x) ** 2).sum()
            loss.backward()
            return loss

        ways.append([(optimizer.step(closure).item(), p.tolist()) for _ in range(4)])
    for (loss, place), (expected, there) in zip(*ways, strict=True):
        np.testing.assert_allclose(loss, expected, rtol=1e-6)
        np.testing.assert_allclose(place, there, rtol=1e-6)
    assert search is None or ways[0][-1][0] < 1
    with pytest.raises(ValueError, match="not 'armijo'"):
        optim.LBFGS([nn.Parameter(ht.zeros(1))], line_search_fn="armijo")


def test_a_group_that_is_added_later_begins_anew(draw_floats):
    mine, theirs = twins(draw_floats)
    ours, peer = optim.Adam(mine[:2], lr=0.1), torch.optim.Adam(theirs[:2], lr=0.1)

    @ht.jit
    def jitted(gradients):
        for p, d in zip(mine, gradients, strict=True):
            p.grad = d
        ours.step()

    for step in range(4):
        if step == 2:
            ours.add_param_group({"params": mine[2:], "lr": 0.05})
            peer.add_param_group({"params": theirs[2:], "lr": 0.05})
        set_gradients(mine, theirs, step)
        jitted([p.grad for p in mine]), peer.step()
    same(mine, theirs)
    assert ours.state[mine[2]]["step"].item() == 2
    with pytest.raises(ht.TensorError, match="given twice"):
        ours.add_param_group({"params": mine[0]})


def test_a_closure_computes_the_loss(draw_floats):
    (a,) = draw_floats((3,))
    p = nn.Parameter(ht.tensor(a))
    optimizer = optim.SGD([p], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with ht.no_grad():
        loss = optimizer.step(closure)
    np.testing.assert_allclose(loss.item(), (a * a).sum(), rtol=1e-6)
    np.testing.assert_allclose(p.detach().numpy(), 0, atol=1e-7)


def test_groups_may_hold_what_a_script_needs():
    p = nn.Parameter(ht.zeros(1))
    optimizer = optim.SGD([{"params": [p], "name": "head", "lr_scale": 2}])
    assert (optimizer.param_groups[0]["name"], optimizer.param_groups[0]["lr_scale"]) == ("head", 2)


def test_element_types_have_arrays_of_their_own(draw_floats):
    a, b = draw_floats((4,), (4,))
    mine = [nn.Parameter(ht.tensor(a)), nn.Parameter(ht.tensor(b, dtype=ht.float64))]
    theirs = [torch.nn.Parameter(torch.tensor(a)), torch.nn.Parameter(torch.tensor(b).double())]
    ours, peer = optim.AdamW(mine, lr=0.1), torch.optim.AdamW(theirs, lr=0.1)
    for _ in range(3):
        for p, q in zip(mine, theirs, strict=True):
            p.grad, q.grad = ht.ones_like(p), torch.ones_like(q)
        ours.step(), peer.step()
    same(mine, theirs)
    assert mine[1].dtype is ht.float64


def test_a_long_run_keeps_its_bias_corrections(draw_floats):
    (a,) = draw_floats((3,))
    p, q = nn.Parameter(ht.tensor(a)), torch.nn.Parameter(torch.tensor(a))
    ours, peer = optim.Adam([p], lr=1e-3), torch.optim.Adam([q], lr=1e-3)

    @ht.jit
    def step(d):
        p.grad = d
        ours.step()

    for i in range(300):
        d = np.float32(np.cos(i)) * np.ones(3, np.float32)
        q.grad = torch.tensor(d)
        step(d), peer.step()
    same([p], [q], rtol=1e-4)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_state_goes_to_and_comes_from_torch(kind, draw_floats):
    settings = {"lr": 0.1, "momentum": 0.9} if kind == "SGD" else {"lr": 0.1}
    mine, theirs = twins(draw_floats)
    ours, peer = (
        getattr(optim, kind)(mine, **settings),
        getattr(torch.optim, kind)(theirs, **settings),
    )
    for step in range(3):
        set_gradients(mine, theirs, step)
        peer.step()
    for p, q in zip(mine, theirs, strict=True):
        with ht.no_grad():
            p.copy_(ht.tensor(q.detach().numpy()))
    state = peer.state_dict()
    plain = {
        i: {k: v if k == "step" else ht.tensor(v.numpy()) for k, v in s.items() if v is not None}
        for i, s in state["state"].items()
    }
    if kind == "SGD":
        plain = {i: {**s, "step": 3} for i, s in plain.items()}
    groups = [
        {k: v for k, v in gr.items() if k in ours.param_groups[0]} for gr in state["param_groups"]
    ]
    ours.load_state_dict({"state": plain, "param_groups": groups})
    for step in range(3, 6):
        set_gradients(mine, theirs, step)
        ours.step(), peer.step()
    same(mine, theirs)
    back = ours.state_dict()
    for i, s in peer.state_dict()["state"].items():
        for name, value in s.items():
            np.testing.assert_allclose(back["state"][i][name].numpy(), value, rtol=1e-5, atol=1e-6)


def test_a_state_of_other_parameters_is_refused(draw_floats):
    mine, _ = twins(draw_floats)
    ours = optim.Adam(mine)
    state = ours.state_dict()
    with pytest.raises(ht.CheckpointError, match=r"groups of \[3\] parameters, the state of \[4\]"):
        optim.Adam(mine[:3]).load_state_dict(state)
    state["state"][1]["exp_avg"] = ht.zeros(8)
    with pytest.raises(
        ht.CheckpointError, match=r"exp_avg of parameter 1 has shape \[8\], not \[7\]"
    ):
        optim.Adam(mine).load_state_dict(state)


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_clipping(owned, max_norm, draw_floats):
    mine, theirs = twins(draw_floats)
    if owned:
        optimizer = optim.SGD(mine[::-1], lr=0.1)
        peer = torch.optim.SGD(theirs, lr=0.1)
    set_gradients(mine, theirs, 0)
    norm = nn.utils.clip_grad_norm_(mine, max_norm)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    np.testing.assert_allclose(norm.item(), expected.item(), rtol=1e-5)
    same([p.grad for p in mine], [q.grad for q in theirs])
    if owned:
        optimizer.step(), peer.step()
        same(mine, theirs)


def test_clipped_gradients_reach_the_update_without_being_split(draw_floats):
    mine, theirs = twins(draw_floats)
    optimizer = optim.SGD(mine, lr=1.0)
    set_gradients(mine, theirs, 0)
    nn.clip_grad_norm_(mine, 1.0)
    (shard,) = optimizer.shards
    flat, active = shard.gradient()
    assert all(active)
    assert flat.op == "mul"  # the scaled flat gradient itself, no concat of its parts


def test_one_request_updates_all_parameters(draw_floats, engine):
    mine, theirs = twins(draw_floats)
    optimizer = optim.AdamW(mine)
    set_gradients(mine, theirs, 0)
    optimizer.step()
    ht.realize(*mine)
    engine.nodes_run.clear()
    set_gradients(mine, theirs, 1)
    optimizer.step()
    ht.realize(*mine)
    # flat parameters, two moments and the step count
    assert engine.nodes_run == [4]


def test_a_captured_step_leaves_parameters_parts_of_one_array(draw_floats):
    """Else every call would look for them in it anew, one after the other."""
    mine, _ = twins(draw_floats)
    optimizer = optim.SGD(mine, lr=0.1)

    @ht.jit
    def step():
        optimizer.zero_grad()
        sum(p.square().sum() for p in mine).backward()
        optimizer.step()

    for _ in range(2):
        step()
    (shard,) = optimizer.shards
    assert {p.part.whole for p in mine} == {shard.flat.cell}


def warmed(s, o):
    return s.LinearLR(o, 0.5, total_iters=2)


SCHEDULES = {
    "lambda": lambda s, o: s.LambdaLR(o, lambda n: 0.9**n),
    "multiplicative": lambda s, o: s.MultiplicativeLR(o, lambda n: 1 - n / 10),
    "linear": lambda s, o: s.LinearLR(o, 0.1, 1.0, 4),
    "constant": lambda s, o: s.ConstantLR(o, 0.3, 3),
    "steps": lambda s, o: s.StepLR(o, 2, 0.5),
    "milestones": lambda s, o: s.MultiStepLR(o, [1, 3, 3], 0.5),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.7),
    "polynomial": lambda s, o: s.PolynomialLR(o, 4, 2.0),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, 5, 0.01),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 2, 2, 0.01),
    "one_cycle": lambda s, o: s.OneCycleLR(o, 1.0, 7, cycle_momentum=False, three_phase=True),
    "cycle": lambda s, o: s.CyclicLR(o, 0.1, 1.0, 2, 3, "triangular2", cycle_momentum=False),
    "sequence": lambda s, o: s.SequentialLR(o, [warmed(s, o), s.ExponentialLR(o, 0.5)], [3]),
    "chain": lambda s, o: s.ChainedScheduler([warmed(s, o), s.ExponentialLR(o, 0.5)]),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name, draw_floats):
    mine, theirs = twins(draw_floats)
    ours, peer = optim.SGD(mine, lr=0.1), torch.optim.SGD(theirs, lr=0.1)
    make = SCHEDULES[name]
    schedules = make(optim.lr_scheduler, ours), make(torch.optim.lr_scheduler, peer)
    for step in range(7):
        np.testing.assert_allclose(
            schedules[0].get_last_lr(), schedules[1].get_last_lr(), rtol=1e-9
        )
        set_gradients(mine, theirs, step)
        ours.step(), peer.step()
        if step < 6:
            schedules[0].step(), schedules[1].step()
    same(mine, theirs)


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("name", ["OneCycleLR", "CyclicLR"])
def test_cycles_of_rate_and_momentum(kind, name, draw_floats):
    mine, theirs = twins(draw_floats)
    extra = {"momentum": 0.9} if kind == "SGD" else {}
    ours = getattr(optim, kind)(mine, lr=0.1, **extra)
    peer = getattr(torch.optim, kind)(theirs, lr=0.1, **extra)
    options = {"total_steps": 6} if name == "OneCycleLR" else {"base_lr": 0.01, "step_size_up": 2}
    schedules = [
        getattr(o.lr_scheduler, name)(each, max_lr=0.3, **options)
        for o, each in ((optim, ours), (torch.optim, peer))
    ]
    for step in range(7):
        set_gradients(mine, theirs, step)
        ours.step(), peer.step()
        same(mine, theirs, rtol=1e-4, atol=1e-5)
        if step < 6:  # once more than there are rates, as loops do that step behind each batch
            schedules[0].step(), schedules[1].step()
            key = "momentum" if kind == "SGD" else "betas"
            a, b = (np.ravel(o.param_groups[0][key]) for o in (ours, peer))
            np.testing.assert_allclose(a, b, rtol=1e-9)


def test_a_plateau_lowers_the_rate():
    p, q = nn.Parameter(ht.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    settings = {"factor": 0.5, "patience": 1, "cooldown": 1}
    ours = optim.lr_scheduler.ReduceLROnPlateau(optim.SGD([p], lr=1.0), **settings)
    peer = torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD([q], lr=1.0), **settings)
    for metric in [5, 4, 4, 4, 4, 4, 4, 4, 3, 3, 3, 3]:
        ours.step(metric), peer.step(metric)
        assert ours.get_last_lr() == peer.get_last_lr()


def test_warm_up_then_cosine():
    p = nn.Parameter(ht.zeros(1))
    schedule = optim.lr_scheduler.WarmupCosineLR(optim.SGD([p], lr=1.0), 2, 6, 0.2)
    rates = []
    for _ in range(8):
        rates.append(schedule.get_last_lr()[0])
        schedule.step()
    down = [0.2 + 0.8 * (1 + np.cos(np.pi * k / 4)) / 2 for k in range(5)]
    np.testing.assert_allclose(rates, [0.5, 1.0, *down, 0.2])


def test_a_tensor_may_be_the_learning_rate():
    p, rate = nn.Parameter(ht.zeros(1)), ht.tensor(1.0)
    optimizer = optim.SGD([p], lr=rate)

    @ht.jit
    def step():
        p.grad = ht.ones(1)
        optimizer.step()

    step()
    rate.fill_(10.0)
    step()
    assert p.item() == -11


def test_two_optimizers_may_share_a_parameter():
    p = nn.Parameter(ht.zeros(2))
    a, b = optim.SGD([p], lr=1.0), optim.SGD([p], lr=10.0)

    @ht.jit
    def step():
        p.grad = ht.ones(2)
        a.step()
        b.step()

    step()
    step()
    assert p.tolist() == [-22, -22]


def test_bad_parameters_are_refused():
    p = nn.Parameter(ht.zeros(1))
    for bad, message in [
        ([], "needs parameters, got none"),
        ([p, p], "given twice"),
        ([p * 2], "only float leaves"),
        ([{"params": [p], "lrr": 1}], r"unknown settings \['lrr'\]"),
    ]:
        with pytest.raises(ht.TensorError, match=message):
            optim.SGD(bad)
    with pytest.raises(ht.TracingError, match="an optimizer was made while"):
        ht.jit(lambda: optim.SGD([p]) and None)()


@given(st.lists(st.lists(st.integers(0, 20), max_size=2).map(tuple), min_size=1, max_size=5))
def test_splitting_and_joining_are_inverse(shapes):
    layout = FlatLayout.of(shapes)
    flat = g.input(0, g.full((layout.size,), 0, ht.float32).type)
    assert layout.join(layout.split(flat)) is flat
    assert all(start % 16 == 0 for start in layout.starts)
    parts = [g.full(s, i, ht.float32) for i, s in enumerate(shapes)]
    assert layout.join(parts).shape == (layout.size,)


def averaged(t, seed):
    """A model's averages and rates over a few steps."""
    draw = np.random.default_rng(seed)
    model = t.nn.Sequential(t.nn.Linear(3, 2), t.nn.BatchNorm1d(2))
    state = {k: t.tensor(draw.normal(size=tuple(p.shape)).astype(np.float32) ** 2)
             for k, p in model.named_parameters()}  # fmt: skip
    model.load_state_dict(state, strict=False)
    swa = t.optim.swa_utils
    optimizer = t.optim.SGD(model.parameters(), lr=0.1)
    averages = [
        swa.AveragedModel(model),
        swa.AveragedModel(model, avg_fn=swa.get_ema_avg_fn(0.9)),
        swa.AveragedModel(model, multi_avg_fn=swa.get_ema_multi_avg_fn(0.8), use_buffers=True),
    ]
    schedule = swa.SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
    x, rates = t.tensor(draw.normal(size=(8, 3)).astype(np.float32)), []
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        optimizer.step()
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
        for average in averages:
            average.update_parameters(model)
    swa.update_bn([[x[:4]], [x[4:]]], averages[0])
    tensors = [v for a in averages for _, v in sorted(a.state_dict().items())]
    return rates, [v.detach().numpy() for v in tensors]


def test_averages_of_models_are_pytorchs():
    (rates, mine), (peer_rates, theirs) = averaged(ht, 5), averaged(torch, 5)
    np.testing.assert_allclose(rates, peer_rates)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


def own_optimizers(t):
    """As users write them for PyTorch: one with a state, one around another."""

    class Lion(t.optim.Optimizer):
        def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1):
            super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

        @t.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    p.data.mul_(1 - group["lr"] * group["weight_decay"])
                    state = self.state[p]
                    if len(state) == 0:
                        state["step"], state["exp_avg"] = 0, t.zeros_like(p)
                    state["step"] += 1
                    mean, (first, second) = state["exp_avg"], group["betas"]
                    update = mean.clone().mul_(first).add(p.grad, alpha=1 - first).sign_()
                    p.add_(update, alpha=-group["lr"])
                    mean.mul_(second).add_(p.grad, alpha=1 - second)

    class Twice(t.optim.Optimizer):
        def __init__(self, params, base, rho=0.05, **settings):
            super().__init__(params, {"rho": rho, **settings})
            self.base = base(self.param_groups, **settings)
            self.param_groups = self.base.param_groups

        @t.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        self.state[p]["before"] = p.data.clone()
                        p.add_(p.grad * group["rho"])
                        p.data = self.state[p]["before"]
            self.base.step()

    return Lion, Twice


def test_users_write_optimizers_of_their_own(draw_floats):
    mine, theirs = twins(draw_floats)
    pairs = []
    for t, params in ((ht, mine), (torch, theirs)):
        lion, twice = own_optimizers(t)
        first = lion([{"params": params[:2]}, {"params": params[2], "lr": 0.1}])
        pairs.append((first, twice(params[3:], t.optim.SGD, lr=0.1, momentum=0.9), lion))
    rates = [
        t.optim.lr_scheduler.StepLR(first, 2)
        for t, (first, *_) in zip((ht, torch), pairs, strict=True)
    ]
    for step in range(5):
        set_gradients(mine, theirs, step, missing={1} if step < 2 else ())
        for (first, second, _), rate in zip(pairs, rates, strict=True):
            first.step(), second.step(), rate.step()
        if step == 2:
            for i, (first, second, lion) in enumerate(pairs):
                again = lion([{"params": g["params"]} for g in first.param_groups])
                again.load_state_dict(first.state_dict())
                pairs[i], rates[i].optimizer = (again, second, lion), again
    same(mine, theirs)
    assert pairs[0][0].state[mine[1]]["step"] == pairs[1][0].state[theirs[1]]["step"] == 3
    assert set(pairs[0][0].state_dict()["state"]) == {0, 1, 2}
    with pytest.raises(NotImplementedError, match="Bare defines neither step nor update"):
        type("Bare", (optim.Optimizer,), {})(mine, {}).step()
