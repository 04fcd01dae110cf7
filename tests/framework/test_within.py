"""Indices, labels and tokens of the host that are out of range raise where PyTorch does."""

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import stack.framework as ht
import stack.framework.functional as F
from stack.framework import within

ROWS = 5
TABLE = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)

# (package, its functional, a table of ROWS rows, an index of one element)
CALLS = {
    "getitem": lambda m, f, w, i: w[i],
    "getitem of two": lambda m, f, w, i: w.T[m.tensor([0]), i],
    "setitem": lambda m, f, w, i: w.clone().__setitem__(i, 1.0),
    "index_select": lambda m, f, w, i: w.index_select(0, i),
    "gather": lambda m, f, w, i: w.gather(0, i.reshape(1, 1)),
    "take": lambda m, f, w, i: w[:, 0].take(i),
    "scatter": lambda m, f, w, i: w.scatter(0, i.reshape(1, 1), 1.0),
    "scatter_add": lambda m, f, w, i: w.scatter_add(0, i.reshape(1, 1), m.ones(1, 1)),
    "scatter_reduce": lambda m, f, w, i: w.scatter_reduce(0, i.reshape(1, 1), m.ones(1, 1), "amax"),
    "index_add": lambda m, f, w, i: w.index_add(0, i, m.ones(1, 3)),
    "index_copy": lambda m, f, w, i: w.index_copy(0, i, m.ones(1, 3)),
    "index_fill": lambda m, f, w, i: w.index_fill(0, i, 1.0),
    "index_put": lambda m, f, w, i: w.index_put((i,), m.ones(1, 3)),
    "put": lambda m, f, w, i: w[:, 0].clone().put_(i, m.ones(1)),
    "embedding": lambda m, f, w, i: f.embedding(i, w),
    "cross_entropy": lambda m, f, w, i: f.cross_entropy(w[:, :1].T, i),
    "cross_entropy of images": lambda m, f, w, i: f.cross_entropy(w.T[:1, :, None], i[None]),
    "nll_loss": lambda m, f, w, i: f.nll_loss(w[:, :1].T, i, ignore_index=7),
    "multi_margin_loss": lambda m, f, w, i: f.multi_margin_loss(w[:, :1].T, i),
    "one_hot": lambda m, f, w, i: f.one_hot(i, ROWS),
}
VALUES = (-100, -ROWS - 1, -ROWS, -1, 0, ROWS - 1, ROWS, 7, 2**40)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_raises_for_the_values_that_pytorch_refuses(call):
    theirs, ours = torch.from_numpy(TABLE), ht.from_numpy(TABLE)
    refused = {}
    for value in VALUES:
        try:
            call(torch, TF, theirs, torch.tensor([value]))
            refused[value] = False
        except (IndexError, RuntimeError):
            refused[value] = True
    assert set(refused.values()) == {True, False}
    for value, wrong in refused.items():
        if wrong:
            with pytest.raises(ht.RangeError, match=rf"index {value} is out of range for size"):
                call(ht, F, ours, ht.tensor([value]))
        else:
            call(ht, F, ours, ht.tensor([value]))


def test_the_error_names_operation_value_size_and_line():
    table = ht.from_numpy(TABLE)
    with pytest.raises(IndexError, match=r"(?s)embedding: index 7 .*size 5.*test_within\.py:\d+"):
        F.embedding(ht.tensor([0, 7]), table)
    with pytest.raises(ht.RangeError, match="getitem: index 5 is out of range"):
        table[[0, 5]]
    with pytest.raises(IndexError, match="getitem: index 5 is out of range"):
        table[5]


