"""All ranks begin with one strategy and the same model: the same parameters, with the values of
rank 0."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from hal.core.errors import InvalidCall
from stack.comm.group import Group
from stack.framework import Tensor, default_generator, tensor
from stack.framework.dtypes import NAMES
from stack.framework.nn import Module
from stack.framework.realize import arrays_of, realize
from stack.parallel.mesh import Mesh

Fact = tuple[str, str]
"""A tensor's name and what must be equal of it."""


def agree_on_strategy(mesh: Mesh, strategy: str) -> None:
    """Raise InvalidCall on all ranks of the mesh's job if the texts of their strategies differ."""
    if mesh.world is None or mesh.world.size == 1:
        return
    group = Mesh.of(mesh.world, ranks=mesh.world.size).join("ranks")
    try:
        lines = strategy.splitlines()
        facts = [(f"line {i}", line.strip()) for i, line in enumerate(lines, 1)]
        _compare(group, facts, "strategies", "give all ranks one text")
    finally:
        group.close()


def agree(group: Group, model: Module, device: str) -> None:
    """Raise InvalidCall on all ranks if their models differ; then give every rank the values of
    rank 0: parameters, buffers, and the state of the device's generator."""
    named = [*model.named_parameters(), *model.named_buffers()]
    facts = [(name, _described(t)) for name, t in named]
    _compare(group, facts, "models", "build the same model on all ranks")
    _take_values(group, [t for _, t in named])
    generator = default_generator(device)
    state = np.array(generator.get_state(), np.uint64)
    group.broadcast(state, 0)
    generator.set_state(*state.tolist())


def _described(t: Tensor) -> str:
    learned = "" if t.requires_grad else ", not learned"
    return f"{NAMES[t.dtype]}{list(t.shape)}{learned}"


def _compare(group: Group, facts: Sequence[Fact], what: str, advice: str) -> None:
    # What each rank says.
    text = json.dumps(facts).encode()
    own = np.frombuffer(text, np.uint8)
    counts = group.all_gather(np.array([own.size])).ravel().tolist()
    texts = group.all_gather(own, counts=counts).tobytes()
    ends = np.cumsum(counts).tolist()
    every = [texts[end - n : end] for end, n in zip(ends, counts, strict=True)]
    if all(text == every[0] for text in every):
        return
    other = next(r for r, text in enumerate(every) if text != every[0])
    first, second = (json.loads(every[r]) for r in (0, other))
    pairs = zip_longest(first, second)
    ours, theirs = next((a, b) for a, b in pairs if a != b)
    raise InvalidCall(
        f"group {group.key!r}: ranks have different {what}: rank 0 has {_said(ours)} where rank "
        f"{other} has {_said(theirs)}; {advice}"
    )


def _said(fact: Fact | None) -> str:
    return "nothing" if fact is None else f"{fact[0]}: {fact[1]}"


def _take_values(group: Group, tensors: Sequence[Tensor]) -> None:
    arrays_of(tensors)
    for t in tensors:
        own = t.numpy()
        data = np.ascontiguousarray(own).view(np.uint8).reshape(-1).copy()
        group.broadcast(data, 0)
        if data.tobytes() != own.tobytes():
            values = np.frombuffer(data.tobytes(), own.dtype).reshape(own.shape)
            t.data = tensor(values, dtype=t.dtype, device=t.device)
    realize(*tensors)
