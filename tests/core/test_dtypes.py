"""The facts of element types, against those of numpy and ml_dtypes."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from hal.core.dtypes import DType

FLOATS = [d for d in DType if d.is_float]


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_float_is_as_wide_as_elsewhere(dtype):
    facts = ml_dtypes.finfo(getattr(ml_dtypes, dtype.numpy, dtype.numpy))
    assert (facts.bits, facts.nmant, facts.nexp) == (dtype.bits, dtype.mantissa, dtype.exponent)
    assert float(facts.max) == dtype.largest
    assert float(facts.smallest_normal) == 2.0 ** (1 - dtype.bias)


@pytest.mark.parametrize("dtype", DType)
def test_the_type_in_which_it_is_computed_holds_it(dtype):
    wide = dtype.computed_in
    assert wide.computed_in is wide
    assert wide is dtype or (wide.mantissa > dtype.mantissa and wide.exponent >= dtype.exponent)


@pytest.mark.parametrize("dtype", DType)
def test_arrays_take_what_numpy_says(dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype.numpy, dtype.numpy))
    assert dtype.nbytes_of(7) == np.zeros(7, kind).nbytes == 7 * dtype.nbytes


def test_elements_may_be_smaller_than_a_byte():
    assert [DType.nbytes_of(SimpleNamespace(bits=4), n) for n in range(4)] == [0, 1, 1, 2]
