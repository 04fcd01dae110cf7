"""The doctor finds what is wrong with a plugin at the check where it is, and says what to do."""

import json

import pytest
from click.testing import CliRunner

import hal
from hal.core.discovery.manifest import discover
from hal.core.errors import InvalidCall
from hal_tools.cli import main
from hal_tools.doctor.examine import examine

pytestmark = pytest.mark.slow
INSTALLED = frozenset(found.name for found in discover())

WORKING = """
    from hal_plugin_bytes.device import BytesDevice
    from hal.core.description import DeviceSummary
    from hal.core.spec import hookimpl

    class Device(BytesDevice):
        def __init__(self, index, features):
            super().__init__(index, features)
            self.name = "NAME:0"
            self.info = type(self.info)(**{**INFO(self.info), "name": self.name})

    def INFO(info):
        return {key: getattr(info, key) for key in info.__slots__}

    @hookimpl
    def enumerate_devices():
        return [DeviceSummary(0, "one")]

    @hookimpl
    def open_device(index, options):
        return Device(0, FEATURES)
"""
NOT_CONFIRMED = '"name": self.name, "facts": {"not confirmed": "limits.grid"}'
MANIFEST = 'name = "{name}"\ncontract = [1, 1]\nfeatures = [FEATURES]\ndescription = "a test"\n'


def working(name, features="()"):
    lines = "from hal.core.description import Feature\n"
    return lines + "\n".join(
        line.removeprefix("    ")
        for line in WORKING.replace("NAME", name).replace("FEATURES", features).splitlines()
    )


def manifest(*features):
    return MANIFEST.replace("FEATURES", ", ".join(f'"{feature}"' for feature in features))


def findings(name):
    found = examine(hal.Registry(blocked=INSTALLED))
    return [finding for finding in found if finding.plugin == name]


def wrong(name):
    [bad] = [finding for finding in findings(name) if finding.outcome == "bad"]
    return bad


def test_a_plugin_that_works_is_well_at_every_check(site):
    site.install("chip", working("chip", "(Feature.GRAPH,)"), manifest("graph"))
    found = findings("chip")
    assert {finding.outcome for finding in found} == {"ok"}
    checks = ["entry point", "manifest", "import", "hooks", "enumerate", "open"]
    assert [finding.check for finding in found] == checks


