"""A GPT under strategies, on ranks: hal run -n 2 --devices cpu:0 spread_gpt.py PATH OPTIMIZER STEPS
NAME ...

A name is that of a strategy, as data+zero3, and behind an @ that of what is special with the model
(`SPECIAL`). Writes losses, gradient norms and gradients of every step as rank 0 has them, and what
all ranks say of theirs."""

import hashlib
import itertools
import json
import sys
from functools import partial
from pathlib import Path

import numpy as np

import stack.framework as ht
from stack.comm.world import World
from stack.framework import nn, optim
from stack.parallel import Mesh, Sharded, parallel
from stack.parallel.speed import measured_speeds
from stack.parallel.strategy import context, data, expert, pipeline, ring, tensor, ulysses, zero

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from gpt import GPT, GPTConfig, decay_groups

ROWS, CONTEXT, WIDTH, HEADS, VOCABULARY, LAYERS = 8, 16, 32, 4, 32, 2
SIZES = {"": (WIDTH, HEADS, CONTEXT, VOCABULARY), "odd": (21, 3, CONTEXT + 1, VOCABULARY + 1)}
"""Width, heads, positions and vocabulary; odd ones are divided neither by 2 nor by 4."""

MEGATRON = {
    "*.qkv.*": Sharded(0, 3),
    "*.out.weight": Sharded(1),
    "*.up.*": Sharded(0),
    "*.down.weight": Sharded(1),
    "token.weight": Sharded(0),
    "head.weight": Sharded(0),
}

WITH_EXPERTS = {name: p for name, p in MEGATRON.items() if name[2:] not in ("up.*", "down.weight")}
"""The same for a model whose feed-forward networks are experts."""

EXPERTS = 4
BATCHES = 4
"""The micro-batches of a pipeline."""
CHUNKS = {"token.*": 0, "position.*": 0, "blocks.0.*": 0, "*": 1}

ELEMENTS = {
    "data": data,
    "zero1": partial(zero, 1),
    "zero2": partial(zero, 2),
    "zero3": partial(zero, 3),
    "tensor": lambda n, name="tensor": tensor(n, MEGATRON, name),
    "context": context,
    "ring": ring,
    "ulysses": ulysses,
    "expert": lambda n, name="expert": expert(n, "*.mixture", name),
    "pipeline": lambda n, name="stage": pipeline(n, f"1f1b {BATCHES}", CHUNKS, name),
}


def tied(net):
    """One parameter for the embedding and the logits."""
    net.head.weight = net.token.weight


def one(net):
    """Every token chooses the same two experts, and the others get none."""
    with ht.no_grad():
        for block in net.blocks:
            block.norm2.bias[0] = 4.0
            first = block.mixture.router.weight[:, 0]
            first.copy_(ht.tensor(np.array([0.2, -0.5, 0.5, -1.0], np.float32)))


def dropless(net):
    """No choice of an expert is dropped."""
    for block in net.blocks:
        block.mixture.capacity = None


SPECIAL = {f.__name__: f for f in (tied, one, dropless)}
SPECIAL |= {"shadowed": dropless, "parts": dropless}
"""What may be special with a model; besides, its sizes may be odd, it has eight experts, its
gradients are unclipped, or ranks take unequal parts of the batch."""


def special_of(name):
    return name.partition("@")[2]


def composed(name, ranks):
    """The strategy that names like "data+zero3" say: each has two ranks, the last one what is
    left."""
    name, _, special = name.partition("@")
    found = None
    *first, last = name.split("+")
    elements = ELEMENTS
    if special == "uneven":
        elements = ELEMENTS | {"data": lambda n, name="data": data(n, name, (3, 1, 2, 2)[:n])}
    if special in ("shadowed", "parts"):
        said = {"shadows": 1} if special == "shadowed" else {"shadows": 1, "parts": 3}
        elements = ELEMENTS | {"expert": lambda n: expert(n, "*.mixture", **said)}
    elif "expert" in name:
        elements = ELEMENTS | {"tensor": lambda n, name="tensor": tensor(n, WITH_EXPERTS, name)}
    if special == "tied":
        shards = {pattern: p for pattern, p in MEGATRON.items() if pattern != "head.weight"}
        elements = ELEMENTS | {"tensor": lambda n, name="tensor": tensor(n, shards, name)}
    for element in (*first, last):
        size = ranks // 2 ** len(first) if element is last else 2
        made = elements[element](size)
        if found is not None and set(made.sizes) & set(found.sizes):
            made = elements[element](size, name=element)
        found = made if found is None else found + made
    return found


def combinations(count, elements=tuple(ELEMENTS)):
    """Names of strategies of so many different elements that go together: of ZeRO's stages a
    strategy has one, of what divides sequences without and with a way of attention one."""

    def is_one(names):
        rows = sum(n.startswith("zero") for n in names)
        return rows <= 1 and ("context" not in names or not {"ring", "ulysses"} & set(names))

    return ["+".join(names) for names in itertools.combinations(elements, count) if is_one(names)]


