"""Loops that ranks compute together: recurrent networks and scans, by the interpreter."""

import pytest

import stack.framework as ht
from hal.tile.node import toposort
from stack.framework import nn
from stack.ir.verify import verify
from stack.parallel import Sharded
from stack.parallel.strategy import data, tensor, zero
from tests.draw import stream
from tests.parallel import spread_gpt
from tests.parallel.test_partition import Case, compare, run_ranks

WIDTH = 12


class Recurrent(nn.Module):
    """A language model whose tokens a recurrent network reads one after the other."""

    def __init__(self, net, width=WIDTH):
        super().__init__()
        self.token = nn.Embedding(spread_gpt.VOCABULARY, WIDTH)
        self.net = net
        self.head = nn.Linear(width, spread_gpt.VOCABULARY)

    def loss(self, tokens, targets):
        y, more = self.net(self.token(tokens))
        logits = self.head(y).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, targets.flatten())
        return loss if isinstance(more, tuple) or more.ndim else loss + more


class Scan(nn.Module):
    """Steps whose gains have gradients that are added up in the loop, and which give a mean over
    the batch each. With `coupled` a step reads all of the batch."""

    def __init__(self, coupled=False):
        super().__init__()
        self.weight = nn.Parameter(ht.randn(WIDTH, WIDTH) * 0.3)
        self.gain = nn.Parameter(ht.ones(WIDTH))
        self.coupled = coupled

    def forward(self, x):
        def step(carry, x):
            h, number = carry
            h = ht.tanh((h * self.gain) @ self.weight + x * self.gain)
            if self.coupled:
                h = h - h.mean(0)
            return (h, number + 1), (h, h.square().mean())

        begin = ht.zeros(x.shape[0], WIDTH), ht.zeros(1)
        (_, number), (y, means) = ht.scan(step, begin, x, dim=1)
        return y.transpose(0, 1), (means.sum() / number).sum()


class Nested(nn.Module):
    """A scan in each step of one, and a branch that the whole batch takes."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(ht.randn(WIDTH, WIDTH) * 0.3)

    def forward(self, x):
        def inner(h, scale):
            h = ht.tanh(h @ self.weight * scale)
            return h, h.mean()

        def step(h, x):
            h, means = ht.scan(inner, h + x, ht.full((3,), 0.9))
            return h, (h, means)

        _, (y, means) = ht.scan(step, ht.zeros(x.shape[0], WIDTH), x, dim=1)
        y = y.transpose(0, 1)
        y = ht.cond(y.square().sum() > 0, lambda y: y.tanh(), lambda y: y * 2, (y,))
        return y, means.mean()


class Columns(nn.Module):
    """A factor of a matrix for each row of the batch, column after column."""

    def forward(self, x):
        more = nn.functional.pad(x, (0, 8))
        factor = ht.linalg.cholesky(more.transpose(1, 2) @ more + ht.eye(WIDTH + 8))
        return x, factor.diagonal(dim1=1, dim2=2).log().mean()


class Channels(nn.Module):
    """Steps that have each channel by itself, of which a rank has some."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
        self.decay = nn.Parameter(ht.full((24,), 0.5))

    def forward(self, x):
        def step(h, x):
            h = h * self.decay.sigmoid() + x
            return h, h

        _, y = ht.scan(step, ht.zeros(x.shape[0], 24), self.up(x), dim=1)
        return self.down(y.transpose(0, 1).tanh()), y.mean()


NETS = {
    "lstm": lambda: nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, dropout=0.1),
    "gru": lambda: nn.GRU(WIDTH, WIDTH, batch_first=True),
    "tanh": lambda: nn.RNN(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True),
    "scan": Scan,
    "nested": Nested,
    "columns": Columns,
}
HEAD = {"head.weight": Sharded(0), "head.bias": Sharded(0)}
DIVIDED = {
    "data": data(2),
    "zero3": zero(3, 2),
    "two": data(2, "one") + data(2, "other"),
    "tensor": zero(1, 2) + tensor(2, HEAD),
}


def case(net):
    ht.manual_seed(3)
    return Case("sgd", model=Recurrent(net))


def loops(outputs):
    return [n for n in toposort(outputs) if n.op == "loop"]


def rows_of(n):
    """How many rows of the batch the steps of a loop have."""
    return next(x.shape[0] for x in n["body"].inputs[n["consts"] :] if x.shape)


@pytest.mark.slow
@pytest.mark.parametrize("name", stream("loops").sample(sorted(NETS), 2))
@pytest.mark.parametrize("strategy", stream("divided loops").sample(sorted(DIVIDED), 2))
def test_steps_of_a_loop_are_divided_with_the_batch(name, strategy):
    whole = case(NETS[name]())
    axes, layouts, cut, said = whole.divide(DIVIDED[strategy])
    verify(cut.outputs)
    own, before = loops(cut.outputs), loops(whole.request.outputs)
    parts = 4 if strategy == "two" else 2
    assert len(own) == len(before)
    for n in own:  # ranks along `tensor` may share the batch, too, or each compute all of it
        allowed = {spread_gpt.ROWS}
        if strategy == "tensor":  # a branch is a single step, which costs less than an exchange
            allowed |= {spread_gpt.ROWS // 2, *([2 * spread_gpt.ROWS] if n["steps"] == 1 else [])}
        assert rows_of(n) * parts in allowed
    assert strategy == "tensor" or "loop" not in said.whole
    compare(whole, axes, layouts, *run_ranks(whole, axes, layouts, cut), name)


def test_steps_of_a_loop_are_divided_with_the_channels():
    whole = case(Channels())
    parts = {"net.up.*": Sharded(0), "net.down.weight": Sharded(1), "net.decay": Sharded(0)}
    axes, layouts, cut, said = whole.divide(tensor(2, parts))
    assert all(n["body"].inputs[n["consts"]].shape[-1] == 12 for n in loops(cut.outputs))
    assert "loop" not in said.whole
    compare(whole, axes, layouts, *run_ranks(whole, axes, layouts, cut), "channels")


def test_unequal_shares_of_the_batch_are_those_of_a_loop():
    whole, strategy = case(Scan()), data(3, shares=(1, 4, 3))
    made = [whole.divide(strategy, data=rank) for rank in range(3)]
    axes, layouts, cut, _ = made[0]
    for (_, _, own, _), share in zip(made, (1, 4, 3), strict=True):
        verify(own.outputs)
        assert {rows_of(n) for n in loops(own.outputs)} == {share}
    ranks = run_ranks(whole, axes, layouts, cut, lambda place: made[place[0]][2])
    compare(whole, axes, layouts, *ranks, "shares")


def test_a_loop_whose_steps_would_exchange_something_is_computed_whole():
    whole = case(Scan(coupled=True))
    axes, layouts, cut, said = whole.divide(data(2))
    assert {rows_of(n) for n in loops(cut.outputs)} == {spread_gpt.ROWS}
    assert "loop has no rule" in str(said)
    compare(whole, axes, layouts, *run_ranks(whole, axes, layouts, cut), "coupled")
