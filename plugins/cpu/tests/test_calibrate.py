from pathlib import Path

import pytest
from hal_plugin_cpu import plugin

from hal.core.description import PERFORMANCE
from hal.core.values import OpenOptions
from hal.hosted.calibrate import QUEUE_DEPTH
from hal_conformance.expected import FILE, read_expected


@pytest.fixture(autouse=True)
def _forget_measured():
    plugin._measured.cache_clear()
    yield
    plugin._measured.cache_clear()


def test_nothing_is_declared_unasked(open_cpu):
    assert open_cpu().describe().declared == {}


@pytest.mark.slow
def test_figures_are_measured_once_in_a_process(open_cpu, monkeypatch):
    monkeypatch.setenv("HAL_CPU_CALIBRATE", "1")
    monkeypatch.setenv("HAL_CPU_DEVICES", "2")
    first, second = (open_cpu(index, threads="2").describe().declared for index in range(2))
    assert first is second
    assert set(first) == set(PERFORMANCE)
    assert all(value > 0 for value in first.values())
    assert first["queue_depth"] == QUEUE_DEPTH


def test_the_suite_is_told_how_to_run_the_plugin(monkeypatch):
    folder = Path(plugin.__file__).parent
    expected = read_expected(str(folder))
    assert (folder / FILE).exists()
    assert not expected.failures
    known = {name for key, name in vars(plugin).items() if key.endswith("_VARIABLE")}
    for group in "AK":
        environment = expected.environment_of(group, "cpu:0")
        assert environment.keys() <= known
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("HAL_CPU_CALIBRATE", raising=False)
        assert len(plugin.enumerate_devices()) == int(environment["HAL_CPU_DEVICES"])
        device = plugin.open_device(0, OpenOptions())
        limits = device.describe().limits
        device.close()
        assert limits.progress_s == float(environment["HAL_CPU_PROGRESS"])
        assert limits.alloc_nbytes == int(environment["HAL_CPU_MEMORY"])
