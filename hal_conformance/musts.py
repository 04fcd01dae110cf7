"""The MUST sentences of the contract's text, and the ids that they carry."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator

from hal.core import description, spec, values

_TEXTS = (spec, description, values)
_QUOTED = re.compile(r'"""(.*?)"""', re.DOTALL)
_ID = re.compile(r"\[([a-z_]+\.[a-z_]+)\]")
_MUST = re.compile(r"(?<!\ba )\bMUST\b")


@functools.cache
def sentences() -> tuple[str, ...]:
    """Every sentence of the contract that says MUST, as one line."""
    return tuple(s for text in _docstrings() for s in _split(text) if _MUST.search(s))


@functools.cache
def ids() -> frozenset[str]:
    """Every id of the contract's sentences."""
    return frozenset(name for text in _docstrings() for name in _ID.findall(text))


def ids_of(sentence: str) -> tuple[str, ...]:
    """The ids that a sentence carries."""
    return tuple(_ID.findall(sentence))


def _docstrings() -> Iterator[str]:
    for module in _TEXTS:
        for text in _QUOTED.findall(inspect.getsource(module)):
            yield " ".join(text.split())


def _split(text: str) -> list[str]:
    """A sentence ends with a full stop before a capital, a bracket, a backquote or the end."""
    return re.split(r"(?<=[.:])\s+(?=[A-Z`*\[])", text)
