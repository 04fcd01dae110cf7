"""Calls with random, mostly wrong arguments: nothing but the contract's errors comes back."""

import contextlib
import math
import random
from dataclasses import fields, is_dataclass, replace
from decimal import Decimal
from types import SimpleNamespace
from typing import get_type_hints

import numpy as np
import pytest

import hal
from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, HalError, InvalidCall, Scope
from hal.core.kinds import check_kind, shown
from hal.core.spec import NOTICES, DeviceSpec, hooks
from hal.core.values import (
    AllocOptions,
    Buffer,
    Collective,
    CollectiveKind,
    CopyCommand,
    Fault,
    FillCommand,
    GroupSpec,
    Handle,
    KernelSource,
    LaunchCommand,
    Param,
    ParamKind,
    Point,
    Region,
    SharedHandle,
    Slot,
)

CALLS = 2000
HUGE = 10**5000  # its digits are more than Python prints


class Rude:
    """A value whose methods are of no help."""

    def __repr__(self):
        raise ValueError("no")

    def __eq__(self, other):
        raise TypeError("no")

    __hash__ = None


JUNK = (
    None, True, False, -1, 0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, HUGE, -HUGE,
    0.5, -0.0, math.nan, math.inf, 1e308, 1j, Decimal(1), np.int64(3), np.zeros(3), "", "x",
    "cpu:0", "\ud800", "\0", b"", b"\1", b"abc", bytearray(3), memoryview(bytes(8))[::2], (), [],
    (1, 2, 3),
    [None], {}, {"a": 1}, {1, 2}, object(), object, len, Rude(), DType.F32, Scope.DEVICE, Slot(0),
    Slot(-1), Slot("x"), Point(None, 1), Region(None, 0, 0), AllocOptions(space=3), range(3),
    Buffer("cpu:0", 0, None, 64, ""), Failure(None, None, None, None, None), SimpleNamespace(),
)  # fmt: skip
FAILURE = Failure(FailureKind.LAUNCH_FAULT, Scope.OPERATION, "x", "test", "planted")
TILE = """
kernel.func @one(a: buffer<f32, 4>) {
}
"""


class Calls:
    """Random calls of one device."""

    def __init__(self, name, seed):
        self.rng = random.Random(seed)
        self.name = name
        self.open()

    def open(self):
        self.device = device = hal.open(self.name)
        self.buffers = [device.alloc(64, AllocOptions()) for _ in range(3)]
        self.queue, self.gate = device.create_timeline(False), device.create_timeline(True)
        stale = device.alloc(64, AllocOptions())
        device.free(stale)
        point = device.fill(self.buffers[0].region(), b"\0", self.queue, ())
        group = device.create_group(
            GroupSpec(f"wrong {id(self)} {self.rng.random()}", 0, (self.name,), 1.0)
        )
        region = self.buffers[0].region(0, 16)
        other = self.buffers[1].region(0, 16)
        fill = FillCommand(region, b"\1")
        self.right = {
            "handle": lambda: device.alloc(8, AllocOptions()),
            "nbytes": lambda: self.rng.choice([0, 1, 100]),
            "options": AllocOptions,
            "dst": lambda: region,
            "src": lambda: other,
            "pattern": lambda: b"\1\2",
            "region": lambda: region,
            "writable": lambda: True,
            "memory": lambda: memoryview(bytearray(64)),
            "buffer": lambda: self.buffers[0],
            "shared": lambda: SharedHandle("memfd", (1, 2), 64),
            "space": lambda: "",
            "source": lambda: KernelSource(
                device.info.formats[0], TILE, "one", (Param("a", ParamKind.BUFFER, DType.F32),)
            ),
            "timeline": lambda: self.rng.choice([self.queue, self.queue, self.gate]),
            "waits": lambda: [point],
            "points": lambda: [point],
            "point": lambda: point,
            "timeout_s": lambda: 0.01,
            "wait_all": lambda: True,
            "host_driven": lambda: False,
            "value": lambda: self.rng.choice([1, 2, 3]),
            "failure": lambda: None,
            "function": lambda: lambda: None,
            "callback": lambda: lambda failure: None,
            "commands": lambda: [fill, CopyCommand(other, region, (0,))],
            "graph": lambda: device.record([fill]),
            "slots": list,
            "args": lambda: [self.buffers[0], 3],
            "program": lambda: stale,
            "launchable": lambda: stale,
            "grid": lambda: (1, 1, 1),
            "fault": lambda: Fault(FAILURE, "bind", 10**9),
            "spec": lambda: GroupSpec(f"k{self.rng.random()}", 0, (self.name,), 0.01),
            "group": lambda: group,
            "call": lambda: Collective(CollectiveKind.ALL_REDUCE, DType.F32, 4),
            "ranks": lambda: [0],
            "cause": lambda: FAILURE,
            "operator": lambda: None,
            "constants": dict,
        }
        self.junk = [*JUNK, stale, group, point, self.gate, LaunchCommand(stale, (1, 1, 1)), fill]

    def argument(self, name):
        """A right one, a wrong one, or a right one of which one part is wrong."""
        lot = self.rng.random()
        if lot < 0.6:
            return self.right[name]()
        wrong = self.rng.choice(self.junk)
        if name == "timeout_s" and isinstance(wrong, int | float) and wrong > 0.5:
            return 0.01  # right, and would take its time
        if lot < 0.8:
            return wrong
        return self.spoil(self.right[name](), wrong)

    def spoil(self, value, wrong):
        if is_dataclass(value) and not isinstance(value, Handle):  # a forged handle is no mistake
            name = self.rng.choice(fields(value)).name
            part = self.spoil(getattr(value, name), wrong) if self.rng.random() < 0.3 else wrong
            if name == "timeout_s":
                part = 0.01
            with contextlib.suppress(TypeError, ValueError):
                return replace(value, **{name: part})
        if isinstance(value, list | tuple) and value:
            items = list(value)
            items[self.rng.randrange(len(items))] = wrong
            return type(value)(items)
        return wrong

    def one(self):
        hook = self.rng.choice(HOOKS)
        names = [name for name in get_type_hints(getattr(DeviceSpec, hook)) if name != "return"]
        arguments = [self.argument(name) for name in names]
        try:
            getattr(self.device, hook)(*arguments)
        except HalError:
            return
        except Exception as error:
            text = f"{hook}({', '.join(map(shown, arguments))}) raised {error!r}"
            raise AssertionError(text) from error


