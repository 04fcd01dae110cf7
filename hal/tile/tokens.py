"""The tokens of tile text and the words that are made of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.errors import TileTextError
from hal.tile.node import Type

_TOKEN = re.compile(
    r"(?P<space>[ \t\r]+|#[^\n]*)|(?P<newline>\n)|(?P<header>hal-tile/\d+)|(?P<value>%\d+)"
    r"|(?P<scalar>\$[A-Za-z_]\w*)"
    r"|(?P<number>-?(?:(?:inf|nan)\b|\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?::[a-z]+\d\w*)?)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<mark>->|[=:,(){}\[\]])|(?P<bad>.)"
)
_SHOWN = 80
_MOST_DIGITS, _BEYOND = 20, 2**64
T = TypeVar("T")
DTYPES = {d.short: d for d in DType}


@dataclass(frozen=True, slots=True)
class Token:
    """One token; line and column count from 1."""

    kind: str
    text: str
    line: int
    column: int


def _tokens(text: str) -> Iterator[Token]:
    line, start = 1, 0
    for m in _TOKEN.finditer(text):
        kind = m.lastgroup or "bad"
        if kind != "space":
            yield Token(kind, m.group(), line, m.start() - start + 1)
        if kind == "newline":
            line, start = line + 1, m.end()
    yield Token("end", "", line, len(text) - start + 1)


class Tokens:
    """A place in a text. Every method goes past what it reads or raises TileTextError."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0

    @property
    def next(self) -> Token:
        """The token here; this does not go past it."""
        return self._tokens[self._at]

    def fail(self, expected: str, at: Token | None = None) -> TileTextError:
        """The error that something else was expected here, or at a token."""
        token = at or self.next
        found = {"newline": "the end of the line", "end": "the end of the text"}.get(
            token.kind, repr(token.text[:_SHOWN]) + "..." * (len(token.text) > _SHOWN)
        )
        return TileTextError(f"expected {expected}, found {found}", token.line, token.column)

    def take(self, kind: str, expected: str) -> Token:
        """A token of that kind."""
        token = self.next
        if token.kind != kind:
            raise self.fail(expected)
        self._at += 1
        return token

    def accept(self, *texts: str) -> bool:
        """Whether one of these words is here."""
        found = self.next.text in texts and self.next.kind in ("name", "mark")
        self._at += found
        return found

    def expect(self, text: str) -> None:
        """This word."""
        if not self.accept(text):
            raise self.fail(repr(text))

    def end_line(self) -> None:
        """The end of the line and empty lines."""
        self.take("newline", "the end of the line")
        self.skip_lines()

    def skip_lines(self) -> None:
        """Empty lines, if any."""
        while self.next.kind == "newline":
            self._at += 1

    def name(self, expected: str) -> str:
        """A name."""
        return self.take("name", expected).text

    def integer(self, expected: str = "an integer") -> int:
        """An integer without a type, of at most 64 bits."""
        token = self.take("number", expected)
        return self.whole(token, token.text, expected)

    def whole(self, token: Token, digits: str, expected: str) -> int:
        """The integer of these digits of a token, of at most 64 bits."""
        if not re.fullmatch(r"-?\d+", digits):
            raise self.fail(expected, token)
        number = int(digits) if len(digits) <= _MOST_DIGITS else _BEYOND
        if not -(2**63) <= number < 2**64:
            raise TileTextError(
                f"an integer of {len(digits)} characters is beyond 64 bits",
                token.line,
                token.column,
            )
        return number

    def dtype(self) -> DType:
        """An element type's short name."""
        token = self.take("name", "an element type")
        if token.text not in DTYPES:
            raise self.fail(f"an element type ({', '.join(DTYPES)})", token)
        return DTYPES[token.text]

    def sizes(self, opening: str, closing: str) -> tuple[int, ...]:
        """Integers between brackets."""
        self.expect(opening)
        return tuple(self.items(closing, self.integer))

    def items(self, closing: str, item: Callable[[], T]) -> list[T]:
        """Items with commas between them, and the closing bracket."""
        items: list[T] = []
        while not self.accept(closing):
            if items:
                self.expect(",")
            items.append(item())
        return items

    def colon_type(self) -> Type:
        """A colon and a type."""
        self.expect(":")
        dtype = self.dtype()
        return Type(self.sizes("[", "]") if self.next.text == "[" else (), dtype)
