"""The contract's text says what it must, and the manual is generated from it as it is."""

from pathlib import Path

import pytest

from hal.core.description import Feature
from hal.core.spec import (
    MANDATORY_DEVICE,
    MANDATORY_PLUGIN,
    OPTIONAL,
    DeviceSpec,
    PluginSpec,
    hooks,
)
from hal_tools.contract_docs import render

MANUAL = Path(__file__).parents[2] / "docs/contract.md"
HOOKS = [(spec, hook) for spec in (PluginSpec, DeviceSpec) for hook in hooks(spec)]


@pytest.mark.parametrize(("spec", "hook"), HOOKS)
def test_a_hook_says_who_owns_whether_it_blocks_and_what_it_raises(spec, hook):
    text = getattr(spec, hook).__doc__
    for word in ("Owner:", "Blocks:", "Raises:"):
        assert word in text
    assert ("*Optional, Feature." in text) == (hook in OPTIONAL)


@pytest.mark.parametrize(("hook", "feature"), OPTIONAL.items())
def test_an_optional_hooks_text_names_its_feature(hook, feature):
    assert f"*Optional, Feature.{feature.name}.*" in getattr(DeviceSpec, hook).__doc__


def test_fifteen_hooks_are_mandatory():
    assert len(MANDATORY_PLUGIN) + len(MANDATORY_DEVICE) == 15
    assert set(OPTIONAL) <= set(hooks(DeviceSpec))


def test_every_feature_stands_for_a_hook_or_widens_one():
    assert set(Feature) - set(OPTIONAL.values()) == {Feature.PEER_COPY, Feature.GROUP_IPC}


def test_the_manual_is_not_stale():
    assert MANUAL.read_text() == render(), "run: python -m hal_tools.contract_docs"


def test_the_manual_has_every_hook_and_value():
    text = render()
    for _, hook in HOOKS:
        assert f"### `{hook}`" in text
    for name in (
        "DeviceInfo",
        "KernelSource",
        "Point",
        "Argument",
        "OutOfMemory",
        "Failure",
        "DType",
    ):
        assert f"### `{name}`" in text
