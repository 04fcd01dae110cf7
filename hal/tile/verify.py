"""The rules that every kernel keeps: renderers and the interpreter rely on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hal.core.facts import dataclass
from hal.core.values import Param, ParamKind
from hal.tile.errors import TileError
from hal.tile.kernel import Alloc, Copy, For, Kernel, Memory, Wait
from hal.tile.node import Node
from hal.tile.rules import Problems, name_problems, statement_problems
from hal.tile.types import problem
from hal.tile.walk import Block, accesses, blocks, defines, reads, statements

_BLOCK_NAMES = {"For": ("body",), "If": ("then", "orelse")}


@dataclass(frozen=True, slots=True)
class _Scope:
    """What is known in one block. A block has its own `variables` and `memories`; `seen`, the taken
    names and variable numbers, and `free`, the variables of checked expressions, are shared."""

    kernel: str
    params: Mapping[str, Param]
    variables: set[Node]
    memories: dict[str, Memory]
    seen: set[str | int]
    free: dict[Node, frozenset[Node]]

    def inner(self) -> _Scope:
        return replace(self, variables=set(self.variables), memories=dict(self.memories))

    def check(self, place: str, problems: Problems) -> None:
        for message in problems:
            raise TileError(f"kernel {self.kernel}, {place}: {message}")


def verify(kernel: Kernel) -> None:
    """Raise TileError for the first broken rule, with kernel, place, rule and what to do."""
    params = {p.name: p for p in kernel.params}
    buffers = {n: Memory(n, p.dtype) for n, p in params.items() if p.kind is ParamKind.BUFFER}
    scope = _Scope(kernel.name, params, set(), buffers, set(params), {})
    scope.check("signature", _signature(kernel))
    _block(scope, kernel.body, "body")
    everything = list(statements(kernel.body))
    waited = {s.channel for s in everything if isinstance(s, Wait)}
    unwaited = (s.channel for s in everything if isinstance(s, Copy) and s.channel not in waited)
    scope.check(
        "body",
        (
            f"no Wait for the copies of channel {c}; add one before using their data"
            for c in unwaited
        ),
    )


def _signature(kernel: Kernel) -> Problems:
    names = [p.name for p in kernel.params]
    for name in (kernel.name, *names):
        yield from name_problems(name)
    for name in names:
        if names.count(name) > 1:
            yield f"two parameters are called {name}; rename one"
    for p in kernel.params:
        if p.kind is ParamKind.SCALAR and (p.writes or not p.reads):
            yield f"scalar {p.name} can only be read; leave its flags as they are"


def _block(scope: _Scope, block: Block, path: str) -> None:
    for i, statement in enumerate(block):
        place = f"{path}[{i}] {type(statement).__name__}"
        for root in reads(statement):
            scope.check(place, _expression(scope, root))
        for memory, does_read, does_write in accesses(statement):
            scope.check(place, _memory(scope, memory, does_read, does_write))
        scope.check(place, statement_problems(statement))
        if isinstance(statement, Alloc):
            scope.check(place, _declare(scope, statement.memory))
        for name, own in zip(
            _BLOCK_NAMES.get(type(statement).__name__, ()), blocks(statement), strict=True
        ):
            inner = scope.inner()
            carried = statement.carried if isinstance(statement, For) else ()
            if isinstance(statement, For):
                for bound in (statement.index, *(c.var for c in carried)):
                    inner.check(place, _define(inner, bound))
            _block(inner, own, f"{place}.{name}")
            for c in carried:
                inner.check(place, _expression(inner, c.next))
        for variable in defines(statement):
            scope.check(place, _define(scope, variable))


def _define(scope: _Scope, variable: Node) -> Problems:
    if variable.op != "var":
        yield f"it defines {variable}, which is not a variable"
    yield from _node(scope, variable)
    if variable["id"] in scope.seen:
        yield f"variable {variable['id']} is defined twice; each definition needs its own"
    scope.seen.add(variable["id"])
    scope.variables.add(variable)


def _declare(scope: _Scope, memory: Memory) -> Problems:
    if memory.name in scope.seen:
        yield f"memory {memory.name} is declared twice; rename one"
    scope.seen.add(memory.name)
    scope.memories[memory.name] = memory


def _expression(scope: _Scope, root: Node) -> Problems:
    stack = [root]
    while stack:
        node = stack[-1]
        missing = [x for x in node.srcs if x not in scope.free]
        if missing and node not in scope.free:
            stack.extend(missing)
            continue
        stack.pop()
        if node not in scope.free:
            yield from _node(scope, node)
            own = frozenset((node,) if node.op == "var" else ())
            scope.free[node] = own.union(*(scope.free[x] for x in node.srcs))
    for variable in scope.free[root] - scope.variables:
        yield (
            f"it uses variable {variable['id']} ({variable.type}), which no statement has defined; "
            "define it earlier in this block or one around it, or carry it out of the loop"
        )


def _node(scope: _Scope, node: Node) -> Problems:
    message = problem(node)
    if message is not None:
        yield message
    if node.op == "scalar":
        param = scope.params.get(node["name"])
        if param is None or param.kind is not ParamKind.SCALAR:
            yield f"there is no scalar parameter {node['name']!r}; declare it"
        elif param.dtype is not node.dtype:
            yield f"scalar {param.name} is {param.dtype.short}, not {node.dtype.short}"


def _memory(scope: _Scope, memory: Memory, does_read: bool, does_write: bool) -> Problems:
    declared, param = scope.memories.get(memory.name), scope.params.get(memory.name)
    if declared is None:
        yield f"memory {memory.name} is not declared here; add a buffer parameter or an Alloc"
    if declared != memory:
        yield f"memory {memory.name} is declared as {declared}, but used as {memory}"
    if param is not None and does_read and not param.reads:
        yield f"it reads buffer {param.name}, which is declared without `reads`"
    if param is not None and does_write and not param.writes:
        yield f"it writes buffer {param.name}, which is declared without `writes`"
