"""A GPT under strategies, on ranks: hal run -n 2 --devices cpu:0 spread_gpt.py PATH OPTIMIZER STEPS
NAME ...

Writes losses, gradient norms and gradients of every step as rank 0 has them, and what all ranks say
of theirs."""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

import stack.framework as ht
from stack.comm.world import World
from stack.framework import nn, optim
from stack.parallel import Mesh, Sharded, parallel
from stack.parallel.strategy import context, data, expert, ring, tensor, ulysses, zero

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from gpt import GPT, GPTConfig, decay_groups

ROWS, CONTEXT, WIDTH, HEADS, VOCABULARY, LAYERS = 8, 16, 32, 4, 32, 2

MEGATRON = {
    "*.qkv.*": Sharded(0, 3),
    "*.out.weight": Sharded(1),
    "*.up.*": Sharded(0),
    "*.down.weight": Sharded(1),
    "token.weight": Sharded(0),
    "head.weight": Sharded(0),
}

EXPERTS = 4

STRATEGIES = {
    "data": lambda n: data(n),
    "zero1": lambda n: zero(1, n),
    "zero3": lambda n: zero(3, n),
    "tensor": lambda n: tensor(n, MEGATRON),
    "context": lambda n: context(n),
    "data+tensor": lambda n: data(2) + tensor(n // 2, MEGATRON),
    "zero1+tensor": lambda n: zero(1, 2) + tensor(n // 2, MEGATRON),
    "zero3+tensor": lambda n: zero(3, 2) + tensor(n // 2, MEGATRON),
    "ring": lambda n: ring(n),
    "ulysses": lambda n: ulysses(n),
    "data+ring": lambda n: data(2) + ring(n // 2),
    "data+ulysses": lambda n: data(2) + ulysses(n // 2),
    "zero3+ring": lambda n: zero(3, 2) + ring(n // 2),
    "zero3+ulysses": lambda n: zero(3, 2) + ulysses(n // 2),
    "ring+tensor": lambda n: ring(2) + tensor(n // 2, MEGATRON),
    "ulysses+tensor": lambda n: ulysses(2) + tensor(n // 2, MEGATRON),
    "ring+ulysses": lambda n: ring(2) + ulysses(n // 2, "heads"),
    "data+context": lambda n: data(2) + context(n // 2),
    "zero3+context": lambda n: zero(3, 2) + context(n // 2),
    "context+tensor": lambda n: context(2) + tensor(n // 2, MEGATRON),
    "replica+zero3": lambda n: data(2, "replica") + zero(3, n // 2, "shard"),
    "expert": lambda n: expert(n, "*.mixture"),
    "data+expert": lambda n: data(2) + expert(n // 2, "*.mixture"),
    "zero1+expert": lambda n: zero(1, 2) + expert(n // 2, "*.mixture"),
    "zero3+expert": lambda n: zero(3, 2) + expert(n // 2, "*.mixture"),
}


def model(layers=LAYERS, experts=0):
    ht.manual_seed(5)
    return GPT(GPTConfig(layers, WIDTH, HEADS, CONTEXT, VOCABULARY, 0.1, experts))


def batches(steps, rows=ROWS):
    rng = np.random.default_rng(6)
    found = [rng.integers(0, VOCABULARY, (rows, CONTEXT + 1)) for _ in range(steps)]
    return [(x[:, :-1].copy(), x[:, 1:].copy()) for x in found]


def stepper(trained, kind, gradients=True):
    """One step as a script has it, for one device; it gives the gradients, too."""
    groups = decay_groups(trained, 0.1)
    optimizer = optim.SGD(groups, lr=0.1) if kind == "sgd" else optim.AdamW(groups, lr=1e-2)

    @ht.jit
    def step(tokens, targets):
        optimizer.zero_grad()
        loss = trained.loss(tokens, targets)
        loss.backward()
        found = [p.grad for p in trained.parameters()] if gradients else []
        norm = nn.utils.clip_grad_norm_(trained.parameters(), 0.5)
        optimizer.step()
        return [loss, norm, *found]

    return step, optimizer


def experts_of(name):
    """The experts of the model that a strategy of this name is for."""
    return EXPERTS if "expert" in name else 0


def trained(strategy, kind, steps, name):
    """What each step gives, the parameters at the end, and what the step exchanges."""
    net = model(experts=experts_of(name))
    step, optimizer = stepper(net, kind)
    ht.manual_seed(11)
    found = {}

    def run():
        for number, batch in enumerate(batches(steps)):
            found.update({f"{number}.{i}": t.numpy() for i, t in enumerate(step(*batch))})

    if strategy is None:
        run()
        said = None
    else:
        with parallel(net, Mesh.present(**strategy.sizes), strategy, optimizer) as spread:
            run()
            (said,) = spread.explained
            counted = {what: n * steps for what, n in said.sent.items()}
            assert spread.sent == counted, (spread.sent, counted)
    found |= {name: t.numpy() for name, t in net.state_dict().items()}
    found["launches"] = np.array(step.launches)
    return found, said


def digest(found):
    text = b"".join(np.ascontiguousarray(v).tobytes() for v in found.values())
    return hashlib.sha256(text).hexdigest()


def distances(found, whole, steps):
    """Of each step how far the loss is from that of one device, relatively, and the gradient that
    is farthest: by its norm, or by the model's where its own is below a millionth of that."""
    count = sum(key.startswith("0.") for key in whole)
    for step in range(steps):
        loss = whole[f"{step}.0"]
        norms = [np.linalg.norm(whole[f"{step}.{i}"].astype(float)) for i in range(2, count)]
        total = float(np.linalg.norm(norms))
        errors = [
            np.linalg.norm(found[f"{step}.{i}"].astype(float) - whole[f"{step}.{i}"])
            / (norm if norm > 1e-6 * total else total)
            for i, norm in enumerate(norms, 2)
        ]
        yield float(abs(found[f"{step}.0"] - loss) / loss), float(max(errors))


def compare(path, kind, steps, names):
    of = {experts_of(name): name for name in names}
    of = {experts: trained(None, kind, steps, name)[0] for experts, name in of.items()}
    for name in names:
        whole = of[experts_of(name)]
        each = list(distances(dict(np.load(f"{path}/{name}.npz")), whole, steps))
        loss, gradient = (max(values) for values in zip(*each, strict=True))
        print(f"{name:16} losses {loss:.1e}, gradients {gradient:.1e}")  # noqa: T201


def train_on_ranks(path, kind, steps, names):
    mesh = Mesh.present()
    for name in names:
        strategy = STRATEGIES[name](mesh.size("data"))
        found, said = trained(strategy, kind, steps, name)
        if mesh.rank == 0:
            np.savez(f"{path}/{name}.npz", **found)
        made = {f"{axis} {what}": n for (axis, what), n in said.calls.items()}
        print(json.dumps([name, digest(found), made]), flush=True)  # noqa: T201


if __name__ == "__main__":
    path, kind, steps, *names = sys.argv[1:]
    act = compare if World.present() is None else train_on_ranks
    act(path, kind, int(steps), names)
