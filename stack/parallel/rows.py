"""How many rows the batch has that gradients come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hal.tile.node import Node
from stack.framework import Tensor
from stack.framework.store import origins


def rows_of(gradients: Sequence[Node], parameters: Sequence[Tensor]) -> tuple[int, ...]:
    """The lengths of the first axes of the data that gradients are computed from, each once, in
    rising order: of all values that are given, but parameters. A batch and its targets have one."""
    own = set(_given([p.node for p in parameters]))
    data = (n for n in _given(gradients) if n not in own and n.shape)
    return tuple(sorted({n.shape[0] for n in data}))


def _given(nodes: Sequence[Node]) -> Iterator[Node]:
    """The values below nodes that are not computed from others."""
    seen, todo = set[Node](), list(nodes)
    while todo:
        n = todo.pop()
        if n in seen:
            continue
        seen.add(n)
        if n in origins:
            todo.append(origins[n])
        elif n.op == "input":
            yield n
        else:
            todo.extend(n.srcs)
