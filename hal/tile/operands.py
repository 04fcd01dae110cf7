"""What stands in a kernel's text for values, memories and accesses, and what names mean there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hal.core.dtypes import DType
from hal.tile.kernel import Access, Memory
from hal.tile.node import Node, Type, node
from hal.tile.tokens import DTYPES, Token, Tokens

MOST_NESTED = 64
"""Blocks inside each other: who reads a kernel calls himself for each."""


class Operands:
    """Operands of a text, read from its tokens. A name means what was declared or defined before in
    this block or in one around it. All raise TileTextError."""

    def __init__(self, tokens: Tokens) -> None:
        self._t = tokens
        self._values: dict[str, Node] = {}
        self._memories: dict[str, Memory] = {}
        self._scalars: dict[str, Node] = {}
        self._variables = self._depth = 0

    @contextmanager
    def block(self) -> Iterator[None]:
        """A block: what is defined in it ends with it."""
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise self._t.fail(f"at most {MOST_NESTED} blocks inside each other")
        outer = self._values, self._memories
        self._values, self._memories = dict(self._values), dict(self._memories)
        yield
        self._depth -= 1
        self._values, self._memories = outer

    def declare(self, memory: Memory) -> Memory:
        """Make a memory known."""
        self._memories[memory.name] = memory
        return memory

    def declare_scalar(self, name: str, dtype: DType) -> None:
        """Make a scalar parameter known."""
        self._scalars[name] = node("scalar", Type((), dtype), name=name)

    def call(self, token: Token, value: Node) -> None:
        """Give an expression a name."""
        self._values[token.text] = value

    def value(self) -> Node:
        """An operand: a value or scalar by its name, or a constant."""
        token = self._t.next
        if token.kind == "number":
            token = self._t.take("number", "a number")
            digits, _, short = token.text.partition(":")
            dtype = DTYPES.get(short or "i64")
            expected = "an integer, or a number with its type such as 2.0:f32"
            if dtype is None:
                raise self._t.fail(expected, token)
            value = float(digits) if dtype.is_float else self._t.whole(token, digits, expected)
            return node("const", Type((), dtype), value=value)
        if self._t.accept("true", "false"):
            return node("const", Type((), DType.BOOL), value=token.text == "true")
        known = {"value": self._values, "scalar": self._scalars}.get(token.kind)
        if known is None:
            raise self._t.fail("a value")
        found = known.get(token.text.removeprefix("$"))
        if found is None:
            raise self._t.fail("a value that is defined before and visible here")
        self._t.take(token.kind, "a value")
        return found

    def new_name(self) -> Token:
        """The name of a value that is to be defined."""
        token = self._t.take("value", "a new value such as %1")
        if token.text in self._values:
            raise self._t.fail("a value that is not defined yet", token)
        return token

    def define(self, token: Token, type: Type) -> Node:
        """A new variable of that name."""
        self._variables += 1
        variable = node("var", type, id=self._variables)
        self._values[token.text] = variable
        return variable

    def option(self, word: str) -> Node | None:
        """The operand of `word(...)`, or None where it is not there."""
        if not self._t.accept(word):
            return None
        self._t.expect("(")
        value = self.value()
        self._t.expect(")")
        return value

    def at_index(self) -> tuple[Memory, Node]:
        """`memory[index]`."""
        # A memory by its name
        token = self._t.take("name", "a memory's name")
        if token.text not in self._memories:
            raise self._t.fail("a memory that is declared before and visible here", token)
        memory = self._memories[token.text]
        self._t.expect("[")
        index = self.value()
        self._t.expect("]")
        return memory, index

    def access(self) -> Access:
        """`memory[offset] strides(...) limits(...)`."""
        memory, offset = self.at_index()
        strides: list[Node] = []
        if self._t.accept("strides"):
            self._t.expect("(")
            strides = self._t.items(")", self.value)
        limits: list[Node | None] = [None] * len(strides)
        if self._t.accept("limits"):
            self._t.expect("(")
            # "_" stands for no limit
            limits = self._t.items(")", lambda: None if self._t.accept("_") else self.value())
        return Access(memory, offset, tuple(strides), tuple(limits))
