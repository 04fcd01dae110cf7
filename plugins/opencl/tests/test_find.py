"""Finding devices: names, drivers that are missing or crash, and how often one is presented."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hal_plugin_opencl import find
from hal_plugin_opencl.plugin import LOOK, enumerate_devices, open_device

from hal.cache import Cache
from hal.core.errors import InvalidCall, PluginError
from hal.core.values import OpenOptions
from hal.hosted.places import Place

ENDS = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void end(void) { fputs("no such board\\n", stderr); exit(3); }
"""
CRASHES = "__attribute__((constructor)) static void crash(void) { __builtin_trap(); }"


def test_enumeration_touches_neither_threads_nor_environment() -> None:
    script = """
import json, os, sys
import numpy
from hal_plugin_opencl.plugin import enumerate_devices
state = lambda: (len(os.listdir("/proc/self/task")), sorted(os.environ))
before = state()
found = enumerate_devices()
print(json.dumps([state() == before, "pyopencl" in sys.modules, len(found) > 0]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == [True, False, True]


OPENED_ALONE = """
import subprocess, sys
from hal_plugin_opencl.plugin import open_device
from hal.core.values import OpenOptions
def refused(*command, **options):
    raise AssertionError("a process was started to list the devices")
subprocess.run = refused
device = open_device(0, OpenOptions(cache_dir=sys.argv[1]))
print(device.describe().description)
device.close()
"""


def test_a_second_process_opens_a_device_without_another_look(tmp_path: Path) -> None:
    open_device(0, OpenOptions(cache_dir=os.fspath(tmp_path))).close()
    command = [sys.executable, "-c", OPENED_ALONE, os.fspath(tmp_path)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60, text=True)
    assert done.stdout.strip() == LOOK.listed()[0]


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda lines: ["a board that was taken out"], id="another-device"),
        pytest.param(lambda lines: [*lines, "a board that was taken out"], id="one-more"),
        pytest.param(lambda lines: [], id="none"),
        pytest.param(lambda lines: {"0": 1}, id="no-list"),
        pytest.param(lambda lines: [1], id="no-lines"),
    ],
)
def test_what_was_seen_before_is_looked_at_again_where_it_is_no_longer_so(
    tmp_path: Path, changed: Callable[[Sequence[str]], object]
) -> None:
    cache = Cache(tmp_path, "looks")
    LOOK.keep(cache, LOOK.listed())
    (name,) = cache.names()
    cache.write(name, json.dumps(changed(LOOK.listed())).encode())
    device = open_device(0, OpenOptions(cache_dir=os.fspath(tmp_path)))
    assert device.describe().description == LOOK.listed()[0]
    device.close()
    assert LOOK.kept(cache) == LOOK.listed()


def test_other_drivers_and_variables_are_looked_at_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache, vendors = Cache(tmp_path, "looks"), tmp_path / "vendors"
    vendors.mkdir()
    monkeypatch.setenv("OCL_ICD_VENDORS", os.fspath(vendors))
    LOOK.keep(cache, ["a device"])
    assert LOOK.kept(cache) == ("a device",)
    (vendors / "new.icd").write_text("libnew.so")
    assert LOOK.kept(cache) is None
    LOOK.keep(cache, ["a device", "a new one"])
    monkeypatch.setenv("POCL_DEVICES", "cpu cpu")
    assert LOOK.kept(cache) is None


def test_one_device_presented_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAL_OPENCL_DEVICES", "3")
    rows = enumerate_devices()
    assert [row.index for row in rows] == [0, 1, 2]
    assert len({row.description for row in rows}) == 1
    device = open_device(2, OpenOptions())
    assert device.describe().name == "opencl:2"
    assert [link.peer for link in device.describe().links] == ["opencl:0", "opencl:1"]
    device.close()


def test_a_device_divided_into_equal_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its own compute units, and a share of the memory."""
    whole = open_device(0, OpenOptions())
    units, nbytes = whole.describe().limits.instances, whole.describe().spaces[0].nbytes
    whole.close()
    monkeypatch.setenv("HAL_OPENCL_PARTITION", str(units))
    assert len(enumerate_devices()) == units
    devices = [open_device(index, OpenOptions()) for index in range(units)]
    infos = [device.describe() for device in devices]
    assert [info.name for info in infos] == [f"opencl:{index}" for index in range(units)]
    assert {info.limits.instances for info in infos} == {1}
    assert {info.spaces[0].nbytes for info in infos} == {nbytes // units}
    for device in devices:
        device.close()
    monkeypatch.setenv("HAL_OPENCL_PARTITION", str(units + 1))
    with pytest.raises(PluginError, match=f"no {units + 1} parts"):
        open_device(0, OpenOptions())
    monkeypatch.setenv("HAL_OPENCL_DEVICES", "2")
    with pytest.raises(PluginError, match="unset one"):
        enumerate_devices()


def test_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCL_ICD_VENDORS", os.fspath(tmp_path / "none.icd"))
    with pytest.raises(PluginError, match=r"hal-plugin-opencl\[pocl\]"):
        enumerate_devices()


def test_a_device_that_this_process_is_not_given() -> None:
    count = len(find.devices())
    with pytest.raises(PluginError, match=rf"gives this process {count} devices, and number 64"):
        find.at(Place(0, 1, "listed before", 64))


def test_a_driver_that_crashes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library, code = tmp_path / "libcrash.so", tmp_path / "crash.c"
    code.write_text(CRASHES)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, code], check=True, timeout=60)
    (tmp_path / "crash.icd").write_text(os.fspath(library))
    monkeypatch.setenv("OCL_ICD_VENDORS", os.fspath(tmp_path))
    with pytest.raises(PluginError, match="killed by SIG"):
        enumerate_devices()


def test_a_driver_that_is_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libno.so").write_text("not a library")
    (tmp_path / "no.icd").write_text(os.fspath(tmp_path / "libno.so"))
    monkeypatch.setenv("OCL_ICD_VENDORS", os.fspath(tmp_path / "no.icd"))
    with pytest.raises(PluginError, match="no OpenCL driver"):
        enumerate_devices()


def test_a_driver_that_prints_and_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last words of the process are in the error."""
    library, code = tmp_path / "libends.so", tmp_path / "ends.c"
    code.write_text(ENDS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, code], check=True, timeout=60)
    (tmp_path / "ends.icd").write_text(os.fspath(library))
    monkeypatch.setenv("OCL_ICD_VENDORS", os.fspath(tmp_path))
    with pytest.raises(PluginError, match=r"ended with 3.*no such board"):
        enumerate_devices()


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidCall, match="no device opencl:99"):
        open_device(99, OpenOptions())
    for settings in ({"speed": "1"}, {"progress_s": "soon"}, {"memory_nbytes": "0"}):
        with pytest.raises(InvalidCall, match=next(iter(settings))):
            open_device(0, OpenOptions(settings=settings))
    monkeypatch.setenv("HAL_OPENCL_DEVICES", "many")
    with pytest.raises(PluginError, match="HAL_OPENCL_DEVICES"):
        enumerate_devices()
