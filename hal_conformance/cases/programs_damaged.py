"""Texts that are no program: refused with the compiler's log, and the process stays whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hal.core.errors import CompileError, InvalidCall
from hal.core.values import KernelSource
from hal_conformance import expect
from hal_conformance.additions import add_number, add_vectors
from hal_conformance.case import Cases, Level
from hal_conformance.cases.programs_load import run_addition
from hal_conformance.rig import Rig

programs_damaged = Cases("D", Level.CORE)

FLIPS = 8
DIGITS = 10
"""Few: a device may give each text that it does not trust a process of its own."""
NO_PROGRAM = "@@@ this is no program @@@"

OTHER_LANGUAGES = {
    "c": "void add(const float *x, float *y) { y[0] = x[0] + 1; }\n",
    "assembler": ".version 8.0\n.target none\n.entry add() { ret; }\n",
    "python": "def add(x, y):\n    return x + y\n",
    "json": '{"kernel": "add", "params": ["x", "y"]}\n',
}

BINARY: dict[str, Callable[[Rig], str]] = {
    "noise": lambda rig: rig.noise(2000).decode("latin-1"),
    "object": lambda rig: "\x7fELF\x02\x01\x01" + "\0" * 57 + rig.noise(500).decode("latin-1"),
    "zeros": lambda rig: "\0" * 300,
    "surrogates": lambda rig: "\udcff\ud800",
    "not-ascii": lambda rig: "éß語" * 50,
    "brackets": lambda rig: "({[" * 500,
}


def refused(rig: Rig, source: KernelSource, text: str) -> CompileError:
    """`load` raises CompileError for the text."""
    error = expect.raises(CompileError, rig.device.load, replace(source, text=text))
    assert isinstance(error, CompileError)
    return error


def check_usable(rig: Rig) -> None:
    """A good program still loads and runs."""
    run_addition(rig, rig.program(add_number(rig, 5)), 5, "a program after damaged ones")


@programs_damaged.case("damaged-empty", "load.damaged")
def _(rig: Rig) -> None:
    for text in ("", " ", "\n\n\n"):
        refused(rig, rig.source(add_vectors(rig)), text)
    check_usable(rig)


@programs_damaged.case("damaged-truncated", "load.damaged", percent=(5, 35, 65, 90))
def _(rig: Rig, percent: int) -> None:
    source = rig.source(add_vectors(rig))
    refused(rig, source, source.text[: len(source.text) * percent // 100])
    check_usable(rig)


@programs_damaged.case("damaged-binary", "load.damaged", text=tuple(BINARY))
def _(rig: Rig, text: str) -> None:
    refused(rig, rig.source(add_vectors(rig)), BINARY[text](rig))
    check_usable(rig)


@programs_damaged.case("damaged-other-language", "load.damaged", language=tuple(OTHER_LANGUAGES))
def _(rig: Rig, language: str) -> None:
    """A compiler of C may take the text and find that its `add` has other parameters."""
    source = replace(rig.source(add_vectors(rig)), entry="add", text=OTHER_LANGUAGES[language])
    refusals = (CompileError, InvalidCall) if language == "c" else CompileError
    expect.raises(refusals, rig.device.load, source)
    check_usable(rig)


def _flipped(rig: Rig, text: str) -> str:
    """One to three bits of the text flipped, the high bit of no byte."""
    data = bytearray(text.encode("ascii", "replace"))
    for _ in range(int(rig.random.integers(1, 4))):
        data[int(rig.random.integers(len(data)))] ^= 1 << int(rig.random.integers(7))
    return data.decode("ascii")


def _other_digit(rig: Rig, text: str) -> str:
    """One digit of the text changed, which often gives a program again."""
    places = np.flatnonzero([c.isdigit() for c in text])
    if not places.size:
        raise expect.Unfit("the text has no digits")
    at = int(rig.random.choice(places))
    return f"{text[:at]}{rig.random.integers(10)}{text[at + 1 :]}"


def _load_damaged(rig: Rig, source: KernelSource, damage: Callable[[Rig, str], str]) -> None:
    """A damaged text is refused, or it is a program after all, which is not run."""
    try:
        program = rig.device.load(replace(source, text=damage(rig, source.text)))
    except CompileError:
        return
    rig.device.free(program)


@programs_damaged.case("damaged-bits", "load.damaged", part=range(2))
def _(rig: Rig, part: int) -> None:
    source = rig.source(add_vectors(rig))
    for _ in range(FLIPS):
        _load_damaged(rig, source, _flipped)
    check_usable(rig)


@programs_damaged.case("damaged-digits", "load.damaged", part=range(2))
def _(rig: Rig, part: int) -> None:
    source = rig.source(add_number(rig, 7))
    for _ in range(DIGITS):
        _load_damaged(rig, source, _other_digit)
    check_usable(rig)


@programs_damaged.case("damaged-twice-the-text", "load.damaged")
def _(rig: Rig) -> None:
    source = rig.source(add_vectors(rig))
    _load_damaged(rig, source, lambda _, text: text + text)
    check_usable(rig)


@programs_damaged.case("damaged-lines-swapped", "load.damaged")
def _(rig: Rig) -> None:
    source = rig.source(add_vectors(rig))
    _load_damaged(rig, source, lambda _, text: "\n".join(reversed(text.splitlines())))
    check_usable(rig)


@programs_damaged.case("damaged-line-is-named", "load.damaged")
def _(rig: Rig) -> None:
    source = rig.source(add_vectors(rig))
    lines = source.text.splitlines()
    at = len(lines) // 2
    lines[at] = NO_PROGRAM
    error = refused(rig, source, "\n".join(lines) + "\n")
    expect.that(error.log.strip(), "CompileError.log is empty")
    expect.that(error.line in (0, at + 1), f"the line is {error.line}, the damage in {at + 1}")


@programs_damaged.case("damaged-leaves-others-alone", "load.damaged")
def _(rig: Rig) -> None:
    program, source = rig.program(add_number(rig, 3)), rig.source(add_vectors(rig))
    for text in ("", NO_PROGRAM, source.text[:100]):
        refused(rig, source, text)
        run_addition(rig, program, 3, "a program that was loaded before")
