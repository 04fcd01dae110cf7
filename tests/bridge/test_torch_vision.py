"""Operators of torchvision on the device "hal" give what their definitions say; torchvision itself
is not needed."""

import itertools

import pytest

torch = pytest.importorskip("torch")

import stack.bridge.torch as bridge  # noqa: E402
from tests.draw import stream  # noqa: E402

bridge.register()
F = torch.nn.functional

_SIZES = ", SymInt pooled_height, SymInt pooled_width, "
_GIVEN = "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
_WINDOWS = (
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, "
    "SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask"
)
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, Tensor rois, float spatial_scale{_SIZES}int sampling_ratio, "
    "bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale{_SIZES}SymInt batch_size, "
    "SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor",
    f"deform_conv2d({_GIVEN}{_WINDOWS}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_GIVEN}{_WINDOWS}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)

_kept = []
"""What is defined, as long as somebody holds it."""


@pytest.fixture(scope="module")
def ops():
    """Its operators, as it declares them."""
    if not hasattr(torch.ops.torchvision, "nms"):  # kernels may be there without it
        torch.ones(1, device="hal")  # the device is there first
        _kept.append(torch.library.Library("torchvision", "FRAGMENT"))
        for schema in _SCHEMAS:
            _kept[-1].define(schema)
    return torch.ops.torchvision


def draws(seed):
    made = torch.Generator().manual_seed(stream(seed).randrange(2**31))
    return lambda *shape: torch.rand(*shape, generator=made)


def on_hal(function, *given):
    return function(*[x.to("hal") if isinstance(x, torch.Tensor) else x for x in given])


def close(mine, theirs):
    torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-5)


