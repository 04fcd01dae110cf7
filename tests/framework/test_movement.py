"""Movement, indexing and creation agree with torch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import stack.framework as ht
import stack.framework.functional as F

MOVES = {
    "reshape": lambda x: x.reshape(4, -1),
    "view": lambda x: x.view((6, 4)),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, -1),
    "T": lambda x: x[0].T,
    "mT": lambda x: x.mT,
    "flatten": lambda x: x.flatten(1),
    "flatten_some": lambda x: x.flatten(0, 1),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "squeeze_all": lambda x: x[:1].squeeze(),
    "squeeze_none": lambda x: x.squeeze(0),
    "expand": lambda x: x[:, :1].expand(5, 2, -1, 4).sum(0),
    "flip": lambda x: x.flip(0, 2),
    "chunk": lambda x: x.chunk(2, 2)[1],
    "split": lambda x: x.split([1, 2], 1)[1],
    "split_size": lambda x: x.split(3, 2)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "tril": lambda x: x.tril(),
    "tril-1": lambda x: x.tril(-1),
    "triu": lambda x: x.triu(1),
    "int": lambda x: x[1],
    "negative_int": lambda x: x[-1, :, -2],
    "slices": lambda x: x[:, 1:, ::2],
    "none": lambda x: x[None, 0, ..., None],
    "ellipsis": lambda x: x[..., 1],
    "empty": lambda x: x[:, 3:],
}


@pytest.mark.parametrize("name", MOVES)
def test_moves(name, agree, draw_floats):
    agree(MOVES[name], MOVES[name], *draw_floats((2, 3, 4)))


@st.composite
def numpy_index(draw):
    one = st.one_of(
        st.integers(-3, 2),
        st.slices(3),
        st.just(None),
    )
    return tuple(draw(st.lists(one, max_size=4)))


@given(numpy_index())
def test_indexing_follows_numpy_also_backwards(index):
    x = np.arange(27).reshape(3, 3, 3)
    if sum(i is not None for i in index) > 3:
        return
    np.testing.assert_array_equal(ht.tensor(x)[index].numpy(), x[index])


@given(numpy_index())
def test_assignment_follows_numpy(index):
    x = np.arange(27.0).reshape(3, 3, 3)
    if sum(i is not None for i in index) > 3:
        return
    t = ht.tensor(x)
    inside = x[index]
    value = -np.arange(1.0, 1 + np.size(inside)).reshape(np.shape(inside))
    t[index] = ht.tensor(value)
    x[index] = value
    np.testing.assert_array_equal(t.numpy(), x)


@pytest.mark.parametrize(
    "select",
    [
        lambda x, i: x[i],
        lambda x, i: x[:, i],
        lambda x, i: x[1, :, i],
        lambda x, i: x[..., i],
        lambda x, i: x.index_select(1, i.flatten()),
    ],
)
def test_integer_tensors_select(select, agree, draw_floats):
    agree(select, select, *draw_floats((2, 2, 2)), np.array([[1, 0, -1], [1, 1, 0]])[:, :2])


def test_gather(agree, draw_floats):
    index = np.array([[0, 2], [1, 1]])
    agree(lambda x, i: x.gather(1, i), lambda x, i: x.gather(1, i), *draw_floats((2, 3)), index)
    agree(lambda x, i: x.gather(0, i), lambda x, i: x.gather(0, i), *draw_floats((4, 2)), index)


def test_cat_and_stack(agree, draw_floats):
    arrays = draw_floats((2, 3), (2, 3))
    for dim in (0, 1, -1):
        agree(
            lambda a, b, d=dim: ht.cat([a, b], d), lambda a, b, d=dim: torch.cat([a, b], d), *arrays
        )
        agree(
            lambda a, b, d=dim: ht.stack([a, b], d),
            lambda a, b, d=dim: torch.stack([a, b], d),
            *arrays,
        )
    assert ht.cat([ht.ones(1), ht.ones(1, dtype=ht.int64)]).dtype is ht.float32


@pytest.mark.parametrize("padding", [(1, 2), (0, 1, 2, 0), (-1, 1), (1, -2, -1, 0)])
def test_pad(padding, agree, draw_floats):
    agree(
        lambda x: F.pad(x, padding, value=3.0),
        lambda x: torch.nn.functional.pad(x, padding, value=3.0),
        *draw_floats((3, 4)),
    )


def test_creation():
    assert ht.arange(5).tolist() == [0, 1, 2, 3, 4]
    assert ht.arange(1, 10, 3).tolist() == [1, 4, 7]
    assert ht.arange(3, 0, -1).tolist() == [3, 2, 1]
    assert ht.arange(0, 1, 0.25).tolist() == [0, 0.25, 0.5, 0.75]
    assert ht.eye(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert ht.full((2,), 7).dtype is ht.int64
    assert ht.ones_like(ht.zeros(2, dtype=ht.bfloat16)).dtype is ht.bfloat16
    assert F.one_hot(ht.tensor([1, 0]), 3).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert ht.zeros(2, 3).shape == ht.zeros((2, 3)).shape == (2, 3)


def test_sizes_come_one_by_one_or_as_a_sequence_or_an_array():
    for sizes in ((2, 3), ((2, 3),), ([2, np.int32(3)],), (np.array([2, 3]),)):
        assert ht.ones(*sizes).shape == (2, 3)


@given(st.floats(-10, 10, width=32), st.floats(-10, 10, width=32), st.integers(0, 9))
def test_linspace(start, end, steps):
    ours, theirs = ht.linspace(start, end, steps).numpy(), torch.linspace(start, end, steps).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=2e-6)
