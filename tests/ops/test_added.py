"""Adding an operator is one row: nothing else has to be told of it."""

import os
import subprocess
import sys
from unittest.mock import patch

import numpy as np
import pytest

import stack.framework as ht
from stack.framework.expr.public import FUNCTIONS, METHODS
from stack.framework.operators import Operators
from stack.ops import OPS
from tests.ops.added import add_exp2, add_softsign, show

X = np.linspace(-3, 3, 21, dtype=np.float32).reshape(3, 7)
ROWS = {
    "softsign_added": (add_softsign, lambda x: x / (1 + abs(x)), lambda x: (1 + abs(x)) ** -2.0),
    "exp2_added": (add_exp2, np.exp2, lambda x: np.exp2(x) * np.log(2)),
}


@pytest.fixture(params=ROWS)
def added(request):
    """The name of an operator that is there for the test, what it computes, and its slope."""
    add, value, slope = ROWS[request.param]
    with patch.dict(OPS), patch.dict(FUNCTIONS), patch.dict(METHODS):
        show(add())
        yield request.param, value(X), slope(X)
    for name in [n for n in vars(Operators) if n.startswith(request.param)]:
        delattr(Operators, name)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("device", ["cpu:0", "opencl:0", "sunway:0"])
def test_an_added_operator_is_function_and_method_eager_and_captured_with_a_gradient(added, device):
    name, value, slope = added
    function, method = getattr(ht, name), getattr(ht.Tensor, name)
    x = ht.tensor(X, device=device, requires_grad=True)
    np.testing.assert_allclose(function(x).numpy(), value, rtol=1e-6)
    np.testing.assert_allclose(method(x.detach()).numpy(), value, rtol=1e-6)
    np.testing.assert_allclose(ht.jit(function)(x.detach()).numpy(), value, rtol=1e-6)
    function(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), slope, rtol=1e-5)
    integers = ht.tensor([-1, 0, 2], device=device)
    assert function(integers).dtype is ht.float32


def test_an_added_operator_has_its_in_place_form_text_and_refusals():
    with patch.dict(OPS), patch.dict(FUNCTIONS), patch.dict(METHODS):
        show(add_softsign())
        x = ht.tensor([1.0, -3.0])
        assert x.softsign_added_() is x
        assert x.tolist() == [0.5, -0.75]
        assert "element by element" in ht.softsign_added.__doc__
        with pytest.raises(ht.TensorError, match="softsign_added: needs a tensor"):
            ht.softsign_added(1.0)
    with pytest.raises(AttributeError, match="softsign_added"):
        _ = ht.softsign_added


@pytest.mark.slow
@pytest.mark.turns
def test_the_sampled_tests_take_up_an_added_operator():
    files = ["reference", "gradient", "device"]
    command = [
        *(sys.executable, "-m", "pytest", "-p", "tests.ops.added", "-n", "0", "-q", "-rA"),
        *(
            "-k",
            "added and not 16 and not f64 and not groups",
            *(f"tests/ops/test_{name}.py" for name in files),
        ),
    ]
    all_of_them = {**os.environ, "HAL_TEST_ALL": "1"}
    done = subprocess.run(
        command, env=all_of_them, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    passed = [line for line in done.stdout.splitlines() if line.startswith("PASSED")]
    for name in ("softsign_added", "exp2_added"):
        for file in files:
            assert any(f"test_{file}.py" in line and name in line for line in passed), (name, file)
