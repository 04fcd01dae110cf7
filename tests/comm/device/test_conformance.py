"""The suite's cases of collectives on groups that the stack makes of several plugins' devices."""

import pytest

from hal.core.description import Feature
from hal.core.errors import InvalidCall, PluginError, StaleHandle
from hal.core.values import GroupSpec
from hal_conformance.commands import run
from hal_conformance.conform import Request, conform
from hal_conformance.judge import Outcome
from hal_conformance.plan import Choice
from stack.comm.device.contract import StackGroups
from stack.comm.store import Store, StoreServer
from tests.comm.device.devices import FAR, open_device

CASES = (
    "H.result-all-reduce-3",
    "H.disagree-on-peers",
    "H.join-again",
    "H.mismatch-count",
    "H.poisoned-member",
    "H.shrink-after-abort",
    "H.closed-member",
    "H.processes-sum-2",
)


def test_cases_on_devices_of_two_plugins():
    choice = Choice(groups=("H",), texts=CASES)
    request = Request("cpu:0", choice, others=("reference:0", "reference:1"))
    found = [result for group in conform(request) for result in group.results]
    assert len(found) == len(CASES)
    assert {r.id: r.detail for r in found if r.outcome is not Outcome.PASS} == {}


def test_other_groups_of_cases_have_no_mixed_groups():
    with pytest.raises(InvalidCall, match="--with is for the cases of group H, not C"):
        run(
            "cpu:0", "L4", "C", (), 0, None, (), no_timed=False, caps=False, sample=0,
            others="cpu:0", json_file=None, html_file=None,
        )  # fmt: skip


def test_another_device_of_no_plugin_is_told_before_any_case_runs():
    request = Request("cpu:0", Choice(groups=("H",), texts=CASES), others=("nope:0",))
    with pytest.raises(PluginError, match="no plugin 'nope' is installed"):
        next(conform(request))


def test_a_device_without_groups_of_its_own_gets_those_of_the_stack():
    with StoreServer("t") as server:
        address = f"127.0.0.1:{server.port}"
        store = Store(address, "t", 5.0)
        with open_device(FAR) as wrapped, pytest.raises(PluginError, match="has wrappers"):
            StackGroups(wrapped, store, address)
        device = StackGroups(open_device(FAR, ()), store, address)
        assert {Feature.COLLECTIVES, Feature.GROUP_IPC} <= device.describe().features
        group = device.create_group(GroupSpec("alone", 0, ("tiny:0",), 5.0))
        device.free(group)
        for late in (device.free, device.async_error, lambda g: device.shrink(g, (0,))):
            with pytest.raises(StaleHandle, match="the group was freed"):
                late(group)
        device.close()
