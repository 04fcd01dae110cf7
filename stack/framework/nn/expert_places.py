"""Which experts of a mixture are together on a rank: chosen from their load, moved between steps
(Zhai et al., "SmartMoE", 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stack.framework.create import tensor
from stack.framework.errors import TensorError
from stack.framework.modes import no_grad
from stack.framework.nn.experts import EVEN, MixtureOfExperts
from stack.framework.optim.optimizer import Optimizer
from stack.framework.tensor import Tensor


def even_order(load: Sequence[float], ranks: int) -> list[int]:
    """An order of experts for which ranks, each of which takes the next ones, as many as any other,
    have loads that are near each other: the heaviest of those left goes to the rank that has least.
    Raises TensorError for experts that the ranks cannot divide."""
    if ranks < 1 or len(load) % ranks:
        raise TensorError(f"{len(load)} experts cannot be divided among {ranks} ranks")
    parts: list[list[int]] = [[] for _ in range(ranks)]
    for expert in sorted(range(len(load)), key=lambda e: (-load[e], e)):
        free = (part for part in parts if len(part) < len(load) // ranks)
        min(free, key=lambda part: sum(load[e] for e in part)).append(expert)
    return [expert for part in parts for expert in sorted(part)]


def renumber_experts(
    mixture: MixtureOfExperts, order: Sequence[int], *optimizers: Optimizer
) -> None:
    """Let expert `order[i]` be number i, with its outputs of the router and what optimizers keep of
    it: the mixture computes what it did, up to the order of sums, and other experts are together on
    a rank. Values are whole: outside of `parallel`, or within its `gathered()`. Raises TensorError
    for numbers that are no order of the experts, and for the capacity "even", whose free places are
    in the experts' order, and whose load needs no other one."""
    if sorted(order) != list(range(mixture.experts)):
        raise TensorError(f"{list(order)} is no order of {mixture.experts} experts")
    if mixture.capacity == EVEN:
        raise TensorError("experts that take as many tokens each need no other order")
    moved = [mixture.router.weight, mixture.up, mixture.down]
    at = np.asarray(order)
    with no_grad():
        for parameter in moved:
            parameter.copy_(tensor(parameter.numpy()[at], device=parameter.device))
    for optimizer in optimizers:
        _move_states(optimizer, moved, at)


def _move_states(optimizer: Optimizer, moved: Sequence[Tensor], at: np.ndarray) -> None:
    """Give the states of parameters, which have their shapes, other rows."""
    saved = optimizer.state_dict()
    every = [p for group in optimizer.param_groups for p in group["params"]]
    for number, parameter in enumerate(every):
        if not any(parameter is p for p in moved):
            continue
        for name, value in saved["state"].get(number, {}).items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                rows = tensor(value.numpy()[at], device=value.device)
                saved["state"][number][name] = rows
    optimizer.load_state_dict(saved)