@pytest.mark.parametrize(
    ("code", "check", "cause", "step"),
    [
        ("import no_such_sdk", "import", "no_such_sdk", "brings the module 'no_such_sdk'"),
        ("1 / 0", "import", "ZeroDivisionError", "-X faulthandler -c"),
        ("import ctypes; ctypes.string_at(0)", "import", "killed by SIGSEGV", "faulthandler"),
        ("x = 1", "hooks", "lacks the hooks enumerate_devices", "docs/contract.md"),
        (
            working("chip") + "\n@hookimpl\ndef list_devices(): pass\n",
            "hooks",
            "list_devices",
            "hal_plugin_chip.plugin",
        ),
        (
            working("chip").replace('[DeviceSummary(0, "one")]', "[7]"),
            "enumerate",
            "7 (int)",
            "enumerate_devices()",
        ),
        (
            working("chip").replace("return Device(0, ())", "raise OSError('no driver')"),
            "open",
            "OSError: no driver",
            "hal.open('chip:0')",
        ),
        (
            working("chip").replace("class Device(BytesDevice):", "class Device(BytesDevice):\n"
                                    "    launch = None\n"),
            "describe",
            "lacks the hooks launch of DeviceSpec",
            "hal.open('chip:0')",
        ),
        (working("other"), "describe", "describes itself as 'other:0'", "hal.open"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_at_its_check(site, code, check, cause, step):
    site.install("chip", code, manifest())
    bad = wrong("chip")
    assert bad.check == check
    assert cause in bad.text
    assert step in bad.advice


@pytest.mark.parametrize(
    ("text", "check", "cause"),
    [
        ("name = ", "manifest", "not valid TOML"),
        (manifest().replace("[1, 1]", "[2, 3]"), "contract", "install a newer hal-accel"),
        (None, "manifest", "cannot read the manifest"),
    ],
)
def test_a_manifest_that_does_not_fit_is_found_without_an_import(site, text, check, cause):
    site.install("chip", "raise AssertionError('imported')", text)
    bad = wrong("chip")
    assert (bad.check, "AssertionError" in bad.text) == (check, False)
    assert cause in bad.text
    assert bad.advice


def test_a_missing_package_is_a_distribution_to_install_again(site):
    site.install("chip", working("chip"), manifest())
    (site.path / "hal_plugin_chip").rename(site.path / "elsewhere")
    bad = wrong("chip")
    assert bad.check == "package"
    assert "pip install --force-reinstall hal-plugin-chip" in bad.advice


def test_a_name_taken_twice_is_two_distributions(site):
    site.install("chip", working("chip"), manifest())
    site.install("chip", working("chip"), manifest(), "other_chip", "other_chip")
    bad = wrong("chip")
    assert bad.check == "entry point"
    assert "all of these distributions but one" in bad.advice


def test_a_package_without_an_entry_point_is_half_installed(site):
    site.install("chip", working("chip"), manifest())
    for info in site.path.glob("*.dist-info"):
        (info / "entry_points.txt").unlink()
    bad = wrong("hal_plugin_chip")
    assert bad.check == "entry point"
    assert "pip install --editable ." in bad.advice


def test_a_blocked_plugin_names_the_variable(site):
    site.install("chip", "raise AssertionError('imported')", manifest())
    [_, bad] = examine(hal.Registry(blocked=["chip"]), "chip")
    assert bad.check == "blocked"
    assert "HAL_PLUGINS_BLOCKED" in bad.advice


@pytest.mark.parametrize(
    ("cause", "step"),
    [
        ("raise PermissionError(13, 'Permission denied', '/dev/chip0')", "'render' or 'video'"),
        ("raise MemoryError('0 of 64 GiB free')", "another process may have the device"),
        ("raise OSError('libchip.so: cannot open shared object file')", "load the device's driver"),
        ("return None", "let open_device give the object"),
        ("import os; os.abort()", "faulthandler"),
    ],
)
def test_advice_fits_the_cause_and_names_the_device(site, cause, step):
    code = working("chip").replace("return Device(0, ())", cause)
    site.install("chip", code.replace("[DeviceSummary(0", "[DeviceSummary(3"), manifest())
    bad = wrong("chip")
    assert (bad.check, bad.text.partition(": ")[0]) == ("open", "chip:3")
    assert step in bad.advice
    assert "hal.open('chip:3')" in bad.advice


def test_what_an_import_starts_is_wrong(site):
    code = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    site.install("chip", f"{code}\n{working('chip')}", manifest())
    bad = wrong("chip")
    assert (bad.check, "hal_plugin_chip.plugin starts a thread" in bad.text) == ("import", True)
    assert "open_device" in bad.advice


def test_numbers_that_nobody_confirmed_are_a_note(site):
    code = working("chip", "(Feature.GRAPH,)").replace('"name": self.name', NOT_CONFIRMED)
    site.install("chip", code, manifest("graph"))
    [note] = [finding for finding in findings("chip") if finding.outcome == "note"]
    assert note.text.endswith("confirmed what it declares: limits.grid")


def test_notes_say_what_is_ignored_missing_or_slow(site):
    site.install("chip", working("chip"), manifest("warp"))
    notes = [finding.text for finding in findings("chip") if finding.outcome == "note"]
    assert notes == [
        "this hal-accel does not know the features warp; they are ignored",
        "chip:0 does not declare 'graph': the stack launches its kernels one by one",
    ]
    empty = working("none").replace('[DeviceSummary(0, "one")]', "[]")
    site.install("none", empty, manifest())
    [note] = [finding for finding in findings("none") if finding.outcome == "note"]
    assert note.text == "the plugin works and finds no device on this machine"


def test_a_device_that_declares_more_than_its_manifest_is_wrong(site):
    site.install("chip", working("chip", "(Feature.GRAPH,)"), manifest("map"))
    bad = wrong("chip")
    assert "chip:0 declares graph, which its manifest lacks" in bad.text
    assert str(site.path / "hal_plugin_chip" / "hal-plugin.toml") in bad.advice


def test_an_unknown_plugin_is_refused_with_the_installed_ones(site):
    site.install("chip", working("chip"), manifest())
    with pytest.raises(InvalidCall, match=r"no plugin 'chop'.*chip"):
        examine(hal.Registry(blocked=INSTALLED), "chop")


def test_the_command_shows_findings_and_exits_with_1_when_something_is_wrong(site, monkeypatch):
    site.install("chip", working("chip"), manifest())
    site.install("sick", "import no_such_sdk", manifest())
    registry = hal.Registry(blocked=INSTALLED)
    monkeypatch.setattr("hal.registry", lambda: registry, raising=False)
    well = CliRunner().invoke(main, ["doctor", "chip"])
    assert (well.exit_code, "  ok    open         chip:0" in well.stdout) == (0, True)
    sick = CliRunner().invoke(main, ["doctor", "sick"])
    assert sick.exit_code == 1
    assert "        what to do: install what brings the module 'no_such_sdk'" in sick.stdout
    rows = json.loads(CliRunner().invoke(main, ["doctor", "sick", "--json"]).stdout)
    assert rows[-1]["check"] == "import"
