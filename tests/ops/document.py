"""docs/ops.md, the table of all operators: python -m tests.ops.document

Errors are measured on cpu:0: a function of float32 numbers against the same one by the graph
interpreter in float64, in units in the last place of the right float32 result.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import hal
from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.framework import counted
from stack.framework.expr import activation
from stack.framework.expr.public import FUNCTIONS, LAYERS, LINALG, METHODS, SPECIAL, Public
from stack.ir.interpret import interpret
from stack.ops import OPS
from stack.ops.operator import OpKind
from stack.runtime import engine_of

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"
SPACES: Mapping[str, Mapping[str, Public]] = {
    "": FUNCTIONS,
    "functional.": LAYERS,
    "special.": SPECIAL,
    "linalg.": LINALG,
    "Tensor.": METHODS,
}
COUNT = 20_000
DOMAINS = {
    **dict.fromkeys(("asin", "acos", "atanh", "erfinv"), (-1.0, 1.0)),
    **dict.fromkeys(("log", "log2", "log10", "sqrt", "rsqrt", "lgamma", "digamma"), (0.1, 30.0)),
    **dict.fromkeys(("acosh", "zeta", "recip", "reciprocal", "pow"), (1.0, 30.0)),
    **dict.fromkeys(("logit", "ndtri"), (0.01, 0.99)),
    "log1p": (-0.9, 30.0),
}
"""Where a function is defined, and its relative error is bounded; -9 to 9 for others."""


def public() -> dict[str, Public]:
    """Every operator that users call once, under its first name; those of the graph included."""
    assert counted.nonzero, "its operators are in the table"
    found: dict[Public, str] = {}
    for prefix, rows in SPACES.items():
        for row in rows.values():
            found.setdefault(row, f"{prefix}{row.face.name}")
    return {name: row for row, name in sorted(found.items(), key=lambda pair: pair[1].lower())}


def _points(name: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    low, high = DOMAINS.get(name.rsplit(".", 1)[-1], (-9.0, 9.0))
    even = rng.uniform(low, high, COUNT)
    small = rng.normal(size=COUNT // 4) * 10.0 ** rng.integers(-6, 0, COUNT // 4)
    return np.concatenate([even, small[(small >= low) & (small <= high)]]).astype(np.float32)


def _typed(function: Callable[..., Node], operand: Type, arity: int) -> Node | None:
    """The result on operands of a type, where it has that type, too."""
    try:
        found = function(*(g.input(i, operand) for i in range(arity)))
    except (LookupError, ValueError, TypeError, AttributeError, AssertionError):  # takes no such
        return None
    return found if isinstance(found, Node) and found.type == operand else None


def worst(engine: Any, name: str, function: Callable[..., Node], arity: int) -> float | None:
    """The greatest error of an elementwise function in units in the last place, None for others."""
    for few in ((7,), (2, 4), (5, 7)):  # what combines elements would take the memory of all pairs
        if _typed(function, Type(few, DType.F32), arity) is None:
            return None
    points = [np.roll(_points(name), 7 * i) for i in range(arity)]
    leaves = [
        [g.input(i, Type(p.shape, dtype)) for i, p in enumerate(points)]
        for dtype in (DType.F32, DType.F64)
    ]
    narrow, wide = (function(*row) for row in leaves)
    plan = engine.plan(GraphRequest((narrow,), tuple(leaves[0])))
    actual = engine.get(plan.run([engine.put(p, DType.F32) for p in points])[0])
    doubles = {n: p.astype(np.float64) for n, p in zip(leaves[1], points, strict=True)}
    (expected,) = interpret([wide], doubles)
    with np.errstate(all="ignore"):
        unit = np.spacing(np.abs(expected.astype(np.float32))).astype(np.float64)
        error = np.abs(actual.astype(np.float64) - expected) / unit
    return float(np.max(error[np.isfinite(error)], initial=0))


def _required(expression: Callable[..., Any]) -> int:
    parameters = inspect.signature(expression).parameters.values()
    return sum(p.default is p.empty for p in parameters)


def _shown(error: float | None) -> str:
    return "" if error is None else f"{error:.2g}" if error < 100 else f"{error:.0f}"


def _types(dtypes: frozenset[DType]) -> str:
    kinds = {
        "floats": frozenset(d for d in DType if d.is_float),
        "integers": frozenset(d for d in DType if d.is_int),
        "bool": frozenset({DType.BOOL}),
    }
    whole = [name for name, kind in kinds.items() if kind <= dtypes]
    rest = dtypes - frozenset().union(*(kinds[name] for name in whole))
    return ", ".join([*whole, *sorted(d.short for d in rest)])


def _graph(engine: Any) -> Iterator[str]:
    for name, row in OPS.items():
        is_float = row.kind is OpKind.ELEMENTWISE and DType.F32 in row.dtypes and not row.attrs
        measured = is_float and row.arity is not None and not row.data
        error = worst(engine, name, row, row.arity or 1) if measured else None
        slope = "yes" if row.gradient else ""
        meaning = row.meaning.replace("|", "\\|")
        yield f"| `{name}` | {meaning} | {_types(row.dtypes)} | {slope} | {_shown(error)} |"


def _composites(engine: Any) -> Iterator[str]:
    for name, row in public().items():
        n = 0 if row.face.waits else _required(row.expression)
        elementwise = n in (1, 2) and row.expression not in (activation.glu,)
        error = worst(engine, name, row.expression, n) if elementwise else None
        others = ", ".join(row.face.aliases)
        what = " ".join((row.expression.__doc__ or "").split()).replace("|", "\\|")
        forms = "method" if name.startswith("Tensor.") or row in METHODS.values() else ""
        forms += ", in place" if row.face.in_place else ""
        yield (
            f"| `{name}` | {others} | {forms} | {what} | {row.face.aten} | {row.face.onnx} | "
            f"{_shown(error)} |"
        )


def page() -> str:
    """The text of the page."""
    with engine_of(hal.open("cpu:0")) as engine:
        graph, composites = list(_graph(engine)), list(_composites(engine))
    return "\n".join(
        [
            "# Operators",
            "",
            "Written by `python -m tests.ops.document`. The tests of `tests/ops` draw cases of "
            "what graphs are made of, and PyTorch's own samples of what users call, on `cpu:0`, "
            "`opencl:0` and `sunway:0` in each run.",
            "",
            "*Error* is the greatest one seen on `cpu:0` among some 25,000 float32 numbers, in "
            "units in the last place, against float64; empty where an operator is not elementwise. "
            "It is large where a result is nearly 0 as a difference of large numbers.",
            "",
            f"## What users call: {len(composites)}",
            "",
            "| name | also | forms | meaning | ATen | ONNX | error |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *composites,
            "",
            f"## What graphs are made of: {len(graph)}",
            "",
            "| name | meaning | element types | gradient | error |",
            "| --- | --- | --- | --- | --- |",
            *graph,
            "",
        ]
    )


def main() -> None:
    warnings.simplefilter("ignore")
    PAGE.write_text(page())
    sys.stdout.write(f"wrote {PAGE}\n")


if __name__ == "__main__":
    main()
