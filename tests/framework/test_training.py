"""Whole trainings follow torch's: same weights, same batches, same losses."""

import numpy as np
import pytest
import torch

import stack.framework as ht
import stack.framework.functional as F
from stack.framework import nn, optim


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        # A bias of keys has no effect on softmax, so that its gradient is rounding noise.
        self.attn = nn.CausalSelfAttention(width, heads, bias=False)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, width, heads, layers, time):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(time, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        h = self.wte(x) + self.wpe(ht.arange(x.shape[1]))
        return self.head(self.ln(self.blocks(h)))


class PeerAttention(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.proj = torch.nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class PeerBlock(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1 = torch.nn.LayerNorm(width)
        self.attn = PeerAttention(width, heads)
        self.ln2 = torch.nn.LayerNorm(width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class PeerGPT(torch.nn.Module):
    def __init__(self, vocabulary, width, heads, layers, time):
        super().__init__()
        self.wte = torch.nn.Embedding(vocabulary, width)
        self.wpe = torch.nn.Embedding(time, width)
        self.blocks = torch.nn.Sequential(*[PeerBlock(width, heads) for _ in range(layers)])
        self.ln = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        return self.head(self.ln(self.blocks(h)))


SIZES = {"vocabulary": 19, "width": 16, "heads": 2, "layers": 2, "time": 8}


def batches(n):
    generator = np.random.default_rng(0)
    start = generator.integers(0, 19, (n, 4, 1))
    steps = start + 3 * np.arange(9)
    return [(s[:, :-1] % 19, s[:, 1:] % 19) for s in steps]


def twins():
    torch.manual_seed(0)
    theirs = PeerGPT(**SIZES)
    ours = GPT(**SIZES)
    ours.load_state_dict({k: ht.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    return ours, theirs


def train_ours(model, steps, half):
    optimizer = optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    @ht.jit
    def step(x, y):
        optimizer.zero_grad()
        with ht.autocast(ht.bfloat16 if half else None):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        nn.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    losses = []
    for x, y in batches(steps):
        losses.append(step(x, y).item())
        schedule.step()
    assert step.traced == 1
    return losses


def train_theirs(model, steps, half):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for x, y in batches(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            scores = model(torch.tensor(x))
            loss = torch.nn.functional.cross_entropy(
                scores.flatten(0, 1), torch.tensor(y).flatten()
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("half", [False, True])
def test_a_small_gpt(half):
    ours, theirs = twins()
    mine, peer = train_ours(ours, 20, half), train_theirs(theirs, 20, half)
    assert mine[-1] < 0.8 * mine[0]
    np.testing.assert_allclose(mine, peer, rtol=2e-2 if half else 1e-4)
    if not half:
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            np.testing.assert_allclose(p.numpy(), q.detach().numpy(), atol=1e-3, err_msg=name)


def test_a_perceptron_without_jit(draw_floats):
    x, y = draw_floats((16, 4), (16, 2))
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    ours = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    ours.load_state_dict({k: ht.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    a = optim.SGD(ours.parameters(), lr=0.1, momentum=0.9)
    b = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for _ in range(8):
        mine = F.mse_loss(ours(ht.tensor(x)), ht.tensor(y))
        peer = torch.nn.functional.mse_loss(theirs(torch.tensor(x)), torch.tensor(y))
        for optimizer, loss in ((a, mine), (b, peer)):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        np.testing.assert_allclose(mine.item(), peer.item(), rtol=1e-5)


def test_microbatches_gather_the_gradient_of_the_whole_batch(draw_floats):
    x, y = map(ht.tensor, draw_floats((8, 4), (8, 2)))
    model = nn.Linear(4, 2)
    F.mse_loss(model(x), y).backward()
    whole = model.weight.grad.numpy()
    model.zero_grad()
    for a, b in zip(x.chunk(4), y.chunk(4), strict=True):
        (F.mse_loss(model(a), b) / 4).backward()
    np.testing.assert_allclose(model.weight.grad.numpy(), whole, rtol=1e-5, atol=1e-7)
