"""A tile kernel as Python, program format toy-python/1: a function that runs one instance."""

from collections.abc import Callable, Mapping
from typing import Any

from hal.core.values import KernelSource
from hal.tile import kernel as k
from hal.tile.node import Node, toposort

FORMAT = "toy-python/1"


def render(kernel, info):
    """The kernel as a function `instance(m, at, grid, scalars)` over the functions of `Machine`."""
    out = Writer()
    out.block(kernel.body, {})
    text = "\n".join(["def instance(m, at, grid, scalars):", *out.lines, "    return m\n"])
    return KernelSource(FORMAT, text, kernel.name, kernel.params)


class Writer:
    """Lines of a function. Values are named by the block that computes them: `known`."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.names = 0

    def do(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def block(self, body, known: dict[Node, str]) -> dict[Node, str]:
        """Statements that see what is known outside and keep their own to themselves."""
        known = dict(known)
        for s in body:
            _STATEMENTS[type(s)](self, s, known)
        return known

    def value(self, root: Node | None, known: dict[Node, str]) -> str:
        """The name of an expression's value, computed where it is not known yet."""
        if root is None:
            return "None"
        if root in known:
            return known[root]
        for n in toposort((root,)):
            if n not in known:
                name = self.name()
                self.do(f"{name} = {_expression(n, [known[s] for s in n.srcs])}")
                known[n] = name
        return known[root]

    def access(self, a: k.Access, known: dict[Node, str]) -> str:
        parts = (", ".join(self.value(n, known) for n in x) for x in (a.strides, a.limits))
        strides, limits = (f"({p},)" if p else "()" for p in parts)
        return f"m[{a.memory.name!r}], {self.value(a.offset, known)}, {strides}, {limits}"


def _expression(n: Node, srcs: list[str]) -> str:
    leaf = _LEAVES.get(n.op)
    if leaf is not None:
        return leaf(n)
    given = {**dict(n.attrs), "dtype": n.dtype.short, "shape": n.shape}
    return f"apply({n.op!r}, {given!r}, {', '.join(srcs)})"


_LEAVES: Mapping[str, Callable[[Node], str]] = {
    "const": lambda n: f"full({n.shape}, {str(n['value'])!r}, {n.dtype.short!r})",
    "scalar": lambda n: f"scalars[{n['name']!r}]",
    "program_id": lambda n: f"whole(at[{n['axis']}], {n.dtype.short!r})",
    "num_programs": lambda n: f"whole(grid[{n['axis']}], {n.dtype.short!r})",
    "arange": lambda n: f"whole(range({n.shape[0]}), {n.dtype.short!r})",
}


def _load(w: Writer, s: k.Load, known) -> None:
    source, other = w.access(s.source, known), w.value(s.other, known)
    known[s.result] = w.name()
    w.do(f"{known[s.result]} = load({source}, {s.result.shape}, {other})")


def _store(w: Writer, s: k.Store, known) -> None:
    w.do(f"store({w.access(s.target, known)}, {w.value(s.value, known)})")


def _gather(w: Writer, s: k.Gather, known) -> None:
    given = ", ".join(w.value(n, known) for n in (s.index, s.mask, s.other))
    known[s.result] = w.name()
    w.do(f"{known[s.result]} = gather(m[{s.memory.name!r}], {given})")


def _scatter(w: Writer, s: k.Scatter, known) -> None:
    given = ", ".join(w.value(n, known) for n in (s.index, s.value, s.mask))
    w.do(f"scatter(m[{s.memory.name!r}], {given})")


def _atomic(w: Writer, s: k.Atomic, known) -> None:
    given = ", ".join(w.value(n, known) for n in (s.index, s.value, s.mask))
    w.do(f"atomic({s.kind!r}, m[{s.memory.name!r}], {given})")


def _alloc(w: Writer, s: k.Alloc, known) -> None:
    w.do(f"m = {{**m, {s.memory.name!r}: scratch({s.memory.size}, {s.memory.dtype.short!r})}}")


def _copy(w: Writer, s: k.Copy, known) -> None:
    """At once: nothing may touch what a copy moves before its wait."""
    target, source = w.access(s.target, known), w.access(s.source, known)
    w.do(f"copy(({target}), ({source}), {s.shape})")


def _for(w: Writer, s: k.For, known) -> None:
    bounds = ", ".join(f"int({w.value(n, known)})" for n in (s.start, s.stop, s.step))
    index, held = w.name(), [w.name() for _ in s.carried]
    for name, c in zip(held, s.carried, strict=True):
        w.do(f"{name} = {w.value(c.init, known)}")
    inside = {**known, s.index: index} | {c.var: n for n, c in zip(held, s.carried, strict=True)}
    w.do(f"for {index} in range({bounds}):")
    w.depth += 1
    w.do(f"{index} = whole({index}, 'i64')")
    inside = w.block(s.body, inside)
    following = [w.value(c.next, inside) for c in s.carried]
    if held:
        w.do(f"{', '.join(held)}, = {', '.join(following)},")
    w.depth -= 1
    known.update({c.result: n for n, c in zip(held, s.carried, strict=True)})


def _if(w: Writer, s: k.If, known) -> None:
    condition = w.value(s.condition, known)
    for test, body in ((condition, s.then), (f"not {condition}", s.orelse)):
        w.do(f"if {test}:")
        w.depth += 1
        w.block(body, known)
        w.do("pass")
        w.depth -= 1


def _nothing(w: Writer, s: Any, known) -> None:
    """Copies are done at once, and an instance is alone."""


_STATEMENTS: Mapping[type, Callable[..., None]] = {
    k.Load: _load,
    k.Store: _store,
    k.Gather: _gather,
    k.Scatter: _scatter,
    k.Atomic: _atomic,
    k.Alloc: _alloc,
    k.Copy: _copy,
    k.For: _for,
    k.If: _if,
    k.Wait: _nothing,
    k.Barrier: _nothing,
}
