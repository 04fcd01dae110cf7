"""What a machine without a GPU is told: one sentence, and nothing that works is claimed."""

from __future__ import annotations

import ast
import ctypes
import inspect
import os
import sys
from pathlib import Path

import hal_plugin_cuda
import pytest
from hal_plugin_cuda import plugin

from benchmarks.gpu import __main__ as benchmark
from hal.core.errors import PluginError
from hal.core.spec import DeviceSpec, hooks
from hal.core.values import OpenOptions
from hal.hosted import look


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(has_driver(), reason="a CUDA driver is installed")
def test_the_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(Path(str(hal_plugin_cuda.__file__)).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
    look._listed.cache_clear()
    for call in (plugin.enumerate_devices, lambda: plugin.open_device(0, OpenOptions())):
        with pytest.raises(PluginError, match=r"no CUDA driver .* libcuda\.so\.1, .* install"):
            call()


@pytest.mark.slow
@pytest.mark.skipif(has_driver(), reason="a CUDA driver is installed")
def test_the_benchmarks_say_it_once_and_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu"])
    monkeypatch.setattr(benchmark, "OPENING_S", 120)  # on a machine that is busy
    assert benchmark.main() == 2
    said = capfd.readouterr()
    assert not said.out
    (line,) = said.err.splitlines()
    assert line.startswith("cuda:0 does not open: ")
    assert "libcuda.so.1" in line


def test_the_benchmarks_give_hooks_what_they_take() -> None:
    """Which nothing else tells before they meet a GPU: hooks of a device are of no known type."""
    path, called = Path(str(benchmark.__file__)).with_name("parts.py"), set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="device" | "d"), attr=hook)):
                if hook in hooks(DeviceSpec):
                    named = {word.arg: word for word in node.keywords if word.arg}
                    inspect.signature(getattr(DeviceSpec, hook)).bind(None, *node.args, **named)
                    called.add(hook)
    assert called > {"alloc", "bind", "copy", "launch", "load", "record", "replay", "wait"}


def test_the_benchmarks_end_in_time() -> None:
    before = benchmark.BUILDING_S + benchmark.OPENING_S
    assert sum(benchmark.PARTS.values()) + before <= benchmark.WHOLE_S == 8 * 60
