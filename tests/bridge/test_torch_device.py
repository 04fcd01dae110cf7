"""Tensors of PyTorch on the device "hal" are what they are on its CPU device."""

import copy
import gc
import io
import os
import pickle
import re
import runpy
import select
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import hal  # noqa: E402
import stack.bridge.torch as bridge  # noqa: E402
from hal.core.dtypes import DType  # noqa: E402
from hal.core.wrappers.faults import Faults  # noqa: E402
from stack.bridge.torch import _parts, indices, kernels, names, tape  # noqa: E402
from stack.bridge.torch.handles import SHIFT  # noqa: E402
from stack.framework import devices  # noqa: E402
from stack.runtime import engine_of  # noqa: E402
from stack.runtime.engine import Engine  # noqa: E402
from tests.bridge import torch_models  # noqa: E402
from tests.draw import stream  # noqa: E402

bridge.register()


@pytest.fixture(autouse=True)
def _own_random_state():
    state, seed = torch.random.get_rng_state(), torch.hal.initial_seed()
    yield
    torch.random.set_rng_state(state)
    torch.hal.manual_seed(seed)


def same(mine, theirs, tolerance=0.0):
    assert mine.device.type == "hal"
    assert mine.shape == theirs.shape
    assert mine.dtype == theirs.dtype
    torch.testing.assert_close(mine.cpu(), theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


def _aliasing(x, draw):
    """Some views of views, written in place."""
    for _ in range(6):
        v = x
        for _ in range(draw.randint(1, 3)):
            kind = draw.randrange(6)
            if kind == 0 and v.dim() > 1:
                v = v.transpose(0, -1)
            elif kind == 1 and v.dim():
                v = v[draw.randint(0, v.shape[0] - 1) :]
            elif kind == 2 and v.dim():
                v = v[..., :: draw.randint(1, 2)]
            elif kind == 3 and v.dim() > 1:
                v = v.select(-1, draw.randint(0, v.shape[-1] - 1))
            elif kind == 4 and v.dim() > 1 and v.shape[0] == v.shape[1]:
                v = v.diagonal()
            elif kind == 5 and v.is_contiguous():
                v = v.view(-1)
        kind = draw.randrange(4)
        if kind == 0:
            v.add_(draw.randint(1, 5))
        elif kind == 1:
            v.copy_(torch.arange(v.numel(), dtype=v.dtype).view(v.shape))
        elif kind == 2:
            v[...] = v * 2 - 1
        else:
            v.fill_(draw.randint(-3, 3))


@pytest.mark.slow
@pytest.mark.turns
def test_views_of_views_share_their_memory():
    shape = stream("aliased shape").choice([(4, 4, 3), (7, 5), (12,)])
    mine, theirs = torch.zeros(shape, device="hal"), torch.zeros(shape)
    _aliasing(mine, stream("aliasing"))
    _aliasing(theirs, stream("aliasing"))
    same(mine, theirs)


def test_arguments_are_encoded_alike_by_what_is_compiled_and_by_python():
    x = torch.ones(3, 4, device="hal")
    y, weight = x.t()[1:], torch.nn.Parameter(x)
    usual = (x, [y, None, 2.5], (True, 7, "words"), False, 1.5, weight, x.shape, DType.F32)
    with tape.lock:
        of = kernels.tape_of(0)
        given = kernels.storages, of, of.generation, of.operands
        wanted = kernels.encode_any("a test", of, usual, first := [0.5])
        assert _parts.encode(usual, *given, second := [0.5]) == wanted
        assert kernels.encode("a test", of, list(usual), third := [0.5]) == wanted
        assert first == second == third == [0.5, 2.5, 1.5]
        for rare in (torch.ones(2), torch.float32, x[:, :0], torch.ones(2, 2, device="hal")[1]):
            numbers = []
            assert _parts.encode((1.5, [x, rare]), *given, numbers) is None  # Python decides
            assert numbers == []
        assert _parts.places((x, y), *given[:3], "row") == (
            "row", of.number(kernels.storage_of(x)) << SHIFT,
            of.number(kernels.storage_of(x)) << SHIFT | 4,
        )  # fmt: skip
        assert _parts.places((x, torch.ones(2)), *given[:3], "row") is None


def test_modules_that_wait_for_their_sizes_are_moved():
    layers = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.LazyBatchNorm1d())
    own = list(layers.parameters())
    layers.to("hal")
    assert layers(torch.ones(2, 4, device="hal")).shape == (2, 3)
    assert [tuple(p.shape) for p in own] == [(3, 4), (3,), (3,), (3,)]
    assert {p.device.type for p in own} == {"hal"}


@pytest.mark.slow
@pytest.mark.turns
def test_strides_are_those_of_pytorch():
    theirs = torch.arange(24.0).view(2, 3, 4)
    mine = theirs.to("hal")
    for f in (
        lambda x: x.transpose(1, 2) * 2,
        lambda x: (x.permute(2, 0, 1) + 1).relu(),
        lambda x: x.transpose(0, 1).clone(),
        lambda x: x.t_() if x.dim() == 2 else x[1].t().contiguous(),
        lambda x: x.expand(5, 2, 3, 4),
        lambda x: x.unfold(2, 2, 1),
        lambda x: x.as_strided((2, 2), (1, 2), 3),
    ):
        assert f(mine).stride() == f(theirs).stride()
        same(f(mine), f(theirs))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "bfloat16", "float16", "float64"])
def test_every_type_goes_there_and_back_and_is_shown(dtype):
    theirs = torch.tensor([[0, 1, 1], [2, 3, 250]]).to(getattr(torch, dtype))
    mine = theirs.to("hal")
    same(mine, theirs)
    for x, y in ((theirs, mine), (theirs[:0], mine[:0]), (theirs[0, :0], mine[0, :0])):
        assert repr(y).replace("device='hal:0', ", "").replace(", device='hal:0'", "") == repr(x)
    assert "device='hal:0'" in repr(mine)
    assert mine[1, 1].item() == theirs[1, 1].item()


