"""A loss and its gradients over micro-batches, as one operation of a captured function, and what a
rank of a pipeline computes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.tile.node import Node, node, substitute, toposort
from stack import ops as g
from stack.framework import Tensor, default_generator, modes, store
from stack.framework.capture import older_owner
from stack.framework.cell import Cell, Trace, rebind, root, tracing
from stack.framework.request import Inlining
from stack.framework.reverse import gradients
from stack.ir.interpret import interpret
from stack.parallel.schedule import Schedule
from stack.parallel.stages import FREE, Joint, Lane, State, chunks_of, crossing, cut, step_of

OP = "micro_batches"
"""What stands in a captured function for the loss of all micro-batches (output 0), for a gradient,
which are sums in the order of the micro-batches, or for what the last of them leaves in a state. No
device computes such a node: `parallel` replaces it."""


@dataclass(frozen=True, eq=False, slots=True)
class MicroBatch:
    """What one micro-batch computes, on inputs of its own; `chunk` has the loss.

    `inputs` are in the order of the operands of the nodes that stand for it: `parameters` with
    their names, the `arguments`, of which it has an equal part of the first axis, and others.
    `gradients` are of some of the parameters; `returned`, `states` and `draws` are as `stages.cut`
    and `stages.Joint` have them.
    """

    loss: Node
    chunk: int
    gradients: Mapping[Node, Node]
    inputs: tuple[Node, ...]
    parameters: Mapping[Node, str]
    arguments: tuple[Node, ...]
    returned: Mapping[Node, int]
    states: Mapping[Node, State]
    draws: tuple[Node, int] | None

    @property
    def outputs(self) -> tuple[Node, ...]:
        return (self.loss, *self.gradients.values(), *(s.value for s in self.states.values()))


def micro_batch_in(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes of a function that stand for what micro-batches compute. Raises InvalidCall where
    they are of several calls."""
    found = [n for n in toposort(outputs) if n.op == OP]
    if len({n["of"] for n in found}) > 1:
        raise InvalidCall(
            "a captured function calls `backward` of a pipeline once; give it all micro-batches"
        )
    return tuple(found)


def summed_backward(
    loss_of: Callable[..., Tensor],
    arguments: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    chunk_of: Callable[[str], int],
    batches: int,
) -> Tensor:
    """The sum of the micro-batches' losses; parameters get the sums of their gradients, those that
    have one.

    Each micro-batch has an equal part of the first axis of the arguments, draws behind those before
    it, and finds what they left in buffers that the loss changes, as running statistics: bit for
    bit what one device gathers that takes them one after the other. Within a trace only. Raises
    InvalidCall for an axis that cannot be divided.
    """
    trace = tracing()
    if trace is None:
        raise InvalidCall("a pipeline's step is captured; call it in a function under jit")
    for i, a in enumerate(arguments):
        if not a.shape or a.shape[0] % batches:
            raise InvalidCall(
                f"argument {i} of the loss has shape {list(a.shape)}, whose first axis "
                f"{batches} micro-batches cannot divide; take a multiple of {batches}"
            )
    made, operands, changed = _traced(trace, loss_of, arguments, parameters, chunk_of, batches)

    def output(i: int, like: Node, device: str) -> Tensor:
        return Tensor(node(OP, like.type, operands, of=made, output=i), device)

    names = {name: i for i, name in enumerate(made.parameters[p] for p in made.gradients)}
    with modes.no_grad():
        for name, p in parameters.items():
            if name in names:
                found = output(1 + names[name], p.node, p.device)
                p.grad = found if p.grad is None else p.grad + found
    first = 1 + len(made.gradients)
    for i, cell in enumerate(changed):
        rebind(cell, node(OP, cell.node.type, operands, of=made, output=first + i))
    device = next(iter(parameters.values())).device
    return output(0, made.loss, device)


