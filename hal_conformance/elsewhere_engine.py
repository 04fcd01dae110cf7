"""The stack on the device in a process of its own:
python -m hal_conformance.elsewhere_engine JOB, a JSON object with device, settings, registry (as
module:function) and rounds.

Prints a line for each round: the result's bytes in hexadecimal digits.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

import click
import numpy as np
from numpy.typing import NDArray

import hal
from hal.core.dtypes import DType
from hal.core.values import OpenOptions
from hal.tile.node import Node, Type
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.runtime.engine import Engine
from stack.runtime.opening import engine_of

TIMEOUT_S = 10.0


def polynomial() -> tuple[Node, Node]:
    """x * x + 3 x of 40 elements, and x."""
    x = g.input(0, Type((40,), DType.F32))
    return g.add(g.mul(x, x), g.mul(x, g.full_like(x, 3.0))), x


def values(turn: int) -> NDArray[np.float32]:
    """What x is in a round: small whole numbers, so that the results are exact."""
    return (np.arange(40) % 13 - turn % 7).astype(np.float32)


def computed(engine: Engine, turn: int) -> NDArray[np.float32]:
    """The polynomial in a round."""
    y, x = polynomial()
    (result,) = engine.plan(GraphRequest((y,), (x,))).run([engine.put(values(turn), DType.F32)])
    found: NDArray[np.float32] = engine.get(result)
    return found


def main(text: str) -> None:
    """Compute all rounds."""
    job = json.loads(text)
    module, _, name = job["registry"].partition(":")
    registry: hal.Registry = getattr(import_module(module), name)()
    options = OpenOptions(settings=job["settings"])
    with engine_of(registry.open(job["device"], options=options), TIMEOUT_S) as engine:
        for turn in range(job["rounds"]):
            click.echo(computed(engine, turn).tobytes().hex())


if __name__ == "__main__":
    main(sys.argv[1])