@pytest.mark.slow
@pytest.mark.turns
def test_memory_is_seen_as_elements_of_another_width():
    """And written so, also where bytes are left over."""
    for old, new in (("uint8", "float32"), ("float64", "int16"), ("int32", "uint8")):
        narrow, wide = getattr(torch, old), getattr(torch, new)
        theirs = torch.arange(3 * 16).to(narrow).view(3, 16)
        mine = theirs.to("hal")
        for x in (mine, theirs):
            part = x.view(wide)[1:, ::2]
            part[0] = 3
            x[2, -1] = 7
        same(mine, theirs)
        same(mine.view(wide)[1:] * 2, theirs.view(wide)[1:] * 2)
    bytes_ = torch.zeros(10, dtype=torch.uint8, device="hal")
    bytes_[:8].view(torch.float32).fill_(1.0)
    assert bytes_.tolist() == [0, 0, 128, 63] * 2 + [0, 0]
    assert bytes_.to(torch.float64).view(torch.int16).shape == (40,)
    for wrong in (lambda: bytes_.view(torch.float32), lambda: bytes_[2:].view(torch.float32)):
        with pytest.raises(RuntimeError, match="must be multiples of 4"):
            wrong()


def test_a_file_of_safetensors_is_loaded_to_the_devices_number(tmp_path, monkeypatch):
    """It knows no other name of a device than those in it."""
    safetensors = pytest.importorskip("safetensors.torch")
    monkeypatch.setenv("HAL_DEVICES", "cpu:0")
    kept = {"w": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    safetensors.save_file({k: v.to("hal") for k, v in kept.items()}, tmp_path / "x.safetensors")
    for device in (0, "cpu"):
        found = safetensors.load_file(tmp_path / "x.safetensors", device=device)
        for name, wanted in kept.items():
            assert found[name].device.type == ("cpu" if device else "hal")
            assert found[name].cpu().equal(wanted)


@pytest.mark.slow
@pytest.mark.turns
def test_elements_are_found_and_counted():
    theirs = torch.tensor([[0.0, 2.0], [3.0, 0.0], [5.0, 6.0]])
    mine = theirs.to("hal")
    same(mine.nonzero(), theirs.nonzero())
    same(mine[mine > 2], theirs[theirs > 2])
    same(mine.masked_select(mine > 7), theirs.masked_select(theirs > 7))
    mine[mine > 2], theirs[theirs > 2] = -1.0, -1.0
    same(mine, theirs)
    same(mine[torch.tensor([2, 0])], theirs[torch.tensor([2, 0])])
    for one, other in zip((mine > 0).min(1), (theirs > 0).min(1), strict=True):
        same(one, other)


def test_a_copy_keeps_what_is_shared_and_required(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    before = list(model.parameters())
    model.to("hal")
    assert model[1].weight is model[0].weight
    assert [id(p) for p in model.parameters()] == [id(p) for p in before]
    twin = copy.deepcopy(model)
    assert twin[1].weight is twin[0].weight
    assert twin[0].weight is not model[0].weight
    same(twin[0].weight.detach(), model[0].weight.detach().cpu())
    assert twin[0].weight.requires_grad
    rows = torch.arange(6.0, device="hal").view(2, 3)
    last, whole, words = copy.deepcopy([rows[1], rows, rows.view(torch.int32).t()])
    whole.zero_()
    assert last.tolist() == [0, 0, 0]
    assert words.shape == (3, 2)
    assert not words.any()
    assert rows[1].tolist() == [3, 4, 5]


@pytest.mark.slow
@pytest.mark.turns
def test_an_equal_seed_gives_equal_numbers():
    torch.manual_seed(3)
    a, b = torch.rand(1000, device="hal"), torch.randn(1000, device="hal")
    state = torch.hal.get_rng_state()
    c = torch.nn.functional.dropout(torch.ones(1000, device="hal"), 0.3)
    torch.hal.set_rng_state(state)
    again = torch.nn.functional.dropout(torch.ones(1000, device="hal"), 0.3)
    torch.manual_seed(3)
    assert a.equal(torch.rand(1000, device="hal"))
    assert b.equal(torch.randn(1000, device="hal"))
    assert c.equal(again)
    assert abs(a.mean().item() - 0.5) < 0.05
    assert abs(b.std().item() - 1) < 0.1
    assert abs((c == 0).float().mean().item() - 0.3) < 0.06


def test_distributions_have_their_means_and_variances():
    """They had no row: gamma and what is made of it, counts of events and of successes."""
    torch.manual_seed(0)
    n = 4000
    gamma, rate = torch.tensor([0.2, 1.0, 7.5]), torch.tensor([0.5, 30.0, 5000.0])
    count, p = torch.tensor([5.0, 40.0, 1000.0, 9.0]), torch.tensor([0.3, 0.9, 0.4, 1.0])
    total = gamma.sum()
    for made, mean, variance in (
        (torch.distributions.Gamma(gamma.to("hal"), 1.0), gamma, gamma),
        (torch.distributions.Poisson(rate.to("hal")), rate, rate),
        (
            torch.distributions.Binomial(count.to("hal"), p.to("hal")),
            count * p,
            count * p * (1 - p),
        ),
        (
            torch.distributions.Dirichlet(gamma.to("hal")),
            gamma / total,
            gamma / total * (1 - gamma / total) / (total + 1),
        ),
    ):
        drawn = made.sample((n,)).cpu().double()
        assert ((drawn.mean(0) - mean).abs() <= 4 * (variance / n).sqrt() + 1e-6).all()
        assert ((drawn.var(0) - variance).abs() <= 0.2 * variance + 1e-6).all()


def test_a_wrong_operand_is_told_at_its_line():
    x = torch.ones(2, 3, device="hal")
    with pytest.raises(RuntimeError, match=r"hal:0 and cpu.*\.to\("):
        x + torch.ones(2, 3)
    with pytest.raises(RuntimeError, match=r"\[2, 3\].*\[4\]"):
        x + torch.ones(4, device="hal")
    with pytest.raises(RuntimeError, match=r"no hal:7"):
        torch.ones(1, device="hal:7")
    with pytest.raises(NotImplementedError, match=r"complex64.*it has bool"):
        torch.ones(1, device="hal", dtype=torch.complex64)
    with pytest.raises(NotImplementedError, match=r"special_airy_ai.out has no row on hal:0"):
        torch.special.airy_ai(x)
    with pytest.raises(NotImplementedError, match=r"_fft_r2c.* gives complex numbers, which hal:0"):
        torch.fft.rfft(x)
    rare = torch.nn.Embedding(3, 2, sparse=True).to("hal")
    with pytest.raises(NotImplementedError, match=r"_sparse_coo_tensor.*sparse=False"):
        rare(torch.tensor([1], device="hal")).sum().backward()
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.ones(1, device="hal").expand(3).add_(1)


def test_a_wrong_call_raises_what_it_raises_on_the_cpu():
    """At its line, before anything is computed."""
    for wrong in (
        lambda x: x @ x,
        lambda x: x.sum(5),
        lambda x: x.gather(2, x.long()),
        lambda x: x.long().add_(0.5),
        lambda x: torch.add(x.long(), 0.5, out=x.long()),
        lambda x: x[torch.ones(5, dtype=torch.bool, device=x.device)],
        lambda x: torch.cat([x, x[:, :2]]),
        lambda x: torch.arange(0, 5, -1, device=x.device),
        lambda x: torch.linalg.solve(x[:, :2], torch.ones(3, 1, device=x.device)),
        lambda x: torch.linalg.solve_triangular(x[:, :2], x.new_ones(3, 1), upper=True),
        lambda x: x.index_select(0, x.new_zeros(2, 2, dtype=torch.int64)),
        lambda x: x[x],
        lambda x: x.bernoulli_(2.0),
        lambda x: x.as_strided((2, 2), (-1, 1)),
        lambda x: x[:0].argmax(),
        lambda x: x[:0].argmin(0),
        lambda x: x[:0].max(0),
        lambda x: x[:0].max(),
        lambda x: torch.bincount(x[0]),
        lambda x: x.long().softmax(0),
        lambda x: torch._foreach_add([x], []),
        lambda x: torch._foreach_add([x], [x, x]),
        lambda x: x.uniform_(2, 1),
        lambda x: x.exponential_(-1),
        lambda x: x.geometric_(2),
        lambda x: x.log_normal_(0, -1),
        lambda x: x.cauchy_(0, 0),
        lambda x: F.smooth_l1_loss(x, x, beta=-1.0),
        lambda x: F.huber_loss(x, x, delta=0.0),
        lambda x: F.grid_sample(x.view(1, 1, 2, 3), x.view(1, 1, 2, 3), align_corners=True),
        lambda x: F.grid_sample(x[None, None], x[:, None, None, :2], align_corners=True),
        lambda x: F.interpolate(x.view(1, 1, 2, 3), size=0),
        lambda x: F.avg_pool2d(x.view(1, 2, 3), 2, divisor_override=0),
        lambda x: F.cross_entropy(x, x[0, :2].long(), x.new_ones(4)),
        lambda x: F.cross_entropy(x, x[0, :2].int()),
        lambda x: F.embedding(x.long(), x[0]),
        lambda x: torch.histc(x, 0),
        lambda x: torch.histc(x, 2, 5, 1),
        lambda x: x.long().add(1, alpha=0.5),
        lambda x: x.long().sub_(x.long(), alpha=0.5),
        lambda x: torch.bmm(x, x.t()),
        lambda x: x.renorm(2, 0, -1.0),
        lambda x: x.long().norm(),
        lambda x: torch.det(x),
        lambda x: torch.linalg.qr(x[0]),
        lambda x: x.unfold(0, 1, 0),
        lambda x: x[torch.tensor([0, 1]), torch.tensor([0, 1, 2])],
        lambda x: x[:, 0].index_put_((x[0].long(),), x[:, 0]),
    ):
        raised = []
        for device in ("cpu", "hal"):
            with pytest.raises((RuntimeError, IndexError)) as told:
                wrong(torch.ones(2, 3, device=device))
            raised.append(told.type)
        assert raised[0] is raised[1]


def test_operands_apart_and_types_that_do_not_meet_are_told_at_their_line():
    """Also where the host's tensor is the one that is written; products cast nothing."""
    x, y = torch.ones(2, 3, device="hal"), torch.ones(2, 3)
    places = torch.tensor([1, 0]).to("hal")
    for apart in (
        lambda: y.add_(x),
        lambda: torch.add(x, x, out=y),
        lambda: torch.add(y, y, out=x),
        lambda: x.add_(y),
        lambda: x.index_put_((places,), y),
    ):
        with pytest.raises(RuntimeError, match=r"hal:0 and cpu.*\.to\(\"hal:0\"\)"):
            apart()
    wide = torch.ones(3, 3, device="hal", dtype=torch.float64)
    at = torch.zeros(2, 3, device="hal", dtype=torch.int64)
    for unlike in (
        lambda: x @ wide,
        lambda: torch.addmm(wide[0], x, x.T @ x),
        lambda: torch.nn.functional.conv1d(x, wide.view(3, 3, 1)[:, :2]),
        lambda: x.scatter(1, at, wide[:2]),
        lambda: x.index_put_((at[0],), wide[:1]),
    ):
        with pytest.raises(RuntimeError, match=r"one element type, got float\d\d"):
            unlike()
    with pytest.raises(NotImplementedError, match=r"sum: hal:0 \(.*complex64; it has bool"):
        x.sum(dtype=torch.complex64)


def test_operands_of_two_devices_are_told_apart(monkeypatch):
    monkeypatch.setenv("HAL_DEVICES", "cpu:0,reference:0")
    x, y = (torch.ones(2, 3, device=f"hal:{i}") for i in (0, 1))
    try:
        for apart in (lambda: x + y, lambda: x @ y.T, lambda: torch.cat([x, y]), lambda: x.add_(y)):
            with pytest.raises(RuntimeError, match=r'hal:0 and hal:1.*\.to\("hal:0"\)'):
                apart()
        same(x + y.to("hal:0"), torch.full((2, 3), 2.0))
    finally:
        del kernels._tapes[1]


def test_files_that_are_damaged_or_run_code_are_refused():
    class Evil:
        def __reduce__(self):
            return os.abort, ()

    whole, evil = io.BytesIO(), io.BytesIO()
    x = torch.ones(2, device="hal")
    torch.save({"x": x}, whole)
    torch.save({"x": x, "evil": Evil()}, evil)
    given = whole.getvalue()
    for wrong in (given[: len(given) // 2], b"GGUF" + given, evil.getvalue()):
        with pytest.raises((RuntimeError, pickle.UnpicklingError)):
            torch.load(io.BytesIO(wrong), map_location="hal")
    with pytest.raises(RuntimeError, match="there is no hal:9"):
        torch.load(io.BytesIO(given), map_location="hal:9")


def test_sizes_that_no_handle_has_are_refused():
    """They ended the process, or were taken for another tensor."""
    for shape in ((2**62,), (2**36 // 4 + 1,), (2**20, 2**20)):
        with pytest.raises(torch.OutOfMemoryError, match="at most 68,719,476,736"):
            torch.empty(shape, device="hal")
    with pytest.raises(RuntimeError, match="negative dimension -2"):
        torch.empty(3, -2, device="hal")
    storage = torch.UntypedStorage(12, device="hal")
    assert (storage.device.type, storage.nbytes()) == ("hal", 12)
    assert torch.UntypedStorage(12).device.type == "cpu"


@pytest.mark.slow
@pytest.mark.turns
def test_an_index_out_of_range_is_told_at_the_next_wait(monkeypatch):
    """Where it is asked for; else nothing beside a tensor is written."""
    x = torch.zeros(8, device="hal")
    far = torch.tensor([2, 3], device="hal")
    fast = torch.compile(lambda w, at: torch.nn.functional.embedding(at, w), backend=bridge.backend)
    for wrong in (
        lambda: fast(x.view(2, 4), far),
        lambda: x[2:4].index_put_((far,), torch.ones(1, device="hal")),
        lambda: x[2:4].scatter_(0, far, 5.0),
        lambda: torch.nn.functional.embedding(far, x.view(2, 4)),
        lambda: torch.nn.functional.cross_entropy(x.view(2, 4)[:, :3], far),
        lambda: torch.nn.functional.multi_margin_loss(x.view(2, 4)[:, :3], far),
    ):
        monkeypatch.setenv("HAL_TORCH_CHECK", "0")
        wrong()
        assert x[:2].eq(0).all().item()
        assert x[4:].eq(0).all().item()
        monkeypatch.setenv("HAL_TORCH_CHECK", "1")
        wrong()
        with pytest.raises(IndexError, match=r"index 3 is out of range; it takes"):
            torch.hal.synchronize()
    torch.nn.functional.cross_entropy(x.view(2, 4), far.sub(102)[:1].repeat(2), ignore_index=-100)
    assert x[far.sub(4)].sum().item() == 0


def test_what_takes_too_much_memory_leaves_all_as_it_was():
    """Also a weight whose next value was recorded; what depends on it says so from then on."""
    weight = torch.full((3,), 2.0, device="hal")
    weight.sum().item()
    many = [torch.ones(2**36 // 4, device="hal") for _ in range(64)]
    large = many[0]
    total = large.sum()
    weight.add_(total)
    with pytest.raises(torch.OutOfMemoryError, match=r"takes 68,719,476,736 bytes"):
        weight.sum().item()
    assert weight.tolist() == [2.0] * 3
    for again in (total.item, large.sum, lambda: total + 1):
        with pytest.raises(torch.OutOfMemoryError):
            again()


def test_a_smaller_step_works_after_a_first_one_that_took_too_much():
    """The state that the optimizer made in it is what it was made with."""
    weights = [torch.nn.Parameter(torch.ones(n, device="hal")) for n in (3, 4)]
    twins = [torch.nn.Parameter(torch.ones(n)) for n in (3, 4)]
    mine, theirs = (torch.optim.SGD(ws, lr=0.1, momentum=0.9) for ws in (weights, twins))
    adam = torch.optim.AdamW(weights, lr=0.0)
    many = [torch.ones(2**36 // 4, device="hal") for _ in range(64)]
    loss = sum(w.square().sum() for w in weights) * many[0].sum()
    loss.backward()
    adam.step()
    with pytest.raises(torch.OutOfMemoryError):
        loss.item()
    del many, loss
    for ws, optimizer in ((weights, mine), (twins, theirs), (weights, adam)):
        optimizer.zero_grad()
        sum(w.square().sum() for w in ws).backward()
        optimizer.step()
    for w, twin in zip(weights, twins, strict=True):
        same(w.detach(), twin.detach(), 1e-6)
    assert adam.state[weights[0]]["exp_avg"].isfinite().all().item()


def test_a_failure_is_told_where_it_is_waited_for_and_a_lost_device_from_then_on(monkeypatch):
    """With its first cause and the operator that owed it. Another device goes on."""
    faults = Faults("launch-fault at replay nth 2; device-lost at replay nth 4")
    with engine_of(hal.open("cpu:0", ["validate", faults])) as lossy:
        monkeypatch.setitem(devices.engines, "lossy", lossy)
        monkeypatch.setenv("HAL_DEVICES", "cpu:0,lossy")
        x = torch.arange(4.0).to("hal:1")
        try:
            assert (x * 2).sum().item() == 12
            with pytest.raises(torch.AcceleratorError, match=r"launch-fault in replay sum_"):
                (x * 3).sum().item()
            assert (x * 2).sum().item() == 12
            for use in (lambda: (x * 3).sum().item(), x.cpu, lambda: torch.hal.synchronize(1)):
                with pytest.raises(torch.AcceleratorError, match=r"device-lost in replay sum_"):
                    use()
            assert torch.ones(3, device="hal:0").sum().item() == 3
        finally:
            del kernels._tapes[1]


def test_a_forked_child_is_refused():
    x = torch.ones(2, device="hal")
    x.sum().item()
    child = os.fork()
    if not child:
        told = []
        for use in (lambda: x + 1, x.sum, lambda: x.add_(1), lambda: torch.ones(1, device="hal")):
            try:
                use()
            except RuntimeError as error:
                told.append("spawn" in str(error))
        os._exit(0 if told == [True] * 4 else 1)
    select.select([os.pidfd_open(child)], [], [], 60)
    assert os.waitpid(child, os.WNOHANG) == (child, 0)
    assert (x + 1).sum().item() == 4


def test_the_host_computes_where_it_is_asked_to(monkeypatch):
    monkeypatch.setenv("HAL_TORCH_HOST", "1")
    before = sum(bridge.stats()["host"].values())
    x = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    same(torch.special.airy_ai(x.to("hal")), torch.special.airy_ai(x))
    assert sum(bridge.stats()["host"].values()) == before + 1


def _counts():
    seen = bridge.stats()["hal:0"]
    made = seen["compiled"] + seen.get("generalised", 0)
    return made, seen["lowered"], torch.hal.memory_stats()["num_device_alloc"], seen["runs"]


def test_what_is_compiled_for_many_numbers_is_compiled_as_what_is_for_one(monkeypatch):
    """While Python's collector holds still, and the device's compiler takes what is written."""
    seen = []

    def noted(known):
        def call(engine, *args):
            seen.append((not gc.isenabled(), engine.programs._own.begun is not None))
            return known(engine, *args)

        return call

    monkeypatch.setattr(Engine, "dynamic", noted(Engine.dynamic))
    x = torch.arange(5.0)
    for number in (2.5, 3.5, 4.5):
        mine = (x.to("hal").cosh() * number).sinh().atan()
        same(mine, (x.cosh() * number).sinh().atan(), 1e-5)
    assert seen
    assert set(seen) == {(True, True)}


@pytest.mark.slow
@pytest.mark.turns
def test_an_equal_step_is_one_plan_run():
    """Two plans and one for other numbers: no state yet; a state; the corrections as data. From the
    fifth step on nothing is built, compiled or taken from the device."""
    torch.manual_seed(0)
    model = torch_models.GPT(width=16, layers=1, heads=2, length=8)
    wanted = torch_models.losses(copy.deepcopy(model), "cpu", 7)
    seen = []
    mine = torch_models.losses(model, "hal", 7, lambda i: seen.append(_counts()))
    assert max(abs(a - b) for a, b in zip(mine, wanted, strict=True)) < 5e-5
    assert seen[4][:3] == seen[6][:3]
    assert seen[6][3] == seen[4][3] + 2


def test_the_same_operators_with_fewer_numbers_are_another_program():
    """Which of its numbers are data had been taken from one that has more: an IndexError."""
    x = torch.tensor([2.0, 4.0], device="hal")
    for most in (1.0, 1.5, 3.0):
        assert x.clamp(0.0, most).tolist() == [min(2.0, most), most]
    assert x.clamp(min=2.5).tolist() == [2.5, 4.0]


def test_a_schedule_of_learning_rates_is_data():
    """A value that is asked for between backward and step makes two runs of a step."""
    weight = torch.nn.Parameter(torch.ones(3, device="hal"))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    seen = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        loss.item()
        optimizer.step()
        torch.hal.synchronize()
        schedule.step()
        seen.append(_counts())
    assert seen[-1][0] - seen[0][0] <= 4
    assert seen[4][:3] == seen[-1][:3]
    assert seen[-1][3] - seen[4][3] == 2 * 25


@pytest.mark.slow
@pytest.mark.turns
def test_a_batch_of_another_length_compiles_nothing_though_adam_counts_on():
    """Also at its second visit, when the corrections are others: they are data from the first on,
    and what is compiled for that serves all lengths."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    twin = copy.deepcopy(model).to("hal")
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, twin)]
    known, seen = kernels.tape_of(0).engine.families.compiled, []
    for length in (5, 5, 5, 7, 7, 9, 9, 31, 31, 12, 5):
        x, found = torch.rand(2, length, 3), []
        for m, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            loss = m(x.to(m[0].weight.device)).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        assert found[1] == pytest.approx(found[0], rel=1e-5)
        seen.append((known.total(), _counts()[1]))
    assert len({compiled for compiled, _ in seen[3:]}) == 1
    assert seen[7][1] == seen[8][1]
    assert seen[9] == seen[10]


def test_a_loop_that_never_waits_computes_what_is_alive_by_one_plan(monkeypatch):
    monkeypatch.setattr(tape, "PENDING", 64)
    x = torch.arange(4.0, device="hal")
    for _ in range(200):
        z = x * 3
    before = bridge.stats()["hal:0"]
    for _ in range(1000):
        z = x * 3
    after = bridge.stats()["hal:0"]
    assert after["runs"] > before["runs"] + 10
    assert (after["lowered"], after["compiled"]) == (before["lowered"], before["compiled"])
    same(z, torch.arange(4.0) * 3)


def test_plans_for_places_that_nobody_comes_to_are_forgotten(monkeypatch):
    monkeypatch.setattr(tape, "PLANS", 4)
    monkeypatch.setattr(tape, "POINTS", 40)
    own = kernels.tape_of(0)
    own._plans.clear()  # those of tests before, for which there was room
    for n in [*range(1, 9), *range(1, 9)]:
        x = torch.ones(n, device="hal")
        assert (x + n).sum().item() == n + n * n
        assert len(own._plans) <= 4
        assert own._points <= 40 + 8
        assert len(own.operands) <= 40 + 8


@pytest.mark.slow
@pytest.mark.turns
def test_a_compiled_model_trains_as_an_eager_one():
    """Forward and backward are one recorded operator each."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
    twin = copy.deepcopy(model).to("hal")
    fast = torch.compile(twin, backend=bridge.backend)
    x = torch.randn(5, 3)
    for _ in range(2):
        model.zero_grad()
        twin.zero_grad()
        wanted, mine = model(x).square().mean(), fast(x.to("hal")).square().mean()
        wanted.backward()
        mine.backward()
        same(mine.detach(), wanted.detach(), 1e-6)
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            same(q.grad, p.grad, 1e-6)


@pytest.mark.slow
@pytest.mark.turns
def test_a_compiled_model_draws_and_rounds_as_an_eager_one():
    """Its graphs have the same operators, in the same order in the random stream; each is one
    recorded operator."""
    torch.manual_seed(0)
    model, x = torch_models.Block(8, 2, dropout=0.25), torch.randn(2, 5, 8).to("hal")
    found, recorded = [], []
    for is_compiled in (False, True):
        twin = copy.deepcopy(model).to("hal")
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)
        if is_compiled:
            twin.compile(backend=bridge.backend)
        torch.hal.manual_seed(7)
        before = bridge.stats()["hal:0"]["operations"]
        for _ in range(2):
            optimizer.zero_grad()
            loss = twin(x).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        recorded.append(bridge.stats()["hal:0"]["operations"] - before)
    assert found[:2] == found[2:]
    assert found[0] != found[1]
    assert recorded[1] < recorded[0] / 2


@pytest.mark.slow
def test_a_compiled_graph_takes_the_numbers_that_a_program_makes_tensors_of():
    """As those of transformers do for masks; and attention's gradient, which torch lays out in an
    order of its own. Both ran operator by operator."""

    def function(x):
        low = torch.tensor(-2.0, device=x.device)
        kept = torch.where(x > 0, x, low) * torch.tensor([3.0], device=x.device)
        return kept.sum() + F.scaled_dot_product_attention(x, x, x, is_causal=True).square().sum()

    fast = torch.compile(function, backend=bridge.backend)
    x = torch.linspace(-1, 1, 24, device="hal").view(1, 2, 4, 3).requires_grad_()
    found, recorded = [], []
    for run in (function, fast, fast):
        before, x.grad = bridge.stats()["hal:0"]["operations"], None
        value = run(x)
        value.backward()
        found.append((value.item(), x.grad.tolist()))
        recorded.append(bridge.stats()["hal:0"]["operations"] - before)
    assert found[1] == found[2] == found[0]
    assert recorded[2] < 0.6 * recorded[0], recorded


@pytest.mark.slow
@pytest.mark.turns
def test_a_compiled_graph_without_gradients_shares_and_changes_what_an_eager_one_does():
    """Torch's wrappers are left out where they do nothing; memory alone may differ then."""

    def plain(x, y):
        return x * 2 + y, y.flip(0)

    def sharing(x, y):
        z = x + y
        first, second = torch.softmax(z, 1).split(1, 1)
        return x, y.view(-1), z, z.t(), z[1:], first, second, (z * 2).t()

    def changing(x, y):
        x.add_(y)
        return x.mul(2)

    for function in (plain, sharing, changing):
        fast = torch.compile(function, backend=bridge.backend)
        with torch.no_grad():
            base, twin = torch.arange(24.0), torch.arange(24.0).to("hal")
            for a, b in ((0, 4), (8, 8), (2, 12)):  # the second: one memory
                wanted = function(base[a : a + 4].view(2, 2), base[b : b + 4].view(2, 2))
                mine = fast(twin[a : a + 4].view(2, 2), twin[b : b + 4].view(2, 2))
                wanted, mine = [w if isinstance(w, tuple) else (w,) for w in (wanted, mine)]
                for x, y in zip(wanted, mine, strict=True):
                    x.sub_(1)  # what shares memory sees it
                    y.sub_(1)
                for x, y in zip((base, *wanted), (twin, *mine), strict=True):
                    torch.testing.assert_close(y.cpu(), x)
                    assert y.stride() == x.stride()


@pytest.mark.slow
@pytest.mark.turns
def test_a_compiled_graph_of_draws_goes_on_in_the_stream():
    def drawn(x):
        y = torch.rand_like(x) + torch.randn(3, device=x.device)
        return y + torch.bernoulli(x / 2) + torch.randint(5, (3,), device=x.device)

    x = torch.full((2, 3), 0.5, device="hal")
    made = []
    for function in (drawn, torch.compile(drawn, backend=bridge.backend)):
        torch.hal.manual_seed(3)
        made.append(torch.cat([function(x), function(x), torch.rand(1, 3, device="hal")]))
    assert made[0].equal(made[1])


@pytest.mark.slow
@pytest.mark.turns
def test_a_compiled_graph_of_any_length_is_compiled_twice():
    """For its first length, and for all others; it is one recorded operator."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    twin = copy.deepcopy(model).to("hal")
    fast = torch.compile(twin, backend=bridge.backend, dynamic=True)
    known, before = kernels.tape_of(0).engine.families.compiled, None
    for i, length in enumerate((5, 7, 31, 12, 64)):
        x = torch.rand(2, length, 3)
        mine = fast(x.to("hal").requires_grad_()).flatten(1).cumsum(1)
        torch.hal.synchronize()
        same(mine.detach(), model(x).flatten(1).cumsum(1).detach(), 1e-4)
        if i == 1:
            before = known.total()
    assert known.total() == before
    seen = []
    for _ in range(3):
        y = fast(x.to("hal"))
        torch.hal.synchronize()
        seen.append(bridge.stats()["hal:0"]["operations"])
    assert seen[2] == seen[1] + 1
    same(y.detach(), model(x).detach(), 1e-5)


@pytest.mark.slow
@pytest.mark.turns
def test_the_examples_of_the_guide_run():
    """Those of docs/migrate.md, one after the other."""
    text = (Path(__file__).parents[2] / "docs" / "migrate.md").read_text()
    parts = [p.partition("```")[0] for p in text.split("```python\n")[1:]]
    space = {}
    for part in parts:
        exec(compile(part, "docs/migrate.md", "exec"), space)


@pytest.mark.slow
@pytest.mark.turns
def test_the_example_for_pytorch_trains_as_on_its_own_device(capsys):
    path = Path(__file__).parents[2] / "examples" / "torch_gpt.py"
    example = runpy.run_path(str(path))
    for device in ("cpu", "hal"):
        example["train"](device, 2, False)
    theirs, mine = np.array_split(
        [float(x) for x in re.findall(r"loss (\S+)", capsys.readouterr().out)], 2
    )
    assert len(mine) == 2
    np.testing.assert_allclose(mine, theirs, rtol=1e-6)


_DERIVED = """
import torch, torch.nn.functional as F
from torch.autograd import forward_ad

def derived(device):
    torch.manual_seed(3)
    found = []
    sizes = [((3, 4), (5, 4)), ((4,), (5, 4)), ((0, 4), (5, 4))]
    for x, w in [*sizes, ((2, 3, 4), (5, 4))]:
        x, w = (torch.randn(n, dtype=torch.float64).to(device).requires_grad_() for n in (x, w))
        b = torch.randn(5, dtype=torch.float64).to(device).requires_grad_()
        used = [x, w, b]
        made = torch.tanh(F.linear(x, w, b))
        first = torch.autograd.grad(made.square().sum(), used, create_graph=True)
        second = torch.autograd.grad(sum(t.square().sum() for t in first), used)
        found += [made, *first, *second]
    return [t.detach().cpu() for t in found], used

mine, (x, w, b) = derived("hal")
theirs, _ = derived("cpu")
for a, c in zip(mine, theirs):
    torch.testing.assert_close(a, c)
with forward_ad.dual_level():
    dual = forward_ad.make_dual(x.detach(), torch.ones_like(x))
    tangent = forward_ad.unpack_dual(F.linear(dual, w, b)).tangent
torch.testing.assert_close(tangent.cpu(), (torch.ones_like(x) @ w.T).cpu())
print("derived")
"""


_VENDORS = """
import torch
torch.ones(2, requires_grad=True).sum().backward()  # before any use of the devices
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).sum() == 4
for name in ("hal:0", "hal:1"):
    model = torch.nn.Linear(3, 2).to(name)
    y = model(torch.ones(4, 3, device=name)).square().sum()
    y.backward()
    print(name, torch.hal.get_device_name(int(name[-1])), model.weight.grad.device)
"""


@pytest.fixture(scope="module")
def told():
    """What a process of its own writes that trains on devices of two vendors and then derives."""
    run = subprocess.run(
        [sys.executable, "-c", _VENDORS + _DERIVED],
        env={**os.environ, "HAL_DEVICES": "cpu:0,reference:0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.turns("two vendors")
def test_two_devices_of_two_vendors_train_in_one_process(told):
    assert told[:2] == ["hal:0 cpu:0 hal:0", "hal:1 reference:0 hal:1"]


@pytest.mark.turns("two vendors")
def test_linear_is_one_operator_with_all_its_derivatives(told):
    """Of which torch has none forwards for `linear` as one: then it is several, from that on."""
    assert told[2:] == ["derived"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_product_with_a_bias_is_rounded_once(dtype):
    """In sums that float32 holds exactly. Compiled, `linear` comes as `addmm`."""
    draw = np.random.default_rng(7)
    x, w = (torch.tensor(draw.integers(-64, 65, shape) / 1.0) for shape in ((9, 64), (5, 64)))
    b = torch.tensor(draw.integers(-128, 129, 5) / 32)
    wanted = F.linear(x, w, b).to(dtype)
    assert not torch.equal(wanted, F.linear(x, w).to(dtype) + b.to(dtype))
    x, w, b = (t.to(dtype).to("hal") for t in (x, w, b))
    same(F.linear(x, w, b), wanted)
    same(torch.addmm(b, x, w.t()), wanted)


def test_a_file_keeps_tensors_of_the_device(tmp_path):
    x = torch.arange(6.0).view(2, 3).to("hal")
    torch.save({"x": x, "part": x[:, 1:]}, tmp_path / "x.pt")
    for where in ("cpu", None):
        found = torch.load(tmp_path / "x.pt", map_location=where)
        assert found["x"].device.type == (where or "hal")
        assert found["part"].cpu().equal(x.cpu()[:, 1:])


def test_autocast_and_inference():
    model = torch.nn.Linear(3, 2).to("hal")
    with torch.inference_mode(), torch.autocast("hal", dtype=torch.bfloat16):
        y = model(torch.ones(1, 3, device="hal"))
    assert y.dtype is torch.bfloat16
    x = model.cpu()(torch.ones(1, 3))
    torch.testing.assert_close(y.cpu().float(), x.detach(), rtol=2e-2, atol=2e-2)


def test_devices_that_come_after_the_first_backward_have_theirs_on_the_caller(monkeypatch):
    """Autograd made its threads for fewer devices: with HAL_DEVICES set after a backward on the
    CPU, that of a further device was an internal assertion."""
    x, threads = torch.ones(2, device="hal", requires_grad=True), []
    x.register_hook(lambda grad: threads.append(threading.get_ident()))
    unchanged = torch.autograd.graph._engine_run_backward
    monkeypatch.setattr(torch.autograd, "_engine_run_backward", unchanged)
    x.sum().backward()
    monkeypatch.setattr(indices, "_kept", [True])
    monkeypatch.setattr(indices, "_told", [1])
    indices.tell_count(2)
    x.sum().backward()
    assert threads[0] != threading.get_ident()
    assert threads[1] == threading.get_ident()


@pytest.mark.slow
@pytest.mark.turns
def test_an_import_of_torch_goes_on_whatever_the_environment_says():
    """Half of a rank's place is a warning."""
    environment = {**os.environ, "HAL_WORLD_RANK": "0"}
    run = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.zeros(2).sum().item())"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "no rank of a job" in run.stderr


@pytest.mark.slow
@pytest.mark.turns
def test_a_torch_of_another_version_goes_on_and_the_first_use_names_both():
    """`torch.__version__` alone is another one here."""
    code = """
import torch
torch.__version__ = torch.torch_version.TorchVersion("2.14.1+cpu")
import stack.bridge.torch
stack.bridge.torch.register()
torch.manual_seed(3)
assert torch.accelerator.current_accelerator() is None
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).sum() == 4
store = torch.distributed.HashStore()
for use in (
    lambda: torch.ones(2).to("hal"),
    lambda: torch.nn.Linear(2, 2).to("hal"),
    lambda: torch.zeros(2, device="hal"),
    lambda: torch.hal.synchronize(),
    lambda: torch.compile(lambda x: x + 1, backend="hal")(torch.ones(2)),
    lambda: torch.distributed.init_process_group("hal", store=store, rank=0, world_size=1),
):
    try:
        use()
    except RuntimeError as error:
        print("needs torch 2.13.*, this is torch 2.14.1+cpu" in str(error))
"""
    unset = ("HAL_DEVICES", "HAL_WORLD_RANK")
    kept = {k: v for k, v in os.environ.items() if k not in unset}
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["True"] * 6


@pytest.fixture
def unused(monkeypatch):
    """As in a program that never named the device."""
    monkeypatch.delenv("HAL_DEVICES", raising=False)
    before = list(names.used)
    names.used.clear()
    yield
    names.used.extend(before)


@pytest.mark.usefixtures("unused")
def test_a_program_that_never_names_the_device_has_the_torch_that_it_knows():
    assert torch.accelerator.current_accelerator() is None
    assert not torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 0
    assert torch._C._get_accelerator().type == "cpu"
    assert torch.Event().device.type == "cpu"
    for call in (torch.accelerator.synchronize, torch.ones(1).pin_memory):
        with pytest.raises(RuntimeError, match="when none is available"):
            call()
    assert torch.distributed.distributed_c10d.BackendConfig("undefined").device_backend_map == {
        "cpu": "gloo"
    }
    torch.hal.synchronize()
    assert not names.used


def test_data_parallel_runs_a_module_where_it_is():
    for device in ("cpu", "hal"):
        model = torch.nn.DataParallel(torch.nn.Linear(2, 3).to(device))
        assert model(torch.ones(1, 2, device=device)).shape == (1, 3)


def test_a_named_device_is_the_accelerator(unused, monkeypatch):
    monkeypatch.setenv("HAL_DEVICES", "cpu:0")
    assert torch.accelerator.current_accelerator().type == "hal"
    x = torch.ones(1000, device=torch.accelerator.current_accelerator())
    torch.accelerator.synchronize()
    torch.accelerator.reset_peak_memory_stats()
    (x + 1).sum().item()
    assert torch.accelerator.memory_allocated() >= 4000
    assert torch.accelerator.max_memory_allocated() >= torch.accelerator.memory_allocated()
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free < total
    start, end = (torch.Event(enable_timing=True) for _ in range(2))
    start.record()
    end.record(torch.accelerator.current_stream())
    assert start.elapsed_time(end) >= 0
    with pytest.raises(RuntimeError, match="enable_timing"):
        torch.Event().elapsed_time(end)


def test_a_generator_is_a_stream_of_its_own():
    torch.manual_seed(5)
    first = torch.rand(4, device="hal")
    own = torch.Generator(device="hal").manual_seed(5)
    assert isinstance(own, torch.Generator)
    assert own.device == torch.device("hal:0")
    assert torch.rand(4, device="hal", generator=own).equal(first)
    again = pickle.loads(pickle.dumps(own))
    kept = own.get_state()
    drawn = torch.randint(100, (5,), device="hal", generator=own)
    twin = pickle.loads(pickle.dumps(own))
    counts = [torch.zeros(9, device="hal").random_(generator=g).tolist() for g in (own, twin)]
    assert counts[0] == counts[1]
    assert drawn.equal(torch.randint(100, (5,), device="hal", generator=again))
    own.set_state(kept)
    assert drawn.equal(torch.randint(100, (5,), device="hal", generator=own))
    torch.rand(1, device="hal")
    torch.manual_seed(5)
    assert torch.rand(4, device="hal").equal(first)
    with pytest.raises(RuntimeError, match=r'torch\.Generator\("hal:0"\)'):
        torch.rand(1, device="hal", generator=torch.Generator())
    with pytest.raises(RuntimeError, match=r"uint8\[16\]"):
        own.set_state(torch.get_rng_state())
