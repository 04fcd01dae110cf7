"""C text: lines with their indentation, names of their own, and the functions that they call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stack.compiler.c.dialect import Dialect
from stack.compiler.c.functions import Functions


class Writer:
    """Collects the body of one kernel."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.functions = Functions(dialect)
        self.scratch: list[str] = []
        self._lines: list[str] = []
        self._depth = 1
        self._names = 0

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
        yield
        self._depth -= 1
        self.do("}")

    def text(self) -> str:
        """The lines so far."""
        return "\n".join(self._lines)
