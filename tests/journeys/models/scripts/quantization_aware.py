"""Training for int8: rounded weights with gradients that pass through, ranges seen by observers, folded norms."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal, numbers


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, zero_point, qmin, qmax):
        q = torch.round(x / scale + zero_point)
        ctx.save_for_backward((q >= qmin) & (q <= qmax))
        return (torch.clamp(q, qmin, qmax) - zero_point) * scale

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        return grad_output * mask, None, None, None, None


class Observer(nn.Module):
    def __init__(self, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("min_val", torch.tensor(float("inf")))
        self.register_buffer("max_val", torch.tensor(float("-inf")))
        self.register_buffer("enabled", torch.tensor([1], dtype=torch.uint8))

    def forward(self, x):
        if self.enabled[0] == 1 and self.training:
            lo, hi = torch.aminmax(x.detach())
            if self.min_val == float("inf"):
                self.min_val.copy_(lo), self.max_val.copy_(hi)
            else:
                self.min_val.lerp_(lo, self.momentum)
                self.max_val.lerp_(hi, self.momentum)
        lo, hi = self.min_val.clamp(max=0.0), self.max_val.clamp(min=0.0)
        scale = torch.clamp((hi - lo) / 255.0, min=torch.finfo(torch.float32).eps)
        zero_point = torch.clamp(-torch.round(lo / scale), 0, 255)
        return Round.apply(x, scale, zero_point, 0, 255)


class QConvBn(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout)
        self.act = Observer()

    def forward(self, x):
        factor = self.bn.weight / torch.sqrt(self.bn.running_var + self.bn.eps)
        w = self.conv.weight * factor.reshape(-1, 1, 1, 1)
        amax = w.detach().abs().amax(dim=(1, 2, 3), keepdim=True)
        w = torch.fake_quantize_per_channel_affine(
            w, (amax / 127).flatten(), torch.zeros(w.shape[0], dtype=torch.int32), 0, -128, 127
        )
        y = F.conv2d(x, w, None, 1, 1) / factor.reshape(1, -1, 1, 1)
        return self.act(F.relu6(self.bn(y)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(QConvBn(2, 4), nn.AvgPool2d(2), QConvBn(4, 6))
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(self.body(x).mean([2, 3]))


model = begin(torch, Net())
with torch.no_grad():
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.weight.abs_().add_(0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
losses = []
for step in range(3):
    x = torch.tensor(normal(6, 2, 8, 8))
    y = torch.tensor(numbers.integers(0, 3, 6))
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step == 1:
        for name, buf in model.named_buffers():
            if name.endswith("enabled"):
                buf.zero_()
    losses += [loss.item(), model.body[0].act.max_val.item()]
zeros = sum((p == 0).sum().item() for p in model.parameters() if p.dim() > 1)
losses += [float(zeros)]
model.eval()
with torch.no_grad():
    scale = model.fc.weight.abs().max() / 127
    packed = torch.clamp(torch.round(model.fc.weight / scale), -128, 127).to(torch.int8)
    losses += [float(packed.sum(dtype=torch.int32)), model(x).abs().mean().item()]
    fake = torch.fake_quantize_per_tensor_affine(model.fc.weight, float(scale), 0, -128, 127)
    losses.append((fake - packed.float() * scale).abs().max().item())
TOLERANCE = 1e-3
