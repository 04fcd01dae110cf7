"""A GPT on a pipeline of ranks, and the same by one process that takes its micro-batches one after
the other: hal run -n 2 --devices cpu:0 pipe.py PATH NAME ..., with -n 4 for pipelines along with
other axes. Without `hal run` it says how far what was written is from the one process."""

import copy
import re
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np

import stack.framework as ht
from hal.core.errors import Failure, FailureKind, HalError, InvalidCall, Scope
from hal.core.values import Fault
from stack.comm.world import World
from stack.framework import nn, optim
from stack.framework.devices import engine
from stack.parallel import Mesh, Sharded, parallel
from stack.parallel.strategy import context, data, pipeline, ring, tensor, ulysses, zero

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from gpt import GPT, GPTConfig

from tests.draw import stream
from tests.parallel.spread_gpt import MEGATRON

LAYERS, ROWS, CONTEXT, VOCABULARY, STEPS, BATCHES = 2, 8, 8, 32, 3, 4


def stages(schedule="1f1b", ranks=2, depth=2):
    """Blocks in their order, embeddings in the first chunk and the head in the last one; of four
    chunks these have no block."""
    chunks = {f"blocks.{i}.*": i + (depth > LAYERS) for i in range(LAYERS)}
    chunks |= {"token.*": 0, "position.*": 0, "*": depth - 1}
    return pipeline(ranks, f"{schedule} {BATCHES}" + " 2" * (schedule == "interleaved"), chunks)


SCHEDULES = {
    "gpipe": stages("gpipe"),
    "1f1b": stages("1f1b"),
    "interleaved": stages("interleaved", depth=4),
    "zb-h1": stages("zb-h1"),
    "zb-v": stages("zb-v", depth=4),
    "dualpipe-v": stages("dualpipe-v", depth=4),
}

COMPOSED = {
    "data": stages() + data(2),
    "zero1": stages() + zero(1, 2),
    "zero2": stages("zb-h1") + zero(2, 2),
    "zero3": stages() + zero(3, 2),
    "tensor": stages("interleaved", depth=4) + tensor(2, MEGATRON),
    "context": stages() + context(2),
    "ring": stages() + ring(2),
    "ulysses": stages() + ulysses(2),
    "data+tensor": stages() + data(2) + tensor(2, MEGATRON),
    "zero3+tensor": stages() + zero(3, 2) + tensor(2, MEGATRON),
}
"""Pipelines along with other axes."""


def model():
    ht.manual_seed(5)
    return GPT(GPTConfig(LAYERS, 16, 2, CONTEXT, VOCABULARY, 0.1))


def batches():
    rng = np.random.default_rng(6)
    found = [rng.integers(0, VOCABULARY, (ROWS, CONTEXT + 1)) for _ in range(STEPS)]
    return [(x[:, :-1].copy(), x[:, 1:].copy()) for x in found]


def stepper(net, optimizer, gather, clip=0.0):
    """One step, which gives the loss and the gradients."""

    @ht.jit
    def step(tokens, targets):
        optimizer.zero_grad()
        loss = gather(net.loss, tokens, targets)
        found = [p.grad for p in net.parameters()]
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        return [loss, *found]

    return step


def train(net, optimizer, gather, clip=0.0):
    """Losses and gradients of every step, by the name of the parameter."""
    ht.manual_seed(11)
    step, found = stepper(net, optimizer, gather, clip), {}
    for number, batch in enumerate(batches()):
        loss, *grads = step(*batch)
        found[f"{number}.loss"] = loss.numpy()
        pairs = zip(net.named_parameters(), grads, strict=True)
        found |= {f"{number}.{name}": d.numpy() for (name, _), d in pairs}
    return found


def evaluated(net):
    """The loss of a batch by a function that is no pipeline's."""
    net.eval()
    with ht.no_grad():
        loss = ht.jit(lambda tokens, targets: net.loss(tokens, targets))(*batches()[0])
    return {"evaluated": loss.numpy()}


def optimizer_of(net, kind):
    parameters = net.parameters()
    return optim.SGD(parameters, lr=0.1) if kind == "sgd" else optim.AdamW(parameters, lr=1e-2)


