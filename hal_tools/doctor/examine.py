"""The examination of the installed plugins, check by check."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hal.core.description import Feature
from hal.core.discovery.installed import PLUGINS, entry_points
from hal.core.discovery.manifest import Found, manifest_path
from hal.core.discovery.registry import Registry
from hal.core.discovery.survey import STAGES, PluginLook
from hal.core.errors import InvalidCall, PluginError
from hal_tools.doctor.advice import advice
from hal_tools.doctor.finding import BAD, NOTE, OK, Finding
from hal_tools.doctor.strays import strays

_SLOW_WITHOUT = {Feature.GRAPH: "the stack launches its kernels one by one"}
"""What the stack does without a feature; `Fallbacks` counts how often."""


def examine(registry: Registry, name: str = "") -> tuple[Finding, ...]:
    """Check every plugin, or the one with that name, each in a process of its own.

    Raises InvalidCall for a name that no plugin has.
    """
    every = registry.found()
    chosen = [found for found in every if name in ("", found.name)]
    if name and not chosen:
        known = ", ".join(found.name for found in every) or "none"
        raise InvalidCall(f"no plugin {name!r} is installed; installed are {known}")
    looks = registry.looks(opens=True)
    findings = [f for found in chosen for f in _of_plugin(found, looks[found.name])]
    return (*findings, *(() if name else _around(every)))


def _around(every: tuple[Found, ...]) -> Iterator[Finding]:
    yield from strays({os.path.realpath(_path(found)) for found in every})
    if not every:
        text = "no plugin is installed"
        yield Finding("hal", "entry point", BAD, text, "pip install hal-plugin-cpu")


def _of_plugin(found: Found, look: PluginLook) -> Iterator[Finding]:
    yield Finding(found.name, "entry point", OK, f"{found.module or 'in this program'}")
    if found.cause:
        # Which check discovery ended at.
        if found.manifest is not None:
            check = "blocked" if "is named in" in found.cause else "contract"
        elif [point.name for point in entry_points(PLUGINS)].count(found.name) > 1:
            check = "entry point"
        else:
            check = "manifest" if _path(found) else "package"
        yield Finding(found.name, check, BAD, found.cause, advice(check, found, found.cause))
        return
    manifest = found.manifest
    assert manifest is not None, "a plugin without a cause has a manifest"
    low, high = manifest.contract
    text = f"contract versions {low} to {high}, {len(manifest.features)} features"
    yield Finding(found.name, "manifest", OK, text)
    if manifest.unknown:
        names = ", ".join(manifest.unknown)
        text = f"this hal-accel does not know the features {names}; they are ignored"
        yield Finding(
            found.name,
            "manifest",
            NOTE,
            text,
            "install a newer hal-accel, or correct a misspelling",
        )
    yield from _of_look(found, look)
    assert found.manifest is not None, "a plugin that was looked at has a manifest"
    promised = {feature.value for feature in found.manifest.features}
    for device in look.opened:
        if extra := sorted(set(device.features) - promised):
            text = f"{device.name} declares {', '.join(extra)}, which its manifest lacks"
            step = f"add to features in {_path(found)}, or take out of DeviceInfo.features"
            yield Finding(found.name, "features", BAD, text, step)
        for feature, instead in _SLOW_WITHOUT.items():
            if feature.value not in device.features:
                text = f"{device.name} does not declare {feature.value!r}: {instead}"
                step = 'hal.open(..., wrappers=["validate", "fallbacks"]) counts how often'
                yield Finding(found.name, "features", NOTE, text, step)
        if device.guessed:
            text = f"{device.name}: nobody has confirmed what it declares: {device.guessed}"
            step = "give your device's numbers in its description; docs/formats.md says what for"
            yield Finding(found.name, "describe", NOTE, text, step)


def _path(found: Found) -> str:
    """Where the manifest is expected; "" when there is no package."""
    try:
        return manifest_path(found.module)
    except (PluginError, ValueError):
        return ""


def _of_look(found: Found, look: PluginLook) -> Iterator[Finding]:
    """The stages that went well, and the one that did not; then each device."""
    reached = STAGES if look.stage == "done" else STAGES[: STAGES.index(look.stage)]
    for stage in reached:
        text = f"{len(look.devices)} devices" if stage == "enumerate" else ""
        yield Finding(found.name, stage, OK, text)
        if stage == "import" and look.started:
            text = f"the import of {found.module} starts {' and '.join(look.started)}"
            step = "start it in open_device: whoever lists devices imports the plugin"
            yield Finding(found.name, stage, BAD, text, step)
    if look.cause:
        text = advice(look.stage, found, look.cause)
        yield Finding(found.name, look.stage, BAD, look.cause, text)
    elif not look.devices:
        text = "the plugin works and finds no device on this machine"
        step = "check that the device is there, its driver is loaded and this user may open it"
        yield Finding(found.name, "enumerate", NOTE, text, step)
    for refused in look.refused:
        text = advice(refused.stage, found, refused.cause, refused.name)
        where = f"{refused.name}: {refused.cause}"
        yield Finding(found.name, refused.stage, BAD, where, text)
    if look.opened:
        names = ", ".join(device.name for device in look.opened)
        yield Finding(found.name, "open", OK, names)
