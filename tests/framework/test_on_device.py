"""The same program on a compiled device and on the interpreter: one stream, one training."""

import numpy as np
import pytest

import stack.framework as ht
import stack.framework.functional as F
from stack.framework import nn, optim

pytestmark = [pytest.mark.slow, pytest.mark.turns, pytest.mark.device("cpu:0")]


def on_both(program, tmp_path, monkeypatch):
    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path))
    results = []
    for name in ("interpreter:0", "cpu:0"):
        ht.set_default_device(name)
        results.append(program())
    return results


@pytest.mark.parametrize("dtype", [ht.float32, ht.bfloat16, ht.float16, ht.float64])
def test_uniform_numbers_are_equal_bit_for_bit(dtype, tmp_path, monkeypatch):
    def program():
        ht.manual_seed(2**63 + 5)
        draw = ht.jit(lambda: ht.rand(3, 7, dtype=dtype))
        return [draw().double().tolist() for _ in range(2)] + [ht.randint(-5, 9, (11,)).tolist()]

    expected, actual = on_both(program, tmp_path, monkeypatch)
    assert actual == expected


@pytest.mark.parametrize("half", [False, True])
def test_a_training_takes_the_same_course(half, tmp_path, monkeypatch):
    def program():
        ht.manual_seed(0)
        model = nn.Sequential(
            nn.Embedding(11, 8),
            nn.CausalSelfAttention(8, 2, bias=False),
            nn.LayerNorm(8),
            nn.Dropout(0.1),
            nn.Linear(8, 11),
        )
        optimizer = optim.AdamW(model.parameters(), lr=0.02)

        @ht.jit
        def step(x):
            optimizer.zero_grad()
            with ht.autocast(ht.bfloat16 if half else None):
                loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        data = np.arange(18).reshape(2, 9) % 11
        return [step(data).item() for _ in range(8)]

    expected, actual = on_both(program, tmp_path, monkeypatch)
    assert expected[-1] < 0.9 * expected[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-2 if half else 2e-5)


def test_two_losses_that_take_turns_count_apart(tmp_path, monkeypatch):
    """An actor and a critic under one optimizer: each parameter's first steps are of full size."""

    def program():
        ht.manual_seed(3)
        body, actor, critic = nn.Linear(4, 24), nn.Linear(24, 3), nn.Linear(24, 1)
        every = [*body.parameters(), *actor.parameters(), *critic.parameters()]
        optimizer = optim.Adam(every, lr=0.05)
        x = ht.randn(8, 4)

        def step(which):
            optimizer.zero_grad()
            hidden = body(x).tanh()
            if which == "critic":
                hidden = hidden.detach()
            loss = (actor(hidden) if which == "actor" else critic(hidden)).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        captured = ht.jit(step)
        losses = [step(which).item() for which in ("actor", "actor", "critic")]
        losses += [captured(which).item() for which in ("actor", "critic", "critic")]
        return losses, [optimizer.state[p]["step"].item() for p in every]

    (expected, counts), (actual, again) = on_both(program, tmp_path, monkeypatch)
    assert counts == again == [3.0] * 6
    np.testing.assert_allclose(actual, expected, rtol=2e-5)