def alone(kind="adamw", clip=0.0):
    def gather(loss_of, tokens, targets):
        total = None
        for x, y in zip(tokens.chunk(BATCHES), targets.chunk(BATCHES), strict=True):
            loss = loss_of(x, y)
            loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        return total

    net = model()
    found = train(net, optimizer_of(net, kind), gather, clip) | evaluated(net)
    return found | {name: t.numpy() for name, t in net.state_dict().items()}


def on_ranks(strategy, kind="adamw", clip=0.0):
    net = model()
    optimizer = optimizer_of(net, kind)
    with parallel(net, Mesh.present(**strategy.sizes), strategy, optimizer) as spread:
        found = train(net, optimizer, spread.backward, clip)
        (said,) = spread.explained
        counted = {what: n * STEPS for what, n in said.sent.items() if n}
        sent = {what: n for what, n in spread.sent.items() if n}
        assert sent == counted, (sent, counted)
        found |= evaluated(net)
    return found | {name: t.numpy() for name, t in net.state_dict().items()}


BUDGETS = {
    "budgets-1f1b": pipeline(2, "1f1b 2", {"[03].*": 0, "*": 1}),
    "budgets-zero3": zero(3, 2),
}
"""What is trained within budgets of memory."""


def within(strategy, **budget):
    """Loss and gradients of two steps of a network whose hidden values are many, in one row, and
    how many operators are computed again and bytes copied to the host's memory."""
    ht.manual_seed(5)
    wide = [nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1)]
    net = nn.Sequential(*wide, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    ht.manual_seed(11)
    with parallel(net, Mesh.present(**strategy.sizes), strategy, optimizer) as spread:

        @ht.jit(**budget)
        def step(x):
            optimizer.zero_grad()
            loss = spread.backward(lambda x: net(x).exp().square().mean(), x)
            found = [loss, *(p.grad.reshape(-1) for p in net.parameters())]
            optimizer.step()
            return found

        rows = np.random.default_rng(1).standard_normal((2, 1024, 16), np.float32)
        found = [t.numpy().reshape(-1) for x in rows for t in step(x)]
        cost = re.search(r"(\d+) operators are .*; (\d+) bytes are copied", step.explain())
    return np.concatenate(found), [int(n) for n in cost.groups()]


def budgets(strategy):
    """The same steps with all memory, and in the least; and what is said of less."""
    whole, _ = within(strategy, memory=1 << 40)
    found, told, costs = {"whole": whole}, [], []
    for key, host in (("0", 0), ("1", 1 << 30)):
        nbytes = 1  # then the least
        for _ in range(2):
            try:
                found[key], cost = within(strategy, memory=nbytes, host_memory=host)
                costs.append(cost)
            except InvalidCall as error:
                told.append(str(error))
                nbytes = int(re.search(r"takes (\d+)", str(error))[1])
    return found | {"told": told, "costs": costs}


GIVEN = {
    "given-1f1b": pipeline(2, "1f1b 2", {"0.*": 0, "*": 1}),
    "given-tensor": tensor(2, {"0.*": Sharded(0), "2.weight": Sharded(1)}),
    "given-zero1": zero(1, 2),
    "given-zero3": zero(3, 2),
}
GIVEN |= {name.replace("given", "late"): strategy for name, strategy in GIVEN.items()}
GIVEN["late-data"] = data(2)
"""What is given other values between steps, and the optimizer before, or, late, when it is
spread."""


def given(strategy=None, late=False):
    """Losses of steps between which parameters and states are given other values, in every way
    there is, and the parameters. Without a strategy by one process."""
    ht.manual_seed(5)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))

    def made():
        return optim.AdamW([*net.parameters()][:3], lr=0.1)

    early = [] if late else [made()]
    copied = copy.deepcopy(net)
    spread = strategy and parallel(net, Mesh.present(**strategy.sizes), strategy, *early)
    optimizer = made() if late else early[0]
    x = np.random.default_rng(0).standard_normal((8, 6), np.float32)

    def backward(loss_of, x):
        loss = loss_of(x)
        loss.backward()
        return loss.detach()

    @ht.jit
    def step(x):
        optimizer.zero_grad()
        gather = spread.backward if spread else backward
        loss = gather(lambda x: net(x).square().mean() / (spread.micro_batches if spread else 1), x)
        optimizer.step()
        return loss

    def values(t):
        return ht.tensor(np.cos(np.arange(t.numel(), dtype=np.float32)).reshape(tuple(t.shape)))

    def whole():
        return spread.gathered() if spread else nullcontext()

    losses = [step(x).item()]
    with whole():
        kept = copy.deepcopy(optimizer.state_dict())
    net.load_state_dict({name: values(t) for name, t in net.state_dict().items()})
    losses += [step(x).item(), step(x).item()]
    optimizer.load_state_dict(kept)
    losses.append(step(x).item())
    with ht.no_grad():
        net[0].weight.mul_(0.5)
        net[2].weight.copy_(net[0].weight.t()[:4] * 0.25)
    losses.append(step(x).item())
    net[0].weight.data = values(net[0].weight)
    net.load_state_dict({"2.bias": values(net[2].bias)}, strict=False)
    losses.append(step(x).item())
    with nullcontext() if late else whole():
        optimizer.add_param_group({"params": [net[2].bias], "lr": 0.05})
    losses.append(step(x).item())
    read, refused = net[2].weight.norm(), []
    for _ in range(2):
        try:
            read.item()
        except HalError as error:
            refused.append(str(error))
        losses.append(step(x).item())
    if spread:
        spread.close()
    both = nn.ModuleDict({"net": net, "copied": copied})
    found = {name: t.numpy() for name, t in both.state_dict().items()}
    return found | {"losses": np.array(losses), "refused": refused}


