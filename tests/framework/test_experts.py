"""A mixture of experts against PyTorch, one token after the other."""

import itertools
import math

import numpy as np
import pytest

import stack.framework as ht
from stack.framework import nn, optim
from stack.framework.errors import TensorError
from stack.framework.nn.expert_places import even_order, renumber_experts
from tests.draw import stream

torch = pytest.importorskip("torch")
WIDTH, HIDDEN, EXPERTS = 6, 8, 4
TOKENS = (2, 7, WIDTH)


def alone(layer, given, x):
    """Values, balance, z, load and how many choices are dropped, by loops."""
    like = torch.nn.functional.softmax(x @ given["router.weight"].T, dim=-1)
    G, T, _ = x.shape
    top, chosen = torch.topk(like, layer.choices, dim=-1)
    taking = evenly(chosen) if layer.capacity == "even" else chosen
    top = like.gather(-1, taking)
    weight = top / top.sum(-1, keepdim=True) if layer.choices > 1 else top
    rows = [[torch.zeros(WIDTH) for _ in range(T)] for _ in range(G)]
    load, dropped = torch.zeros(EXPERTS), 0
    for s in range(G):
        free = [T] * EXPERTS
        if layer.capacity == "even":
            free = [layer.choices * T] * EXPERTS
        elif layer.capacity is not None:
            free = [math.ceil(layer.capacity * layer.choices * T / EXPERTS)] * EXPERTS
        for k in range(layer.choices):
            for t in range(T):
                load[int(chosen[s, t, k])] += 1
                e = int(taking[s, t, k])
                if not free[e]:
                    dropped += 1
                    continue
                free[e] -= 1
                hidden = activated(x[s, t] @ given["up"][e])
                rows[s][t] = rows[s][t] + weight[s, t, k] * (hidden @ given["down"][e])
    y = torch.stack([torch.stack(r) for r in rows])
    if "shared_up.weight" in given:
        hidden = activated(x @ given["shared_up.weight"].T)
        y = y + hidden @ given["shared_down.weight"].T
    balance = EXPERTS * (load / load.sum() * like.mean((0, 1))).sum()
    z = (torch.logsumexp(x @ given["router.weight"].T, -1) ** 2).mean()
    return y, balance, z, load, dropped


def evenly(chosen):
    """The expert that takes each choice: receivers accept in order up to what is even, and what is
    left goes to free places in order."""
    taking = chosen.clone()
    G, T, K = chosen.shape
    for s in range(G):
        each, more = divmod(T * K, EXPERTS)
        free = [each + (e < more) for e in range(EXPERTS)]
        queue, left = [(t, k) for k in range(K) for t in range(T)], []
        for t, k in queue:
            e = int(chosen[s, t, k])
            if free[e]:
                free[e] -= 1
            else:
                left.append((t, k))
        for t, k in left:
            e = next(e for e in range(EXPERTS) if free[e])
            free[e] -= 1
            taking[s, t, k] = e
        assert not any(free)
    return taking


