"""Text to kernels; the grammar is in `hal.tile.text`, the rules beyond it in `verify`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hal.core.dtypes import DType
from hal.core.values import Param, ParamKind
from hal.tile.kernel import (
    SCRATCHPAD,
    Alloc,
    Atomic,
    Barrier,
    Carried,
    Copy,
    For,
    Gather,
    If,
    Kernel,
    Load,
    Memory,
    Scatter,
    Statement,
    Store,
    Wait,
)
from hal.tile.node import Node, Type, node
from hal.tile.operands import Operands
from hal.tile.ops import OPS
from hal.tile.place import INLINE
from hal.tile.printer import HEADER
from hal.tile.tokens import Token, Tokens
from hal.tile.walk import Block


def parse_kernel(text: str) -> Kernel:
    """The kernel of a text, its variables numbered as `canonical` does.

    Raises TileTextError with line, column and what was expected there.
    """
    return _Parser(text).kernel()


class _Parser:
    """A recursive descent: `_t` are the tokens, `_o` reads operands from them."""

    def __init__(self, text: str) -> None:
        self._t = Tokens(text)
        self._o = Operands(self._t)

    # kernels

    def kernel(self) -> Kernel:
        self._t.skip_lines()
        header = self._t.take("header", repr(HEADER))
        if header.text != HEADER:
            raise self._t.fail(repr(HEADER), header)
        self._t.end_line()
        self._t.expect("kernel")
        name = self._t.name("the kernel's name")
        self._t.expect("(")
        params = tuple(self._t.items(")", self._param))
        body = self._block()
        self._t.skip_lines()
        self._t.take("end", "the end of the text")
        return Kernel(name, params, body)

    def _param(self) -> Param:
        name = self._t.name("a parameter's name")
        self._t.expect(":")
        if self._t.accept("scalar"):
            dtype = self._t.dtype()
            self._o.declare_scalar(name, dtype)
            return Param(name, ParamKind.SCALAR, dtype)
        if not self._t.accept("buffer"):
            raise self._t.fail("'buffer' or 'scalar'")
        dtype = self._t.dtype()
        self._o.declare(Memory(name, dtype))
        return Param(
            name, ParamKind.BUFFER, dtype, self._t.accept("reads"), self._t.accept("writes")
        )

    def _block(self) -> Block:
        """The statements between braces."""
        with self._o.block():
            block = self._statements()
            self._close()
        return block

    def _statements(self) -> Block:
        self._t.expect("{")
        self._t.end_line()
        found: list[Statement] = []
        while self._t.next.text not in ("}", "next"):
            if self._t.next.kind == "value":
                statement = self._definition()
            else:
                token = self._t.take("name", "a statement")
                rule = _STATEMENTS.get(token.text)
                if rule is None:
                    raise self._t.fail(f"a statement (%n = ..., {', '.join(_STATEMENTS)})", token)
                statement = rule(self)
            if statement is not None:
                found.append(statement)
            self._t.end_line()
        return tuple(found)

    def _close(self) -> None:
        if not self._t.accept("}"):
            raise self._t.fail("'}'")

    # statements

    def _definition(self) -> Statement | None:
        name = self._o.new_name()
        self._t.expect("=")
        token = self._t.take("name", "an operation")
        if token.text == "load":
            source, other = self._o.access(), self._o.option("other")
            return Load(self._o.define(name, self._t.colon_type()), source, other)
        if token.text == "gather":
            (memory, index), mask, other = (
                self._o.at_index(),
                self._o.option("mask"),
                self._o.option("other"),
            )
            return Gather(self._o.define(name, self._t.colon_type()), memory, index, mask, other)
        op = OPS.get(token.text)
        if op is None or op.name in INLINE:
            raise self._t.fail(f"an operation (load, gather, {', '.join(OPS)})", token)
        operands: list[Node] = []
        for i in range(op.arity):
            if i:
                self._t.expect(",")
            operands.append(self._o.value())
        attrs = {}
        for attr in op.attrs:
            self._t.expect(attr)
            self._t.expect("=")
            attrs[attr] = _ATTRIBUTES[attr](self._t)
        self._o.call(name, node(op.name, self._t.colon_type(), tuple(operands), **attrs))
        return None

    def _store(self) -> Statement:
        value = self._o.value()
        self._t.expect("to")
        return Store(self._o.access(), value)

    def _scatter(self) -> Statement:
        value = self._o.value()
        self._t.expect("to")
        memory, index = self._o.at_index()
        return Scatter(memory, index, value, self._o.option("mask"))

    def _atomic(self) -> Statement:
        kind = self._t.name("an atomic's kind")
        value = self._o.value()
        self._t.expect("to")
        memory, index = self._o.at_index()
        return Atomic(kind, memory, index, value, self._o.option("mask"))

    def _alloc(self) -> Statement:
        name = self._t.name("a memory's name")
        self._t.expect(":")
        dtype = self._t.dtype()
        self._t.expect("[")
        size = self._t.integer()
        self._t.expect("]")
        return Alloc(self._o.declare(Memory(name, dtype, SCRATCHPAD, size)))

    def _copy(self) -> Statement:
        source = self._o.access()
        self._t.expect("to")
        target = self._o.access()
        self._t.expect("shape")
        return Copy(target, source, self._t.sizes("(", ")"), self._channel())

    def _channel(self) -> int:
        self._t.expect("channel")
        self._t.expect("(")
        channel = self._t.integer()
        self._t.expect(")")
        return channel

    def _if(self) -> Statement:
        condition = self._o.value()
        then = self._block()
        return If(condition, then, self._block() if self._t.accept("else") else ())

    def _carry(self) -> tuple[Token, Node]:
        name = self._o.new_name()
        self._t.expect("=")
        return name, self._o.value()

    def _for(self) -> Statement:
        index = self._o.new_name()
        for text in ("in", "range", "("):
            self._t.expect(text)
        bounds = self._t.items(")", self._o.value)
        if len(bounds) != 3:
            raise self._t.fail("start, stop and step before this")
        carry: list[tuple[Token, Node]] = []
        if self._t.accept("carry"):
            self._t.expect("(")
            carry = self._t.items(")", self._carry)
        with self._o.block():
            i = self._o.define(index, Type((), DType.I64))
            inside = [self._o.define(name, init.type) for name, init in carry]
            body = self._statements()
            # The line `next a, b, ...`, which is there when the loop carries values.
            count = len(carry)
            after: list[Node] = []
            for k in range(count):
                self._t.expect("," if k else "next")
                after.append(self._o.value())
            if count:
                self._t.end_line()
            self._close()
        results: list[Node] = []
        for k, (_, init) in enumerate(carry):
            self._t.expect("," if k else "->")
            results.append(self._o.define(self._o.new_name(), init.type))
        parts = zip(inside, (init for _, init in carry), after, results, strict=True)
        start, stop, step = bounds
        return For(i, start, stop, step, tuple(Carried(*p) for p in parts), body)


_STATEMENTS: Mapping[str, Callable[[_Parser], Statement]] = MappingProxyType(
    {
        "store": _Parser._store,
        "scatter": _Parser._scatter,
        "atomic": _Parser._atomic,
        "alloc": _Parser._alloc,
        "copy": _Parser._copy,
        "wait": lambda self: Wait(self._channel()),
        "barrier": lambda self: Barrier(),
        "if": _Parser._if,
        "for": _Parser._for,
    }
)

_ATTRIBUTES: Mapping[str, Callable[[Tokens], int | str | tuple[int, ...]]] = MappingProxyType(
    {
        "axis": Tokens.integer,
        "kind": lambda t: t.name("a kind"),
        "perm": lambda t: t.sizes("(", ")"),
    }
)
