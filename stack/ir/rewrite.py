"""The one rewriting engine, for tile IR and graph IR alike.

A rewrite is a row `(pattern, function)`. The function gets the captured nodes by keyword and gives
the node to put in place, or None when it declines. A pass is a tuple of rows; passes are added
together; of two rows that match, the earlier one is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from hal.core.errors import HalError
from hal.tile.node import Node, rebuild, toposort
from stack.ir.pattern import Captures, Pattern, match_ordered

Function = Callable[..., Node | None]
Row = tuple[Pattern, Function]
Rows = tuple[Row, ...]


class RewriteError(HalError, RuntimeError):
    """A row gave a node of another type, or the rows do not come to an end."""

    next_step = "fix the rows that are named"


def describe(row: Row) -> str:
    """A row for messages: its pattern and where its function is."""
    pattern, function = row
    code = getattr(function, "__code__", None)
    place = f" ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})" if code else ""
    return f"{pattern} -> {getattr(function, '__qualname__', repr(function))}{place}"


def _possible(pattern: Pattern, op: str, src_ops: tuple[str, ...]) -> bool:
    """Whether a pattern can match a node of these operations."""
    if pattern.ops is not None and op not in pattern.ops:
        return False
    if pattern.srcs is None:
        return True
    return len(pattern.srcs) == len(src_ops) and all(
        sub.ops is None or src in sub.ops for sub, src in zip(pattern.srcs, src_ops, strict=True)
    )


class _Index:
    """Rows by the operations of the root and its sources, with commutative patterns spelled out."""

    def __init__(self, rows: Rows) -> None:
        self._entries = [(pattern, row) for row in rows for pattern in row[0].orders()]
        self._by_ops: dict[tuple[str, ...], list[tuple[Pattern, Row]]] = {}

    def apply(self, node: Node) -> tuple[Node, Row] | None:
        """The first row that changes the node, and what it gives."""
        ops = (node.op, *[s.op for s in node.srcs])
        found = self._by_ops.get(ops)
        if found is None:
            found = [e for e in self._entries if _possible(e[0], ops[0], ops[1:])]
            self._by_ops[ops] = found
        for pattern, row in found:
            captures: Captures = {}
            if match_ordered(pattern, node, captures):
                new = row[1](**captures)
                if new is not None and new is not node:
                    if new.type != node.type:
                        raise RewriteError(
                            f"row {describe(row)} put {new} in place of {node}: the types differ"
                        )
                    return new, row
        return None


@lru_cache(maxsize=256)
def _index(rows: Rows) -> _Index:
    return _Index(rows)


class _Run:
    """One rewriting of a graph.

    `done` maps a node to its normal form. `forward` maps a node that is being rewritten to what it
    became; it is on the work stack until that has a normal form. Meeting such a node again, or too
    many of them at once (a run without end must nest them without end), shows rows without an end.
    """

    def __init__(self, roots: Sequence[Node], rows: Rows, limit: int | None) -> None:
        self._roots = roots
        self._index = _index(rows)
        self._limit = limit
        self._allowed = 1000 if limit is None else limit
        self._done: dict[Node, Node] = {}
        self._forward: dict[Node, Node] = {}
        self._trail: list[tuple[Node, Row | None]] = []

    def normal_form(self, root: Node) -> Node:
        stack, done, forward = [root], self._done, self._forward
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
                continue
            if node in forward:
                stack += self._follow(node)
                continue
            pending = [s for s in node.srcs if s not in done]
            if not pending:
                self._step(node)
                continue
            for s in pending:
                if s in forward:
                    raise self._endless(s)
            pending.reverse()
            stack += pending
        return done[root]

    def _follow(self, node: Node) -> tuple[Node, ...]:
        """Settle a node whose replacement is settled, or say which node to work on before."""
        target = self._forward[node]
        if target in self._done:
            self._done[node] = self._done[target]
            self._trail.pop()
            return ()
        if target in self._forward:
            raise self._endless(target)
        return (target,)

    def _step(self, node: Node) -> None:
        """Replace a node whose sources are settled, or settle it."""
        new = rebuild(node, tuple(self._done[s] for s in node.srcs))
        row: Row | None = None
        if new is node:
            found = self._index.apply(node)
            if found is None:
                self._done[node] = node
                return
            new, row = found
        self._forward[node] = new
        self._trail.append((node, row))
        if len(self._trail) > self._allowed:
            allowed = self._limit or 1000 + 10 * sum(1 for _ in toposort(self._roots))
            if len(self._trail) > allowed:
                raise self._endless(self._trail[-min(100, allowed)][0])
            self._allowed = allowed

    def _endless(self, again: Node) -> RewriteError:
        start = next(i for i, (node, _) in enumerate(self._trail) if node is again)
        firing = dict.fromkeys(describe(row) for _, row in self._trail[start:] if row is not None)
        return RewriteError(
            f"rewriting does not come to an end at {again}; these rows fire again and again:\n  "
            + "\n  ".join(firing)
        )


def rewrite(roots: Iterable[Node], rows: Rows, *, limit: int | None = None) -> tuple[Node, ...]:
    """The roots with every row applied wherever it matches, sources first, until none does.

    `limit` is how many replacements may wait for each other's result at once (None: 1000 and ten
    for each node of the graph). The graph may be of any depth. Raises RewriteError naming the rows
    when they do not come to an end, or when one gives a node of another type.
    """
    wanted = tuple(roots)
    run = _Run(wanted, rows, limit)
    return tuple(run.normal_form(root) for root in wanted)
