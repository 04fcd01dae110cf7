"""What ranks exchange on tensors, and the same by one process: hal run -n 3 spread.py."""

import numpy as np

import stack.framework as ht
from hal.core.errors import HalError
from stack.framework import nn, optim
from stack.parallel import Mesh, Ranks, Strategy, parallel
from stack.parallel.agree import Agreement, Meeting
from stack.parallel.strategy import context, data, zero
from stack.runtime import OverBudget

SIZE, ROWS, COLUMNS, MOST, STEPS = 3, 6, 9, 4, 2


def given(rank):
    """A rank's values: x, how much each of its elements counts, rows of which some travel."""
    rng = np.random.default_rng(rank)
    x, weight = rng.standard_normal((2, ROWS, COLUMNS), np.float32)
    rows = rng.standard_normal((SIZE, MOST, 2), np.float32)
    return x, weight, rows, rng.integers(0, MOST + 1, SIZE)


def spread(ranks, x, weight, rows, counts):
    """Values that went through every operation."""
    a = ranks.all_gather(x * weight, 1)
    b = ranks.reduce_scatter(a * a, 1, "avg")
    c = ranks.all_to_all(b * weight, 0, 1)
    d = ranks.broadcast(c, 1) * ranks.all_reduce(x)[0, 0]
    e = ranks.reduce(d * c, 2) + d
    f = ranks.all_to_all_v(rows * x[0, 0], counts)
    g = ranks.shift(x * x)
    return e, f, g


def one_process(xs, weights, rows, counts):
    """The same for the values of all ranks at once, by nothing that exchanges."""
    every = range(SIZE)
    a = ht.cat([x * w for x, w in zip(xs, weights, strict=True)], 1)
    b = (a * a).chunk(SIZE, 1)
    cut = [(b[r] * weights[r]).chunk(SIZE, 0) for r in every]
    c = [ht.cat([cut[j][r] for j in every], 1) for r in every]
    total = sum(xs[1:], xs[0])[0, 0]
    d = [c[1] * total for _ in every]
    e = [d[r] + sum((d[j] * c[j] for j in every), d[0] * 0) * (r == 2) for r in every]
    scaled = [rows[r] * xs[r][0, 0] for r in every]
    f = []
    for r in every:
        kept = [(np.arange(MOST) < counts[j][r])[:, None].astype(np.float32) for j in every]
        f.append(ht.stack([scaled[j][r] * ht.tensor(kept[j]) for j in every]))
    g = [xs[r - 1] * xs[r - 1] for r in every]
    return list(zip(e, f, g, strict=True))


def loss_of(outputs, rank):
    return sum(((rank + k + 1) * y * y).sum() for k, y in enumerate(outputs))


def alone():
    """Each rank's outputs and gradients, by one process."""
    values = [given(rank) for rank in range(SIZE)]
    xs = [ht.tensor(x, requires_grad=True) for x, *_ in values]
    weights = [ht.tensor(w) for _, w, *_ in values]
    rows = [ht.tensor(r, requires_grad=True) for *_, r, _ in values]
    outputs = one_process(xs, weights, rows, [n for *_, n in values])
    losses = [loss_of(found, rank) for rank, found in enumerate(outputs)]
    sum(losses[1:], losses[0]).backward()
    pairs = zip(outputs, xs, rows, strict=True)
    return [[t.numpy() for t in (*found, x.grad, r.grad)] for found, x, r in pairs]


def exchanged(ranks):
    """This rank's outputs and gradients: at once, and captured."""
    x, weight, rows, counts = given(ranks.rank)

    def step(x, weight, rows, counts):
        leaves = [t.detach().requires_grad_() for t in (x, rows)]
        outputs = spread(ranks, leaves[0], weight, leaves[1], counts)
        loss_of(outputs, ranks.rank).backward()
        return [*outputs, *(t.grad for t in leaves)]

    arguments = [ht.tensor(v) for v in (x, weight, rows, counts)]
    captured = ht.jit(step)
    return [[t.numpy() for t in way(*arguments)] for way in (step, captured, captured)]


def layers():
    ht.manual_seed(2)
    return [nn.Linear(5, 5) for _ in range(SIZE)]


def batch():
    return np.random.default_rng(9).standard_normal((4, 5), np.float32)


def whole_steps():
    """Parameters of all layers after some steps of one process."""
    model = nn.Sequential(*layers())
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(ht.tensor(batch())) ** 2).sum().backward()
        optimizer.step()
    return [[p.numpy() for p in layer.parameters()] for layer in model]


