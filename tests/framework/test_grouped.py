"""Products of rows by groups against those of PyTorch: `grouped_mm`, and one row after another."""

import numpy as np
import pytest

import stack.framework as ht
from stack.framework import functional as F
from stack.framework.errors import TensorError
from tests.draw import stream

torch = pytest.importorskip("torch")


def both(shape, rng):
    values = rng.standard_normal(shape).astype(np.float32)
    return ht.tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)


@pytest.mark.parametrize(
    ("first", "second"),
    [((24, 8), (3, 8, 4)), ((3, 4, 8), (8, 24)), ((8, 24), (24, 4)), ((3, 4, 8), (3, 8, 4))],
    ids=["rows", "columns", "depth", "batches"],
)
def test_all_forms_give_what_pytorch_gives(first, second):
    draw = stream(f"grouped {first}")
    ends = sorted([4 * draw.randint(0, 6), 4 * draw.randint(0, 6), 24])
    rng = np.random.default_rng(draw.randrange(1 << 30))
    (a, ta), (b, tb) = both(first, rng), both(second, rng)
    given, wanted = {}, {}
    if (len(first), len(second)) != (3, 3):
        given["offs"] = ht.tensor(ends, dtype=ht.int32)
        wanted["offs"] = torch.tensor(ends, dtype=torch.int32)
    y, want = F.grouped_mm(a, b, **given), torch.nn.functional.grouped_mm(ta, tb, **wanted)
    close(y, want)
    (y * y).sum().backward()
    (want * want).sum().backward()
    close(a.grad, ta.grad)
    close(b.grad, tb.grad)


def test_rows_of_any_order_and_of_no_group():
    rng = np.random.default_rng(stream("rows").randrange(1 << 30))
    (x, tx), (w, tw) = both((300, 5), rng), both((4, 5, 3), rng)
    group = rng.integers(-1, 5, 300)
    y = F.grouped_matmul(x, w, ht.tensor(group))
    known = torch.tensor((group >= 0) & (group < 4))
    want = torch.einsum("nk,nkm->nm", tx, tw[torch.tensor(group.clip(0, 3))]) * known[:, None]
    close(y, want)
    slope = rng.standard_normal((300, 3)).astype(np.float32)
    (y * ht.tensor(slope)).sum().backward()
    (want * torch.tensor(slope)).sum().backward()
    close(x.grad, tx.grad)
    close(w.grad, tw.grad)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: F.grouped_matmul(x, x, x[0]), r"takes \[rows, depth\]"),
        (lambda x: F.grouped_matmul(x, ht.ones(2, 5, 3), ht.ones(4)), "groups are integers"),
        (lambda x: F.grouped_matmul(x, ht.ones(2, 5, 3), ht.arange(3)), "as many groups"),
        (lambda x: F.grouped_matmul(x, ht.ones(2, 4, 3), ht.arange(4)), "inner sizes 5 and 4"),
        (lambda x: F.grouped_mm(x, ht.ones(2, 5, 3)), "where groups"),
        (lambda x: F.grouped_mm(x[0], x, offs=ht.arange(3)), "takes matrices"),
    ],
)
def test_what_does_not_fit_is_refused(call, said):
    with pytest.raises(TensorError, match=said):
        call(ht.ones(4, 5))


def close(found, want):
    np.testing.assert_allclose(found.detach().numpy(), want.detach().numpy(), rtol=1e-4, atol=1e-4)
