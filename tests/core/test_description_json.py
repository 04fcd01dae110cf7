"""A description survives JSON, whatever is in it."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from hal.core.description import (
    DeviceInfo,
    Feature,
    Limits,
    Link,
    MatrixUnit,
    MemorySpace,
    NumericProfile,
    SpaceKind,
)
from hal.core.description_json import from_json, to_json
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall

names = st.text(max_size=8)
counts = st.integers(0, 2**64)
rates = st.floats(0, allow_nan=False, allow_infinity=False)
dtypes = st.sampled_from(DType)


def many(values):
    return st.lists(values, max_size=3).map(tuple)


infos = st.builds(
    DeviceInfo,
    name=names,
    plugin=names,
    description=names,
    fingerprint=names,
    contract=counts,
    limits=st.builds(
        Limits, grid=st.tuples(counts, counts, counts), args=counts, alloc_nbytes=counts,
        queues=counts, instances=counts, caches=many(counts), mesh=st.tuples(counts, counts),
        masked_nbytes=counts,
    ),
    spaces=many(
        st.builds(
            MemorySpace, names, st.sampled_from(SpaceKind), counts, counts, st.booleans(),
            bandwidth=rates,
        )
    ),
    dtypes=st.dictionaries(dtypes, rates),
    numeric=st.builds(
        NumericProfile, st.dictionaries(names, rates), st.booleans(), st.booleans(),
        st.dictionaries(dtypes, dtypes),
    ),
    formats=many(names),
    features=st.frozensets(st.sampled_from(Feature)),
    matrix_units=many(
        st.builds(MatrixUnit, counts, counts, counts, dtypes, dtypes, st.none() | dtypes)
    ),
    scale=names,
    links=many(st.builds(Link, names, names, rates, rates)),
    declared=st.dictionaries(names, rates),
    facts=st.dictionaries(names, names),
)  # fmt: skip


@given(infos)
def test_reading_what_was_written_gives_an_equal_description(info):
    assert from_json(json.loads(json.dumps(to_json(info)))) == info


def test_another_table_is_refused(implementation):
    table = to_json(implementation.info)
    for wrong in ({}, table | {"features": ["fly"]}, table | {"limits": {}}, table | {"more": 1}):
        with pytest.raises(InvalidCall, match="not a device description"):
            from_json(wrong)
