"""What names mean in a block of C."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hal.core.facts import dataclass
from hal.tile.node import Node, Type
from stack.compiler.text.c.types import register
from stack.compiler.text.c.writer import CWriter


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A position along an axis as a C expression, and the loop, counted from outside, inside which
    it is known (0: outside of all)."""

    text: str
    level: int


ZERO = Coordinate("0", 0)
Position = tuple[Coordinate, ...]


@dataclass(frozen=True, slots=True)
class PrivateArray:
    """A tile in a private array, or a scalar in a variable. `find` gives the element at a position
    where the array holds only some of them."""

    name: str
    shape: tuple[int, ...]
    find: Callable[[Position], str] | None = None

    def at(self, position: Position) -> str:
        """The element at a position."""
        if self.find is not None:
            return self.find(position)
        return f"{self.name}[{flat(position, self.shape).text}]" if self.shape else self.name


def flat(position: Position, shape: tuple[int, ...]) -> Coordinate:
    """The row-major number of a position."""
    terms, stride = [], 1
    for i, size in zip(reversed(position), reversed(shape), strict=True):
        if i.text != "0":
            terms.append(i.text if stride == 1 else f"{i.text} * {stride}")
        stride *= size
    level = max((i.level for i in position), default=0)
    return Coordinate(" + ".join(reversed(terms)) or "0", level)


Rule = Callable[["Scope", Node], PrivateArray]
StatementRule = Callable[["Scope", Any], None]


class Scope:
    """The values of a block: `arrays` of variables and of tiles that were computed by loops of
    their own, `scalars` by name. An inner block sees the outer ones and keeps its own to itself.

    `loops` computes the operations that take loops of their own into an array. `statements` writes
    statements by their type, where a language has its own way.
    """

    def __init__(
        self,
        out: CWriter,
        loops: Mapping[str, Rule],
        statements: Mapping[type, StatementRule] = MappingProxyType({}),
    ) -> None:
        self.out = out
        self.loops = loops
        self.statements = statements
        self.arrays: dict[Node, PrivateArray] = {}
        self.scalars: dict[Node, str] = {}

    def inner(self) -> Scope:
        """The scope of a block in this one."""
        scope = Scope(self.out, self.loops, self.statements)
        scope.arrays.update(self.arrays)
        scope.scalars.update(self.scalars)
        return scope

    def declare(self, type: Type) -> PrivateArray:
        """A new array."""
        kind = register(self.out.dialect, type.dtype)
        self.out.hold(type.nbytes)
        array = PrivateArray(self.out.name("v"), type.shape)
        self.out.do(f"{kind} {array.name}{f'[{type.size}]' if type.shape else ''};")
        return array
