"""Programs that a second process builds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest
from hal_plugin_opencl import beside, find, joined
from hal_plugin_opencl.beside import Beside, Text

import hal
from hal.core.dtypes import DType
from hal.core.values import OpenOptions
from hal.hosted.places import Place
from plugins.opencl.tests.conftest import WAIT_S, Bench, buffer, source

PLACE = Place(0, 1, "", 0)
TEXT = "kernel void {name}(global uchar *x, ulong at, uchar run) {{ if (run) x[at] = {value}; }}"


def texts(count: int) -> list[Text]:
    """Each with two kernels."""
    found = []
    for i in range(count):
        both = " ".join(TEXT.format(name=f"{name}{i}", value=i) for name in "fg")
        found.append(Text(both, "-w", tuple((f"{name}{i}", (0, 8, 1)) for name in "fg")))
    return found


def code(folder: Path) -> set[str]:
    """The kernels of which the driver keeps code."""
    return {path.stem for path in folder.rglob("*.so")}


@pytest.mark.slow
@pytest.mark.turns
def test_the_process_leaves_code_where_others_find_it(tmp_path: Path) -> None:
    if not beside.shares(find.devices()[0]):
        pytest.skip("the first device's driver keeps no code for other processes")
    (text,) = texts(1)
    asked = [(0, "", asdict(text)), (0, "g0", ()), (0, "f0", ())]
    done = subprocess.run(
        [sys.executable, "-m", beside.__name__, json.dumps(asdict(PLACE))],
        input="".join(json.dumps(each) + "\n" for each in asked),
        env={**os.environ, "POCL_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert done.stdout == "\n" * (1 + len(asked))
    assert code(tmp_path) == {"f0", "g0"}


def test_each_piece_of_work_is_done_once() -> None:
    """By whoever takes it first; and what the other process is at is not taken here."""
    theirs: list[beside.Work] = []
    given, mine, begun = texts(8), list[beside.Work](), threading.Event()

    class Notes(Beside):
        def _next(self) -> beside.Work | None:
            work = super()._next()
            if work is not None:
                theirs.append(work)
                begun.set()
            return work

    other = Notes(PLACE)
    other.add(given)
    assert begun.wait(WAIT_S)
    for i, text in enumerate(given):
        for name in ("", *(name for name, _ in text.kernels)):
            with other._changed:
                mine += [(i, name)] * ((i, name) in other._free)
                is_mine = other.take(text, name)
            assert is_mine or (i, name) in theirs
            other.wait(text, name)
            if not name:
                other.built(text)
    until = monotonic() + WAIT_S
    while other._theirs is not None and monotonic() < until:
        sleep(0.01)
    assert sorted(mine + theirs) == [(i, n) for i in range(8) for n in ("", f"f{i}", f"g{i}")]


@pytest.mark.parametrize("place", [Place(0, 1, "", 10**6), replace(PLACE, parts=10**6)])
def test_a_process_that_ends_leaves_all_to_this_one(place: Place) -> None:
    other, given = Beside(place), texts(4)
    other.add(given)
    (thread,) = [t for t in threading.enumerate() if t.name == "hal-opencl-beside"][-1:]
    for text in given:
        other.wait(text)
        assert other.take(text)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert all(other.take(text, name) for text in given for name, _ in text.kernels)


@pytest.mark.slow
@pytest.mark.turns
def test_what_both_built_computes_what_it_says(tmp_path: Path) -> None:
    """Many programs at once, of which this process and the other one build groups."""
    head = "#pragma OPENCL FP_CONTRACT OFF\n__kernel void f(__global uchar *x_base, ulong x_offset)"
    body = "((__global int *)(x_base + x_offset))[get_global_id(0)] = {};"
    kernel = f"{head} {{{{ {body} }}}}\n"
    params = (buffer("x", DType.I32, True),)
    programs = tuple(source(kernel.format(7_000_000 + i), *params) for i in range(40))
    assert len([g for g in joined.groups(programs) if len(g) > 1]) >= beside.LEAST
    with hal.open("opencl:0", options=OpenOptions(cache_dir=str(tmp_path))) as device:
        bench = Bench(device)
        for i, program in enumerate(programs):
            x = bench.put(np.zeros(2, np.int32))
            bench.run(replace(program, beside=programs), x, grid=(2, 1, 1))
            assert bench.get(x, np.int32).tolist() == [7_000_000 + i] * 2
