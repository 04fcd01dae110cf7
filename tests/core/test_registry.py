"""Discovery, isolation of plugins, and opening devices by name."""

import importlib.metadata
import subprocess
import sys

import hal_plugin_bytes.plugin
import pytest

import hal
from hal.core.discovery.installed import entry_points, parse_entry_points
from hal.core.discovery.manifest import discover
from hal.core.discovery.registry import registry_of_environment
from hal.core.errors import InvalidCall, PluginError

INSTALLED = frozenset(found.name for found in discover())
"""Plugins of this environment; the tests leave them aside."""

WORKING = """
    from hal.core.description import DeviceSummary
    from hal.core.spec import hookimpl

    @hookimpl
    def enumerate_devices():
        return [DeviceSummary(0, "one")]

    @hookimpl
    def open_device(index, options):
        raise OSError("no driver")
"""


def row(name):
    return next(row for row in hal.Registry(blocked=INSTALLED).plugins() if row.name == name)


def contract(low, high):
    return f'name = "{{name}}"\ncontract = [{low}, {high}]\nfeatures = []\ndescription = "x"\n'


def test_a_working_plugin_lists_its_devices(site):
    site.install("good", WORKING)
    plugin = row("good")
    assert (plugin.status, plugin.cause, plugin.version, plugin.contract) == (
        "ok",
        "",
        "1.5",
        (1, 1),
    )
    devices = [d for d in hal.Registry(blocked=INSTALLED).devices() if d.plugin == "good"]
    assert [(d.name, d.status, d.description) for d in devices] == [("good:0", "ok", "one")]


def test_discovery_agrees_with_the_standard_library(site):
    site.install("good", WORKING)
    standard = importlib.metadata.entry_points(group="hal.plugins")
    ours = {(e.name, e.module, e.version) for e in entry_points("hal.plugins")}
    assert ours == {(e.name, e.value, e.dist.version) for e in standard}


def test_discovery_imports_no_plugin(site):
    site.install("trap", "raise SystemExit(3)")
    assert "trap" in [found.name for found in discover()]
    assert not [name for name in sys.modules if name.startswith("hal_plugin_trap")]


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("raise RuntimeError('driver is too old')", "RuntimeError: driver is too old"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
        ("import no_such_sdk", "No module named 'no_such_sdk'"),
        ("def f(:", "SyntaxError"),
        ("x = 1", "lacks the hooks enumerate_devices, open_device"),
        (WORKING + "\n    @hookimpl\n    def list_devices():\n        pass\n", "list_devices"),
    ],
)
def test_a_broken_plugin_is_a_row_with_its_cause_and_breaks_nothing(site, code, cause):
    site.install("broken", code)
    site.install("good", WORKING)
    registry = hal.Registry(blocked=INSTALLED)
    plugins = {row.name: row for row in registry.plugins()}
    assert plugins["broken"].status == "broken"
    assert cause in plugins["broken"].cause
    assert plugins["good"].status == "ok"
    [device] = [d for d in registry.devices() if d.plugin == "broken"]
    assert (device.name, device.status) == ("broken", "broken")
    assert cause in device.cause


def test_ctrl_c_in_a_plugins_import_is_not_swallowed(site):
    site.install("slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        hal.Registry(blocked=INSTALLED).open("slow:0")


def test_a_plugin_that_fails_to_enumerate_is_a_row_with_its_cause(site):
    site.install("sick", WORKING.replace('return [DeviceSummary(0, "one")]', "1 / 0"))
    [device] = [d for d in hal.Registry(blocked=INSTALLED).devices() if d.plugin == "sick"]
    assert device.status == "broken"
    assert "ZeroDivisionError" in device.cause


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        ("OSError(24, 'Too many open files')", "raise `ulimit -n`"),
        ("BlockingIOError(11, 'Resource temporarily unavailable')", "raise `ulimit -u`"),
        ("MemoryError()", "raise `ulimit -v`"),
        ("RuntimeError('no more threads of mine')", "no more threads of mine"),
    ],
)
def test_a_limit_of_the_host_is_said_with_what_to_do(site, failure, advice):
    site.install("sick", WORKING.replace('return [DeviceSummary(0, "one")]', f"raise {failure}"))
    [device] = [d for d in hal.Registry(blocked=INSTALLED).devices() if d.plugin == "sick"]
    assert device.cause.endswith(advice)


