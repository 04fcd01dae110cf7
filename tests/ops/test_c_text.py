"""Operations and element types by both lowerings to C: an instance as a group of work-items, and as
one alone. The host's compiler takes all kernels at once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hal.tile.node import Node
from hal.tile.numeric import NUMPY
from stack.compiler.kernels import TileProgram
from stack.compiler.lower.simt import render_opencl as in_groups
from stack.compiler.program import GraphRequest
from stack.compiler.text.c import render_opencl as alone
from stack.ir.interpret import interpret
from stack.ops import OPS
from stack.ops.operator import OpKind
from tests.compiler.c.host import compiled
from tests.compiler.lowered import SIMD, lowered
from tests.compiler.simt.machine import groups_of
from tests.draw import sample
from tests.ops.cases import EVERY, Maker, drawn, names
from tests.ops.test_device import FEW
from tests.ops.tolerance import assert_close

LEAST = 8
"""Elements of the largest array of a case: the first cases that are drawn are scalars."""

KERNELS = [(op, d) for op, d in EVERY if OPS[op].kind is not OpKind.LOOP]
"""A loop is run by a plan, kernel by kernel."""
CHOSEN = sample("texts in C", KERNELS, 40)
"""Drawn in each run: all of them cost a minute."""

LOWERINGS = {"groups": (groups_of(32), in_groups), "alone": (SIMD, alone)}


@dataclass
class Case:
    """A node, its inputs, and its kernels: from number `first` on among all that are compiled."""

    node: Node
    inputs: dict[Node, np.ndarray]
    program: TileProgram
    first: int


@cache
def case_of(op, dtype):
    """A node of the operation on an element type, and what its inputs are."""
    found = []

    @settings(
        FEW,
        max_examples=1,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
    @given(data=st.data())
    def draw(data):
        m = Maker(data.draw)
        n = drawn(m, op, dtype)
        assume(n.op == op or op in ("const", "input"))
        assume(max([n.type.size, *(x.size for x in m.inputs.values())]) > LEAST)
        found.append((n, m.inputs))

    draw()
    return found[-1]


@pytest.fixture(scope="module", params=sorted(LOWERINGS))
def machine(request, tmp_path_factory):
    """The kernels of all cases, and the cases by operation and element type."""
    info, render = LOWERINGS[request.param]
    sources, cases = [], {}
    for op, dtype in CHOSEN:
        node, inputs = case_of(op, dtype)
        program = lowered(GraphRequest((node,), tuple(inputs)), info)
        cases[op, dtype] = Case(node, inputs, program, len(sources))
        sources += [render(call.kernel, info) for call in program.calls]
    return compiled(sources, tmp_path_factory.mktemp(request.param)), cases


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), CHOSEN, ids=names(CHOSEN))
def test_both_lowerings_compute_what_the_reference_says(machine, op, dtype):
    """And it does not matter in which order work-items run between barriers."""
    kernels, cases = machine
    case = cases[op, dtype]
    (expected,) = interpret([case.node], case.inputs)
    forward, backward = (run(kernels, case, order) for order in (False, True))
    assert forward.tobytes() == backward.tobytes()
    assert_close(forward.reshape(expected.shape), expected, case.node.dtype)


def run(kernels, case, backward):
    """The output of a case."""
    memory = defaultdict(lambda: None)
    for i, a in enumerate(case.inputs.values()):
        memory["input", i] = np.array(a).reshape(-1).view(np.uint8)
    dtype = NUMPY[case.node.dtype]
    memory["output", 0] = np.full(case.node.type.size * dtype.itemsize, 0xFF, np.uint8)
    memory |= {("temp", i): np.full(n, 0xFF, np.uint8) for i, n in enumerate(case.program.temps)}
    for number, call in enumerate(case.program.calls, case.first):
        parts = [memory[p.kind, p.index][p.offset_nbytes :][: p.nbytes] for p in call.buffers]
        kernels.run(number, call.grid, parts, backward)
    return memory["output", 0].view(dtype)