def test_only_values_that_a_view_shows_count():
    table = ht.from_numpy(TABLE)
    tokens = ht.tensor([[9, 1, 2, -100], [0, 3, 4, 9]])
    within_range = tokens[:, 1:3].T.flip(0).reshape(4).to(ht.int64)
    assert F.embedding(within_range, table)[:, 0].tolist() == [6.0, 12.0, 3.0, 9.0]
    labels = tokens[0, 1:]
    want = TF.cross_entropy(torch.zeros(3, ROWS), torch.tensor([1, 2, -100]))
    assert F.cross_entropy(ht.zeros(3, ROWS), labels).item() == pytest.approx(want.item())
    short = ht.tensor(np.array([[0, 9], [1, 2]], np.int32))
    for wrong in (tokens[:, 1:], tokens[1:, ::3], short.long()[:1]):
        with pytest.raises(ht.RangeError, match=r"index (-100|9) is"):
            F.embedding(wrong, table)
    with pytest.raises(ht.RangeError, match="index 5 is out of range"):
        F.embedding(ht.arange(8)[2:], table)


def test_the_values_are_those_at_the_time_of_the_call():
    data = np.array([0, 4])
    index, table = ht.from_numpy(data), ht.from_numpy(TABLE)
    data[:] = 9
    assert table[index][:, 0].tolist() == [0.0, 12.0]
    index[0] = 4  # computed on the device from here on
    assert table[index][:, 0].tolist() == [12.0, 12.0]


def test_what_a_plan_writes_is_no_longer_known():
    at, table = ht.tensor([0]), ht.from_numpy(TABLE)
    before = at.node

    @ht.jit
    def forward():
        at.add_(1)
        return table[at]

    assert [forward()[0, 0].item() for _ in range(ROWS - 1)] == [3.0, 6.0, 9.0, 12.0]
    assert within.values_of(before) is None
    at.copy_(ht.tensor([-1]))
    assert table[at][0, 0].item() == 12.0


@pytest.mark.parametrize("dynamic", [False, True, None])
def test_under_jit_each_call_is_checked(dynamic):
    table = ht.from_numpy(TABLE)

    @ht.jit(dynamic=dynamic)
    def loss(tokens, labels):
        rows = F.embedding(tokens, table)
        return F.cross_entropy(rows.reshape(-1, 3), labels.reshape(-1)[1:])

    for n in (4, 5, 6):
        tokens, labels = np.arange(n) % ROWS, np.arange(n + 1) % 3
        labels[0], labels[1] = 7, -100  # the first is not used, the second does not count
        want = TF.cross_entropy(torch.tensor(TABLE[tokens]), torch.tensor(labels[1:]))
        for kind in (ht.tensor, np.array):
            got = loss(kind(tokens), kind(labels)).item()
            assert got == pytest.approx(want.item(), rel=1e-5)
            wrong = tokens.copy()
            wrong[-1] = ROWS
            with pytest.raises(ht.RangeError, match=r"(?s)embedding: index 5 .*test_within\.py"):
                loss(kind(wrong), kind(labels))
            wrong = labels.copy()
            wrong[-1] = 3
            with pytest.raises(ht.RangeError, match=r"cross_entropy: index 3 .*size 3"):
                loss(kind(tokens), kind(wrong))


def test_positions_beyond_a_table_raise_at_the_first_such_length():
    table = ht.from_numpy(TABLE)

    @ht.jit
    def rows(x):
        return x + table[ht.arange(x.shape[0])]

    for n in (2, 3, 4, 5):
        assert rows(ht.zeros(n, 3)).numpy().tolist() == TABLE[:n].tolist()
    for n in (6, 7):
        with pytest.raises(ht.RangeError, match="index 5 is out of range for size 5"):
            rows(ht.zeros(n, 3))


def test_where_of_a_condition_alone_gives_the_places():
    data = np.array([[True, False, True], [False, False, True]])
    ours, theirs = ht.where(ht.tensor(data)), torch.where(torch.from_numpy(data))
    assert [x.tolist() for x in ours] == [x.tolist() for x in theirs]
    with pytest.raises(ht.TensorError, match="both values or none"):
        ht.where(ht.tensor(data), 1.0)
