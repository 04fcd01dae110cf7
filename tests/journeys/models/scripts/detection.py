"""Detection by hand: anchors, IoU, assignment by masks, focal and GIoU losses, NMS."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal, numbers


def box_iou(a, b):
    area = lambda x: (x[:, 2] - x[:, 0]).clamp(min=0) * (x[:, 3] - x[:, 1]).clamp(min=0)
    lt, rb = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    union = area(a)[:, None] + area(b) - inter
    return inter / union, union


def giou_loss(a, b):
    x1, y1, x2, y2 = a.unbind(-1)
    x1g, y1g, x2g, y2g = b.unbind(-1)
    xk1, yk1, xk2, yk2 = (
        torch.max(x1, x1g),
        torch.max(y1, y1g),
        torch.min(x2, x2g),
        torch.min(y2, y2g),
    )
    inter = torch.zeros_like(x1)
    mask = (yk2 > yk1) & (xk2 > xk1)
    inter[mask] = (xk2[mask] - xk1[mask]) * (yk2[mask] - yk1[mask])
    union = (x2 - x1) * (y2 - y1) + (x2g - x1g) * (y2g - y1g) - inter
    iou = inter / (union + 1e-7)
    xc1, yc1, xc2, yc2 = (
        torch.min(x1, x1g),
        torch.min(y1, y1g),
        torch.max(x2, x2g),
        torch.max(y2, y2g),
    )
    area = (xc2 - xc1) * (yc2 - yc1)
    return (1 - (iou - (area - union) / (area + 1e-7))).sum()


def sigmoid_focal_loss(inputs, targets, alpha=0.25, gamma=2.0):
    p = torch.sigmoid(inputs)
    ce = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    loss = ce * ((1 - p_t) ** gamma)
    return ((alpha * targets + (1 - alpha) * (1 - targets)) * loss).sum()


def nms(boxes, scores, threshold):
    order, keep = scores.argsort(descending=True), []
    while order.numel() > 0:
        i = order[0]
        keep.append(i.item())
        if order.numel() == 1:
            break
        iou, _ = box_iou(boxes[i][None], boxes[order[1:]])
        order = order[1:][iou[0] <= threshold]
    return torch.tensor(keep, dtype=torch.int64)


class Net(nn.Module):
    def __init__(self, a=2, c=3):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.Hardswish(inplace=True)
        )
        self.cls, self.reg = nn.Conv2d(8, a * c, 3, padding=1), nn.Conv2d(8, a * 4, 3, padding=1)
        self.c = c

    def forward(self, x):
        f = self.body(x)
        cls = self.cls(f).permute(0, 2, 3, 1).reshape(x.shape[0], -1, self.c)
        return cls, self.reg(f).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4)


model = begin(torch, Net())
ys, xs = torch.meshgrid(torch.arange(4) * 2 + 1.0, torch.arange(4) * 2 + 1.0, indexing="ij")
shifts = torch.stack((xs, ys, xs, ys), dim=-1).reshape(-1, 1, 4)
base = torch.tensor([[-1.5, -1.5, 1.5, 1.5], [-1.0, -2.0, 1.0, 2.0]])
anchors = (shifts + base).reshape(-1, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2], gamma=0.1)
losses = []
for step in range(3):
    x = torch.tensor(normal(1, 3, 8, 8))
    gt = (
        torch.tensor([[0.0, 0.0, 3.0, 3.0], [4.0, 3.0, 7.0, 7.5]])
        + torch.tensor(normal(2, 4)) * 0.05
    )
    labels = torch.tensor(numbers.integers(0, 3, 2))
    logits, deltas = model(x)
    boxes = anchors + deltas[0]
    matched_vals, matches = box_iou(gt, anchors)[0].max(dim=0)
    below, between = matched_vals < 0.2, (matched_vals >= 0.2) & (matched_vals < 0.3)
    matches[below] = -1
    matches[between] = -2
    fg = matches >= 0
    target = torch.zeros_like(logits[0])
    target[fg, labels[matches[fg]]] = 1.0
    valid = matches != -2
    n = max(1, int(fg.sum()))
    loss_cls = sigmoid_focal_loss(logits[0][valid], target[valid]) / n
    loss_box = giou_loss(boxes[fg], gt[matches[fg]]) / n
    loss = loss_cls + loss_box
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses += [loss_cls.item(), loss_box.item(), float(n)]
with torch.no_grad():
    scores, found = torch.sigmoid(model(x)[0][0]).max(-1)
    keep = nms(boxes.detach(), scores, 0.3)
    losses += [float(len(keep)), float(keep.sum()), scores[keep].sum().item()]
    order = torch.nonzero(scores > scores.median(), as_tuple=False).squeeze(1)
    losses.append(float(order.sum()))
TOLERANCE = 2e-4