def _traced(
    trace: Trace,
    loss_of: Callable[..., Tensor],
    arguments: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    chunk_of: Callable[[str], int],
    batches: int,
) -> tuple[MicroBatch, tuple[Node, ...], tuple[Cell, ...]]:
    """What one micro-batch computes, what its inputs are in the function, and the cells that it
    changes."""
    device = next(iter(parameters.values())).device
    generator = default_generator(device)
    begin = generator.offset.node
    parts = []
    for a in arguments:
        leaf = store.argument(
            a.node.type.with_shape((a.shape[0] // batches, *a.shape[1:])), "a micro-batch"
        )
        parts.append(Tensor(leaf, a.device, owns=True))
    earlier = {cell: cell.node for cell in trace.old}
    with modes.enable_grad():
        loss = loss_of(*parts)
    if loss.shape:
        raise InvalidCall(f"the loss of a micro-batch has shape {list(loss.shape)}; take its mean")
    end = generator.offset.node
    raw = {p.node: chunk_of(name) for name, p in parameters.items()}
    learned = {p.node for p in parameters.values() if p.requires_grad}
    inline = Inlining(_Leaves({t.node for t in parts}, trace))

    def inlined(n: Node) -> Node:
        found = inline(n)
        assert found is not None, "a value of an older trace"
        return found

    changed = {
        cell: earlier.get(cell, before.node)
        for cell, before in trace.old.items()
        if cell.link is None
        and cell.node is not earlier.get(cell, before.node)
        and cell is not generator.offset
    }
    for name, p in parameters.items():
        if root(p) in changed:
            raise InvalidCall(
                f"the loss of a micro-batch changes parameter {name} in place; let it change "
                "buffers alone, and an optimizer the parameters"
            )
    values = [inlined(cell.node) for cell in changed]
    forward = chunks_of([inlined(loss.node), *values], {inlined(n): c for n, c in raw.items()})
    homes = {old: forward[new] for old, new in zip(changed.values(), values, strict=True)}
    assert len(homes) == len(changed), "each cell has a leaf of its own"
    marked = crossing(loss.node, raw | {n: c for n, c in homes.items() if c != FREE})
    seed = g.const(1.0, loss.dtype)
    total = gradients([(loss.node, seed)], lambda n: n in learned or n in marked)
    derivatives = {n: inlined(total[n]) for n in raw if n in learned and n in total}
    returned = {inlined(total[n]): chunk for n, chunk in marked.items() if n in total}
    roots = [inlined(loss.node), *derivatives.values(), *values, *returned]
    words = None
    if end is not begin:
        place = inlined(begin)
        words = _advance(substitute([inlined(end)], {place: g.input(0, place.type)})[0])
        rebind(generator.offset, g.contiguous(g.add(begin, g.const(words * batches, begin.dtype))))

    # parameters and the place in the stream become inputs of their own, whatever they are views of
    own = [inlined(t.node) for t in parts]
    leaves = {g.input(i, leaf.type): leaf for i, leaf in enumerate(inline.inputs)}
    first = len(leaves)
    named = [*raw, *homes, *([begin] if words is not None else [])]
    stands = {inlined(n): g.input(first + i, n.type) for i, n in enumerate(named)}
    roots = list(substitute(roots, stands))
    used = {n for n in toposort(roots) if n.op == "input"}
    loss_node, *rest = roots
    inputs = {stands[inlined(n)]: n for n in named}
    inputs |= {n: a.node for n, a in zip(own, arguments, strict=True)}
    inputs |= {n: leaf for n, leaf in leaves.items() if n in used and n not in inputs}
    names = {p.node: name for name, p in parameters.items()}
    of_states = zip(homes.items(), rest[len(derivatives) :], strict=False)
    behind = len(derivatives) + len(homes)
    made = MicroBatch(
        loss_node,
        max(0, forward[inlined(loss.node)]),
        dict(zip((stands[inlined(n)] for n in derivatives), rest, strict=False)),
        tuple(inputs),
        {stands[inlined(n)]: names[n] for n in raw},
        tuple(own),
        dict(zip(rest[behind:], returned.values(), strict=True)),
        {stands[inlined(old)]: State(new, chunk) for (old, chunk), new in of_states},
        None if words is None else (stands[inlined(begin)], words),
    )
    return made, tuple(inputs.values()), tuple(changed)


class _Leaves:
    """The leaves of a micro-batch, and those that tensors had when the trace began."""

    def __init__(self, parts: set[Node], trace: Trace) -> None:
        self._parts, self._trace = parts, trace

    def __contains__(self, leaf: object) -> bool:
        if not isinstance(leaf, Node):
            return False
        return leaf in self._parts or older_owner(leaf, self._trace) is not None


def _advance(end: Node) -> int:
    """The words of the stream that are taken on the way to its place `end`, from input 0 on."""
    (found,) = interpret(
        [end], {n: np.array(0, np.uint64) for n in toposort([end]) if n.op == "input"}
    )
    return int(found)


def rank_step(
    found: MicroBatch,
    local: Mapping[Node, Node],
    schedule: Schedule,
    chunk_of: Callable[[str], int],
    rank: int,
    groups: Mapping[Lane, str],
    function: str,
) -> tuple[list[Node | None], tuple[Node, ...]]:
    """What a rank of a pipeline computes for the outputs of the nodes that stand for micro-batches,
    None for what is another rank's; and what it sends.

    `found` is what the rank computes of a micro-batch with its parts of all values, `local` has the
    operands by the inputs of `found`, where they are of the whole batch.
    """
    chunks = {p: chunk_of(name) for p, name in found.parameters.items()}
    joint = Joint(
        found.loss,
        found.gradients,
        chunks,
        found.arguments,
        schedule.depth,
        found.states,
        found.draws,
    )
    step = step_of(
        cut(joint, found.returned), schedule, rank, groups, lambda what: f"{what} of {function!r}"
    )
    given = {
        g.input(n["slot"], local[n].type) if n in found.arguments else n: local[n]
        for n in found.inputs
    }
    own = [
        step.loss,
        *(step.gradients.get(p) for p in found.gradients),
        *(step.states.get(p) for p in found.states),
    ]
    nodes = substitute([*(n for n in own if n is not None), *step.sent], given)
    left = iter(nodes)
    outputs = [next(left) if n is not None else None for n in own]
    return outputs, tuple(left)
