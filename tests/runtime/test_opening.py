import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hal
from hal.cache import cache_dir
from hal.core.errors import InvalidCall, OutOfMemory, PluginError
from hal.tile.node import Type
from stack import ops as build
from stack.compiler.program import GraphRequest
from stack.runtime import opening
from stack.runtime.opening import close_all, engine_for


@pytest.fixture(autouse=True)
def own_engines(monkeypatch, tmp_path):
    monkeypatch.setattr(opening, "_engines", {})
    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path / "cache"))
    yield
    close_all()


def test_a_device_is_opened_once_and_again_after_close():
    engine = engine_for("cpu:0")
    assert engine_for("cpu:0") is engine
    engine.close()
    assert engine_for("cpu:0") is not engine
    assert engine_for("cpu:0").get(engine_for("cpu:0").put(3, hal.DType.I32)) == 3


def test_an_open_engine_keeps_its_wrappers():
    engine = engine_for("cpu:0", ["validate"])
    assert engine_for("cpu:0") is engine
    with pytest.raises(InvalidCall, match="open already with the wrappers"):
        engine_for("cpu:0", ())


def test_nothing_opens_a_device_while_those_that_are_open_end(monkeypatch):
    said = []

    class Closing:
        """An engine at whose end another thread asks for it again."""

        closed = False

        def close(self):
            with pytest.raises(InvalidCall, match="as this process ends") as caught:
                engine_for("cpu:0")
            said.append(caught.value)

    monkeypatch.setattr(opening, "_ending", [])
    monkeypatch.setitem(opening._engines, "cpu:0", (Closing(), ()))
    opening._close_at_exit()
    assert len(said) == 1


def test_unknown_devices_are_refused_with_the_known_ones():
    with pytest.raises(PluginError, match="known devices: cpu:0"):
        engine_for("nothing:0")


def test_where_the_cache_is(monkeypatch, tmp_path):
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("HAL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_dir() == Path("/x/hal")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "hal"


@pytest.mark.slow
def test_a_trace_is_written_when_the_interpreter_ends(tmp_path):
    trace = tmp_path / "trace.json"
    text = f"""
import hal
from stack.runtime.opening import engine_for
engine = engine_for("cpu:0", ["trace:{trace}"])
print(engine.get(engine.put([1.0, 2.0], hal.DType.F32)).sum())
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3.0\n", "")
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"alloc", "copy", "wait"} <= names


@pytest.mark.slow
def test_a_compiled_graph_gives_what_its_interpreter_gives():
    a, b = (build.input(i, Type((5, 7), hal.DType.F32)) for i in range(2))
    total = build.reduce("sum", build.mul(a, b), (1,))
    engine = engine_for("cpu:0")
    plan = engine.plan(GraphRequest((total, build.add(a, b)), (a, b)))
    x, y = np.random.default_rng(1).normal(size=(2, 5, 7)).astype(np.float32)
    sums, added = plan.run([engine.put(v, hal.DType.F32) for v in (x, y)])
    np.testing.assert_allclose(engine.get(sums), (x * y).sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(engine.get(added), x + y)


@pytest.mark.parametrize("count", [1 << 45, 1 << 62])
def test_a_result_that_no_memory_holds_is_out_of_memory(count):
    """And no error of a launch over so many elements."""
    ones = build.full((count,), 1, hal.DType.F32)
    with pytest.raises(OutOfMemory, match=rf"result f32\[{count}\] takes {4 * count:,} bytes") as e:
        engine_for("cpu:0").plan(GraphRequest((ones,), ()))
    assert e.value.requested == 4 * count