def kept_boxes(boxes, scores, threshold):
    kept = []
    for i in scores.sort(stable=True, descending=True)[1].tolist():
        for j in kept:
            a, b = boxes[i], boxes[j]
            low, high = torch.maximum(a[:2], b[:2]), torch.minimum(a[2:], b[2:])
            shared = (high - low).clamp(min=0).prod()
            both = (a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared
            if shared / both > threshold:
                break
        else:
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


@pytest.mark.slow
def test_boxes_that_better_ones_cover_go(ops):
    """Also in a chain in which each box would let go the next one, as long as a round is not."""
    rand = draws("boxes")
    corner = 20 * rand(60, 2)
    boxes, scores = torch.cat([corner, corner + 20 * rand(60, 2)], 1), rand(60)
    scores[3] = scores[7]
    for threshold in (0.1, 0.5):
        mine = on_hal(ops.nms, boxes, scores, threshold).cpu()
        assert mine.equal(kept_boxes(boxes, scores, threshold))
    at = torch.arange(23.0)[:, None]
    chain = torch.cat([at, at * 0, at + 2, at * 0 + 1], 1)
    assert on_hal(ops.nms, chain, -at[:, 0], 0.3).tolist() == list(range(0, 23, 2))
    assert on_hal(ops.nms, boxes[:0], scores[:0], 0.5).shape == (0,)
    with pytest.raises(RuntimeError, match=r"boxes of \[n, 4\]"):
        on_hal(ops.nms, boxes, scores[1:], 0.5)


def aligned_regions(x, rois, scale, high, wide, ratio, aligned):
    shift, made = 0.5 * aligned, []
    for image, *corners in rois.tolist():
        x1, y1, x2, y2 = (c * scale - shift for c in corners)
        sizes = [y2 - y1, x2 - x1] if aligned else [max(y2 - y1, 1.0), max(x2 - x1, 1.0)]
        steps = [s / n for s, n in zip(sizes, (high, wide), strict=True)]
        counts = [ratio if ratio > 0 else int(-(-s // 1)) for s in steps]
        places = [
            torch.tensor([b + (i + (j + 0.5) / m) * s for i in range(n) for j in range(m)])
            for b, s, n, m in zip((y1, x1), steps, (high, wide), counts, strict=True)
        ]
        inside = [(p >= -1) & (p <= n) for p, n in zip(places, x.shape[2:], strict=True)]
        y, z = (2 * p / (n - 1) - 1 for p, n in zip(places, x.shape[2:], strict=True))
        grid = torch.stack(torch.meshgrid(z, y, indexing="xy"), -1)[None]
        one = x[int(image)][None]
        read = F.grid_sample(one, grid, padding_mode="border", align_corners=True)[0]
        read = read * (inside[0][:, None] & inside[1])
        made.append(read.view(-1, high, counts[0], wide, counts[1]).mean((2, 4)))
    return torch.stack(made)


@pytest.mark.slow
def test_regions_of_images_are_brought_to_one_size(ops):
    rand = draws("regions")
    x, k = rand(2, 3, 9, 7), 5
    corner = 14 * rand(k, 2) - 3
    rois = torch.cat([(2 * rand(k, 1)).floor(), corner, corner + 0.2 + 9 * rand(k, 2)], 1)
    ratio, aligned = stream("regions").choice([*itertools.product((2, 0), (True, False))])
    options = (0.7, 2, 3, ratio, aligned)
    theirs = aligned_regions(x.requires_grad_(), rois, *options)
    close(on_hal(ops.roi_align, x.detach(), rois, *options), theirs.detach())
    grad = rand(*theirs.shape)
    theirs.backward(grad)
    mine = on_hal(ops._roi_align_backward, grad, rois, *options[:3], *x.shape, *options[3:])
    close(mine, x.grad)
    none = on_hal(ops.roi_align, x.detach(), rois[:0], *options)
    assert none.shape == (0, 3, 2, 3)


def moved_windows(x, weight, offset, mask, bias, stride, padding, dilation, groups, sets):
    n, c, h, w = x.shape
    size, (out_h, out_w) = weight.shape[2:], offset.shape[2:]
    moves = offset.view(n, sets, *size, 2, out_h, out_w)
    columns = []
    for i, j in itertools.product(*map(range, size)):
        parts = []
        for s in range(sets):
            y = torch.arange(out_h)[:, None] * stride[0] - padding[0] + i * dilation[0]
            z = torch.arange(out_w) * stride[1] - padding[1] + j * dilation[1]
            y, z = y + moves[:, s, i, j, 0], z + moves[:, s, i, j, 1]
            grid = torch.stack([2 * z / (w - 1) - 1, 2 * y / (h - 1) - 1], -1)
            part = x[:, s * c // sets : (s + 1) * c // sets]
            read = F.grid_sample(part, grid, padding_mode="zeros", align_corners=True)
            scale = 1 if mask is None else mask.view(n, sets, *size, 1, out_h, out_w)[:, s, i, j]
            parts.append(read * scale)
        columns.append(torch.cat(parts, 1))
    read = torch.stack(columns, 2).view(n, groups, c // groups, -1, out_h, out_w)
    kernel = weight.view(groups, -1, c // groups, size.numel())
    return torch.einsum("ngckhw,gfck->ngfhw", read, kernel).flatten(1, 2) + bias[:, None, None]


@pytest.mark.slow
def test_convolutions_of_moved_windows(ops):
    rand, masked = draws("windows"), stream("windows").random() < 0.5
    groups, sets = stream("groups").choice([(1, 1), (2, 1), (1, 2)])
    x, weight, bias = rand(2, 4, 6, 5), rand(4, 4 // groups, 3, 2), rand(4)
    window = ((2, 1), (1, 1), (1, 2))
    offset = 4 * rand(2, 12 * sets, 3, 5) - 2
    mask = rand(2, 6 * sets, 3, 5) if masked else rand(2, 1)
    given = [v.requires_grad_() for v in (x, weight, offset, mask, bias)]
    shown = [*given[:3], mask if masked else None, bias]
    theirs = moved_windows(*shown, *window, groups, sets)
    options = (*window[0], *window[1], *window[2], groups, sets, masked)
    held = [v.detach() for v in given]
    close(on_hal(ops.deform_conv2d, *held, *options), theirs.detach())
    grad = rand(*theirs.shape)
    theirs.backward(grad)
    mine = on_hal(ops._deform_conv2d_backward, grad, *held, *options)
    for one, v in zip(mine, given, strict=True):
        close(one, torch.zeros_like(v) if v.grad is None else v.grad)