STEPPED = {"stepped-zero1": zero(1, 2), "stepped-zero3": zero(3, 2)}
"""Strategies of optimizers that step outside of functions under `jit`."""


def stepped(strategy=None):
    """Losses, norms and parameters where a function under `jit` gives gradients, and clipping and
    the optimizer's step are outside of it. Without a strategy by one process."""
    ht.manual_seed(5)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = optim.AdamW(net.parameters(), lr=0.1)
    spread = strategy and parallel(net, Mesh.present(**strategy.sizes), strategy, optimizer)

    @ht.jit
    def gradients(x):
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach()

    found = {}
    for i, x in enumerate(np.random.default_rng(0).standard_normal((3, 8, 6), np.float32)):
        optimizer.zero_grad()
        found[f"{i}.loss"] = gradients(x).numpy()
        found[f"{i}.norm"] = nn.utils.clip_grad_norm_(net.parameters(), 0.1).numpy()
        optimizer.step()
    if spread:
        spread.close()
    return found | {name: t.numpy() for name, t in net.state_dict().items()}


IMAGES = pipeline(2, "gpipe 2", {"0.*": 0, "*": 1})


def images(strategy=None):
    """The loss of a step of convolutions, and the gradients. Without a strategy by one process."""
    ht.manual_seed(5)
    first = nn.Conv2d(3, 8, 3, padding=1)
    net = nn.Sequential(first, nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.ReLU(), nn.Flatten())
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    spread = strategy and parallel(net, Mesh.present(**strategy.sizes), strategy, optimizer)
    x = np.random.default_rng(0).standard_normal((8, 3, 8, 8), np.float32)

    def in_turn(loss_of, x):
        losses = [loss_of(part) for part in x.chunk(2)]
        for loss in losses:
            loss.backward()
        return losses[0].detach() + losses[1].detach()

    @ht.jit
    def step(x):
        gather = spread.backward if spread else in_turn
        loss = gather(lambda x: net(x).square().mean() / 2, x)
        return [loss, *(p.grad for p in net.parameters())]

    found = {str(i): t.numpy() for i, t in enumerate(step(x))}
    if spread:
        spread.close()
    return found


SCALED = {
    "scaled-pipeline": pipeline(2, f"1f1b {BATCHES}", {"0.*": 0, "*": 1}),
    "scaled-zero3": zero(3, 2),
}
"""Strategies of steps whose losses are scaled."""


