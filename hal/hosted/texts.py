"""Program texts for a driver's compiler, and what it says of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hal.core.errors import CompileError, InvalidCall
from hal.core.values import KernelSource


def checked(text: str) -> str:
    """The text itself, if it can be given to a compiler at all. Raises CompileError."""
    if "\0" in text or not text.isascii():
        bad = next(i for i, c in enumerate(text) if c == "\0" or not c.isascii())
        line = text.count("\n", 0, bad) + 1
        raise CompileError(f"{text[bad]!r} is no character of a program", f"line {line}", line)
    return text


def error_line(log: str, count: int) -> int:
    """The line of the first error in the text's `count` lines, by a log that names places as
    `:LINE:COLUMN`; 0 where the log names none."""
    errors = [line for line in log.splitlines() if "error" in line.lower()]
    found = [int(n) for line in errors for n in re.findall(r":(\d+):\d+", line)[:1]]
    return next((line for line in found if line <= count), 0)


def whole_options(source: KernelSource, known: Sequence[str]) -> dict[str, int]:
    """The source's build options, which are whole numbers; 0 where one is not given. Raises
    InvalidCall."""
    options = dict(source.options)
    if unknown := sorted(options.keys() - set(known)):
        raise InvalidCall(f"{source.format} has no build options {unknown}, only {known}")
    for name, text in options.items():
        if not text.isdecimal():
            raise InvalidCall(f"{source.format}: {name} must be a whole number, is {text!r}")
    return {name: int(options.get(name, "0")) for name in known}
