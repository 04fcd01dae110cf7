"""The first look: the plugin can be imported, lists the device and opens it."""

from __future__ import annotations

from importlib import import_module

from hal_conformance import expect, look
from hal_conformance.case import Cases, Level
from hal_conformance.rig import Rig

plugin_look = Cases("A", Level.CORE)


@plugin_look.case("imports", "plugin.import", timeout_s=5)
def _(rig: Rig) -> None:
    import_module(look.plugin_of(rig.name).module)


@plugin_look.case("lists", "enumerate.stable", timeout_s=5)
def _(rig: Rig) -> None:
    listed = look.peers(rig.name)
    expect.that(rig.name in listed, f"the plugin lists {', '.join(listed) or 'no device'}")
    expect.equal(look.peers(rig.name), listed, "the devices, listed again")


@plugin_look.case("opens", "describe.constant", timeout_s=30)
def _(rig: Rig) -> None:
    expect.equal(rig.device.describe(), rig.info, "the description, asked again")
