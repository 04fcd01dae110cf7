"""Kernels as text; the grammar is in `hal.tile.text`."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.dtypes import DType
from hal.core.values import Param, ParamKind
from hal.tile.kernel import (
    Access,
    Alloc,
    Atomic,
    Barrier,
    Copy,
    For,
    Gather,
    If,
    Kernel,
    Load,
    Scatter,
    Statement,
    Store,
    Wait,
)
from hal.tile.node import Node
from hal.tile.place import Position, place
from hal.tile.walk import Block

HEADER = "hal-tile/1"


def print_kernel(kernel: Kernel) -> str:
    """The text of a kernel that `verify` accepts."""
    printer = _Printer(place(kernel))
    params = ", ".join(map(_param, kernel.params))
    printer.lines = [HEADER, f"kernel {kernel.name}({params}) {{"]
    printer.block(kernel.body, (), 1)
    return "\n".join([*printer.lines, "}", ""])


def print_constant(value: float, dtype: DType) -> str:
    """A constant with its type, but for i64 and bool."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    return repr(value) if dtype is DType.I64 else f"{value!r}:{dtype.short}"


def _param(p: Param) -> str:
    if p.kind is ParamKind.SCALAR:
        return f"{p.name}: scalar {p.dtype.short}"
    return f"{p.name}: buffer {p.dtype.short}" + " reads" * p.reads + " writes" * p.writes


class _Printer:
    """Collects lines; every value gets the next number where it is defined."""

    def __init__(self, placed: dict[Position, list[Node]]) -> None:
        self.lines: list[str] = []
        self._placed = placed
        self._names: dict[Node, str] = {}

    def block(self, block: Block, prefix: Position, depth: int) -> None:
        for i, statement in enumerate(block):
            self._values((*prefix, i), depth)
            at = (*prefix, i)
            match statement:
                case For():
                    bounds = self._list((statement.start, statement.stop, statement.step))
                    first = [self._use(c.init) for c in statement.carried]
                    head = f"for {self._define(statement.index)} in range({bounds})"
                    inside = [self._define(c.var) for c in statement.carried]
                    carry = ", ".join(f"{v} = {i}" for v, i in zip(inside, first, strict=True))
                    self._line(depth, head + (f" carry({carry})" if carry else "") + " {")
                    self.block(statement.body, (*at, 0), depth + 1)
                    self._values((*at, 0, len(statement.body)), depth + 1)
                    if carry:
                        self._line(
                            depth + 1, f"next {self._list([c.next for c in statement.carried])}"
                        )
                    results = ", ".join(self._define(c.result) for c in statement.carried)
                    self._line(depth, "}" + (f" -> {results}" if results else ""))
                case If():
                    self._line(depth, f"if {self._use(statement.condition)} {{")
                    self.block(statement.then, (*at, 0), depth + 1)
                    if statement.orelse:
                        self._line(depth, "} else {")
                        self.block(statement.orelse, (*at, 1), depth + 1)
                    self._line(depth, "}")
                case _:
                    self._line(depth, self._simple(statement))

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    def _values(self, position: Position, depth: int) -> None:
        for node in self._placed.get(position, ()):
            operands = ", ".join(map(self._use, node.srcs))
            attrs = "".join(
                f" {k}=({', '.join(map(str, v))})" if isinstance(v, tuple) else f" {k}={v}"
                for k, v in node.attrs
            )
            text = node.op + " " * bool(operands) + operands + attrs
            self._line(depth, f"{self._define(node)} = {text} : {node.type}")

    def _define(self, node: Node) -> str:
        return self._names.setdefault(node, f"%{len(self._names) + 1}")

    def _use(self, node: Node) -> str:
        if node.op == "const":
            return print_constant(node["value"], node.dtype)
        return f"${node['name']}" if node.op == "scalar" else self._names[node]

    def _list(self, nodes: Sequence[Node | None]) -> str:
        return ", ".join("_" if n is None else self._use(n) for n in nodes)

    def _access(self, x: Access) -> str:
        text = f"{x.memory.name}[{self._use(x.offset)}]"
        if x.strides:
            text += f" strides({self._list(x.strides)})"
        return text + (f" limits({self._list(x.limits)})" if any(x.limits) else "")

    def _option(self, word: str, node: Node | None) -> str:
        return "" if node is None else f" {word}({self._use(node)})"

    def _simple(self, statement: Statement) -> str:
        match statement:
            case Load(result=result, source=source, other=other):
                text = f"load {self._access(source)}{self._option('other', other)}"
                return f"{self._define(result)} = {text} : {result.type}"
            case Store(target=target, value=value):
                return f"store {self._use(value)} to {self._access(target)}"
            case Gather(result=result, memory=memory, index=index, mask=mask, other=other):
                options = self._option("mask", mask) + self._option("other", other)
                text = f"gather {memory.name}[{self._use(index)}]{options}"
                return f"{self._define(result)} = {text} : {result.type}"
            case Scatter(memory=memory, index=index, value=value, mask=mask):
                to = f"{memory.name}[{self._use(index)}]{self._option('mask', mask)}"
                return f"scatter {self._use(value)} to {to}"
            case Atomic(kind=kind, memory=memory, index=index, value=value, mask=mask):
                to = f"{memory.name}[{self._use(index)}]{self._option('mask', mask)}"
                return f"atomic {kind} {self._use(value)} to {to}"
            case Alloc(memory=memory):
                return f"alloc {memory.name} : {memory.dtype.short}[{memory.size}]"
            case Copy(target=target, source=source, shape=shape, channel=channel):
                blocks = f"{self._access(source)} to {self._access(target)}"
                return f"copy {blocks} shape({', '.join(map(str, shape))}) channel({channel})"
            case Wait(channel=channel):
                return f"wait channel({channel})"
            case Barrier():
                return "barrier"
        raise TypeError(f"{statement!r} is not a statement without blocks")