NO_THREADS = """
import ctypes, os, resource
import hal
from hal.core.errors import PluginError
hal.open("reference:0").close()  # what this imports is there
if not os.geteuid():  # whom no limit holds; files are read as before
    os.setresuid(65534, 65534, 0)
    ctypes.CDLL(None).setfsuid(0)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    hal.open("reference:0")
except PluginError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_host_without_threads_is_told_in_words():
    command = [sys.executable, "-c", NO_THREADS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "can't start new thread; the host gives no more threads" in done.stdout, done.stderr


@pytest.mark.parametrize(("low", "high", "remedy"), [(2, 3, "hal-accel"), (0, 0, "contract")])
def test_a_contract_range_beside_ours_is_a_cause(site, low, high, remedy):
    site.install("other", "raise AssertionError('must not be imported')", contract(low, high))
    assert row("other").status == "broken"
    assert remedy in row("other").cause
    assert "AssertionError" not in row("other").cause


def test_a_newer_plugin_is_told_both_ranges(site):
    site.install("other", manifest=contract(5, 7))
    cause = row("other").cause
    assert "5 to 7" in cause
    assert "1 to 1" in cause


def test_an_older_plugin_is_told_both_ranges(site, monkeypatch):
    monkeypatch.setattr("hal.core.discovery.manifest.CONTRACT_VERSION", 9)
    site.install("other", manifest=contract(5, 7))
    assert "5 to 7" in row("other").cause
    assert "newer release of the plugin" in row("other").cause


def test_a_range_that_includes_ours_is_fine(site):
    site.install("wide", WORKING, contract(1, 8))
    assert row("wide").status == "ok"


@pytest.mark.parametrize(
    ("manifest", "cause"),
    [
        (None, "cannot read the manifest"),
        ("name = ", "not valid TOML"),
        ('name = "x"\ncontract = [1, 1]\nfeatures = []\n', "description must be a str"),
        (contract(3, 1), "contract must be [lowest, highest]"),
        (contract(1, 1).replace("{name}", "bad2"), "says name 'bad2'"),
        (contract(1, 1).replace("[]", "[7]"), "features must be strings, found [7]"),
        (contract(1, 1) + "color = 1\n", "unknown keys ['color']"),
    ],
)
def test_a_bad_manifest_is_a_cause(site, manifest, cause):
    site.install("bad", WORKING, manifest)
    assert row("bad").status == "broken"
    assert cause in row("bad").cause


def test_a_feature_that_only_a_newer_contract_knows_is_ignored(site):
    site.install("newer", WORKING, contract(1, 8).replace("[]", '["map", "fly"]'))
    assert row("newer").status == "ok"
    [manifest] = [found.manifest for found in discover() if found.name == "newer"]
    assert manifest.unknown == ("fly",)
    assert {feature.value for feature in manifest.features} == {"map"}


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("[1, 2]", "a sequence with 1 (int) in it"),
        ("None", "returned None (NoneType); it must return a sequence of DeviceSummary"),
        ("'abc'", "'abc' (str)"),
        ("[DeviceSummary(-1, 'x')]", "index of 0 or more"),
        ("[DeviceSummary(0, 'x'), DeviceSummary(0, 'y')]", "the indices [0, 0]"),
    ],
)
def test_a_wrong_enumeration_is_refused_with_what_it_was(site, returned, words):
    site.install("wrong", WORKING.replace('[DeviceSummary(0, "one")]', returned))
    [device] = [d for d in hal.Registry(blocked=INSTALLED).devices() if d.plugin == "wrong"]
    assert device.status == "broken"
    assert "enumerate_devices returned" in device.cause
    assert words in device.cause
    with pytest.raises(PluginError) as caught:
        hal.Registry(blocked=INSTALLED).open("wrong:0")
    assert words in str(caught.value)


def test_an_open_hook_that_returns_nothing_is_named(site):
    site.install("none", WORKING.replace('raise OSError("no driver")', "return None"))
    with pytest.raises(PluginError, match=r"'none': open_device\(0\) returned None"):
        hal.Registry(blocked=INSTALLED).open("none:0")


def test_a_missing_package_is_a_cause(site):
    site.install("gone", WORKING)
    (site.path / "hal_plugin_gone").rename(site.path / "elsewhere")
    assert "no package 'hal_plugin_gone'" in row("gone").cause


def test_a_name_taken_twice_is_a_cause_that_names_both(site):
    site.install("twin", WORKING)
    site.install("twin", WORKING, distribution="other_twin", package="other_twin")
    assert row("twin").status == "broken"
    assert "hal-plugin-twin" in row("twin").cause
    assert "other-twin" in row("twin").cause


def test_the_first_distribution_on_the_path_hides_a_later_one(site, tmp_path, monkeypatch):
    site.install("good", WORKING)
    later = tmp_path / "later" / "hal_plugin_good-0.9.dist-info"
    later.mkdir(parents=True)
    (later / "entry_points.txt").write_text("[hal.plugins]\ngood = hal_plugin_good.plugin\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "later")])
    assert (row("good").status, row("good").version) == ("ok", "1.5")


def test_a_blocked_plugin_is_never_imported(site, monkeypatch):
    site.install("trap", "raise AssertionError('imported')")
    monkeypatch.setenv("HAL_PLUGINS_BLOCKED", "other, trap")
    registry = registry_of_environment()
    [plugin] = [row for row in registry.plugins() if row.name == "trap"]
    assert plugin.status == "blocked"
    assert "HAL_PLUGINS_BLOCKED" in plugin.cause
    with pytest.raises(PluginError, match="HAL_PLUGINS_BLOCKED"):
        registry.open("trap:0")


def test_open_imports_only_the_plugin_it_needs(site):
    site.install("good", WORKING)
    site.install("trap", "raise AssertionError('imported')")
    with pytest.raises(PluginError, match="OSError: no driver"):
        hal.Registry(blocked=INSTALLED).open("good:0")
    assert "hal_plugin_trap.plugin" not in sys.modules


def test_an_unknown_device_lists_the_known_and_the_broken_ones(site, registry):
    site.install("broken", "raise RuntimeError('driver is too old')")
    registry = hal.Registry(blocked=INSTALLED, extra={"bytes": hal_plugin_bytes.plugin})
    for name in ("nochip:0", "bytes:7", "broken:0", "bytes"):
        with pytest.raises((InvalidCall, PluginError)) as caught:
            registry.open(name)
        assert "bytes:0, bytes:1" in str(caught.value)
        assert "broken plugin broken: RuntimeError: driver is too old" in str(caught.value)


def test_a_device_may_not_declare_what_its_manifest_does_not(site):
    manifest = contract(1, 1).replace("[]", '["map"]').format(name="bytes")
    site.install("bytes", "", manifest, package="bytes_pkg")
    code = "from hal_plugin_bytes.plugin import enumerate_devices, open_device"
    (site.path / "bytes_pkg" / "plugin.py").write_text(code)
    with pytest.raises(PluginError, match="declares graph, reset, timestamps"):
        hal.Registry(blocked=INSTALLED).open("bytes:0")


def test_devices_are_enumerated_only_where_opening_one_is_refused():
    looks = []

    class Slow:
        open_device = staticmethod(hal_plugin_bytes.plugin.open_device)

        @hal.hookimpl
        def enumerate_devices(self):
            looks.append(1)
            return hal_plugin_bytes.plugin.enumerate_devices()

    registry = hal.Registry(blocked=INSTALLED, extra={"bytes": Slow()})
    registry.open("bytes:1").close()
    assert not looks
    with pytest.raises(InvalidCall, match=r"no device 'bytes:2'\nknown devices: bytes:0, bytes:1"):
        registry.open("bytes:2")
    assert looks


def test_unknown_settings_are_refused_by_the_plugin(registry):
    with pytest.raises(InvalidCall, match="speed"):
        registry.open("bytes:0", options=hal.OpenOptions(settings={"speed": "9"}))


def test_an_unknown_wrapper_is_refused_before_anything_opens(registry):
    with pytest.raises(InvalidCall, match="no wrapper 'validat'"):
        registry.open("bytes:0", wrappers=["validat"])


def test_entry_points_files_are_read_as_the_packaging_specification_says():
    text = (
        "[console_scripts]\nhal = a:b\n\n# note\n[hal.plugins]\n cpu=x.y \ngpu = z\n[other]\nq = r"
    )
    assert parse_entry_points(text, "hal.plugins") == {"cpu": "x.y", "gpu": "z"}