def stages(ranks, jitted):
    """Parameters of this rank's layer after as many steps, as a stage of a pipeline: its graph is
    its own."""
    layer = layers()[ranks.rank]
    optimizer = optim.SGD(layer.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        if ranks.rank:
            like = ht.zeros(4, 5, requires_grad=True)
            x = ranks.receive(like, ranks.rank - 1)
        y = layer(x)
        if ranks.rank < SIZE - 1:
            ranks.send(y, ranks.rank + 1).sum().backward()
        else:
            (y**2).sum().backward()
        optimizer.step()

    step = ht.jit(step) if jitted else step
    for _ in range(STEPS):
        step(ht.tensor(batch()))
    return [p.numpy() for p in layer.parameters()]


def twice(ranks, *names):
    """Two messages from rank 0 to rank 1, and what comes back: values of the one rank, of the other
    one gradients."""
    xs = [ht.tensor([i + 1.0, i], requires_grad=True) for i in range(2)]
    if ranks.rank == 0:
        a, b = (ranks.send(x, 1, name) for x, name in zip(xs, names, strict=True))
        (a + b).sum().backward()
        return [x.grad.numpy() for x in xs]
    like = ht.zeros(2, requires_grad=True)
    a, b = (ranks.receive(like, 0, name) for name in names)
    values = [a.numpy(), b.numpy()]
    if names[0] != names[1]:
        (a * 2 * 5 + b).sum().backward()  # the gradient of b is there first
    return values


def alike(ranks):
    """What is said of two messages of one name in one plan."""
    said = []
    x = ht.ones(2)
    for plan in (
        lambda: ht.jit(lambda x: [ranks.shift(x), ranks.shift(x)])(x),
        *[lambda: twice(ranks, "", "")] * (ranks.rank == 0),
    ):
        try:
            plan()
        except HalError as error:
            said.append(str(error))
    return said


def one_step(
    depth=1, rate=0.1, rows=3, slope=0.0, axis=0, memory=None, drop=0.0, value=1.0, label=0
):
    """A step of a small model under data parallelism, whose ranks may have been given otherwise."""
    ht.manual_seed(2)
    layers = [nn.Linear(6, 6) for _ in range(depth)]
    model = nn.Sequential(*layers, *[nn.Dropout(drop)] * (drop > 0))
    optimizer = optim.SGD(model.parameters(), lr=rate)

    @ht.jit(memory=memory)
    def step(x, labels):
        optimizer.zero_grad()
        loss = nn.functional.leaky_relu(model(x), slope).square().mean(1)
        loss = (loss * (labels == 0)).mean()
        loss.backward()
        optimizer.step()
        return loss

    strategy = context(SIZE, "data", axis)
    with parallel(model, Mesh.present(), strategy, optimizer):
        x = np.full((rows, 6), 1.0, np.float32)
        x[-1, 0], x[-1, 1:3] = value, (np.nan, np.inf)
        step(x, np.arange(rows) + label).item()


def over_budget(ranks):
    """What each rank needs, and has not."""
    group, needs = ranks.group, (5, 7, 6)[ranks.rank]

    def make():
        raise OverBudget(f"takes {needs} bytes", needs)

    Agreement([group], ranks.rank, Meeting.SPREAD).made(make)


def refused(ranks):
    """What is refused, in words."""
    x, said = ht.ones(4, 2), []
    own = zero(1, SIZE) if ranks.rank == 1 else data(SIZE)
    text = "axis data 3\n  bach 0" if ranks.rank == 1 else str(data(SIZE))
    for wrong in (
        lambda: ranks.reduce_scatter(x),
        lambda: ranks.all_gather(x, 2),
        lambda: ranks.broadcast(x, SIZE),
        lambda: ranks.send(x, ranks.rank),
        lambda: ranks.all_to_all_v(x, ht.tensor(np.zeros(4, np.int64))),
        lambda: parallel(nn.Linear(2, 2), Mesh.present(), own),
        lambda: one_step(depth=1 + (ranks.rank == 2)),
        lambda: one_step(rate=0.1 * (1 + ranks.rank)),
        lambda: one_step(rows=3 * (1 + ranks.rank)),
        lambda: one_step(rows=3 + (ranks.rank == 1)),
        lambda: one_step(rows=4),
        lambda: one_step(slope=0.1 * ranks.rank),
        lambda: one_step(axis=2),
        lambda: one_step(memory=64 if ranks.rank == 2 else None),
        lambda: parallel(nn.Linear(2, 2), Mesh.present(), Strategy.parse(text)),
        lambda: parallel(nn.Linear(2, 2), Mesh.present(data=3 - (ranks.rank == 2)), data(SIZE)),
        lambda: one_step(drop=0.1 * (1 + ranks.rank)),
        lambda: one_step(value=1 + ranks.rank),
        lambda: one_step(label=ranks.rank == 1),
        lambda: one_step(value=1 + 1e-6 * ranks.rank),  # as processors round: it is not refused
        lambda: over_budget(ranks),
        lambda: Agreement([ranks.group], ranks.rank, Meeting.SPREAD).compare(
            [("fact", str(ranks.rank == 2))], "facts", "", [("cause", str(ranks.rank == 1))]
        ),
    ):
        try:
            wrong()
        except HalError as error:
            said.append(str(error))
        ranks.group.barrier()  # one that has refused alone would meet the others with what is next
    return said


def main():
    mesh = Mesh.present()
    ranks = Ranks.join(mesh, "data", ht.ones(1).device)
    ways = exchanged(ranks)
    found = {f"{way}.{i}": v for way, values in enumerate(ways) for i, v in enumerate(values)}
    for name in ("eager", "jit"):
        for i, p in enumerate(stages(ranks, name == "jit")):
            found[f"{name}.{i}"] = p
    found["alike"] = alike(ranks)
    if ranks.rank == 1:
        found["equal"] = twice(ranks, "", "")
    if ranks.rank < 2:
        found["named"] = twice(ranks, "first", "second")
    np.savez(f"rank{ranks.rank}.npz", refused=refused(ranks), **found)
    ranks.leave()


if __name__ == "__main__":
    main()
