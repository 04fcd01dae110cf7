"""Core groups as devices: launches, reports of emulated time, memory modes, and their process."""

import gc
import json
import os
import select
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hal_plugin_sunway import toolchain

from hal.cache import Cache
from hal.core.description import SpaceKind
from hal.core.dtypes import DType
from hal.core.errors import (
    DeviceLost,
    Failure,
    FailureKind,
    InvalidCall,
    OperationFailed,
    PluginError,
    Scope,
)
from hal.core.values import (
    ATHREAD_C,
    AllocOptions,
    Fault,
    KernelSource,
    OpenOptions,
    Param,
    ParamKind,
)
from tests.held import descriptors, threads

TEXT = """#include <slave.h>
const char axpy_params[] = "buffer f32, buffer f32, scalar f32";
enum { BLOCK = 256 };
struct args { long grid[3]; float *x, *y; union { long bits; float value; } a; };
__thread_local float x[BLOCK], y[BLOCK];
void axpy(void *raw) {
    const struct args *p = raw;
    for (long i = _PEN; i < p->grid[0]; i += 64) {
        athread_dma_get(x, p->x + i * BLOCK, sizeof x);
        athread_dma_get(y, p->y + i * BLOCK, sizeof y);
        for (int k = 0; k < BLOCK; k++) y[k] += p->a.value * x[k];
        athread_work_f32(2 * BLOCK);
        athread_dma_put(p->y + i * BLOCK, y, sizeof y);
    }
}
"""
PARAMS = (
    Param("x", ParamKind.BUFFER, DType.F32),
    Param("y", ParamKind.BUFFER, DType.F32, writes=True),
    Param("a", ParamKind.SCALAR, DType.F32),
)
SMALL = {"memory_nbytes": str(64 << 20)}
COUNT = 100 * 256
FORMATS = Path(__file__).parents[3] / "docs" / "formats.md"


def opened(plugin, index=0, **settings):
    return plugin[0].open(f"sunway:{index}", options=OpenOptions(settings=SMALL | settings))