def scaled(strategy=None, batches=BATCHES):
    """Losses, scales and parameters of steps, of which one is left out by a row of another rank."""
    ht.manual_seed(5)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = optim.AdamW(net.parameters(), lr=0.1)
    scaler = ht.GradScaler(init_scale=64.0, growth_interval=2)
    spread = strategy and parallel(net, Mesh.present(**strategy.sizes), strategy, optimizer)

    def in_turn(loss_of, x):
        losses = [loss_of(part) for part in x.chunk(batches)]
        for loss in losses:
            loss.backward()
        return sum(losses[1:], losses[0]).detach()

    @ht.jit
    def step(x):
        optimizer.zero_grad()
        gather = spread.backward if spread else in_turn
        loss = gather(lambda x: scaler.scale(net(x).square().mean() / batches), x)
        scaler.step(optimizer)
        scaler.update()
        return loss

    found = {}
    for i, x in enumerate(np.random.default_rng(0).standard_normal((5, ROWS, 6), np.float32)):
        x[-1] = np.inf if i == 1 else x[-1]
        found[f"{i}.loss"] = step(x).numpy()
        found[f"{i}.scale"] = np.array(scaler.get_scale())
    if spread:
        spread.close()
    return found | {name: t.numpy() for name, t in net.state_dict().items()}


def next_batch(rank):
    if rank:
        raise ValueError("no more batches " + "x" * 10_000)


def break_device(rank):
    """A kernel of the next step fails."""
    if rank:
        broken = Failure(FailureKind.LAUNCH_FAULT, Scope.OPERATION, "cpu:0", "replay", "a test")
        engine("cpu:0").device.inject(Fault(broken, "replay"))


def raising(rank, meet=next_batch, strategy=GIVEN["given-zero3"]):
    """What a rank is told of which the other one meets an error, and goes on with behind that."""
    ht.manual_seed(5)
    net = nn.Linear(6, 8)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    before = {name: t.numpy() for name, t in net.state_dict().items()}
    said = []
    try:
        with parallel(net, Mesh.present(**strategy.sizes), strategy, optimizer) as spread:

            @ht.jit
            def step(x):
                optimizer.zero_grad()
                loss = spread.backward(lambda x: net(x).square().mean(), x)
                optimizer.step()
                return loss

            x = np.ones((8, 6), np.float32)
            step(x).item()
            meet(rank)
            step(x).item()
    except (HalError, ValueError) as error:
        said.append(str(error))
    try:
        step(x)
    except HalError as error:
        said.append(str(error))
    net.load_state_dict({name: ht.tensor(t) for name, t in before.items()})
    return {"said": said, "loss": ht.jit(lambda x: net(x).square().mean())(x).numpy()}


