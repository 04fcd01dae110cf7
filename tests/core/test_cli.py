"""The command line, over plugins that are installed for the test."""

import json

import hal_plugin_bytes.plugin
import pytest
from click.testing import CliRunner

import hal
from hal.core.description_json import from_json
from hal_tools.cli import main
from hal_tools.cli_tables import size


@pytest.fixture
def run(site, monkeypatch):
    site.install("broken", "raise RuntimeError('driver [is] too old')")
    registry = hal.Registry(extra={"bytes": hal_plugin_bytes.plugin})
    monkeypatch.setattr("hal.process.registry", lambda: registry)
    return lambda *args: CliRunner(env={"COLUMNS": "200"}).invoke(main, args)


def test_devices_as_json_are_rows_with_the_causes_of_broken_plugins(run):
    rows = {row["name"]: row for row in json.loads(run("devices", "--json").stdout)}
    assert rows["bytes:1"]["plugin"] == "bytes"
    assert rows["bytes:1"]["status"] == "ok"
    assert rows["broken"]["status"] == "broken"
    assert rows["broken"]["cause"] == "RuntimeError: driver [is] too old"


def test_devices_are_shown_to_people(run):
    shown = run("devices").stdout
    assert "second bytes" in shown
    assert "driver [is] too old" in shown


def test_info_as_json_is_the_description(run, device):
    assert from_json(json.loads(run("info", "bytes:0", "--json").stdout)) == device.info


def test_info_shows_every_group_of_facts(run):
    shown = run("info", "bytes:0").stdout
    for words in ("4 x 4 x 4", "python/1", "ram", "1 MiB", "f32 in f64", "exp 0.5", "graph, map"):
        assert words in shown
    assert "links" not in shown


@pytest.mark.parametrize("name", ["bytes:9", "nochip:0", "broken:0", "[/]"])
def test_an_error_is_one_screen_without_a_traceback(run, name):
    done = run("info", name)
    assert done.exit_code == 1
    assert not done.stdout
    assert name in done.stderr
    assert "bytes:0, bytes:1" in done.stderr
    assert "broken plugin broken: RuntimeError: driver [is] too old" in done.stderr
    assert "what to do: " in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) < 20


def test_sizes_have_binary_units():
    sizes = [0, 64, 1023, 1024, 1536, 1 << 20, 23 << 30, 3 << 50]
    said = ["0 B", "64 B", "1023 B", "1 KiB", "1.5 KiB", "1 MiB", "23 GiB", "3072 TiB"]
    assert [size(nbytes) for nbytes in sizes] == said
