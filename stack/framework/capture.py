"""Tracing: a Python function of tensors becomes one request whose state is updated in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from hal.core.facts import dataclass
from hal.tile.node import Node, Type
from hal.tile.size import Facts
from stack.collector import paused
from stack.compiler.program import GraphRequest
from stack.framework import store
from stack.framework.apply import common_device
from stack.framework.cell import (
    Cell,
    Retrace,
    Settler,
    Trace,
    become,
    contexts,
    governing,
    here,
    owners,
    settle,
    take_over,
    tell_apart,
    under_way,
)
from stack.framework.devices import default_device
from stack.framework.errors import TracingError
from stack.framework.flags import Flags
from stack.framework.flat import homes
from stack.framework.request import Inlining
from stack.framework.spread import GradientOf, Source, divided, divisions_of
from stack.framework.tensor import Tensor
from stack.framework.tree import Spec, flatten
from stack.framework.within import Need
from stack.runtime.plan import Bound, Plan

Make = Callable[[str, GraphRequest], Plan | Bound]
"""(device, request) to a plan."""


@dataclass(frozen=True, slots=True)
class CallNeed:
    """What a call must meet: the values of one argument, and the sizes that these have in it."""

    need: Need
    argument: int | None
    sizes: Callable[[Mapping[str, float]], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Captured:
    """A traced function as a plan. Its outputs are the function's tensors, then new gradients, then
    the new values of states and of gradients, then what it computes for other ranks alone.

    `states` are the cells that the function changes; their arrays are updated in place, and so are
    the gradients of the tensors in `gathered`, which are inputs of these numbers. `gradients` are
    the tensors that get another gradient: the output of that number, this tensor, or none. `flags`
    is what must hold of leaves from outside, `needs` what of the arguments' values.
    """

    plan: Plan | Bound
    device: str
    sources: tuple[Source, ...]
    states: tuple[Cell, ...]
    results: Spec
    result_count: int
    flags: Flags
    gradients: tuple[tuple[Tensor, int | Tensor | None], ...] = ()
    gathered: tuple[tuple[Tensor, int], ...] = ()
    held: tuple[Source, ...] = ()
    """The sources that are cells, or gradients of such."""
    needs: tuple[CallNeed, ...] = ()
    settlers: tuple[Settler, ...] = ()
    generators: Mapping[str, object] | None = None
    """The streams of the thread that it draws from, where it draws from any: no other thread may
    run it."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """What the symbols of its sizes are in this call."""

    @property
    def may_end(self) -> bool:
        """Whether there is anything by which `holds` could become false."""
        return self.flags.are_any or self.generators is not None

    def holds(self) -> bool:
        """Whether this thread would trace the same now."""
        return self.flags.hold() and (self.generators is None or self.generators is here.generators)


class Argument(NamedTuple):
    """What a trace needs to know of an argument."""

    type: Type
    device: str
    requires_grad: bool


def capture(
    name: str,
    function: Callable[[list[Tensor]], Any],
    arguments: Sequence[Argument],
    make: Make,
    facts: Facts | None = None,
) -> Captured:
    """Trace the function once, with tensors without values in the place of its arguments.

    All older tensors are as before afterwards; the function's changes to them are in the plan,
    which `make` makes of the request. `facts` is what is known of sizes of the arguments that are
    no numbers.
    """
    while True:
        try:
            with paused():
                captured = _capture(name, function, arguments, make, facts)
        except Retrace as met:
            met.change()
            continue
        cells = [s for s in captured.sources if isinstance(s, Cell)]
        nodes = [c.node for c in cells]
        others = [s for s in captured.settlers if s.context is not here.context]
        for settler in others:
            take_over(settler)
        if not others or all(c.node is n for c, n in zip(cells, nodes, strict=True)):
            return captured  # else another thread had changed what this one took over


def _capture(
    name: str,
    function: Callable[[list[Tensor]], Any],
    arguments: Sequence[Argument],
    make: Make,
    facts: Facts | None,
) -> Captured:
    settle()
    with store.lock:  # a thread that traces has told its own cells apart
        for context in list(contexts):
            if context.trace is None:
                tell_apart(context.pending())
        trace = Trace(name)
        here.context.trace = trace
        under_way.append(trace)
    try:
        nodes = [store.argument(a.type, name) for a in arguments]
        given = [
            Tensor(n, a.device, owns=True, requires_grad=a.requires_grad)
            for n, a in zip(nodes, arguments, strict=True)
        ]
        result = function(given)
        # Make the state consistent that the trace has changed. What others have changed is theirs.
        for settler in _settlers_of(list(trace.old)):
            settler.settle()
        for i, (t, n) in enumerate(zip(given, nodes, strict=True)):
            if t.node is not n:
                raise TracingError(
                    f"{name!r} changes its argument {i} in place, which a jitted function cannot "
                    "do; return the new value, or let the function use the tensor from outside"
                )
        captured = _captured(trace, nodes, given, result, make, facts)
    finally:
        here.context.trace = None
        trace.revert()
        under_way.remove(trace)
        # Take away the values of tensors that the trace left behind.
        for cell in here.context.pending():
            if cell.serial > trace.born:
                become(cell, store.argument(cell.node.type, trace.function))
                cell.settled()
    return captured


def _settlers_of(cells: Iterable[Cell]) -> tuple[Settler, ...]:
    found = (governing.get(c.serial) for c in cells)
    return tuple(dict.fromkeys(s for s in found if s is not None))


def _captured(
    trace: Trace,
    nodes: list[Node],
    given: list[Tensor],
    result: Any,
    make: Make,
    facts: Facts | None,
) -> Captured:
    inline = Inlining(_Kept(trace))
    for n in nodes:
        inline.add_input(n)
    tensors, results = flatten(result, lambda x: isinstance(x, Tensor))
    outputs = [_lowered(inline, t.node, trace) for t in tensors]
    updates, states = [], []
    gradients: list[tuple[Tensor, int | Tensor | None]] = []
    for t, gradient in _gradients(trace):
        if gradient is None or gradient.serial < trace.born:
            gradients.append((t, gradient))
        else:
            gradients.append((t, len(outputs)))
            outputs.append(_lowered(inline, gradient.node, trace))
    for cell, old in _states(trace):
        new, target = _lowered(inline, cell.node, trace), inline.add_input(old)
        if new is not target:
            updates.append((len(outputs), inline.inputs.index(old)))
            outputs.append(new)
            states.append(cell)
    gathered = []
    for t, (stand_in, leaf) in trace.given.items():
        if trace.gradients[t] is stand_in and stand_in.node is not leaf:
            new, target = _lowered(inline, stand_in.node, trace), inline.add_input(leaf)
            if new is not target:
                gathered.append((t, inline.inputs.index(leaf)))
                updates.append((len(outputs), gathered[-1][1]))
                outputs.append(new)
    outputs += [_lowered(inline, effect.node, trace) for effect in trace.effects]
    sources: list[Source] = []
    holders = {leaf: GradientOf(t) for t, (_, leaf) in trace.given.items()}
    for leaf in inline.inputs:
        if leaf in holders:
            sources.append(holders[leaf])
        elif leaf in store.arguments:
            sources.append(nodes.index(leaf))
        else:
            owner = older_owner(leaf, trace)
            sources.append(store.arrays[leaf] if owner is None else owner)
    _check_crossed(trace, inline)
    cells = [*given, *(c for s in sources if (c := cell_of(s)) is not None), *tensors]
    device = common_device(cells) if cells else default_device()
    inputs = tuple(inline.add_input(leaf) for leaf in inline.inputs)
    request = GraphRequest(tuple(outputs), inputs, tuple(updates), facts)
    plan, more = divided(trace.function, request, sources, lambda own: make(device, own))
    sources += more
    flags = Flags(trace.flags)
    # A part of a batch, which a pipeline takes for itself, is looked at by nobody
    needs = tuple(
        [
            _call_need(n, nodes, facts)
            for n in trace.needs
            if n.known or n.source.op == "arange" or n.source in nodes
        ]
    )
    return Captured(
        plan,
        device,
        tuple(sources),
        tuple(states),
        results,
        len(tensors),
        flags,
        tuple(gradients),
        tuple(gathered),
        tuple([s for s in sources if isinstance(s, Cell | GradientOf)]),
        needs,
        settlers=(
            *_settlers_of(s for s in sources if isinstance(s, Cell)),
            *divisions_of(sources),
        ),
        generators=here.generators if trace.draws else None,
    )


def _check_crossed(trace: Trace, inline: Inlining) -> None:
    """Raise TracingError where the function reads what another thread has changed or made since the
    trace began: it would be a constant of the plan."""
    for leaf in inline.inputs:
        found = owners.get(leaf)
        cell = None if found is None else found()
        is_own = leaf in trace.made or cell is None or cell.serial < trace.born
        if leaf in trace.crossed or not is_own:
            other = trace.crossed.get(leaf)
            by = f"thread {other!r} has changed" if other else "another thread has made"
            raise TracingError(
                f"{trace.function!r}, which is traced in thread {trace.thread!r}, uses a tensor of "
                f"{leaf.type} that {by} since the trace began; let one wait for the other"
            )


def cell_of(source: Source) -> Cell | None:
    """The cell with a source's value now; None for arguments, constants, and gradients that are
    not there."""
    if not isinstance(source, GradientOf):
        return source if isinstance(source, Cell) else None
    assert isinstance(source.tensor, Tensor), "only tensors have gradients"
    return source.tensor.grad


def _gradients(trace: Trace) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The tensors that the function gives another gradient, or none. One that began anew within the
    function and that an optimizer has used there is not kept: memory for it would be all that
    the next call needs of it."""
    for t, gradient in trace.gradients.items():
        if t in trace.given and gradient is trace.given[t][0]:
            continue
        was_read = trace.has_read(t, "grad_type")
        if was_read and gradient is None and t not in trace.given:
            continue
        yield t, None if t in trace.used and not was_read else gradient


