"""Errors name the operation, the operands and the line of the caller."""

import inspect
import re

import numpy as np
import pytest

import hal
import stack.framework as ht
import stack.framework.functional as F
from hal.core.errors import OutOfMemory
from stack.framework import devices as device
from stack.framework import nn
from stack.runtime.opening import engine_of

CASES = {
    "add": (lambda: ht.ones(2, 3) + ht.ones(4), r"add: shapes \[2, 3\] and \[4\] do not broadcast"),
    "matmul": (
        lambda: ht.ones(2, 3) @ ht.ones(4, 5),
        r"matmul: inner sizes differ: float32\[2, 3\] @ float32\[4, 5\]",
    ),
    "matmul with a number": (lambda: ht.ones(2, 3) @ 2, r"matmul: needs at least 1 axis .* @ 2"),
    "sizes": (lambda: ht.ones((2, 3), 4), r"sizes are integers.*got \(\(2, 3\), 4\)"),
    "a type by its name": (
        lambda: ht.zeros(2, dtype="float32"),
        "full: an element type is one of this package's, such as float32, not 'float32'",
    ),
    "products of matrices": (
        lambda: ht.bmm(ht.ones(2, 2), ht.ones(2, 2)),
        r"bmm: operands have 3 and 3 axes, got float32\[2, 2\] and float32\[2, 2\]",
    ),
    "einsum": (
        lambda: ht.einsum("ij->ik", ht.ones(2, 2)),
        "einsum: 'ij->ik' gives 'k', which no operand has",
    ),
    "complex parameters": (
        lambda: nn.Parameter(ht.ones(2).cfloat()),
        "a parameter is a tensor of real numbers, not a ComplexTensor; hold view_as_real",
    ),
    "sizes of an array": (lambda: ht.ones(np.array([2.5])), r"sizes are integers.*got \(array"),
    "linear": (
        lambda: nn.Linear(3, 2)(ht.ones(5, 4)),
        r"linear: input float32\[5, 4\] does not fit weight float32\[2, 3\]",
    ),
    "reshape": (
        lambda: ht.ones(6).reshape(4, -1),
        r"reshape: 6 elements do not fill the shape \[4, -1\]",
    ),
    "permute": (
        lambda: ht.ones(2, 3).permute(0, 0),
        r"permute: \[0, 0\] is not an order of 2 axes",
    ),
    "transpose": (lambda: ht.ones(2, 3).transpose(0, 2), "transpose: dim 2 is out of range"),
    "cat": (
        lambda: ht.cat([ht.ones(2, 3), ht.ones(2, 2)]),
        r"cat: shapes must be equal but on dim 0.*float32\[2, 2\]",
    ),
    "expand": (lambda: ht.ones(2, 3).expand(2, 4), r"expand: float32\[2, 3\] does not expand"),
    "index": (lambda: ht.ones(3)[3], "getitem: index 3 is out of range for dim 0 of size 3"),
    "indices": (lambda: ht.ones(3)[0, 0], r"getitem: 2 indices for float32\[3\]"),
    "text": (lambda: ht.ones(3)["a"], "getitem: cannot index with str"),
    "float index": (lambda: ht.ones(3)[ht.ones(1)], "getitem: an index tensor holds integers"),
    "bool minus": (lambda: ht.ones(2).bool() - ht.ones(2).bool(), "sub: - is not defined for bool"),
    "cross entropy": (
        lambda: F.cross_entropy(ht.ones(2, 3), ht.ones(2)),
        r"cross_entropy: targets are integers .*target float32\[2\]",
    ),
    "embedding": (lambda: nn.Embedding(3, 2)(ht.ones(2)), "embedding: .* by integers"),
    "layer norm": (lambda: nn.LayerNorm(3)(ht.ones(2, 4)), "layer_norm: the last axes"),
    "mse": (lambda: F.mse_loss(ht.ones(2), ht.ones(2, 1)), "mse_loss: .* differ in shape"),
    "in place": (
        lambda: ht.ones(2).add_(ht.ones(3, 2)),
        r"add, in place: float32\[3, 2\] does not expand to \[2\]",
    ),
    "in place type": (
        lambda: ht.arange(2).add_(0.5),
        "add: a float32 result does not fit into a int64 tensor",
    ),
    "too big": (lambda: ht.ones(2, dtype=ht.uint8) + 300, "add: .*300.*u8"),
    "where": (lambda: ht.where(ht.ones(2), 1, 0), "where: the condition must be a bool tensor"),
    "arange": (lambda: ht.arange(0, 3, 0), "arange.* does not end"),
    "split": (lambda: ht.ones(5).split([2, 2]), r"split: sizes \[2, 2\] do not add up to 5"),
    "numpy operand": (
        lambda: F.mse_loss(ht.ones(2), np.ones(2)),
        r"mse_loss: got a numpy array .*tensor\(\.\.\.\)",
    ),
    "no tensor": (lambda: ht.where(True, 1, 2), "where: needs a tensor"),
    "nothing": (lambda: ht.cat([]), "cat: needs a tensor"),
    "gelu": (lambda: F.gelu(ht.ones(1), "fast"), "gelu: approximate is"),
    "a list in a list": (lambda: ht.cat([ht.ones(1), [ht.ones(1)]]), "cat: .* element 1 .* list"),
    "a number in a list": (lambda: ht.stack([ht.ones(()), 3]), "stack: .* element 1 .* type int"),
    "one tensor for a list": (lambda: ht.cat(ht.ones(2)), r"cat: .* got one: float32\[2\]"),
}


