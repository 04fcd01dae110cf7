"""Discovery: which plugins are installed and which contract they speak, without importing one of
them.

A plugin's distribution has an entry point in the group `hal.plugins` that names its module, and
beside that module lies a file `hal-plugin.toml`:

    name = "mychip"                # the entry point's name
    contract = [1, 1]              # the versions of the contract that it speaks, lowest and highest
    features = ["map", "graph"]    # every feature that one of its devices may declare
    description = "MyChip accelerators"
"""

from __future__ import annotations

import os
import tomllib
from importlib.util import find_spec

from hal.core.description import CONTRACT_VERSION, Feature
from hal.core.discovery.installed import PLUGINS, EntryPoint, entry_points
from hal.core.errors import PluginError
from hal.core.facts import dataclass

FILE = "hal-plugin.toml"
_KEYS = {"name": str, "contract": list, "features": list, "description": str}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a plugin says about itself before its code runs; `contract` is an inclusive range.

    `unknown` are features that this package does not know: a plugin for a newer contract that also
    speaks this one may have them, and they are ignored.
    """

    name: str
    contract: tuple[int, int]
    features: frozenset[Feature]
    description: str
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """An installed plugin: its entry point's name and module, and its distribution with version.

    `cause` says why it cannot be used ("" when it can); then `manifest` may be None.
    """

    name: str
    module: str
    distribution: str
    version: str
    manifest: Manifest | None
    cause: str


def parse_manifest(text: str) -> Manifest:
    """Read a manifest's text. Raises PluginError that names the key and the wrong value."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PluginError(f"{FILE} is not valid TOML: {error}") from error
    for key, kind in _KEYS.items():
        if not isinstance(table.get(key), kind):
            raise PluginError(f"{FILE}: {key} must be a {kind.__name__}, is {table.get(key)!r}")
    if extra := sorted(table.keys() - _KEYS.keys()):
        raise PluginError(f"{FILE} has unknown keys {extra}; it may have {sorted(_KEYS)}")
    names = table["features"]
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise PluginError(f"{FILE}: features must be strings, found {wrong}")
    known = {feature.value: feature for feature in Feature}
    features = frozenset(known[name] for name in names if name in known)
    unknown = tuple(name for name in names if name not in known)
    return Manifest(
        table["name"], _range(table["contract"]), features, table["description"], unknown
    )


def disjoint(contract: tuple[int, int]) -> str:
    """Why a plugin that speaks this range does not fit this package, "" when it does."""
    low, high = contract
    if low <= CONTRACT_VERSION <= high:
        return ""
    newer = "a newer hal-accel" if low > CONTRACT_VERSION else "a newer release of the plugin"
    return (
        f"the plugin speaks contract versions {low} to {high}, hal-accel speaks versions "
        f"{CONTRACT_VERSION} to {CONTRACT_VERSION}: install {newer}"
    )


def discover() -> tuple[Found, ...]:
    """List the installed plugins by name. No vendor module is imported."""
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(PLUGINS):
        by_name.setdefault(entry.name, []).append(entry)
    found = []
    for name, (first, *others) in sorted(by_name.items()):
        try:
            manifest, cause = _manifest([first, *others]), ""
        except PluginError as error:
            manifest, cause = None, str(error)
        if manifest is not None:
            cause = disjoint(manifest.contract)
        found.append(Found(name, first.module, first.distribution, first.version, manifest, cause))
    return tuple(found)


def _manifest(entries: list[EntryPoint]) -> Manifest:
    if len(entries) > 1:
        owners = " and ".join(f"{e.distribution} ({e.module})" for e in entries)
        raise PluginError(f"the name is taken more than once, by {owners}: uninstall all but one")
    path = manifest_path(entries[0].module)
    try:
        with open(path, encoding="utf-8") as stream:
            manifest = parse_manifest(stream.read())
    except (OSError, UnicodeDecodeError) as error:
        raise PluginError(f"cannot read the manifest {path}: {error}") from error
    if manifest.name != entries[0].name:
        raise PluginError(
            f"{path} says name {manifest.name!r}, its entry point says {entries[0].name!r}"
        )
    return manifest


def manifest_path(module: str) -> str:
    """The manifest beside the module. Only the top package is looked up, so nothing is imported."""
    package, *inner = module.split(".")[:-1] or [module]
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise PluginError(f"there is no package {package!r}, which the entry point names")
    return os.path.join(next(iter(spec.submodule_search_locations)), *inner, FILE)


def _range(value: list[object]) -> tuple[int, int]:
    match value:
        case [int(low), int(high)] if 0 < low <= high:
            return low, high
    raise PluginError(f"{FILE}: contract must be [lowest, highest], is {value!r}")
