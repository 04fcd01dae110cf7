"""Loops over the elements of a tile, in which expressions are computed element by element.

An element is computed in the outermost loop that knows its position, so that what is repeated along
inner axes is computed once; the same element is computed once. Lines are kept until `emit`: what a
nest needs from before its loops is written before them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from math import prod

from hal.core.dtypes import DType
from hal.tile.node import Node
from hal.tile.ops import ELEMENTWISE
from stack.compiler.text.c import arith
from stack.compiler.text.c.scope import ZERO, Coordinate, Position, Scope, flat
from stack.compiler.text.c.types import literal, register
from stack.compiler.text.c.work import priced, work
from stack.compiler.text.primitive import definition, is_written_out

Place = tuple[Node, Position]


class LoopNest:
    """Loops over a shape; `position` is the element that the innermost body is at. What walks
    otherwise over a tile gives its `position` and adds the loops itself."""

    def __init__(
        self,
        scope: Scope,
        shape: tuple[int, ...],
        position: Callable[[LoopNest], Position] | None = None,
    ) -> None:
        self.scope = scope
        self._loops: list[str] = []
        self._sizes: list[int] = []
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._lines: list[list[str]] = [[]]
        self._known: dict[tuple[Node, tuple[str, ...]], str] = {}
        self._indices: dict[str, Coordinate] = {}
        self.position = (
            position(self)
            if position
            else tuple(self.loop(size) if size > 1 else ZERO for size in shape)
        )

    def loop(self, size: int, head: str = "") -> Coordinate:
        """A loop inside those so far; `head` stands before it."""
        i = self.scope.out.name("i")
        self._loops.append(f"{head}for (int {i} = 0; {i} < {size}; ++{i})")
        self._sizes.append(size)
        self._lines.append([])
        return Coordinate(i, len(self._loops))

    def do(self, line: str, dtype: DType | None = None) -> None:
        """Append a line to the innermost body, which moves an element of a type, if any."""
        self._lines[-1].append(line)
        if dtype is not None:
            self._spend(len(self._loops), "near", dtype.nbytes)

    def spend(self, dtype: DType, operations: float) -> None:
        """Count operations of the innermost body."""
        self._spend(len(self._loops), *priced(dtype, operations))

    def move(self, nbytes: int) -> None:
        """Count what the innermost body moves."""
        self._spend(len(self._loops), "near", nbytes)

    def _spend(self, level: int, kind: str, amount: float) -> None:
        self._spent[kind] += prod(self._sizes[:level]) * amount

    def emit(self) -> None:
        """Write the loops."""
        out = self.scope.out
        for kind, amount in self._spent.items():
            out.spend(kind, amount)
        if not self._loops:
            with out.block():
                self._write(0)
            return
        self._level(0)

    def _level(self, level: int) -> None:
        out = self.scope.out
        self._write(level)
        if level < len(self._loops):
            with out.block(self._loops[level]):
                self._level(level + 1)

    def _write(self, level: int) -> None:
        for line in self._lines[level]:
            self.scope.out.do(line)

    # elements

    def element(self, root: Node, position: Position) -> str:
        """The operand of an element: a name or a constant."""
        stack = [(root, position)]
        while stack:
            n, at = stack[-1]
            if self._found(n, at) is None:
                needs = list(self._needs(n, at))
                missing = [p for p in needs if self._found(*p) is None]
                if missing:
                    stack.extend(missing)
                    continue
                operands = [self._operand(*p) for p in needs]
                level = max((i.level for i in at), default=0)
                value = self._expression(n, at, operands)
                if n in self.scope.arrays and n.shape:
                    self._spend(level, "near", n.dtype.nbytes)
                elif (
                    n.op in ELEMENTWISE
                    and not self._is_written_out(n)
                    and n not in self.scope.arrays
                ):
                    kind, amount = work(n)
                    if n.shape:
                        self._spend(level, kind, amount)
                    else:
                        self.scope.out.spend(kind, amount)
                if n.op not in _NAMED:
                    name = self.scope.out.name("t")
                    line = f"const {register(self.scope.out.dialect, n.dtype)} {name} = {value};"
                    # A tile of one element may give a scalar, which is written before the loops.
                    if n.type.size > 1:
                        self._lines[level].append(line)
                    else:
                        self.scope.out.do(line)
                    value = name
                if n.shape:
                    self._known[n, tuple(i.text for i in at)] = value
                else:
                    self.scope.scalars[n] = value
            stack.pop()
        return self._operand(root, position)

    def _found(self, n: Node, at: Position) -> str | None:
        if not n.shape:
            return self.scope.scalars.get(n)
        return self._known.get((n, tuple(i.text for i in at)))

    def _operand(self, n: Node, at: Position) -> str:
        found = self._found(n, at)
        assert found is not None, n
        return found

    def _needs(self, n: Node, at: Position) -> Iterator[Place]:
        """The elements that an element is computed from."""
        if n in self.scope.arrays or n.op in self.scope.loops:
            return
        if n.op in _MOVED:
            yield n.srcs[0], _MOVED[n.op](self, n, at)
        elif self._is_written_out(n):
            simpler = definition(n, self.scope.out.dialect.has)
            assert simpler is not None
            yield simpler, at
        else:
            yield from ((s, at) for s in n.srcs)

    def _is_written_out(self, n: Node) -> bool:
        return is_written_out(n, self.scope.out.dialect.has)

    def _expression(self, n: Node, at: Position, operands: list[str]) -> str:
        out = self.scope.out
        if n in self.scope.arrays:
            return self.scope.arrays[n].at(at)
        if n.op in self.scope.loops:
            self.scope.arrays[n] = self.scope.loops[n.op](self.scope, n)
            return self.scope.arrays[n].at(at)
        if n.op in _MOVED or self._is_written_out(n):
            return operands[0]
        if n.op in ELEMENTWISE:
            return arith.elementwise(out, n, operands)
        out = self.scope.out
        if n.op == "const":
            return literal(n.dtype, n["value"])
        if n.op == "arange":
            kind = register(out.dialect, n.dtype)
            return f"({kind})({at[0].text})"
        assert n.op in ("program_id", "num_programs"), f"{n} is not defined here"
        form = out.dialect.program if n.op == "program_id" else out.dialect.grid
        return form.format(n["axis"])

    def named_index(self, text: str, level: int) -> Coordinate:
        """An index expression under a name."""
        found = self._indices.get(text)
        if found is None:
            found = self._indices[text] = Coordinate(self.scope.out.name("i"), level)
            self._lines[level].append(f"const int {found.text} = {text};")
        return found


# where an element of a moved tile is in its source


def _broadcast(nest: LoopNest, n: Node, at: Position) -> Position:
    source = n.srcs[0].shape
    kept = at[len(at) - len(source) :]
    return tuple(ZERO if d == 1 else i for d, i in zip(source, kept, strict=True))


def _reshape(nest: LoopNest, n: Node, at: Position) -> Position:
    source = n.srcs[0].shape
    if [d for d in source if d != 1] == [d for d in n.shape if d != 1]:
        left = [i for i, d in zip(at, n.shape, strict=True) if d != 1]
        return tuple(ZERO if d == 1 else left.pop(0) for d in source)
    number = flat(at, n.shape)
    whole = nest.named_index(number.text, number.level)
    return tuple(_digit(nest, whole, source, axis) for axis in range(len(source)))


def _digit(nest: LoopNest, whole: Coordinate, shape: tuple[int, ...], axis: int) -> Coordinate:
    """The position along one axis of a row-major number."""
    stride = 1
    for d in shape[axis + 1 :]:
        stride *= d
    if shape[axis] == 1:
        return ZERO
    text = f"{whole.text} / {stride}" if stride > 1 else whole.text
    if any(d != 1 for d in shape[:axis]):
        text = f"{text} % {shape[axis]}"
    return nest.named_index(text, whole.level) if text != whole.text else whole


_MOVED: Mapping[str, Callable[[LoopNest, Node, Position], Position]] = {
    "broadcast": _broadcast,
    "transpose": lambda nest, n, at: tuple(at[n["perm"].index(axis)] for axis in range(len(at))),
    "reshape": _reshape,
}


_NAMED = frozenset({"const", *_MOVED})
"""Operations whose values are operands as they are."""
