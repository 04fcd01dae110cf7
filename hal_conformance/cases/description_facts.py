"""What a device says about itself: complete, consistent, and the same all the time."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np

from hal.core.description import (
    CONTRACT_VERSION,
    FUNCTIONS,
    PERFORMANCE,
    DeviceInfo,
    Feature,
    SpaceKind,
)
from hal.core.description_json import from_json, to_json
from hal.core.dtypes import DType
from hal.core.errors import OutOfMemory
from hal.core.values import AllocOptions
from hal.tile.build import Builder
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.rig import Rig

description_facts = Cases("B", Level.CORE)

TEXTS = ("name", "plugin", "description", "fingerprint")


@description_facts.case("json-round-trip", "describe.constant")
def _(rig: Rig) -> None:
    text = json.dumps(to_json(rig.info), allow_nan=False)
    expect.equal(from_json(json.loads(text)), rig.info, "the description through JSON")


@description_facts.case(
    "immutable", "describe.constant", field=[f.name for f in fields(DeviceInfo)]
)
def _(rig: Rig, field: str) -> None:
    info = rig.device.describe()
    before = getattr(info, field)
    expect.raises((FrozenInstanceError, TypeError), setattr, info, field, None)
    expect.equal(getattr(rig.device.describe(), field), before, f"{field} afterwards")


@description_facts.case("constant", "describe.constant")
def _(rig: Rig) -> None:
    """In use, after an error, and in another session."""
    before = rig.device.describe()
    buffer = rig.buffer(b"content")
    rig.read(buffer)
    expect.raises(OutOfMemory, rig.device.alloc, 1 << 60, AllocOptions())
    expect.equal(rig.device.describe(), before, "the description of a device in use")
    expect.equal(rig.info, before, "`info` of the device")


@description_facts.case("constant-after-reset", "describe.constant", needs=(Feature.RESET,))
def _(rig: Rig) -> None:
    before = rig.device.describe()
    rig.device.reset()
    expect.equal(rig.device.describe(), before, "the description after a reset")


@description_facts.case("names", "describe.true")
def _(rig: Rig) -> None:
    info = rig.info
    plugin, _, index = rig.name.partition(":")
    expect.equal((info.name, info.plugin), (rig.name, plugin), "name and plugin")
    expect.that(index.isdigit(), f"the name {info.name!r} does not end with an index")
    expect.equal(info.contract, CONTRACT_VERSION, "the contract's version")
    for field in TEXTS:
        text = getattr(info, field)
        expect.that(isinstance(text, str) and text.strip() == text != "", f"{field} is {text!r}")
    expect.that("\n" not in info.description, "the description has more than one line")


@description_facts.case("formats", "describe.true")
def _(rig: Rig) -> None:
    formats = rig.info.formats
    expect.that(formats, "the device lists no program format")
    expect.equal(len(set(formats)), len(formats), "the number of different formats")
    for name in formats:
        stem, _, version = name.rpartition("/")
        expect.that(stem and version.isdigit(), f"the format {name!r} is not NAME/VERSION")


@description_facts.case("limits", "describe.true")
def _(rig: Rig) -> None:
    limits = rig.info.limits
    expect.equal(len(limits.grid), 3, "the number of axes of the grid")
    at_least_one = {f"grid axis {i}": n for i, n in enumerate(limits.grid)}
    for name in ("args", "alloc_nbytes", "queues", "instances", "lanes"):
        at_least_one[name] = getattr(limits, name)
    for name, value in at_least_one.items():
        expect.that(type(value) is int and value >= 1, f"{name} is {value!r}, not 1 or more")
    for name in ("vector_nbytes", "registers", "progress_s"):
        expect.that(getattr(limits, name) >= 0, f"{name} is negative")
    width = limits.vector_nbytes
    expect.equal(width & (width - 1), 0, "the bits of vector_nbytes below its highest")
    expect.that(all(n > 0 for n in limits.caches), f"caches are {limits.caches}")
    expect.equal(list(limits.caches), sorted(limits.caches), "the caches, nearest first")
    rows, columns = limits.mesh
    expect.that(
        min(limits.mesh) >= 1 and rows * columns <= limits.instances,
        f"a mesh of {rows} x {columns} cores, of which {limits.instances} run instances",
    )


@description_facts.case("spaces", "describe.true")
def _(rig: Rig) -> None:
    spaces = rig.info.spaces
    names = [s.name for s in spaces]
    expect.equal(len(set(names)), len(names), "the number of different names of spaces")
    expect.that(rig.info.space(SpaceKind.GLOBAL), "there is no GLOBAL space")
    for space in spaces:
        expect.that(space.name, "a space has no name")
        expect.that(space.nbytes > 0, f"{space.name} has {space.nbytes} bytes")
        step = space.granularity
        expect.that(type(step) is int and step > 0, f"{space.name} is aligned to {step}")
        rate, wait_s = space.bandwidth, space.latency
        expect.that(rate >= 0 and math.isfinite(rate), f"{space.name} moves {rate} bytes/s")
        expect.that(wait_s >= 0 and math.isfinite(wait_s), f"{space.name} waits for {wait_s} s")
        if space.kind is SpaceKind.SCRATCHPAD:
            expect.that(not space.host_visible, f"scratchpad {space.name} is host-visible")
    largest = max(s.nbytes for s in spaces if s.kind is not SpaceKind.SCRATCHPAD)
    expect.that(rig.info.limits.alloc_nbytes <= largest, "one allocation is more than any space")


@description_facts.case("space-past-its-size", "describe.limits", "alloc.exhausted")
def _(rig: Rig) -> None:
    for space in rig.info.spaces:
        if space.kind is not SpaceKind.SCRATCHPAD:
            options = AllocOptions(space=space.name)
            expect.raises(OutOfMemory, rig.device.alloc, space.nbytes + 1, options)
    expect.same_bytes(rig.read(rig.buffer(b"still")), b"still", "a buffer afterwards")


@description_facts.case("element-types", "describe.true")
def _(rig: Rig) -> None:
    dtypes = rig.info.dtypes
    expect.that(dtypes, "the device lists no element type")
    for dtype, rate in dtypes.items():
        expect.that(isinstance(dtype, DType), f"{dtype!r} is no element type")
        expect.that(rate >= 0 and math.isfinite(rate), f"the rate of {dtype.short} is {rate}")


@description_facts.case("element-types-usable", "launch.exact", "copy.exact", dtype=tuple(DType))
def _(rig: Rig, dtype: DType) -> None:
    """A declared type is a kernel's buffer and scalar, and bytes of its width."""
    if dtype not in rig.info.dtypes:
        raise expect.Unfit(f"the device does not declare {dtype.short}")
    b = Builder("usable")
    x, y = b.buffer("x", dtype), b.buffer("y", dtype, reads=False, writes=True)
    b.store(y, 0, b.load(x, 0, (3,), (1,)), (1,))
    b.store(y, 3, b.scalar("last", dtype))
    values = np.array([1, 0, 1], NUMPY[dtype])
    last = True if dtype is DType.BOOL else 1.0 if dtype.is_float else 1
    got = rig.run(b.kernel(), {"x": values, "y": np.zeros(4, NUMPY[dtype]), "last": last})["y"]
    expect.same(got, np.array([1, 0, 1, 1], NUMPY[dtype]), f"{dtype.short} values and a scalar")


