"""What long runs of PyTorch programs on the device "hal" hold, and what a step costs by itself.

    python -m benchmarks.torch_steps shapes [--steps 10000] [--seed N]
    python -m benchmarks.torch_steps schedule [--steps 1000]
    python -m benchmarks.torch_steps calls
    python -m benchmarks.torch_steps small

`shapes`: steps of a small GPT, each of one of 64 lengths, and every so often the places and plans
that are held, the pool's bytes, and the process's memory. `schedule`: a learning rate that is
another one in each step, and the plans that this compiled. `calls`: a compiled graph with few and
with many arguments. `small`: training steps of a GPT of width 32 beside PyTorch's CPU device,
interleaved; ratios are theirs by ours.
"""

from __future__ import annotations

import argparse
import copy
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import stack.bridge.torch as bridge
from stack.bridge.torch import kernels

LENGTHS = 64
ROUNDS = 15


class Model(nn.Module):
    """Embedded tokens, blocks of attention, and the loss of the next token."""

    def __init__(self, width: int, layers: int, length: int, vocabulary: int = 65) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def step_of(model: nn.Module, optimizer: Any, inputs: tuple[torch.Tensor, ...]) -> float:
    """A training step, and its loss."""
    optimizer.zero_grad()
    loss = model(*inputs)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.item())


def batch(rows: int, length: int, device: str) -> tuple[torch.Tensor, ...]:
    """Tokens and targets."""
    made = torch.randint(65, (rows, length + 1))
    return made[:, :-1].to(device), made[:, 1:].to(device)


def held() -> str:
    """What tape, pool and process hold."""
    tape, memory = kernels.tape_of(0), torch.hal.memory_stats()
    counts = bridge.stats()["hal:0"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return (
        f"places {tape._points}, operands {len(tape.operands)}, plans {len(tape._plans)}, "
        f"compiled {counts['compiled']}, generalised {counts.get('generalised', 0)}, families "
        f"{dict(tape.engine.families.compiled)}, pool {memory['reserved_bytes.all.current']:,} B, "
        f"raw allocations {memory['num_device_alloc']}, process at most {peak} MiB"
    )


def shapes(steps: int, seed: int) -> None:
    torch.manual_seed(seed)
    model = Model(16, 1, LENGTHS).to("hal")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for i in range(steps):
        length = int(torch.randint(1, LENGTHS + 1, ()))
        step_of(model, optimizer, batch(2, length, "hal"))
        if (i + 1) % max(1, steps // 20) == 0:
            print(f"step {i + 1}: {held()}", flush=True)


def schedule(steps: int) -> None:
    torch.manual_seed(0)
    model = Model(16, 1, 8).to("hal")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    inputs = batch(2, 8, "hal")
    before = bridge.stats()["hal:0"]
    for i in range(steps):
        step_of(model, optimizer, inputs)
        rates.step()
        if i in (4, steps - 1):
            print(f"step {i + 1}: {held()}", flush=True)
    after = bridge.stats()["hal:0"]
    made = sum(after.get(k, 0) - before.get(k, 0) for k in ("compiled", "generalised"))
    print(f"plans for {steps} learning rates: {made}")


def calls() -> None:
    for count in (2, 8, 32, 100):
        given = [torch.ones(4, 4, device="hal") for _ in range(count)]
        fast = torch.compile(lambda *xs: sum(xs), backend="hal")
        with torch.no_grad():
            taken = []
            for _ in range(400):
                begin = time.process_time_ns()
                fast(*given)
                taken.append((time.process_time_ns() - begin) / 1000)
                if len(taken) % 50 == 0:
                    torch.hal.synchronize()
        own = statistics.median(taken)
        print(f"{count:4} arguments: {own:6.1f} us, to be at most {30 + 1.5 * count:.1f}")


def small() -> None:
    """A two-layer GPT of width 32: overhead alone."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model(32, 2, 16)
    twins = {"cpu": model, "hal": copy.deepcopy(model), "compiled": copy.deepcopy(model)}
    steps: dict[str, Callable[[], float]] = {}
    for name, twin in twins.items():
        device = "cpu" if name == "cpu" else "hal"
        twin.to(device)
        called = torch.compile(twin, backend="hal") if name == "compiled" else twin
        optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-3)
        inputs = batch(4, 16, device)
        steps[name] = lambda c=called, o=optimizer, i=inputs: step_of(c, o, i)
    for step in steps.values():
        for _ in range(8):
            step()
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            found[name].append(min(_taken(step) for _ in range(5)))
    for name, taken in found.items():
        ratio = statistics.median(a / b for a, b in zip(found["cpu"], taken, strict=True))
        print(f"{name:9} {statistics.median(taken):8.0f} us of a processor, ratio {ratio:.2f}")


def _taken(step: Callable[[], float]) -> float:
    begin = time.process_time_ns()
    step()
    return (time.process_time_ns() - begin) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("which", choices=("shapes", "schedule", "calls", "small"))
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    bridge.register()
    if given.which == "shapes":
        shapes(given.steps or 10_000, given.seed)
    elif given.which == "schedule":
        schedule(given.steps or 1000)
    else:
        {"calls": calls, "small": small}[given.which]()


if __name__ == "__main__":
    main()