STRATEGIES = {
    name: partial(composed, name)
    for count in (1, 2)
    for name in combinations(count)
    if "pipeline" not in name
}


def model(layers=LAYERS, experts=0, special=""):
    ht.manual_seed(5)
    sizes = SIZES["odd" if special == "odd" else ""]
    net = GPT(GPTConfig(layers, *sizes, 0.1, experts))
    if special in SPECIAL:
        SPECIAL[special](net)
    return net


def batches(steps, rows=ROWS):
    rng = np.random.default_rng(6)
    found = [rng.integers(0, VOCABULARY, (rows, CONTEXT + 1)) for _ in range(steps)]
    return [(x[:, :-1].copy(), x[:, 1:].copy()) for x in found]


def in_turn(count):
    """What a pipeline computes, by one device: micro-batches one after the other."""

    def backward(loss_of, tokens, targets):
        total = None
        for x, y in zip(tokens.chunk(count), targets.chunk(count), strict=True):
            loss = loss_of(x, y)
            loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        return total

    return backward


def stepper(trained, kind, gradients=True, backward=None, micro_batches=1, clip=True):
    """One step as a script has it, for one device; it gives the gradients, too."""
    groups = decay_groups(trained, 0.1)
    optimizer = optim.SGD(groups, lr=0.1) if kind == "sgd" else optim.AdamW(groups, lr=1e-2)

    gather = backward or in_turn(1)

    def loss_of(tokens, targets):
        return trained.loss(tokens, targets) / micro_batches

    @ht.jit
    def step(tokens, targets):
        optimizer.zero_grad()
        loss = gather(loss_of if micro_batches > 1 else trained.loss, tokens, targets)
        found = [p.grad for p in trained.parameters()] if gradients else []
        norm = nn.utils.clip_grad_norm_(trained.parameters(), 0.5) if clip else loss
        optimizer.step()
        return [loss, norm, *found]

    return step, optimizer


def experts_of(name):
    """The experts of the model that a strategy of this name is for."""
    return (8 if "@eight" in name else EXPERTS) if "expert" in name else 0


def micro_batches_of(name):
    return BATCHES if "pipeline" in name else 1


def rows_of(name):
    return 12 if "@eight" in name else 2 * ROWS if "pipeline" in name else ROWS


def trained(strategy, kind, steps, name):
    """What each step gives, the parameters at the end, and what the step exchanges."""
    net = model(experts=experts_of(name), special=special_of(name))
    count = micro_batches_of(name)
    backward, found = in_turn(count), {}
    if strategy is not None:

        def backward(*given):
            return spread.backward(*given)

    clip = special_of(name) != "unclipped"
    step, optimizer = stepper(net, kind, True, backward, count, clip)
    ht.manual_seed(11)

    def run():
        for number, batch in enumerate(batches(steps, rows_of(name))):
            found.update({f"{number}.{i}": t.numpy() for i, t in enumerate(step(*batch))})

    if strategy is None:
        run()
        said = None
    else:
        with parallel(net, Mesh.present(**strategy.sizes), strategy, optimizer) as spread:
            run()
            (said,) = spread.explained
            counted = {what: n * steps for what, n in said.sent.items() if n}
            sent = {what: n for what, n in spread.sent.items() if n}
            bounds = [what for what in counted if what[1] == "all_to_all_v"]
            assert all(sent.pop(what, 0) <= counted.pop(what) for what in bounds)
            assert sent == counted, (sent, counted)
    found |= {name: t.numpy() for name, t in net.state_dict().items()}
    return found | {"launches": np.array(step.launches)}, said


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


def model_of(name):
    """What says which steps of one device those of a strategy are compared with."""
    return experts_of(name), micro_batches_of(name), special_of(name)


def compare(path, kind, steps, names):
    of = {model_of(name): name for name in names}
    of = {which: trained(None, kind, steps, name)[0] for which, name in of.items()}
    for name in names:
        loss, gradient = farthest(path, name, of[model_of(name)], steps)
        print(f"{name:24} losses {loss:.1e}, gradients {gradient:.1e}")  # noqa: T201


def farthest(path, name, whole, steps):
    """The worst of `distances` in all steps."""
    each = list(distances(dict(np.load(f"{path}/{name}.npz")), whole, steps))
    return tuple(max(values) for values in zip(*each, strict=True))


def train_on_ranks(path, kind, steps, names):
    mesh = Mesh.present()
    for name in names:
        found, said = trained(composed(name, mesh.size("data")), kind, steps, name)
        launches = found.pop("launches")
        if mesh.rank == 0:
            np.savez(f"{path}/{name}.npz", launches=launches, **found)
        made = {f"{axis} {what}": n for (axis, what), n in said.calls.items()}
        if special_of(name) == "uneven":
            made["speeds"] = measured_speeds(mesh, "data", lambda: (ht.ones(9) * 2).numpy())
        print(json.dumps([name, digest(found), made]), flush=True)  # noqa: T201


if __name__ == "__main__":
    path, kind, steps, *names = sys.argv[1:]
    act = compare if World.present() is None else train_on_ranks
    act(path, kind, int(steps), names)