@description_facts.case("numeric-functions", "describe.true")
def _(rig: Rig) -> None:
    ulp = rig.info.numeric.ulp
    missing = [name for name in FUNCTIONS if name not in ulp]
    expect.that(not missing, f"the numeric profile has no bound for {', '.join(missing)}")
    for name, bound in ulp.items():
        expect.that(0.5 <= bound < 2**23, f"the bound of {name} is {bound}")


@description_facts.case("numeric-accumulation", "describe.true")
def _(rig: Rig) -> None:
    """`dot` adds in a type of the same kind that the device has and that is no narrower."""
    accumulate = rig.info.numeric.accumulate
    for dtype in rig.info.dtypes:
        expect.that(dtype in accumulate, f"it is not said how products of {dtype.short} are added")
        wide = accumulate[dtype]
        fits = wide.kind == dtype.kind and wide.bits >= dtype.bits and wide in rig.info.dtypes
        expect.that(fits, f"products of {dtype.short} are added in {wide.short}")


@description_facts.case("matrix-units", "describe.true")
def _(rig: Rig) -> None:
    for unit in rig.info.matrix_units:
        expect.that(min(unit.m, unit.n, unit.k) >= 1, f"a matrix unit without size: {unit}")
        expect.that(unit.rate >= 0, f"a matrix unit with a negative rate: {unit}")
        fits = unit.together >= 1 and unit.k % unit.together == 0
        expect.that(fits, f"elements that lie together and are no part of k: {unit}")
        types = unit.inputs, unit.right_inputs, unit.accumulate
        expect.that(
            all(t in rig.info.dtypes for t in types), f"types that are not declared: {unit}"
        )
        moves = unit.call, unit.clear, unit.load, unit.store
        expect.that(
            not unit.register or all(moves), f"registers of tiles that nothing moves: {unit}"
        )
        enough = not unit.register or unit.registers >= 3
        expect.that(enough, f"no registers of tiles for sums and both operands: {unit}")
        widest = max(unit.inputs.bits, unit.right_inputs.bits)
        expect.that(unit.accumulate.bits >= widest, f"it adds in fewer bits: {unit}")


@description_facts.case("links", "describe.true")
def _(rig: Rig) -> None:
    peers = [link.peer for link in rig.info.links]
    expect.that(rig.name not in peers, "a link leads to the device itself")
    expect.equal(len(set(peers)), len(peers), "the number of different peers")
    for link in rig.info.links:
        known = link.bandwidth >= 0 and link.latency >= 0 and link.kind
        expect.that(known, f"a link that says too little: {link}")


@description_facts.case("declared-figures", "describe.true")
def _(rig: Rig) -> None:
    for name, figure in rig.info.declared.items():
        expect.that(name in PERFORMANCE, f"the contract knows no figure {name!r}")
        expect.that(figure > 0 and math.isfinite(figure), f"{name} is {figure}")


@description_facts.case("sessions-agree", "describe.constant", "open.sessions")
def _(rig: Rig) -> None:
    """Two sessions of one device generate the same code."""
    one, other = rig.info, rig.open().info
    for field in ("fingerprint", "formats", "features", "numeric", "limits", "spaces"):
        expect.equal(getattr(other, field), getattr(one, field), f"{field} of another session")


@description_facts.case("fingerprint-of-equal-devices", "describe.true", devices=2)
def _(rig: Rig) -> None:
    """Devices that are alike but for their names and links share compiled programs."""
    one, other = (_without_place(d.describe()) for d in rig.devices(2))
    if replace(one, fingerprint="") != replace(other, fingerprint=""):
        raise expect.Unfit("the plugin's first two devices differ")
    expect.equal(other.fingerprint, one.fingerprint, "the fingerprint of an equal device")


def _without_place(info: DeviceInfo) -> DeviceInfo:
    nowhere: dict[str, Any] = {"name": "", "links": (), "declared": {}, "facts": {}}
    return replace(info, **nowhere)
