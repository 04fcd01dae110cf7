"""C text: lines with their indentation, names of their own, and the functions that they call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from stack.compiler.text.c.dialect import Dialect
from stack.compiler.text.c.functions import Functions

_ALIGNED = 64


class CWriter:
    """Collects the body of one kernel. `scratch` are the declarations of its scratch arrays, which
    take `fixed_nbytes`."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.functions = Functions(dialect)
        self.scratch: list[str] = []
        self.fixed_nbytes = self.most_nbytes = 0
        self._held_nbytes = 0
        self._lines: list[str] = []
        self._depth = 1
        self._names = 0
        self._spent: list[defaultdict[str, float]] = [defaultdict(float)]

    def name(self, kind: str) -> str:
        """A fresh name: names that come from the kernel have an underscore."""
        self._names += 1
        return f"{kind}{self._names}"

    def do(self, line: str) -> None:
        """Append a line."""
        self._lines.append("    " * self._depth + line)

    @contextmanager
    def block(self, head: str = "") -> Iterator[None]:
        """Lines in braces after a head such as `if (...)`."""
        self.do(f"{head} {{".lstrip())
        self._depth += 1
        held = self._held_nbytes
        yield
        self._depth -= 1
        self._held_nbytes = held
        self.do("}")

    def hold(self, nbytes: int) -> None:
        """Count an array of the present block; `most_nbytes` is what all blocks hold at most."""
        self._held_nbytes += -(-nbytes // _ALIGNED) * _ALIGNED
        self.most_nbytes = max(self.most_nbytes, self._held_nbytes)

    def spend(self, kind: str, amount: float) -> None:
        """Count work of the lines that are `accounted` for together."""
        self._spent[-1][kind] += amount

    @contextmanager
    def accounted(self) -> Iterator[None]:
        """Lines that run as often as each other, and what they take, if the language counts it."""
        self._spent.append(defaultdict(float))
        yield
        spent = self._spent.pop()
        for kind, form in self.dialect.work.items():
            if spent[kind]:
                self.do(form.format(f"{spent[kind]:.10g}"))

    def text(self) -> str:
        """The lines so far."""
        return "\n".join(self._lines)
