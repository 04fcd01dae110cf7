"""The edges between devices, as each device describes its own."""

from __future__ import annotations

import math

from hal.core.description import DeviceInfo, Feature
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.rig import Rig

devices_links = Cases("G", Level.DEVICES)

MOST = 4
"""How many of a plugin's devices the cases of this group open at once."""


def check_links(info: DeviceInfo, peers: tuple[str, ...]) -> None:
    """Links name other devices, once each, and their figures are numbers."""
    names = [link.peer for link in info.links]
    expect.equal(len(names), len(set(names)), f"the number of different peers of {info.name}")
    expect.that(info.name not in names, f"{info.name} has a link to itself")
    for link in info.links:
        plugin, _, index = link.peer.partition(":")
        expect.that(plugin and index.isdecimal(), f"{link.peer!r} is no device's name")
        known = plugin != info.plugin or link.peer in peers
        expect.that(known, f"{info.name} has a link to {link.peer}, which is not there: {peers}")
        for figure in (link.bandwidth, link.latency):
            expect.that(0 <= figure < math.inf, f"{info.name} to {link.peer}: {figure}")


@devices_links.case("links-name-devices", "describe.true")
def _(rig: Rig) -> None:
    check_links(rig.info, rig.setting.peers)


@devices_links.case("links-of-every-device", "describe.true", devices=2)
def _(rig: Rig) -> None:
    for device in rig.devices(min(MOST, len(rig.setting.peers))):
        check_links(device.info, rig.setting.peers)


@devices_links.case("links-stay", "describe.constant")
def _(rig: Rig) -> None:
    links = rig.info.links
    rig.done(rig.device.fill(rig.buffer(64).region(), b"a", rig.timeline(), ()))
    expect.equal(rig.device.describe().links, links, "the links after some work")
    expect.equal(rig.open().info.links, links, "the links in another session")


@devices_links.case("links-where-peers-copy", "copy.peer", needs=(Feature.PEER_COPY,), devices=2)
def _(rig: Rig) -> None:
    linked = {link.peer for link in rig.info.links}
    expect.that(
        linked & set(rig.setting.peers),
        f"{rig.name} declares peer-copy and has no link to any of {rig.setting.peers}",
    )


@devices_links.case("names-and-plugin", "describe.true", devices=2)
def _(rig: Rig) -> None:
    devices = rig.devices(min(MOST, len(rig.setting.peers)))
    names = [device.info.name for device in devices]
    expect.equal(len(set(names)), len(devices), "the number of different names")
    expect.equal({d.info.plugin for d in devices}, {rig.info.plugin}, "the devices' plugin")


@devices_links.case("equal-fingerprints-equal-programs", "launch.exact", devices=2)
def _(rig: Rig) -> None:
    alike = [d for d in rig.devices(2) if d.info.fingerprint == rig.info.fingerprint]
    if len(alike) < 2:
        raise expect.Unfit("the devices have different fingerprints")
    first, second = (device.info for device in alike)
    expect.equal(second.formats, first.formats, "formats of devices with equal fingerprints")
    expect.equal(dict(second.dtypes).keys(), dict(first.dtypes).keys(), "their element types")
    expect.equal(second.numeric, first.numeric, "their numeric profiles")
