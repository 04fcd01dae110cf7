"""The plugin before a device is open: manifest, import, enumeration."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import hal
from hal.core.description import CONTRACT_VERSION
from hal.core.discovery.manifest import Found, discover
from hal.core.discovery.registry import BLOCKED_VARIABLE
from hal.core.errors import InvalidCall, PluginError
from hal_conformance import expect
from hal_conformance.alone import alone
from hal_conformance.case import Cases, Level
from hal_conformance.expect import Unfit
from hal_conformance.rig import Rig

plugin_import = Cases("A", Level.CORE)


@plugin_import.case("installed", "plugin.import", once=True)
def _(rig: Rig) -> None:
    """The plugin has an entry point, a manifest and a distribution."""
    found = _found(rig)
    expect.equal(found.cause, "", "why it cannot be used")
    expect.that(found.version, "its distribution has no version")


@plugin_import.case("manifest-without-import", "plugin.import", once=True)
def _(rig: Rig) -> None:
    module = _found(rig).module
    loaded = alone(
        """
        import sys
        from hal.core.discovery.manifest import discover
        names = [found.name for found in discover()]
        result = [module in sys.modules, plugin in names]
        """,
        module=module,
        plugin=_plugin(rig),
    )
    expect.equal(loaded, [False, True], "(module imported, plugin found)")


@plugin_import.case("contract-range", "plugin.import")
def _(rig: Rig) -> None:
    manifest = _found(rig).manifest
    expect.that(manifest is not None, "the plugin has no readable manifest")
    assert manifest is not None
    low, high = manifest.contract
    expect.that(low <= CONTRACT_VERSION <= high, f"it speaks {low} to {high}")
    expect.that(low <= rig.info.contract <= high, f"the device speaks {rig.info.contract}")


@plugin_import.case("features-in-manifest", "describe.true")
def _(rig: Rig) -> None:
    manifest = _found(rig).manifest
    assert manifest is not None
    extra = rig.info.features - manifest.features
    expect.that(not extra, f"the device declares {extra}, the manifest does not")


@plugin_import.case("names-agree", "describe.true")
def _(rig: Rig) -> None:
    expect.equal(rig.info.plugin, _plugin(rig), "DeviceInfo.plugin")
    expect.equal(rig.info.name, rig.name, "DeviceInfo.name")
    expect.equal(rig.device.describe().name, rig.name, "describe().name")


@plugin_import.case("import-starts-nothing", "plugin.import", once=True)
def _(rig: Rig) -> None:
    """No thread, no child, no variable."""
    module = _found(rig).module
    changes = alone(
        """
        import importlib, os
        import numpy  # which hal-accel itself needs, and which starts threads
        os.environ.clear()
        os.environ.update(first)
        before_tasks = len(os.listdir("/proc/self/task"))
        before = dict(os.environ)
        importlib.import_module(module)
        tasks = len(os.listdir("/proc/self/task")) - before_tasks
        children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
        result = [tasks, children, sorted(set(os.environ.items()) ^ set(before.items()))]
        """,
        module=module,
        first=_first_environment(),
    )
    expect.equal(changes, [0, [], []], "(threads, children, changed variables)")


@plugin_import.case("import-time", "plugin.import", timed=True, timeout_s=60)
def _(rig: Rig) -> None:
    """The time of the plugin's own modules, without what it imports."""
    module = _found(rig).module
    best = min(_own_seconds(module) for _ in range(3))
    expect.that(best < 0.1, f"importing {module} takes {best:.3f} s of its own time")


@plugin_import.case("blocked", "plugin.import", once=True)
def _(rig: Rig) -> None:
    """A plugin that the operator blocks is not imported, and says so."""
    cause = alone(
        """
        import sys, hal
        rows = [row for row in hal.plugins() if row.name == plugin]
        result = [row.status for row in rows] + [module in sys.modules]
        """,
        {BLOCKED_VARIABLE: _plugin(rig)},
        plugin=_plugin(rig),
        module=_found(rig).module,
    )
    expect.equal(cause, ["blocked", False], "(status, imported)")


@plugin_import.case("enumerate-is-stable", "enumerate.stable", once=True)
def _(rig: Rig) -> None:
    rows = [_devices(rig) for _ in range(3)]
    expect.that(rows[0] == rows[1] == rows[2], f"three enumerations differ: {rows}")
    expect.that(rig.name in rows[0], f"{rig.name} is not among {rows[0]}")
    expect.equal(len(set(rows[0])), len(rows[0]), "how many different names there are")


@plugin_import.case("enumerate-is-stable-while-open", "enumerate.stable")
def _(rig: Rig) -> None:
    before = _devices(rig)
    rig.buffer(16)
    expect.equal(_devices(rig), before, "the devices while one is open")