def run_axpy(device):
    """y and what it should be, after two launches."""
    x, y = (np.random.default_rng(i).random(COUNT, np.float32) for i in (1, 2))
    queue = device.create_timeline(host_driven=False)
    buffers = [device.alloc(x.nbytes, AllocOptions()) for _ in (x, y)]
    for buffer, data in zip(buffers, (x, y), strict=True):
        device.copy(buffer.region(), data.tobytes(), queue, [])
    program = device.load(KernelSource(ATHREAD_C, TEXT, "axpy", PARAMS))
    launchable = device.bind(program, [*buffers, 0.5])
    for _ in range(2):
        device.launch(launchable, (COUNT // 256, 1, 1), queue, [])
    out = np.empty_like(y)
    device.wait([device.copy(out.data.cast("B"), buffers[1].region(), queue, [])], 20, True)
    half = np.float32(0.5)
    return out, (y + half * x) + half * x


def test_a_launch_computes_and_its_emulated_time_is_reported(plugin, tmp_path, chip):
    report = tmp_path / "report.jsonl"
    for _ in range(2):
        with opened(plugin, report=str(report)) as device:
            found, wanted = run_axpy(device)
        assert (found == wanted).all()
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    launches = [line for line in lines if line.get("launch") == "axpy"]
    assert len(launches) == 4
    assert len({line["cycles"] for line in launches}) == 1, "equal launches take equal time"
    first = launches[0]
    assert first["flops"] == 2 * COUNT
    assert (first["get_nbytes"], first["put_nbytes"]) == (8 * COUNT, 4 * COUNT)
    assert first["emulated_s"] == pytest.approx(first["cycles"] / chip["cpe_hz"])
    # No faster than the memory, and no slower than a tenth of it.
    rate = 12 * COUNT / first["emulated_s"]
    assert 0.1 * chip["memory_nbytes_s"] < rate < chip["memory_nbytes_s"]


def test_spans_tell_the_emulated_time(plugin, tmp_path, chip):
    report = tmp_path / "report.jsonl"
    with opened(plugin, report=str(report)) as device:
        queue = device.create_timeline(host_driven=False)
        buffers = [device.alloc(COUNT * 4, AllocOptions()) for _ in range(2)]
        program = device.load(KernelSource(ATHREAD_C, TEXT, "axpy", PARAMS))
        points = [
            device.copy(*(b.region() for b in buffers), queue, []),
            device.fill(buffers[0].region(), b"\0", queue, []),
            device.launch(device.bind(program, [*buffers, 0.5]), (100, 1, 1), queue, []),
            device.launch(device.bind(program, [*buffers, 0.5]), (0, 1, 1), queue, []),
        ]
        device.wait(points, 20, True)
        found = [device.timestamps(point)[0].device_ns for point in points]
    launched = json.loads(report.read_text().splitlines()[-1])
    # A copy reads and writes at no more than the memory's rate; what runs nothing takes no time.
    assert found[0] > 2e9 * COUNT * 4 / chip["memory_nbytes_s"]
    assert found[1] == found[0] / 2
    assert found[2] == pytest.approx(launched["emulated_s"] * 1e9)
    assert found[3] == 0


def test_a_launch_leaves_its_timeline(plugin, tmp_path):
    trace = tmp_path / "trace.json"
    with opened(plugin, trace=str(trace)) as device:
        run_axpy(device)
    spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {e["tid"] for e in spans} == set(range(64))
    assert {e["name"] for e in spans} == {"compute", "wait DMA"}
    lines = {e["args"]["line"] for e in spans if e["name"] == "wait DMA"}
    assert lines == {n for n, text in enumerate(TEXT.splitlines(), 1) if "athread_dma" in text}


def test_other_figures_of_the_chip_give_other_times_and_equal_results(plugin, tmp_path):
    cycles = []
    for index, figures in enumerate(("", "memory_nbytes_s=5.12e9")):
        report = tmp_path / f"{index}.jsonl"
        with opened(plugin, report=str(report), chip=figures) as device:
            found, wanted = run_axpy(device)
        assert (found == wanted).all()
        cycles += [json.loads(line)["cycles"] for line in report.read_text().splitlines()[-1:]]
    assert cycles[1] > 2 * cycles[0]


def test_the_example_of_the_format_runs(plugin):
    chapter = FORMATS.read_text().split("## athread-c/1")[1].split("\n## ")[0]
    [text] = [t for t in chapter.split("```c\n")[1:] if "#include" in t]
    a, b = (np.random.default_rng(i).random(COUNT, np.float32) for i in (3, 4))
    params = tuple(Param(name, ParamKind.BUFFER, DType.F32, writes=True) for name in "abc")
    with opened(plugin) as device:
        queue = device.create_timeline(host_driven=False)
        buffers = [device.alloc(a.nbytes, AllocOptions()) for _ in params]
        for buffer, data in zip(buffers, (a, b), strict=False):
            device.copy(buffer.region(), data.tobytes(), queue, [])
        program = device.load(KernelSource(ATHREAD_C, text.split("```")[0], "add", params))
        device.launch(device.bind(program, buffers), (COUNT // 256, 1, 1), queue, [])
        out = np.empty_like(a)
        device.wait([device.copy(out.data.cast("B"), buffers[2].region(), queue, [])], 20, True)
    assert (out == a + b).all()


FAULTS = {
    "the exception of a CPE": (FailureKind.LAUNCH_FAULT, Scope.OPERATION),
    "a memory error": (FailureKind.DATA_CORRUPTION, Scope.OPERATION),
    "a core group that is lost": (FailureKind.DEVICE_LOST, Scope.DEVICE),
    "a core group that must be restarted": (FailureKind.RESET_REQUIRED, Scope.RESET),
    "a hang": (FailureKind.HANG, Scope.OPERATION),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_arrive_as_they_were_injected_and_the_core_group_goes_on(plugin, name):
    kind, scope = FAULTS[name]
    with opened(plugin, progress_s="0.1") as device:
        run_axpy(device)
        device.inject(Fault(Failure(kind, scope, "sunway:0", "launch", name), "launch"))
        with pytest.raises(OperationFailed) as error:
            run_axpy(device)
        assert (error.value.failure.kind, error.value.failure.message) == (kind, name)
        if isinstance(error.value, DeviceLost):
            device.reset()
        found, wanted = run_axpy(device)
        assert (found == wanted).all()


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_allocation_takes_what_its_mode_takes(plugin, tmp_path, chip, mode):
    report = tmp_path / "report.jsonl"
    with opened(plugin, report=str(report), memory_mode=mode) as device:
        for nbytes in (1, 32 << 20):
            device.free(device.alloc(nbytes, AllocOptions()))
    small, large = (json.loads(line)["cycles"] for line in report.read_text().splitlines())
    pages = (32 << 20) // chip["page_nbytes"] - 1
    assert large - small == (pages * chip["dynamic_page_cycles"] if mode == "dynamic" else 0)


def test_the_description_is_the_chips(plugin, chip):
    with opened(plugin, 5) as device:
        info = device.info
    ldm = info.space(SpaceKind.SCRATCHPAD)
    assert (ldm.nbytes, ldm.dma_only) == (256 << 10, True)
    assert info.dtypes[DType.F64] == 2.304e12
    assert info.dtypes[DType.F16] == 9.216e12
    assert [link.peer for link in info.links] == [f"sunway:{i}" for i in range(5)]
    assert info.links[0].latency < info.links[2].latency  # the ring is closed: 5 and 0 are near
    free = [f.name for f in chip.figures.values() if f.tag == "free"]
    assert all("free" in info.facts[f"chip: {name}"] for name in free)


def test_a_data_cache_takes_its_part_of_the_ldm(plugin):
    with opened(plugin, chip="cache_nbytes=131072") as device:
        assert device.info.space(SpaceKind.SCRATCHPAD).nbytes == 128 << 10
        assert device.info.limits.caches == (128 << 10,)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"memory_mode": "fast"}, "static, dynamic"),
        ({"chip": "nothing=1"}, "no figures"),
        ({"size": "1"}, "unknown settings size"),
        ({"progress_s": "0"}, "above 0"),
    ],
)
def test_wrong_settings_are_refused(plugin, settings, words):
    with pytest.raises(InvalidCall, match=words):
        opened(plugin, **settings)


def children():
    """The emulator's processes that this one started."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):  # it may end meanwhile
            mine = f"PPid:\t{os.getpid()}\n" in status.read_text()
            if mine and b"worker-" in status.with_name("cmdline").read_bytes():
                found.add(int(status.parent.name))
    return found


@pytest.fixture(scope="module")
def emulator(plugin):
    """The emulator is built: its folder stays until the process ends."""
    with opened(plugin) as device:
        run_axpy(device)


def test_a_closed_device_leaves_no_process_and_no_descriptor(plugin, emulator):
    before, open_before = children(), descriptors()
    with opened(plugin) as device:
        run_axpy(device)
        assert len(children() - before) == 1
    assert not children() - before
    assert not descriptors() - open_before


def held():
    """What a device takes of this process and its children."""
    status = Path("/proc/self/status").read_text()
    space_kib = int(status.split("VmSize:")[1].split()[0])
    return children() | descriptors() | threads(), space_kib


@pytest.mark.slow
@pytest.mark.turns
def test_devices_that_are_dropped_without_a_close_leave_nothing(plugin, emulator):
    gc.collect()  # what tests before this one dropped is not counted
    before, space_before = held()
    for index in range(8):
        device = plugin[0].open(f"sunway:{index % 6}")
        run_axpy(device)
        del device

    def more():
        """What there is more than before; less is what ended meanwhile of other tests."""
        now, space = held()
        # A core group has 16; less is what a process takes by the way
        return now - before, max(0, (space - space_before) >> 20)

    until_s = time.monotonic() + 100
    while time.monotonic() < until_s and more() != (set(), 0):
        gc.collect()
        time.sleep(0.05)
    assert more() == (set(), 0)


def test_a_process_that_dies_at_rest_takes_nothing_along(plugin):
    before = children()
    with opened(plugin) as device:
        run_axpy(device)
        for process in children() - before:
            ended = os.pidfd_open(process)
            os.kill(process, signal.SIGKILL)
            assert select.select([ended], [], [], 10.0)[0], "it dies a moment after the signal"
            os.close(ended)
        found, wanted = run_axpy(device)
        assert (found == wanted).all()


def test_a_core_group_whose_process_dies_at_work_is_lost_until_its_reset(plugin):
    before = children()
    deadly = """#include <slave.h>
    const char f_params[] = "";
    void f(void *v) { kill(getpid(), SIGKILL); }
    """
    text = "#include <signal.h>\n#include <unistd.h>\n" + deadly
    with opened(plugin) as device:
        queue = device.create_timeline(host_driven=False)
        program = device.load(KernelSource(ATHREAD_C, text, "f", ()))
        point = device.launch(device.bind(program, []), (1, 1, 1), queue, [])
        with pytest.raises(DeviceLost, match="ended with -9"):
            device.wait([point], 20, True)
        device.reset()
        found, wanted = run_axpy(device)
        assert (found == wanted).all()
    assert not children() - before


def sessions(plugin, folder):
    """What is kept after a session with this cache that computes what it should; in a process that
    has not built the emulator yet."""
    toolchain._own.cache_clear()
    with plugin[0].open("sunway:0", options=OpenOptions(str(folder), SMALL)) as device:
        found, wanted = run_axpy(device)
    assert (found == wanted).all()
    cache = Cache(folder, "sunway")
    return {name: cache.get(name) for name in cache.names()}


@pytest.mark.slow
@pytest.mark.turns
def test_what_is_kept_and_cannot_be_loaded_is_built_anew(plugin, tmp_path):
    """Each entry of a cache in turn is replaced by others with a right seal."""
    whole = sessions(plugin, tmp_path)
    assert sorted(name.partition("-")[0] for name in whole) == ["slave", "worker"]
    for name, useless in zip(
        whole, (b"\x7fELF but not really", b"#!/bin/sh\nexit 3\n"), strict=True
    ):
        Cache(tmp_path, "sunway").write(name, useless)
        assert len(sessions(plugin, tmp_path)[name]) == len(whole[name])


def test_a_session_leaves_no_folder(plugin, tmp_path, monkeypatch):
    toolchain.worker()  # whose folder is the process's
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with opened(plugin) as device:
        run_axpy(device)
        assert list(tmp_path.glob("hal-sunway-*/slave-*.so"))
    assert not list(tmp_path.iterdir())


def test_programs_make_room_for_others_and_come_back(plugin, monkeypatch):
    monkeypatch.setattr("hal_plugin_sunway.machine._MOST_LOADED", 2)
    with opened(plugin) as device:
        queue = device.create_timeline(host_driven=False)
        out = device.alloc(8, AllocOptions())
        bound = []
        for number in range(4):
            text = f"""#include <slave.h>
            const char f_params[] = "buffer i64";
            struct args {{ long grid[3], *out; }};
            void f(void *p) {{ if (!_PEN) *((struct args *)p)->out = {number}; }}"""
            params = (Param("out", ParamKind.BUFFER, DType.I64, writes=True),)
            program = device.load(KernelSource(ATHREAD_C, text, "f", params))
            bound.append(device.bind(program, [out]))
        for number in (0, 3, 1, 1, 2, 0):
            device.launch(bound[number], (1, 1, 1), queue, [])
            found = np.zeros(1, np.int64)
            point = device.copy(found.data.cast("B"), out.region(), queue, [])
            assert device.wait([point], 20, True)
            assert found[0] == number


def test_without_a_compiler_the_error_names_the_package(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PluginError, match="apt-get install gcc"):
        toolchain.compiler.__wrapped__()
