"""Fixtures: an in-memory device, and a site folder into which a test installs plugins."""

import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import hal_plugin_bytes.plugin
import pytest
from hal_plugin_bytes.device import PYTHON, BytesDevice

import hal
from hal.core.values import AllocOptions, KernelSource, Param, ParamKind

MANIFEST = 'name = "{name}"\ncontract = [1, 1]\nfeatures = []\ndescription = "a test"\n'


@dataclass
class Site:
    """A folder on the import path; `install` does what pip would do with a plugin's wheel."""

    path: Path

    def install(self, name, code="", manifest=MANIFEST, distribution=None, package=None):
        distribution = distribution or f"hal_plugin_{name}"
        package = package or f"hal_plugin_{name}"
        folder = self.path / package
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "plugin.py").write_text(textwrap.dedent(code))
        if manifest is not None:
            (folder / "hal-plugin.toml").write_text(manifest.format(name=name))
        info = self.path / f"{distribution}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n"
        )
        (info / "entry_points.txt").write_text(f"[hal.plugins]\n{name} = {package}.plugin\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(str(path))
    yield Site(path)
    packages = {folder.name for folder in path.iterdir()}
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


@pytest.fixture
def registry():
    return hal.Registry(extra={"bytes": hal_plugin_bytes.plugin})


@pytest.fixture
def implementation():
    return BytesDevice()


@pytest.fixture
def device(registry):
    with registry.open("bytes:0") as device:
        yield device


@pytest.fixture
def queue(device):
    return device.create_timeline(host_driven=False)


@pytest.fixture
def buffer(device):
    return device.alloc(16, AllocOptions())


@pytest.fixture
def add_source():
    """A program that adds a scalar to every byte of a buffer."""
    text = "def add(grid, data, n):\n    for i, b in enumerate(data):\n        data[i] = b + n\n"
    params = (
        Param("data", ParamKind.BUFFER, hal.DType.U8, writes=True),
        Param("n", ParamKind.SCALAR, hal.DType.U8),
    )
    return KernelSource(PYTHON, text, "add", params)
