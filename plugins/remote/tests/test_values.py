"""What crosses a connection is what was meant: every value of the contract, and nothing else."""

import math
import struct

import msgpack
import pytest
from hal_plugin_remote.values import error, plain, plain_error, value
from hypothesis import given
from hypothesis import strategies as st

from hal.core import errors
from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, InvalidCall, Scope
from hal.core.values import (
    AllocOptions,
    Buffer,
    Collective,
    CollectiveKind,
    Fault,
    FillCommand,
    GroupSpec,
    Handle,
    KernelSource,
    MemoryStats,
    OpenOptions,
    Param,
    ParamKind,
    ReduceKind,
    Region,
    Slot,
    Span,
)

NUMBERS = st.integers(0, 2**63 - 1)
TEXT = st.text(max_size=20)
FAILURES = st.builds(
    Failure,
    st.sampled_from(FailureKind),
    st.sampled_from(Scope),
    TEXT,
    TEXT,
    TEXT,
    st.booleans(),
)
PARAMS = st.builds(
    Param, TEXT, st.sampled_from(ParamKind), st.sampled_from(DType), st.booleans(), st.booleans()
)
VALUES = st.one_of(
    FAILURES,
    PARAMS,
    st.builds(Fault, FAILURES, TEXT, NUMBERS),
    st.builds(AllocOptions, TEXT, st.booleans(), st.booleans(), TEXT),
    st.builds(OpenOptions, TEXT, st.dictionaries(TEXT, TEXT, max_size=3)),
    st.builds(GroupSpec, TEXT, NUMBERS, st.tuples(TEXT, TEXT), st.floats(0, math.inf)),
    st.builds(MemoryStats, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    st.builds(Span, TEXT, NUMBERS, NUMBERS, NUMBERS, st.none() | st.floats(0, 1e9)),
    st.builds(KernelSource, TEXT, TEXT, TEXT, st.tuples(PARAMS), st.tuples(st.tuples(TEXT, TEXT))),
    st.builds(
        Collective,
        st.sampled_from(CollectiveKind),
        st.sampled_from(DType),
        NUMBERS,
        st.sampled_from(ReduceKind),
        NUMBERS,
        st.tuples(st.tuples(NUMBERS, NUMBERS)),
    ),
    st.builds(Slot, NUMBERS),
    st.binary(max_size=8),
    st.integers(-(2**63), 2**64 - 1),
    st.booleans() | st.none() | TEXT,
)


def crossed(thing, handles=()):
    """What arrives of `thing`, through bytes."""
    table = {handle.native: handle for handle in handles}
    text = msgpack.packb(plain(thing, lambda handle: handle.native))
    return value(msgpack.unpackb(text, use_list=False, strict_map_key=False), table.__getitem__)


@pytest.mark.slow
@given(VALUES)
def test_a_value_arrives_as_it_was(thing):
    assert crossed(thing) == thing


@given(st.binary(min_size=8, max_size=8))
def test_a_float_keeps_its_bits(bits):
    assert struct.pack("<d", crossed(struct.unpack("<d", bits)[0])) == bits


def test_a_handle_arrives_as_the_handle_of_its_number():
    buffer = Buffer("cpu:0", 0, 7, 64, "global")
    command = FillCommand(Region(buffer, 8, 16), b"ab", (0, 1))
    assert crossed(command, [buffer]) == command
    assert crossed(command, [buffer]).dst.buffer is buffer


@pytest.mark.parametrize("thing", [object(), {1, 2}, print, 1j, Handle])
def test_what_is_no_value_of_the_contract_is_refused(thing):
    with pytest.raises(InvalidCall, match="cannot cross"):
        plain(thing, lambda handle: 0)


@pytest.mark.parametrize(
    "table",
    [
        {"c": "Handle", "v": []},
        {"c": "print", "v": [1]},
        {"e": "Path", "v": "x"},
        {"x": 1},
        {"e": "DType", "v": "y"},
    ],
)
def test_what_is_no_table_of_a_value_is_refused(table):
    with pytest.raises((KeyError, TypeError, ValueError)):
        value(table, lambda name: None)


FAILURE = Failure(FailureKind.HANG, Scope.DEVICE, "cpu:0", "launch", "it hangs")


@pytest.mark.parametrize(
    "thrown",
    [
        errors.InvalidCall("cpu:0: no"),
        errors.StaleHandle("cpu:0: gone"),
        errors.Unsupported("cpu:0: never"),
        errors.UnsupportedFormat("cpu:0: ptx/1"),
        errors.CompileError("cpu:0: bad", "log", 3),
        errors.OutOfMemory("cpu:0: full", 10, 5, {"weights": 5}),
        errors.OperationFailed(FAILURE),
        errors.DeviceLost(FAILURE),
        errors.PluginError("cpu:0: broken"),
        errors.DeadlineExceeded("cpu:0: late"),
    ],
)
def test_an_error_arrives_as_it_was_with_this_sides_name(thrown):
    table = msgpack.unpackb(msgpack.packb(plain_error(thrown)), use_list=False)
    came = error(table, lambda text: text.replace("cpu:0", "remote:0"))
    assert type(came) is type(thrown)
    if isinstance(thrown, errors.OperationFailed):
        assert came.failure == FAILURE
    else:
        assert str(came) == str(thrown).replace("cpu:0", "remote:0")
        facts = {key: item for key, item in vars(thrown).items() if not key.startswith("_")}
        assert vars(came) == facts