HOOKS = [h for h in hooks(DeviceSpec) if h not in ("close", "reset", "describe", *NOTICES)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpu:0", "reference:0"])
def test_wrong_calls_raise_the_contracts_errors_and_close_raises_nothing(name):
    calls = Calls(name, seed=1)
    for number in range(CALLS):
        calls.one()
        if number % 200 == 199 or calls.device.health().state.value != "ok":
            calls.device.close()
            calls.open()
    calls.device.close()


@pytest.mark.parametrize("value", [2**63, 2**64, HUGE], ids=["2**63", "2**64", "huge"])
def test_a_value_beyond_64_bits_is_refused(device, value):
    with pytest.raises(InvalidCall, match="value is beyond 64 bits"):
        device.signal(device.create_timeline(True), value, None)


@pytest.mark.parametrize(
    ("field", "wrong", "said"),
    [
        ("key", 3, "spec.key must be a str, is 3"),
        ("rank", "0", "spec.rank must be an int, is '0'"),
        ("peers", ("cpu:0", None), r"spec.peers\[1\] must be a str, is None"),
        ("peers", "cpu:0", "spec.peers must be a tuple, is 'cpu:0'"),
        ("timeout_s", 1j, "spec.timeout_s must be a float, is 1j"),
        ("rank", HUGE, "spec.rank is beyond 64 bits: a int that cannot be shown"),
    ],
    ids=["key", "rank", "peer", "peers", "timeout", "huge"],
)
def test_a_wrong_field_is_named_with_its_value(field, wrong, said):
    spec = replace(GroupSpec("k", 0, ("cpu:0",), 1.0), **{field: wrong})
    with pytest.raises(InvalidCall, match=said):
        check_kind("here", "spec", spec, GroupSpec)


def test_a_group_is_aborted_with_a_failure_alone():
    with hal.open("reference:0") as device:
        group = device.create_group(GroupSpec("alone", 0, (device.name,), 1.0))
        with pytest.raises(InvalidCall, match="abort: cause must be a Failure, is 'because'"):
            device.abort(group, "because")
        with pytest.raises(InvalidCall, match="abort: expected a Group, got None"):
            device.abort(None, FAILURE)
        assert device.async_error(group) is None