def activated(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


DRAW = stream("experts")


@pytest.mark.parametrize("routing", ["drawn", "all on one"])
@pytest.mark.parametrize("capacity", [None, "even", DRAW.choice((0.3, 1.0, 1.25))])
def test_values_and_gradients_are_those_of_token_after_token(capacity, routing):
    choices, shared = DRAW.choice((1, 2, 3)), DRAW.choice((0, 1))
    ht.manual_seed(DRAW.randrange(100))
    layer = nn.MixtureOfExperts(WIDTH, HIDDEN, EXPERTS, choices, capacity, shared)
    x = ht.randn(*TOKENS)
    if routing == "all on one":  # each token's first choice is expert 2
        x = ht.cat([ht.full((*TOKENS[:2], 1), 9.0), x[..., 1:]], dim=-1)
        with ht.no_grad():
            layer.router.weight.copy_(ht.tensor([[0.0], [-0.1], [2.0], [-0.2]]).expand(4, WIDTH))
            layer.router.weight[:, 1:] = 0.0
    x = x.detach().requires_grad_()
    y, routed = layer(x)
    slope = ht.randn(*TOKENS)
    ((y * slope).sum() + routed.balance + routed.z).backward()
    given = {n: torch.tensor(p.numpy(), requires_grad=True) for n, p in layer.named_parameters()}
    of = torch.tensor(x.detach().numpy(), requires_grad=True)
    want, balance, z, load, dropped = alone(layer, given, of)
    ((want * torch.tensor(slope.numpy())).sum() + balance + z).backward()
    close(y, want)
    close(routed.balance, balance)
    close(routed.z, z)
    assert (routed.load.numpy() == load.numpy()).all()
    assert routed.dropped.item() == dropped
    close(x.grad, of.grad)
    for name, p in layer.named_parameters():
        close(p.grad, given[name].grad)
    if routing == "all on one" and choices == 1 and capacity != "even":
        assert routed.load.numpy().tolist() == [0, 0, 14, 0]
        assert not layer.up.grad.numpy()[[0, 1, 3]].any()


def close(found, want):
    np.testing.assert_allclose(found.detach().numpy(), want.detach().numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"choices": 5}, "takes 5 of 4 experts"),
        ({"choices": 0}, "takes 0 of 4"),
        ({"capacity": 0.0}, "capacity is 0.0"),
        ({"capacity": math.nan}, "capacity is nan"),
        ({"capacity": "evenly"}, "capacity is 'evenly'"),
    ],
)
def test_sizes_that_are_no_mixture_are_refused(sizes, said):
    with pytest.raises(TensorError, match=said):
        nn.MixtureOfExperts(WIDTH, HIDDEN, EXPERTS, **sizes)


def test_tokens_come_in_sequences():
    with pytest.raises(TensorError, match=r"takes .sequences, tokens, width., not .7, 6."):
        nn.MixtureOfExperts(WIDTH, HIDDEN, EXPERTS)(ht.zeros(7, WIDTH))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_experts_are_put_together_by_their_load(ranks):
    """As many on each rank, and near the best of all ways to do that."""
    load = [90, 70, 1, 2, 30, 25, 22, 0]
    order, each = even_order(load, ranks), len(load) // ranks
    assert sorted(order) == list(range(8))

    def most(order):
        return max(sum(load[e] for e in order[r * each : (r + 1) * each]) for r in range(ranks))

    assert most(order) <= 1.1 * min(map(most, itertools.permutations(range(8))))
    with pytest.raises(TensorError, match="8 experts cannot be divided among 3 ranks"):
        even_order(load, 3)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("capacity", [None, 0.8])
def test_experts_with_other_numbers_train_as_before(capacity):
    """Losses, and each expert's parameters and states under its new number."""
    order, found = [2, 0, 3, 1], []
    for moves in (False, True):
        ht.manual_seed(5)
        layer = nn.MixtureOfExperts(WIDTH, HIDDEN, EXPERTS, 2, capacity, shared=1)
        optimizers = [
            optim.SGD([layer.up, *layer.shared_up.parameters()], lr=0.1, momentum=0.9),
            optim.AdamW([layer.router.weight, layer.down], lr=1e-2),
        ]
        batches = ht.randn(6, *TOKENS)

        @ht.jit
        def step(x, layer=layer, optimizers=optimizers):
            for optimizer in optimizers:
                optimizer.zero_grad()
            y, routed = layer(x)
            loss = (y - x).square().mean() + 0.01 * routed.balance + 0.001 * routed.z
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            return loss

        losses = []
        for i, x in enumerate(batches):
            if moves and i == 3:
                renumber_experts(layer, order, *optimizers)
            losses.append(step(x).item())
        values = [layer.router.weight, layer.up, layer.down]
        states = [s for o in optimizers for s in o.state_dict()["state"].values()]
        kept = [states[0]["momentum_buffer"], states[3]["exp_avg"], states[3]["exp_avg_sq"]]
        found.append((losses, [t.numpy() for t in (*values, *kept)]))
    (losses, values), (others, moved) = found
    np.testing.assert_allclose(others, losses, rtol=1e-5)
    for value, other in zip(values, moved, strict=True):
        np.testing.assert_allclose(other, value[order], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("order", "capacity", "said"),
    [([0, 1, 2, 2], 1.0, "is no order of 4 experts"), ([1, 0, 2, 3], "even", "need no other")],
)
def test_numbers_that_experts_cannot_have_are_refused(order, capacity, said):
    layer = nn.MixtureOfExperts(WIDTH, HIDDEN, EXPERTS, 2, capacity)
    with pytest.raises(TensorError, match=said):
        renumber_experts(layer, order)
