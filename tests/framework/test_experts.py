"""A mixture of experts against PyTorch, one token after the other."""

import math

import numpy as np
import pytest

import stack.framework as ht
from stack.framework import nn
from stack.framework.errors import TensorError
from tests.draw import stream

torch = pytest.importorskip("torch")
WIDTH, HIDDEN, EXPERTS = 6, 8, 4
TOKENS = (2, 7, WIDTH)


def alone(layer, given, x):
    """Values, balance, z, load and how many choices are dropped, by loops."""
    like = torch.nn.functional.softmax(x @ given["router.weight"].T, dim=-1)
    G, T, _ = x.shape
    top, chosen = torch.topk(like, layer.choices, dim=-1)
    weight = top / top.sum(-1, keepdim=True) if layer.choices > 1 else top
    rows = [[torch.zeros(WIDTH) for _ in range(T)] for _ in range(G)]
    load, dropped = torch.zeros(EXPERTS), 0
    for s in range(G):
        free = [T] * EXPERTS
        if layer.capacity is not None:
            free = [math.ceil(layer.capacity * layer.choices * T / EXPERTS)] * EXPERTS
        for k in range(layer.choices):
            for t in range(T):
                e = int(chosen[s, t, k])
                load[e] += 1
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


def activated(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


DRAW = stream("experts")


@pytest.mark.parametrize("routing", ["drawn", "all on one"])
@pytest.mark.parametrize("capacity", [None, DRAW.choice((0.3, 1.0, 1.25))])
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
    if routing == "all on one" and choices == 1:
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
    ],
)
def test_sizes_that_are_no_mixture_are_refused(sizes, said):
    with pytest.raises(TensorError, match=said):
        nn.MixtureOfExperts(WIDTH, HIDDEN, EXPERTS, **sizes)


def test_tokens_come_in_sequences():
    with pytest.raises(TensorError, match=r"takes .sequences, tokens, width., not .7, 6."):
        nn.MixtureOfExperts(WIDTH, HIDDEN, EXPERTS)(ht.zeros(7, WIDTH))
