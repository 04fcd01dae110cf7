"""Activation checkpointing under PyTorch's names: forward values that the backward pass computes
again instead of keeping them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hal.tile.node import Node, substitute, toposort
from stack.framework import store
from stack.framework.modes import grad_enabled
from stack.framework.reverse import Rule, gradients, rules
from stack.framework.tensor import Tensor
from stack.framework.tree import flatten, unflatten
from stack.ops.behind import behind


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    determinism_check: str = "default",
    **kwargs: Any,
) -> Any:
    """function(*args, **kwargs), of which the backward pass computes again what depends on the
    arguments, so that of these values only arguments and results are kept until then (Chen et al.,
    arXiv 1604.06174). Values have the same bits as without it, and random draws are those of the
    forward pass. So have gradients, but where the function reads an argument several times and
    others read it, too: what it adds to that gradient is summed first.

    `function` is called once: its operations are repeated, not its Python. What it reads beside its
    arguments is kept. `use_reentrant`, `preserve_rng_state` and `determinism_check` are PyTorch's
    and change nothing.
    """
    result = function(*args, **kwargs)
    leaves, spec = flatten(result, lambda x: isinstance(x, Tensor))
    followed = [t for t in leaves if t.requires_grad and t.dtype.is_float]
    given, _ = flatten([args, kwargs], lambda x: isinstance(x, Tensor))
    if not followed or not grad_enabled():
        return result
    nodes = dict.fromkeys(t.node for t in followed)
    made = dict(zip(nodes, _repeated(list(nodes), [t.node for t in given]), strict=True))
    outputs = [
        Tensor(made[t.node], t.device, requires_grad=True)
        if t.requires_grad and t.dtype.is_float
        else t
        for t in leaves
    ]
    return unflatten(spec, iter(outputs))


def _repeated(outputs: Sequence[Node], given: Sequence[Node]) -> list[Node]:
    """Nodes with the values of the outputs, through which gradients flow to what the function was
    given and what it reads beside by operations that are computed again."""
    arguments = set(given)
    own: dict[Node, None] = {}  # what depends on an argument
    for n in toposort(outputs, _below):
        if n not in arguments and any(s in own or s in arguments for s in _below(n)):
            own[n] = None
    read = dict.fromkeys(s for n in own for s in _below(n) if s not in own)
    stands = {n: store.fresh(n.type) for n in read}
    # Where a function stops gradients, as softmax does by what it subtracts, its copy stops them.
    copies = dict(stands)
    for n in own:
        if not n.srcs:
            copies[n] = store.barrier(*substitute(_below(n), copies))
    stops = {copies[n]: store.origins[copies[n]] for n in own if n in copies}
    again = substitute(outputs, copies)
    learned = {leaf: n for n, leaf in stands.items() if n.dtype.is_float}
    sources = tuple(learned.values())
    found: list[Node] = []
    for n, copy in zip(outputs, again, strict=True):
        if n not in own:
            found.append(n)
            continue
        leaf = store.barrier(n)

        def pull(d: Node, lead: Sequence[bool], copy: Node = copy) -> list[Node | None]:
            arrived = store.fresh(d.type)
            wanted = {x for x, leads in zip(learned, lead, strict=True) if leads}
            total = gradients([(copy, arrived)], wanted.__contains__)
            late = {x: behind(n, d) if n in arguments else n for n, x in stands.items()}
            for leaf, origin in stops.items():
                late[leaf] = store.barrier(*substitute([origin], late))
            values = substitute(total.values(), {**late, arrived: d})
            by_leaf: Mapping[Node, Node] = dict(zip(total, values, strict=True))
            return [by_leaf.get(x) for x in learned]

        rules[leaf] = Rule(sources, pull)
        found.append(leaf)
    return found


def _below(n: Node) -> tuple[Node, ...]:
    """What a node is computed from, also where gradients stop; nothing if it has a value or a rule
    of its own for them."""
    if n in store.arrays or n in store.histories or n in rules or n not in store.origins:
        return n.srcs
    return (store.origins[n],)


def checkpoint_sequential(
    functions: Iterable[Callable[..., Any]], segments: int, input: Any, **options: Any
) -> Any:
    """The functions, each on what the one before gave, in so many segments as by `checkpoint`. The
    last segment keeps what it computes."""
    every = list(functions)
    each = -(-len(every) // max(1, segments))
    for begin in range(0, len(every), each):
        run = _run(every[begin : begin + each])
        is_last = begin + each >= len(every)
        input = run(input) if is_last else checkpoint(run, input, **options)
    return input


def _run(functions: Sequence[Callable[..., Any]]) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        for function in functions:
            x = function(x)
        return x

    return run