@plugin_import.case("enumerate-is-pure", "enumerate.pure", once=True)
def _(rig: Rig) -> None:
    changes = alone(
        """
        import os, hal
        hal.plugins()
        before, tasks = dict(os.environ), len(os.listdir("/proc/self/task"))
        names = [row.name for row in hal.devices()]
        after = len(os.listdir("/proc/self/task"))
        result = [after - tasks, sorted(set(os.environ.items()) ^ set(before.items()))]
        """
    )
    expect.equal(changes, [0, []], "(new threads, changed variables)")


@plugin_import.case("enumerate-starts-nothing", "enumerate.pure", once=True)
def _(rig: Rig) -> None:
    """The plugin's own hook, in a process that has done nothing else."""
    changes = alone(
        """
        import importlib, os
        plugin = importlib.import_module(module)
        os.environ.clear()
        os.environ.update(first)
        before, tasks = dict(os.environ), len(os.listdir("/proc/self/task"))
        plugin.enumerate_devices()
        after = len(os.listdir("/proc/self/task"))
        result = [after - tasks, sorted(set(os.environ.items()) ^ set(before.items()))]
        """,
        module=_found(rig).module,
        first=_first_environment(),
    )
    expect.equal(changes, [0, []], "(new threads, changed variables)")


@plugin_import.case("enumerate-in-another-process", "enumerate.stable", once=True)
def _(rig: Rig) -> None:
    names = alone(
        "import hal\nresult = [row.name for row in hal.devices() if row.plugin == plugin]",
        plugin=_plugin(rig),
    )
    expect.equal(names, list(_devices(rig)), "the devices that another process sees")


@plugin_import.case("no-such-index", "open.refused", once=True)
def _(rig: Rig) -> None:
    error = expect.raises(InvalidCall, rig.open, f"{_plugin(rig)}:9999")
    expect.that(rig.name in str(error), f"the error does not list the devices: {error}")


@plugin_import.case("no-such-index-asked-directly", "open.refused", once=True)
def _(rig: Rig) -> None:
    """The plugin itself refuses, not only the registry that enumerates before."""
    for index in (-1, 9999):
        name = alone(
            """
            import hal, importlib
            from hal.core.errors import InvalidCall
            plugin = importlib.import_module(module)
            try:
                plugin.open_device(index, hal.OpenOptions())
                result = "opened"
            except InvalidCall:
                result = "InvalidCall"
            """,
            module=_found(rig).module,
            index=index,
        )
        expect.equal(name, "InvalidCall", f"what open_device({index}) does")


@plugin_import.case("not-a-name", "open.refused", once=True)
def _(rig: Rig) -> None:
    for name in (_plugin(rig), f"{_plugin(rig)}:-1"):
        expect.raises(InvalidCall, rig.open, name)


@plugin_import.case("other-plugin-is-not-taken", "open.refused", once=True)
def _(rig: Rig) -> None:
    """A device of a plugin that is not installed is an error, never another device."""
    error = expect.raises(PluginError, rig.open, "no_such_plugin:0")
    expect.that("no_such_plugin" in str(error), f"the error does not name it: {error}")


def _first_environment() -> dict[str, str]:
    """The variables with which this process started: a plugin that was imported since may have
    written some, and a process that inherits them would see no change."""
    pairs = Path("/proc/self/environ").read_text("utf-8", "surrogateescape").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _plugin(rig: Rig) -> str:
    return rig.name.partition(":")[0]


def _devices(rig: Rig) -> tuple[str, ...]:
    """What the plugin's own hook says, in this process."""
    summaries = import_module(_found(rig).module).enumerate_devices()
    return tuple(f"{_plugin(rig)}:{summary.index}" for summary in summaries)


def _found(rig: Rig) -> Found:
    if rig.setting.registry is not hal.registry:
        raise Unfit("the plugin is not an installed one")
    found = [found for found in discover() if found.name == _plugin(rig)]
    if not found:
        raise Unfit("the plugin is not an installed one")
    return found[0]


def _own_seconds(module: str) -> float:
    """The processor time that a fresh process takes to import the plugin's own modules."""
    others = alone(
        """
        import importlib, sys
        importlib.import_module(module)
        inside = lambda name: name == package or name.startswith(package + ".")
        result = [name for name in sys.modules if not inside(name) and name != "__main__"]
        """,
        module=module,
        package=_package(module),
    )
    seconds: float = alone(
        """
        import importlib, time
        for name in others:
            importlib.import_module(name)
        begin = time.process_time()
        importlib.import_module(module)
        result = time.process_time() - begin
        """,
        module=module,
        others=others,
    )
    return seconds


def _package(module: str) -> str:
    return module.rpartition(".")[0] or module
