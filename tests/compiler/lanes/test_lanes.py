"""The prototype of decision 31 against the interpreter, on kernels of the compiler."""

from pathlib import Path

import numpy as np
import pytest

from hal.tile.interpret import interpret
from hal.tile.numeric import NUMPY
from stack.compiler.program import GraphRequest
from tests.compiler.lanes.machine import run
from tests.compiler.llvm.agreement import assert_close
from tests.compiler.lowered import SIMD, lowered
from tests.compiler.test_golden_kernels import GRAPHS

MOST_LINES = 350


def test_it_is_small():
    lines = Path(__file__).with_name("text.py").read_text().splitlines()
    assert len(lines) <= MOST_LINES


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("name", ["softmax", "softmax_bf16", "layer_norm", "adamw"])
def test_kernels_compute_what_the_interpreter_does(name):
    graph, updates = GRAPHS[name]
    outputs, inputs = graph()
    program = lowered(GraphRequest(tuple(outputs), tuple(inputs), updates), SIMD)
    rng = np.random.default_rng(0)
    for call in program.calls:
        buffers = {
            p.name: abs(rng.standard_normal(part.nbytes // p.dtype.nbytes)).astype(NUMPY[p.dtype])
            for p, part in zip(call.kernel.params, call.buffers, strict=True)
        }
        wanted = {n: a.copy() for n, a in buffers.items()}
        interpret(call.kernel, call.grid, wanted, {})
        run(call.kernel, call.grid, buffers, {})
        for n in buffers:
            assert_close(buffers[n], wanted[n], 16, 1.0)
