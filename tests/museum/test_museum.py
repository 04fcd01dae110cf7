"""Plugins of past contract versions, in a process that has only them: they work as they did."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOMS = sorted(HERE.glob("contract_*"))

VISIT = """
import json
import sys

import hal
from hal.core.errors import CompileError, Failure, FailureKind, OutOfMemory, Scope, StaleHandle
from hal.core.values import (
    AllocOptions, CopyCommand, FillCommand, KernelSource, LaunchCommand, Param, ParamKind, Point,
    Region, Slot,
)
from hal.core.dtypes import DType

out = {}
name = next(row.name for row in hal.devices() if row.plugin == sys.argv[1])
device = hal.open(name)
out["plugin"] = [[r.status, list(r.contract)] for r in hal.plugins() if r.name == sys.argv[1]]
out["features"] = sorted(f.value for f in device.info.features)
timeline, gate = device.create_timeline(False), device.create_timeline(True)
a, b = device.alloc(8, AllocOptions()), device.alloc(8, AllocOptions())
device.copy(a.region(), bytes(range(8)), timeline, [])
late = device.fill(b.region(0, 4), b"\\x07", timeline, [Point(gate, 1)])
out["held back"] = device.wait([late], 0, True)
device.signal(gate, 1, None)
out["let go"] = device.wait([late], 1, True)
params = (
    Param("x", ParamKind.BUFFER, DType.U8, True, True), Param("n", ParamKind.SCALAR, DType.U8),
)
text = "def add(grid, x, n):\\n    for i in range(len(x)): x[i] += n\\n"
program = device.load(KernelSource("python/1", text, "add", params))
point = device.launch(device.bind(program, [a, 3]), (1, 1, 1), timeline, [late])
out["spans"] = [s.name for s in device.timestamps(point)]
graph = device.record([
    FillCommand(b.region(), b"\\x01"), LaunchCommand(device.bind(program, [Slot(0), 5]), (1, 1, 1)),
    CopyCommand(a.region(0, 4), b.region(0, 4)),
])
end = device.replay(graph, [b], timeline, [])
host = bytearray(8)
out["end"] = device.wait([device.copy(host, a.region(), timeline, [end])], 1, True)
out["bytes"] = list(host)
out["mapped"] = bytes(device.map(b.region(), False)).hex()
for error, call in {
    OutOfMemory: lambda: device.alloc(1 << 20, AllocOptions()),
    CompileError: lambda: device.load(KernelSource("python/1", "def (", "x", ())),
    hal.core.errors.Unsupported: lambda: device.host_call(print, timeline, []),
}.items():
    try:
        call()
    except error as raised:
        out[error.__name__] = type(raised).__name__
broken = device.create_timeline(True)
owed = device.fill(b.region(), b"\\0", timeline, [Point(broken, 1)])
failure = Failure(FailureKind.ABORTED, Scope.OPERATION, name, "test", "on purpose")
device.signal(broken, 1, failure)
try:
    device.wait([owed], 1, True)
except hal.core.errors.OperationFailed as error:
    out["failure"] = error.failure == failure
out["epoch"] = device.reset()
try:
    device.free(a)
except StaleHandle:
    out["stale"] = True
device.close()
print(json.dumps(out))
"""

SEEN = {
    "contract_1": {
        "plugin": [["ok", [1, 1]]],
        "features": ["graph", "map", "reset", "stats", "timestamps"],
        "held back": False,
        "let go": True,
        "spans": ["add"],
        "end": True,
        "bytes": [6, 6, 6, 6, 7, 8, 9, 10],
        "mapped": "06" * 8,
        "OutOfMemory": "OutOfMemory",
        "CompileError": "CompileError",
        "Unsupported": "Unsupported",
        "failure": True,
        "epoch": 1,
        "stale": True,
    }
}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_an_old_plugin_works_as_it_did(room):
    plugin = next(room.glob("hal_plugin_*/hal-plugin.toml")).parent.name.removeprefix("hal_plugin_")
    path = os.pathsep.join([str(room), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", VISIT, plugin],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == SEEN[room.name]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_an_old_plugin_is_as_it_was(room):
    files = sorted(p for p in room.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    hashes = {str(p.relative_to(HERE)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    lines = (HERE / "frozen.sha256").read_text().splitlines()
    frozen = {name: value for value, name in (line.split("  ") for line in lines)}
    assert hashes == {k: v for k, v in frozen.items() if k.startswith(room.name + "/")}
