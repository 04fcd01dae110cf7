"""Vendor operators: each computes what its name says."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hal.core.description import Feature
from hal.core.errors import Unsupported
from hal.core.values import Operator, ParamKind
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.rig import Rig

programs_operators = Cases("D", Level.CORE)

SIZES = {"m": 3, "n": 5, "k": 7}


@programs_operators.case("operator-matmul", "operators.exact", needs=(Feature.OPERATORS,))
def _(rig: Rig) -> None:
    found = [operator for operator in rig.device.operators() if operator.name == "matmul"]
    if not found:
        raise expect.Unfit("the device has no operator of that name")
    for operator in found:
        _check_matmul(rig, operator)


@programs_operators.case(
    "operator-outside-its-conditions", "operators.exact", needs=(Feature.OPERATORS,)
)
def _(rig: Rig) -> None:
    for operator in rig.device.operators():
        for name, multiple in operator.conditions.items():
            if multiple > 1:
                constants = {**_constants(operator), name: multiple + 1}
                expect.raises(Unsupported, rig.device.load_operator, operator, constants)


def _check_matmul(rig: Rig, operator: Operator) -> None:
    sizes = _constants(operator)
    shapes = {"a": "mk", "b": "kn", "c": "mn"}
    arrays: dict[str, NDArray[Any]] = {}
    for param in operator.params:
        expect.that(param.kind is ParamKind.BUFFER, f"matmul takes {param.name!r}, no buffer")
        count = int(np.prod([sizes[axis] for axis in shapes[param.name]]))
        arrays[param.name] = rig.random.integers(-3, 4, count).astype(NUMPY[param.dtype])
    buffers = {name: rig.buffer(array) for name, array in arrays.items()}
    program = rig.device.load_operator(operator, sizes)
    point = rig.launch(program, [buffers[param.name] for param in operator.params])
    a = arrays["a"].reshape(sizes["m"], sizes["k"]).astype(np.float64)
    b = arrays["b"].reshape(sizes["k"], sizes["n"]).astype(np.float64)
    got = np.frombuffer(rig.read(buffers["c"], waits=[point]), arrays["c"].dtype)
    # Sums of small whole numbers are exact in every element type that a matrix unit has.
    expect.same(got.astype(np.float64), (a @ b).ravel(), "the product")


def _constants(operator: Operator) -> dict[str, int]:
    """The shape constants of a small problem that the operator takes."""
    sizes = {**dict.fromkeys(operator.conditions, 4), **SIZES}
    least = {name: operator.conditions.get(name, 1) for name in sizes}
    return {name: -(-size // least[name]) * least[name] for name, size in sizes.items()}
