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
from stack.framework import nn, optim
from stack.parallel import Mesh, Sharded, parallel
from stack.parallel.strategy import context, data, tensor, zero

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

STRATEGIES = {
    "data": lambda n: data(n),
    "zero1": lambda n: zero(1, n),
    "zero3": lambda n: zero(3, n),
    "tensor": lambda n: tensor(n, MEGATRON),
    "context": lambda n: context(n),
    "data+tensor": lambda n: data(2) + tensor(n // 2, MEGATRON),
    "zero1+tensor": lambda n: zero(1, 2) + tensor(n // 2, MEGATRON),
    "zero3+tensor": lambda n: zero(3, 2) + tensor(n // 2, MEGATRON),
    "data+context": lambda n: data(2) + context(n // 2),
    "zero3+context": lambda n: zero(3, 2) + context(n // 2),
    "context+tensor": lambda n: context(2) + tensor(n // 2, MEGATRON),
    "replica+zero3": lambda n: data(2, "replica") + zero(3, n // 2, "shard"),
}


def model(layers=LAYERS):
    ht.manual_seed(5)
    return GPT(GPTConfig(layers, WIDTH, HEADS, CONTEXT, VOCABULARY, dropout=0.1))


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


def trained(strategy, kind, steps):
    """What each step gives, the parameters at the end, and what the step exchanges."""
    net = model()
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
    found |= {name: t.numpy() for name, t in net.state_dict().items()}
    found["launches"] = np.array(step.launches)
    return found, said


def digest(found):
    text = b"".join(np.ascontiguousarray(v).tobytes() for v in found.values())
    return hashlib.sha256(text).hexdigest()


if __name__ == "__main__":
    path, kind, steps, *names = sys.argv[1:]
    mesh = Mesh.present()
    for name in names:
        strategy = STRATEGIES[name](mesh.size("data"))
        found, said = trained(strategy, kind, int(steps))
        if mesh.rank == 0:
            np.savez(f"{path}/{name}.npz", **found)
        sent = {f"{axis} {what}": n for (axis, what), n in said.sent.items()}
        made = {f"{axis} {what}": n for (axis, what), n in said.calls.items()}
        whole = dict(said.whole)
        print(  # noqa: T201
            json.dumps([name, digest(found), sent, made, whole, int(found["launches"])]),
            flush=True,
        )
