"""A step of a pipeline: each rank computes the passes of its chunks of the model, by a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hal.core.errors import InvalidCall
from hal.tile.node import Node, substitute
from stack import ops as g
from stack.framework import Tensor, default_generator, mode, store
from stack.framework.capture import older_owner
from stack.framework.cell import Trace, tracing
from stack.framework.nn import Module
from stack.framework.request import Inlining
from stack.framework.reverse import gradients
from stack.parallel.data import device_of
from stack.parallel.mesh import Mesh
from stack.parallel.ranks import Ranks
from stack.parallel.schedule import Schedule, check
from stack.parallel.stages import Joint, crossing, cut, lanes, step_of


class Pipeline:
    """A model whose chunks are on the ranks of a line, by a schedule that was proved.

    `parameters` are those of this rank's chunks, which its optimizer takes; those of other chunks
    are not kept up to date here. `chunk_of` gives the chunk of a parameter by its name; forward
    passes go from chunk 0 up. All ranks make equal pipelines.
    """

    def __init__(
        self,
        model: Module,
        mesh: Mesh,
        axis: str,
        schedule: Schedule,
        chunk_of: Callable[[str], int],
    ) -> None:
        """All ranks along the axis call it. Raises InvalidCall for a schedule that cannot run, or
        is not for so many ranks, and as `Ranks.join`."""
        check(schedule)
        if schedule.ranks != mesh.size(axis):
            raise InvalidCall(
                f"the schedule is for {schedule.ranks} ranks, and there are {mesh.size(axis)} "
                f"along {axis!r}"
            )
        device = device_of([*model.parameters(), *model.buffers()])
        self._ranks = ranks = Ranks.join(mesh, axis, device)
        self._lanes = {lane: Ranks.join(mesh, axis, device) for lane in lanes(ranks.size)}
        self._schedule = schedule
        self._chunks = [(p, chunk_of(name)) for name, p in model.named_parameters()]
        own = schedule.chunks[ranks.rank]
        self.parameters = [p for p, chunk in self._chunks if chunk in own]

    def backward(self, loss_of: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        """The sum of the micro-batches' losses, on all ranks, and the gradients of this rank's
        parameters, summed in the order of the micro-batches: bit for bit what one process gathers
        that takes them one after the other.

        `loss_of` takes the arguments of one micro-batch, which is an equal part of their first
        axis. Within a function under `jit` only; gradients that are there are replaced. Raises
        InvalidCall for an axis that cannot be divided, and for a loss that draws random numbers.
        """
        if tracing() is None:
            raise InvalidCall("a pipeline's step is captured; call it in a function under jit")
        batches = self._schedule.batches
        for i, a in enumerate(arguments):
            if not a.shape or a.shape[0] % batches:
                raise InvalidCall(
                    f"argument {i} of the loss has shape {list(a.shape)}, whose first axis "
                    f"{batches} micro-batches cannot divide; take a multiple of {batches}"
                )
        joint, returns, leaves = self._traced(loss_of, arguments)
        line = self._ranks
        groups = {lane: ranks.name for lane, ranks in self._lanes.items()}
        step = step_of(cut(joint, returns), self._schedule, line.rank, groups, called_by_table)
        like = g.full(joint.loss.shape, 0, joint.loss.dtype)
        roots = [*step.gradients.values(), step.loss if step.loss is not None else like]
        nodes = substitute([*roots, *step.sent], leaves)
        by_node = dict(zip(step.gradients, nodes, strict=False))
        for (p, chunk), n in zip(self._chunks, joint.gradients, strict=True):
            own = chunk in self._schedule.chunks[line.rank]
            p.grad = Tensor(by_node[n], p.device) if own else None
        for n in nodes[len(roots) :]:
            traced().effects.append(Tensor(n, line.device))
        loss = Tensor(nodes[len(step.gradients)], line.device)
        return line.all_reduce(loss, name="losses of a pipeline")

    def close(self) -> None:
        """Leave the groups, once everything begun is done."""
        for ranks in (*self._lanes.values(), self._ranks):
            ranks.leave()

    def _traced(
        self, loss_of: Callable[..., Tensor], arguments: Sequence[Tensor]
    ) -> tuple[Joint, dict[Node, tuple[Node, int]], dict[Node, Node]]:
        """What one micro-batch computes, on inputs by number, and what each input stands for in the
        graph of all."""
        batches = self._schedule.batches
        generator = default_generator(self._ranks.device)
        offset = generator.offset.node
        parts = []
        for a in arguments:
            type = a.node.type.with_shape((a.shape[0] // batches, *a.shape[1:]))
            leaf = store.argument(type, "a micro-batch")
            parts.append(Tensor(leaf, a.device, owns=True))
        with mode.enable_grad():
            loss = loss_of(*parts)
        if generator.offset.node is not offset:
            raise InvalidCall(
                "the loss draws random numbers, which a pipeline does not divide into those of its "
                "micro-batches yet; train with dropout 0"
            )
        raw = {p.node: chunk for p, chunk in self._chunks}
        marked = crossing(loss.node, raw)
        seed = g.const(1.0, loss.dtype)
        total = gradients([(loss.node, seed)], lambda n: n in raw or n in marked)
        inline = Inlining(_Leaves({t.node for t in parts}))

        def inlined(n: Node) -> Node:
            found = inline(n)
            assert found is not None, "a value of an older trace"
            return found

        own = [inlined(t.node) for t in parts]
        chunks = {inlined(n): chunk for n, chunk in raw.items()}
        derivatives = {inlined(n): inlined(total.get(n, g.full(n.shape, 0, n.dtype))) for n in raw}
        joint = Joint(inlined(loss.node), derivatives, chunks, tuple(own), self._schedule.depth)
        returns = {inlined(n): (inlined(total[n]), c) for n, c in marked.items() if n in total}
        leaves = {inlined(leaf): leaf for leaf in list(inline.inputs)}
        for n, a in zip(own, arguments, strict=True):
            leaves[g.input(n["slot"], a.node.type)] = a.node
        return joint, returns, leaves


class _Leaves:
    """The leaves of a micro-batch, and those that tensors had when the trace began."""

    def __init__(self, parts: set[Node]) -> None:
        self._parts = parts

    def __contains__(self, leaf: object) -> bool:
        if not isinstance(leaf, Node):
            return False
        return leaf in self._parts or older_owner(leaf, traced()) is not None


def called_by_table(what: str) -> str:
    """What both ranks of a message call it: its pass tells it from all others of the function."""
    return f"{what} of {traced().function!r}"


def traced() -> Trace:
    """The trace that the step is part of."""
    trace = tracing()
    assert trace is not None, "a pipeline's step is captured"
    return trace