@pytest.mark.parametrize("name", CASES)
def test_messages_say_what_and_where(name):
    call, pattern = CASES[name]
    with pytest.raises(ht.TensorError, match=pattern) as caught:
        call()
    assert re.search(r"\n  called at .*test_errors\.py:\d+$", str(caught.value))
    assert caught.value.__cause__ is None


def test_an_argument_of_no_such_kind_is_told_with_operation_and_line():
    with pytest.raises(
        ht.TensorError, match=r"cat\(list of Tensor, 'a'\): .*\n  called at"
    ) as told:
        ht.cat([ht.ones(2)], dim="a")
    assert isinstance(told.value.__cause__, TypeError)


def test_tensors_of_two_devices_do_not_mix(engine, monkeypatch):
    monkeypatch.setitem(device.engines, "other:0", type(engine)())
    a, b = ht.ones(2), ht.ones(2, device="other:0")
    with pytest.raises(
        ht.TensorError, match=r"on interpreter:0 and on other:0; move one with \.to"
    ):
        a + b
    assert (a + b.to("interpreter:0")).tolist() == [2, 2]
    assert b.to(a).device == "interpreter:0"


def test_a_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match="Module defines no forward"):
        nn.Module()(np.ones(1))


def test_assignment_through_data_keeps_type():
    x = ht.ones(2, requires_grad=True)
    x.data = ht.zeros(2)
    assert x.tolist() == [0, 0]
    with pytest.raises(ht.TensorError, match=r"f32\[2\] cannot take a value of f32\[3\]"):
        x.data = ht.zeros(3)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.split(1),
        lambda x: x.split([1]),
        lambda x: x.chunk(1),
        lambda x: x.unbind(),
    ],
)
def test_a_tensor_without_axes_is_not_cut_along_one(use):
    with pytest.raises(ht.TensorError, match=r"float32\[\] has no axis to .*reshape\(1\)"):
        use(ht.tensor(3.0))


@pytest.mark.parametrize("data", [[[1, 2], [3]], [1, [3]], [[1.5], 2]])
def test_a_ragged_list_is_no_tensor(data):
    with pytest.raises(ht.TensorError, match=r"cannot be made of this list: .*inhomogeneous"):
        ht.tensor(data)


@pytest.mark.parametrize("data", [["abc"], [1, "x"], [None, 1j]])
def test_words_are_no_numbers_of_a_type(data):
    with pytest.raises(ht.TensorError, match="cannot be made of this list"):
        ht.tensor(data, dtype=ht.int32)


def test_a_name_that_is_not_here_comes_with_the_nearest():
    with pytest.raises(AttributeError, match=r"nn\.MaxPool4d is not here; .*MaxPool2d"):
        _ = nn.MaxPool4d
    with pytest.raises(AttributeError, match=r"framework\.cumsums is not here; .*cumsum"):
        _ = ht.cumsums


def test_what_fails_when_a_value_is_asked_for_is_told_with_the_line_that_called_it():
    with engine_of(hal.open("cpu:0", ())) as own, device.default_engine("small:0", own):
        column, row = ht.tensor(np.ones((1 << 20, 1))), ht.tensor(np.ones((1, 1 << 20)))
        asked = ht.tensor([1.0]) + 1
        for _ in range(2):  # on a path that is known, too
            kept = column * row
            with pytest.raises(OutOfMemory) as caught:
                asked.numpy()
            line = inspect.currentframe().f_lineno - 3
            [note] = caught.value.__notes__
            assert f"f64[1048576,1048576] by mul, called at {__file__}:{line}" in note
            assert "by add, called at" in note
            del kept, caught  # whose frames hold what was to be computed
            np.testing.assert_array_equal(asked.numpy(), [2])
            asked = ht.tensor([1.0]) + 1
