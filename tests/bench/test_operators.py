"""What `hal bench --device` measures is right, and what it says follows from what it measured."""

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from hal.core.dtypes import DType
from hal.core.errors import PluginError
from hal.core.values import Span
from hal_tools.cli import main
from stack.bench import clock, operators, roof
from stack.bench.cases import cases
from stack.bench.clock import DeviceTime
from stack.bench.operators import OperatorTime
from stack.bench.roof import Roof
from stack.ir.interpret import interpret

SMALL = {case.name: case for case in cases(24, 16)}
EMPTY = Roof({DType.F32: 100.0}, 10.0, "as declared")


def softmax(x):
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def layer_norm(x, weight, bias):
    scaled = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    return scaled * weight + bias


def attention(q, k, v):
    return softmax(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])) @ v


TRUTH = {
    "add": lambda x, y: x + y,
    "to float16": lambda x: x.astype(np.float16),
    "transpose": lambda x: x.T,
    "sum": lambda x: x.sum(keepdims=True),
    "sum of rows": lambda x: x.sum(1, keepdims=True),
    "softmax": softmax,
    "layer norm": layer_norm,
    "embedding": lambda table, index: table[index],
    "attention": attention,
}


@pytest.mark.parametrize("name", TRUTH)
def test_a_case_computes_what_its_name_says(name):
    case, rng = SMALL[name], np.random.default_rng(3)
    given = [
        rng.random(n.shape, np.float32) if n.dtype.is_float else rng.integers(0, 24, n.shape, "i4")
        for n in case.inputs
    ]
    [found] = interpret([case.output], dict(zip(case.inputs, given, strict=True)))
    assert np.allclose(found, TRUTH[name](*given), rtol=1e-3, atol=1e-5)


def test_work_is_counted_by_the_definition():
    edge = next(case for case in cases() if case.name == "matmul f64")
    assert (edge.flops, edge.nbytes) == (2 * 1024**3, 3 * 1024**2 * 8)
    assert SMALL["add"].intensity == 1 / 12
    assert SMALL["to float16"].nbytes == 24 * 16 * 6


def test_the_roof_is_the_memory_up_to_the_peak():
    assert EMPTY.seconds(DType.F32, 0, 20) == 2
    assert EMPTY.seconds(DType.F32, 200, 20) == 2  # where both take the same time
    assert EMPTY.seconds(DType.F32, 400, 20) == 4
    assert EMPTY.seconds(DType.F16, 400, 20) == 2  # whose peak nobody knows


def test_the_devices_own_clock_is_never_mixed_with_the_hosts():
    own = [Span("a", 0, 900, device_ns=20.0), Span("b", 900, 990, device_ns=0.0)]
    assert clock._of(own) == DeviceTime(20e-9, True)
    assert clock._of([Span("a", 5, 900), Span("b", 90, 990)]) == DeviceTime(985e-9, False)
    with pytest.raises(PluginError, match="others have none"):
        clock._of([*own, Span("c", 0, 1)])


def test_the_table_tells_the_share_of_the_limit():
    case = SMALL["add"]
    result = OperatorTime(case, DeviceTime(case.nbytes / 10.0 * 4, True))  # a quarter of 10 bytes/s
    console = Console(width=100, record=True)
    unknown = Roof({}, 10.0, "as declared")
    for roof_, share in ((EMPTY, " 25%"), (unknown, "memory's: 25%")):
        console.print(operators.table("t", roof_, [result, OperatorTime(case, None, "why")]))
        text = console.export_text()
        assert share in text
        assert text.count("24x16") == 1


def test_the_command_measures_prints_and_draws(monkeypatch, tmp_path):
    wanted = [SMALL[name] for name in ("add", "softmax", "embedding")]
    monkeypatch.setattr(operators, "cases", lambda: iter(wanted))
    monkeypatch.setattr(roof, "MOVED_NBYTES", 1 << 16)
    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path / "cache"))
    picture = tmp_path / "roof.png"
    done = CliRunner().invoke(
        main, ["bench", "--device", "cpu:0", "--roofline", "--out", str(picture)]
    )
    assert done.exit_code == 0, done.output
    assert all(case.name in done.output for case in wanted)
    assert "Times are those of the host." in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(operators, "find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["bench", "--device", "cpu:0", "--roofline"])
    assert done.exit_code == 2
    assert 'pip install "hal-accel[train]"' in done.output


def test_a_picture_without_a_folder_is_refused_before_anything_is_measured(tmp_path):
    out = tmp_path / "missing" / "roof.png"
    done = CliRunner().invoke(main, ["bench", "--device", "cpu:0", "--roofline", "--out", str(out)])
    assert done.exit_code == 2
    assert "make it first" in done.output
