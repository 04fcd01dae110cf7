"""Which nodes get a buffer, when also what later kernels make of them is known.

A kernel that runs late, as one of the backward pass does, may read several values of an early one
and compute something of them alone, as the derivative of an activation. Then that is computed where
they are in registers, and it alone is kept: fewer bytes are written, kept and read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hal.core.facts import dataclass
from hal.tile.node import Node, toposort
from hal.tile.size import hint
from stack.compiler.graph.expr import MOVEMENT
from stack.compiler.graph.roots import OWN_KERNEL, PUT_TOGETHER, Inline, base, worth_storing
from stack.compiler.program import GraphRequest


def choose_roots(request: GraphRequest, extra: Iterable[Node] = ()) -> dict[Node, None]:
    """Every node that gets a buffer, in topological order, inputs included; `extra` are further
    ones that must."""
    roots, known = worth_storing(request, extra)
    found = _Uses.of(request, roots, known).derived()
    if not found:
        return roots
    return {n: None for n in toposort(request.outputs) if n in roots or n in found}


@dataclass(frozen=True, slots=True)
class _Uses:
    """What roots are computed of, and with which others."""

    roots: Mapping[Node, None]
    known: Mapping[Node, Inline]
    kept: frozenset[Node]
    """What has to be in a buffer, whoever reads it."""
    kernel: Mapping[Node, Node]
    """By root the first one of the kernel that most likely computes it: of those that compute what
    it reads, the latest."""
    number: Mapping[Node, int]

    @staticmethod
    def of(
        request: GraphRequest, roots: Mapping[Node, None], known: Mapping[Node, Inline]
    ) -> _Uses:
        number = {n: i for i, n in enumerate(roots)}
        kept = {base(o) for o in request.outputs}
        uses = _Uses(roots, known, frozenset(), {}, number)
        kernel: dict[Node, Node] = {}
        for n in roots:
            if _may_join(n):
                kernel[n] = uses._latest(known[n].reads, kernel) or n
            else:
                kernel[n] = n
                kept |= known[n].reads
        return _Uses(roots, known, frozenset(kept), kernel, number)

    def _latest(self, reads: Collection[Node], kernel: Mapping[Node, Node]) -> Node | None:
        own = (kernel[r] for r in reads if r.op != "input")
        return max(own, key=self.number.__getitem__, default=None)

    def derived(self) -> set[Node]:
        """What to keep in the place of the values of which it is computed."""
        found: dict[Node, dict[Node, None]] = {}
        for n in self.roots:
            if _may_join(n):
                for x in self._early_parts(n):
                    kernel = self._latest(self.known[x].reads, self.kernel)
                    assert kernel is not None
                    found.setdefault(kernel, {})[x] = None
        chosen: set[Node] = set()
        readers = self._readers() if found else {}
        for kernel, parts in found.items():
            if self._pays(kernel, parts, readers):
                chosen |= parts.keys()
            else:
                chosen.update(x for x in parts if self._pays(kernel, {x}, readers))
        return chosen

    def _readers(self) -> Mapping[Node, list[Node]]:
        readers: dict[Node, list[Node]] = {}
        for n in self.roots:
            for r in self.known[n].reads:
                readers.setdefault(r, []).append(n)
        return readers

    def _early_parts(self, root: Node) -> Iterable[Node]:
        """The greatest parts of a root's expression that are made of two values or more of one
        earlier kernel, as large as they are."""
        stack, seen = list(root.srcs), set[Node]()
        while stack:
            n = stack.pop()
            if n in seen or n in self.roots:
                continue
            seen.add(n)
            reads = self.known[n].reads
            kernel = self._latest(reads, self.kernel)
            early = kernel is not None and kernel is not self.kernel[root]
            if early and n.op not in MOVEMENT and len(self._values(n, kernel)) > 1:
                yield n
            else:
                stack += n.srcs

    def _values(self, n: Node, kernel: Node | None) -> list[Node]:
        """What a node is made of that a kernel computes, and that is as large as the node."""
        size = hint(n.type.size)
        found = (r for r in self.known[n].reads if r.op != "input")
        return [r for r in found if self.kernel[r] is kernel and hint(r.type.size) == size]

    def _pays(
        self, kernel: Node, parts: Collection[Node], readers: Mapping[Node, list[Node]]
    ) -> bool:
        """Whether fewer bytes are kept where these parts of what a kernel computes are."""
        values = {r for x in parts for r in self._values(x, kernel)} - self.kept
        gone = [
            r
            for r in values
            if all(self.kernel[n] is kernel or r not in self._read(n, parts) for n in readers[r])
        ]
        return sum(hint(r.type.nbytes) for r in gone) >= sum(hint(x.type.nbytes) for x in parts)

    def _read(self, root: Node, parts: Collection[Node]) -> set[Node]:
        """What a root reads where these parts have buffers."""
        found, seen, stack = set[Node](), set[Node](), list(root.srcs)
        while stack:
            n = stack.pop()
            if n not in seen:
                seen.add(n)
                if n in self.roots or n in parts:
                    found.add(n)
                else:
                    stack += n.srcs
        return found


def _may_join(n: Node) -> bool:
    """Whether a root may share a kernel with what it reads."""
    return n.op not in OWN_KERNEL and n.op not in (*PUT_TOGETHER, "input", "contiguous", *MOVEMENT)