def apart(rank):
    """What a rank is told where one of them alone changes model or optimizers while values are
    whole, or before that."""

    def add(net, optimizer):
        net[0].register_parameter("more", nn.Parameter(ht.ones(2)))

    def remove(net, optimizer):
        net[2].bias = None

    def learn(net, optimizer):
        optimizer.add_param_group({"params": [net[2].bias]})

    def make(net, optimizer):
        net.optimizer = optim.SGD([net[2].bias], lr=0.1)

    def rate(net, optimizer):
        optimizer.param_groups[0]["lr"] = 0.2

    def load(net, optimizer):
        net.load_state_dict({name: ht.ones(*t.shape) for name, t in net.state_dict().items()})

    said = []
    for own, change in enumerate((rate, load) * len(GIVEN)):
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        strategy = (*GIVEN.values(),)[own // 2]
        try:
            with parallel(net, Mesh.present(**strategy.sizes), strategy, optimizer) as spread:
                step = ht.jit(partial(one_step, net, optimizer, spread))
                step().item()
                if rank == own % 3 % 2:
                    change(net, optimizer)
                step().item()
        except InvalidCall as error:
            said.append(str(error))
    for own, change in enumerate((add, remove, learn, make) * 2):
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        optimizer = optim.SGD([*net.parameters()][:3], lr=0.1)
        strategy = (*GIVEN.values(),)[own % len(GIVEN)]
        try:
            with (
                parallel(net, Mesh.present(**strategy.sizes), strategy, optimizer) as spread,
                spread.gathered(),
            ):
                if rank == own % 2:
                    change(net, optimizer)
        except InvalidCall as error:
            said.append(str(error))
    return {"said": said}


def one_step(net, optimizer, spread):
    optimizer.zero_grad()
    loss = spread.backward(lambda x: net(x).square().mean(), ht.ones(8, 6))
    optimizer.step()
    return loss


def alone_on_a_rank(rank):
    """What both ranks are told, and when, where rank 1 alone, or one of a pipeline, makes an
    optimizer behind `parallel`, gets the whole model, calls a function first, or steps, and the
    other one goes on to the next step or to the end."""

    def make(net, spread, step):
        optim.SGD([net[0].bias], lr=0.1)

    def gather(net, spread, step):
        with spread.gathered():
            pass

    def first(net, spread, step):
        ht.jit(lambda x: net(x).sum())(ht.ones(8, 6))

    def again(net, spread, step):
        step().item()

    said = []
    stages = pipeline(2, "1f1b 2", {"0.*": 0, "*": 1})
    cases = [(own, zero(3, 2), 1, own is not again) for own in (make, gather, first, again)]
    first_alone = stream("alone").randrange(2)
    for i, own in enumerate((make, gather, first, again)):
        cases.append((own, stages, (first_alone + i) % 2, own is not again))
    for own, strategy, one, go in cases:
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        begun_s = time.monotonic()
        try:
            with parallel(net, Mesh.present(**strategy.sizes), strategy, optimizer) as spread:
                step = ht.jit(partial(one_step, net, optimizer, spread))
                step().item()
                begun_s = time.monotonic()
                if rank == one:
                    own(net, spread, step)
                if go:
                    step().item()
        except HalError as error:
            said.append(f"{time.monotonic() - begun_s:.0f} s: {error}")
    return {"said": said}


def distance(found, whole):
    """How far losses are, relatively, and gradients and parameters: by their norms, or by the
    model's where their own is below a millionth of that."""
    norms = {key: np.linalg.norm(v.astype(float)) for key, v in whole.items()}
    total = max(norms.values())
    each = {
        key: np.linalg.norm(found[key].astype(float) - v)
        / (norms[key] if norms[key] > 1e-6 * total else total)
        for key, v in whole.items()
    }
    losses = max(e for key, e in each.items() if key.endswith("loss"))
    return float(losses), float(max(each.values()))


def compare(path, names):
    wholes = {}
    for name in names:
        composed = name in COMPOSED
        if composed not in wholes:
            wholes[composed] = alone("sgd", 0.5) if composed else alone()
        files = sorted(Path(path).glob(f"{name}.[0-9].npz"))
        worst = [distance(dict(np.load(file)), wholes[composed]) for file in files]
        loss, other = (max(values) for values in zip(*worst, strict=True))
        print(f"{name:16} losses {loss:.1e}, gradients and parameters {other:.1e}")  # noqa: T201


if __name__ == "__main__":
    path, *names = sys.argv[1:]
    rank = Mesh.present().rank
    if World.present() is None:
        compare(path, names)
    for name in names if World.present() is not None else ():
        if name in BUDGETS:
            found = budgets(BUDGETS[name])
        elif name in GIVEN:
            found = given(GIVEN[name], name.startswith("late"))
        elif name in SCALED:
            found = scaled(SCALED[name], BATCHES if "pipeline" in name else 1)
        elif name in STEPPED:
            found = stepped(STEPPED[name])
        elif name == "images":
            found = images(IMAGES)
        elif name == "raising":
            found = raising(rank)
        elif name == "apart":
            found = apart(rank)
        elif name == "alone":
            found = alone_on_a_rank(rank)
        elif name == "broken":
            found = raising(rank, break_device)
        elif name in COMPOSED:
            found = on_ranks(COMPOSED[name], "sgd", 0.5)
        else:
            found = on_ranks(SCHEDULES[name])
        np.savez(f"{path}/{name}.{rank}.npz", **found)
        print(name, flush=True)  # noqa: T201