def _call_need(need: Need, arguments: list[Node], facts: Facts | None) -> CallNeed:
    at = None if need.known or need.source.op == "arange" else arguments.index(need.source)
    sizes = need.sizes
    return CallNeed(need, at, facts.values(sizes) if facts is not None else lambda _: sizes)


class _Kept:
    """The leaves that tensors had when the trace began: inputs, even where their value is still
    pending."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._given = {leaf for _, leaf in trace.given.values()}

    def __contains__(self, leaf: object) -> bool:
        if not isinstance(leaf, Node):
            return False
        return leaf in self._given or older_owner(leaf, self.trace) is not None


def older_owner(leaf: Node, trace: Trace) -> Cell | None:
    """The cell that had this leaf when the trace began."""
    found = owners.get(leaf)
    cell = None if found is None else found()
    if cell is None or cell.serial >= trace.born or cell.link is not None:
        return None  # a window's value follows from another cell's
    if trace.began_as(cell) is not leaf:
        return None
    return cell


def _lowered(inline: Inlining, n: Node, trace: Trace) -> Node:
    lowered = inline(n)
    if lowered is None:
        raise TracingError(
            f"{trace.function!r} uses a tensor that was made while a jitted function was traced "
            "and not returned "
            "from it, so it has no value"
        )
    return lowered


def _states(trace: Trace) -> list[tuple[Cell, Node]]:
    """The changed cells with their old leaves; members of a flat array change with it."""
    changed = [
        (c, old) for c, old in trace.old.items() if c.link is None and c.node is not old.node
    ]
    for cell, before in changed:
        if not before.owns:
            raise TracingError(
                f"{trace.function!r} changes in place a tensor of {cell.node.type} that was "
                "computed from "
                "others outside of it and requires a gradient; detach() it first"
            )
    return [(c, before.node) for c, before in changed if c.serial not in homes]
