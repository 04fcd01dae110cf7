"""`hal devices`, `hal info` and the training script on a machine with broken plugins."""

import json
import os

import pytest

from tests.core.conftest import Site

pytestmark = pytest.mark.slow

MANIFEST = 'name = "{name}"\nfeatures = []\ndescription = "a test"\n'
CAUSES = {
    "broken": "RuntimeError: driver is too old",
    "future": "the plugin speaks contract versions 7 to 9",
    "quitter": "SystemExit: 3",
}


@pytest.fixture
def machine(tmp_path):
    """Variables of a machine that has the CPU plugin and one broken plugin for each cause."""
    folder = tmp_path / "site"
    folder.mkdir()
    site = Site(folder)
    one = MANIFEST + "contract = [1, 1]\n"
    site.install("broken", "raise RuntimeError('driver is too old')", one)
    site.install("future", "raise AssertionError('imported')", MANIFEST + "contract = [7, 9]\n")
    site.install("quitter", "raise SystemExit(3)", one)
    there = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{there}" if there else str(folder)}


def test_devices_lists_every_device_and_every_broken_plugin_with_its_cause(commands, machine):
    ended = commands.hal("devices", "--json", env=machine)
    assert ended.code == 0, ended.err
    rows = {row["name"]: row for row in json.loads(ended.out)}
    known = {"cpu", "reference", *CAUSES}  # other plugins are as the machine has them
    own = {name for name, row in rows.items() if row["plugin"] in known}
    assert own == {"cpu:0", "reference:0", "reference:1", *CAUSES}
    assert all({"name", "plugin", "status", "cause"} <= row.keys() for row in rows.values())
    assert (rows["cpu:0"]["plugin"], rows["cpu:0"]["status"]) == ("cpu", "ok")
    assert rows["cpu:0"]["cause"] == ""
    for name, cause in CAUSES.items():
        assert rows[name]["status"] == "broken"
        assert cause in rows[name]["cause"]
    shown = commands.hal("devices", env=machine)
    assert shown.code == 0
    assert all(cause in shown.out for cause in CAUSES.values())


def test_an_unknown_device_is_answered_with_what_there_is(commands, machine):
    words = ["nochip:0", "known devices: cpu:0", *CAUSES, *CAUSES.values()]
    commands.hal("info", "nochip:0", env=machine).assert_clear_error(*words)
    commands.train("--device", "nochip:0", env=machine).assert_clear_error(*words)


@pytest.mark.parametrize("name", CAUSES)
def test_a_device_of_a_broken_plugin_is_answered_with_its_cause(commands, machine, name):
    ended = commands.hal("info", f"{name}:0", env=machine)
    ended.assert_clear_error(f"the plugin '{name}' cannot be used", CAUSES[name], "cpu:0")


def test_broken_plugins_do_not_keep_the_cpu_from_training(commands, machine):
    ended = commands.train("--steps", 1, env=machine)
    assert ended.code == 0, ended.err
    assert "parameters on cpu:0" in ended.out


def test_info_describes_the_cpu(commands):
    ended = commands.hal("info", "cpu:0", "--json")
    assert ended.code == 0, ended.err
    facts = json.loads(ended.out)
    assert facts["name"] == "cpu:0"
    assert facts["contract"] == 1
    assert 1 <= facts["limits"]["instances"] <= len(os.sched_getaffinity(0))
    assert {"f32", "bf16", "f16", "f64", "i64", "bool"} <= facts["dtypes"].keys()
    (memory,) = [space for space in facts["spaces"] if space["kind"] == "global"]
    assert memory["nbytes"] > 0
    assert {"graph", "timestamps", "collectives"} <= set(facts["features"])
    assert "llvm-ir/1" in facts["formats"]


def test_commands_refuse_words_that_they_do_not_know(commands):
    for words in (("info",), ("device",), ("info", "cpu:0", "--yaml")):
        commands.hal(*words).assert_clear_error("Usage:", "Error:")
