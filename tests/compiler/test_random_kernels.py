"""Random kernels of every statement and operation by each lowering to C and the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.core.values import ParamKind
from hal.tile.interpret import interpret
from hal.tile.kernel import Kernel
from hal.tile.numeric import quiet
from hal.tile.verify import verify
from tests.compiler.c.tame import SIZE, tamed
from tests.compiler.llvm.agreement import assert_close
from tests.compiler.simt.settled import settled
from tests.tile.kernels import arrays, kernels, numbers

Run = Callable[[Kernel, tuple[int, ...], Mapping[str, np.ndarray], Mapping[str, Any]], None]


@contextmanager
def _alone() -> Iterator[Run]:
    yield import_module("tests.compiler.c.machine").run


@contextmanager
def _groups() -> Iterator[Run]:
    machine = import_module("tests.compiler.simt.machine")

    def run(kernel: Kernel, *rest: Any) -> None:
        machine.run(kernel, *rest, lanes=(1, 4, 16, 64)[len(repr(kernel)) % 4])

    yield run


@contextmanager
def _cores() -> Iterator[Run]:
    machine = import_module("tests.compiler.scratchpad.machine")
    with machine.opened() as device:
        yield partial(machine.run, device)


MACHINES = {
    "alone": (_alone, tamed),
    "groups": (_groups, settled),
    "scratchpads": (_cores, tamed),
}
"""How a kernel is run, and how it must be changed to have one right result there."""


@pytest.fixture(scope="module", params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Iterator[tuple[Run, Callable[[Kernel], Kernel]]]:
    opened, changed = MACHINES[request.param]
    with opened() as run:
        yield run, changed


@pytest.mark.slow
@pytest.mark.turns
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(grown=kernels(), data=st.data())
def test_random_kernels(machine, grown, data) -> None:
    run, changed = machine
    kernel = changed(grown)
    verify(kernel)
    buffers, scalars = (
        {p.name: data.draw(values(p.dtype), p.name) for p in kernel.params if p.kind is kind}
        for kind, values in (
            (ParamKind.BUFFER, partial(arrays, size=SIZE)),
            (ParamKind.SCALAR, numbers),
        )
    )
    wanted, got = ({name: a.copy() for name, a in buffers.items()} for _ in range(2))
    interpret(kernel, (1,), wanted, scalars)
    run(kernel, (1,), got, scalars)
    with quiet():
        for name in buffers:
            assert_close(got[name], wanted[name], 0)
