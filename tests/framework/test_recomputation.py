"""What `checkpoint` computes again: the same bits, in less memory."""

import re
import sys
from functools import cache, partial

import numpy as np
import pytest

import stack.framework as ht
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.tile.node import Type
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.framework import nn, optim
from stack.framework.utils.checkpoint import checkpoint, checkpoint_sequential
from stack.ops.behind import behind
from stack.runtime import engine_for
from tests.draw import stream
from tests.parallel import spread_gpt

BLOCKS, ROWS, WIDTH = 3, 32, 16
DEVICE = "cpu:0"  # that of most tests here interprets graphs, and has no memory of its own


class Deep(nn.Module):
    """Residual blocks with dropout, whose hidden values are many times their results."""

    def __init__(self):
        super().__init__()
        ht.manual_seed(2)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(WIDTH, 16 * WIDTH),
                nn.Tanh(),
                nn.Dropout(0.2),
                nn.Linear(16 * WIDTH, WIDTH),
            )
            for _ in range(BLOCKS)
        )

    def forward(self, x, way):
        for block in self.blocks:
            x = x + way(block, x)
        return x


def plain(function, x):
    return function(x)


def gathered(way):
    """The loss, the gradients of the argument and the parameters, and the bytes of the plan."""
    net = Deep().to(DEVICE)
    rows = np.random.default_rng(1).standard_normal((ROWS, WIDTH), np.float32)
    ht.manual_seed(3)

    @ht.jit
    def step(x):
        x = x.detach().requires_grad_()
        net.zero_grad()
        loss = net(x, way).square().mean()
        loss.backward()
        return [loss, x.grad, *(p.grad for p in net.parameters())]

    found = [t.numpy() for t in step(ht.tensor(rows, device=DEVICE))]
    ((captured,),) = step._captured.values()
    return found, captured.plan.arena_nbytes


@pytest.mark.slow
@pytest.mark.turns
def test_a_step_has_the_same_bits_in_less_memory():
    whole, kept = gathered(plain)
    again, least = gathered(checkpoint)
    for value, want in zip(again, whole, strict=True):
        assert value.tobytes() == want.tobytes()
    assert kept - least >= ROWS * 16 * WIDTH * 4, (kept, least)


def within(memory, host_memory=None, device=DEVICE, way=plain):
    """What a step of a GPT with dropout gives, its parameters behind it, and the bytes it takes;
    `way` calls its blocks."""
    ht.manual_seed(3)
    net = spread_gpt.model().to(device)
    for block in net.blocks:
        block.forward = partial(way, block.forward)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    (batch,) = spread_gpt.batches(1)

    def step(tokens, targets):
        optimizer.zero_grad()
        loss = net.loss(tokens, targets)
        loss.backward()
        found = [loss, *(p.grad for p in net.parameters())]
        optimizer.step()
        return found

    step = ht.jit(step, memory=memory, host_memory=host_memory)
    found = [t.numpy() for t in step(*(ht.tensor(x, device=device) for x in batch))]
    ((captured,),) = step._captured.values()
    return [*found, *(p.numpy() for p in net.parameters())], captured.plan, step.explain()


def check_same(found, whole, *told):
    assert len(found) == len(whole)
    for value, want in zip(found, whole, strict=True):
        assert value.tobytes() == want.tobytes(), told


def least_of(arguments):
    told = set()
    for nbytes in (1, arguments):  # less than arguments take, and no less
        said = f"may take {nbytes} bytes, and takes [0-9]+ at least, of which {arguments} are "
        with pytest.raises(InvalidCall, match=said) as refused:
            within(nbytes)
        told.add(int(re.search(r"give it ([0-9]+) \([0-9.]+ MiB\)", str(refused.value))[1]))
    (least,) = told
    return least


@cache
def whole():
    return within(None)


@pytest.mark.slow
@pytest.mark.turns
def test_a_step_within_a_budget_has_the_same_bits_and_a_lesser_one_is_refused():
    """Attention, too, is computed again, by the kernel that computed it first."""
    values, plan, _ = whole()
    least = least_of(plan.live_nbytes - plan._layout.live_nbytes)
    assert least < plan.live_nbytes
    with pytest.raises(InvalidCall, match=f"takes {least} at least"):
        within(least - 1)
    budget = stream("budget").choice((least, (least + plan.live_nbytes) // 2))
    found, again, said = within(budget)
    assert again.live_nbytes <= budget, said
    assert again.launches > plan.launches, said
    assert ": 0 operators are computed again" not in said
    check_same(found, values, budget, said)


@pytest.mark.slow
@pytest.mark.turns
def test_values_that_wait_in_the_hosts_memory_have_the_same_bits():
    """Three eighths of the temporaries' bytes are enough; where the host has little room others are
    computed again."""
    values, plan, _ = whole()
    arguments = plan.live_nbytes - plan.arena_nbytes
    little = plan.arena_nbytes // 8
    eighths, host = stream("host").choice(((3, sys.maxsize), (5, sys.maxsize), (5, little)))
    budget = arguments + plan.arena_nbytes * eighths // 8
    found, again, said = within(budget, host)
    assert again.live_nbytes <= budget, said
    assert (" 0 bytes are copied" not in said) or host == little, said
    assert (": 0 operators are computed again" in said) is (host > little), said
    check_same(found, values, budget, host, said)


@pytest.mark.slow
@pytest.mark.turns
def test_a_block_that_is_computed_again_has_the_same_bits_with_its_attention():
    values, plan, _ = whole()
    found, again, _ = within(None, way=checkpoint)
    check_same(found, values)
    assert again.arena_nbytes < plan.arena_nbytes


def test_gradients_flow_to_what_a_function_reads_beside_its_arguments():
    """Several results, a number, a tensor from outside, and a checkpoint within another one."""

    def values(way):
        x, w, y = (ht.tensor(v, requires_grad=True) for v in ([1.0, -2.0], [0.5, 3.0], [2.0, 2.5]))
        z = y * y  # read from outside, and itself computed

        def inner(a):
            return (a * z).tanh()

        def outer(a, b, power):
            c = way(inner, a) * w
            return c.exp(), (b**power).sum(), 3

        first, second, three = way(outer, x, y, power=2)
        ((first * z).sum() + second * three).backward()
        return [t.grad.numpy() for t in (x, w, y)]

    def direct(function, *args, **kwargs):
        return function(*args, **kwargs)

    for value, want in zip(values(checkpoint), values(direct), strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-6)


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_segments_give_what_the_functions_give(segments):
    x = ht.tensor([0.3, -0.4], requires_grad=True)
    functions = [ht.tanh, ht.exp, ht.sin]
    checkpoint_sequential(functions, segments, x).sum().backward()
    again = ht.tensor([0.3, -0.4], requires_grad=True)
    ht.sin(ht.exp(ht.tanh(again))).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), again.grad.numpy(), rtol=1e-6)


def test_a_product_of_what_waits_has_its_bits():
    """A matrix that is turned stays in the order in which it lies: laid out anew, it would be
    summed in another one."""
    x, y = (g.input(i, Type((512, 256), DType.F32)) for i in range(2))
    late = g.input(2, Type((4,), DType.F32))
    turned = g.permute(x, (1, 0))
    products = (g.matmul(turned, y), g.matmul(behind(turned, late), y))
    rng, own = np.random.default_rng(0), engine_for(DEVICE)
    given = [own.put(rng.standard_normal(n.shape, np.float32), DType.F32) for n in (x, y, late)]
    one, other = map(own.get, own.plan(GraphRequest(products, (x, y, late))).run(given))
    np.testing.assert_array_equal(one, other)
