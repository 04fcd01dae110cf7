"""The types of what the table of operators gives, as stub files beside the modules that look it up.

`python -m stack.framework.stubs` writes them anew.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import fill, indent
from typing import get_overloads

from hal.core.dtypes import DType
from stack.framework import composed as composed  # whose operators are in the table then
from stack.framework import counted as counted
from stack.framework import drawn as drawn
from stack.framework.expr.public import (
    FUNCTIONS,
    LAYERS,
    LINALG,
    METHODS,
    ONE,
    OPERANDS,
    SPECIAL,
    TWO,
    Public,
)
from stack.framework.nn import rows

HEAD = '''"""Generated from the table of operators by `python -m stack.framework.stubs`."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from hal.core.dtypes import DType
from stack.framework.random import Generator
from stack.framework.tensor import Tensor

Scalar = float | int | bool
'''
_MODULES = (
    HEAD.replace(
        "from stack.framework.random",
        "from stack.framework.nn.module import Module\nfrom stack.framework.random",
    )
    + """
ROWS: dict[str, Any]

def module_of(name: str) -> type[Module]: ...
"""
)
_TYPES = {
    "list[Node]": "tuple[Tensor, ...]",
    "Node": "Tensor",
    "Operand": "Tensor | Scalar",
    "Number": "Scalar",
    "Dims": "int | Sequence[int] | None",
}
"""What users see of the types of expressions."""


def stubs() -> dict[str, str]:
    """The text of each stub file by the name of its module."""
    return {
        "functions": _formatted(HEAD + _all(FUNCTIONS) + "".join(_functions(FUNCTIONS.items()))),
        "linalg": _formatted(HEAD + _all(LINALG) + "".join(_functions(LINALG.items()))),
        "special": _formatted(HEAD + _all(SPECIAL) + "".join(_functions(SPECIAL.items()))),
        "layers": _formatted(HEAD + _all(LAYERS) + "".join(_functions(LAYERS.items()))),
        "nn/rows": _formatted(_MODULES + _all(rows.__all__) + "".join(map(_module, rows.__all__))),
        "operators": _formatted(f"{HEAD}\nclass Operators:\n{indent(_methods(), '    ')}"),
    }


def _all(names: Iterable[str]) -> str:
    return f"__all__ = {sorted(names)!r}\n"


def _functions(rows: Iterable[tuple[str, Public]]) -> Iterator[str]:
    for name, public in sorted(rows):
        forms = get_overloads(public.expression)
        for form in forms:
            form.__doc__ = public.expression.__doc__
            one = replace(public, expression=form)
            yield "@overload\n" + _definition(name, _parameters(one), one)
        if not forms:
            yield _definition(name, _parameters(public), public)


def _module(name: str) -> str:
    given = "".join(f", {text}" for text in map(_shown, rows.ROWS[name].settings()))
    function = rows.ROWS[name].function
    return f'''class {name}(Module):
    """`functional.{function}` with fixed settings."""

    def __init__(self{given}) -> None: ...
    def __call__(self, *inputs: Tensor) -> Any: ...
'''


def _shown(p: inspect.Parameter) -> str:
    value = f"DType.{p.default.name}" if isinstance(p.default, DType) else repr(p.default)
    default = "" if p.default is p.empty else f" = {value}"
    star = "**" if p.kind is p.VAR_KEYWORD else "*" if p.kind is p.VAR_POSITIONAL else ""
    return f"{star}{p.name}: {_seen(p.annotation)}{default}"


def _methods() -> str:
    parts = []
    for name, public in sorted(METHODS.items()):
        given = ["self", *_parameters(public)[1:]]
        parts.append(_definition(name, given, public))
        if public.face.in_place:
            parts.append(_definition(f"{name}_", given, public, "Tensor"))
    for public in dict.fromkeys(METHODS.values()):
        symbol = public.face.symbol
        if symbol in ONE:
            parts.append(f"def __{ONE[symbol]}__(self) -> Tensor: ...\n")
        elif symbol:
            name, is_reflected = TWO[symbol]
            forms = ["", *["r"] * is_reflected, *["i"] * (public.face.in_place and is_reflected)]
            parts += [_special(f"__{form}{name}__") for form in forms]
    return "".join(parts)


def _special(name: str) -> str:
    if name in ("__eq__", "__ne__"):
        return f"def {name}(self, other: object) -> Tensor: ...  # type: ignore[override]\n"
    return f"def {name}(self, other: Tensor | Scalar) -> Tensor: ...\n"


def _definition(name: str, given: list[str], public: Public, gives: str = "") -> str:
    gives = gives or _seen(inspect.signature(public.expression).return_annotation)
    text = fill(" ".join((public.expression.__doc__ or "").split()), 88)
    head = f"def {name}({', '.join(given)}) -> {gives}:"
    return f'{head}\n    """{indent(text, "    ").lstrip()}"""\n'


def _parameters(public: Public) -> list[str]:
    found = []
    for number, p in enumerate(inspect.signature(public.expression).parameters.values()):
        if public.face.sizes and number == 1:
            found.append(f"*{p.name}: int | Sequence[int]")
            continue
        is_operand = number < 2 and not public.face.waits
        found.append(_shown(p.replace(name=OPERANDS.get(p.name, p.name)) if is_operand else p))
    if public.face.layer and public.face.in_place:
        found.append("inplace: bool = False")
    return found


def _seen(annotation: str) -> str:
    words = r"list\[Node\]|\b(?:Node|Operand|Number|Dims)\b"
    return re.sub(words, lambda m: _TYPES[m[0]], annotation)


_FORMAT_S = 60.0  # what takes a moment, on a machine that does much else


def _formatted(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "x.pyi", "-"]
    done = subprocess.run(
        command, input=text, text=True, capture_output=True, check=True, timeout=_FORMAT_S
    )
    return done.stdout


if __name__ == "__main__":
    for module, text in stubs().items():
        (Path(__file__).parent / f"{module}.pyi").write_text(text)
