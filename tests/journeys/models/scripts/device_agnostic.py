"""The frame around a training: devices, seeds, meters, no decay for norms, resume from a file."""

import argparse
import os
import random
import tempfile
import time

import numpy as np
import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal, numbers
from torch.utils.data import DataLoader, TensorDataset


def seed_everything(seed):
    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("high")


def get_device():
    if torch.cuda.is_available():
        return torch.device("cuda")
    if hasattr(torch.backends, "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.get_default_device()


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk, batch_size = max(topk), target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        return [
            correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / batch_size).item()
            for k in topk
        ]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 1)
        self.bn1 = nn.BatchNorm2d(4)
        self.drop = nn.Dropout2d(0.0)
        self.fc1 = nn.Linear(36, 10)
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, (nn.BatchNorm2d, nn.GroupNorm)):
                nn.init.constant_(m.weight, 1)
                nn.init.constant_(m.bias, 0)

    def forward(self, x):
        x = F.max_pool2d(F.relu_(self.bn1(self.conv1(x))), 2)
        return self.fc1(torch.flatten(self.drop(x), 1))


def param_groups(model, weight_decay, skip=()):
    decay, no_decay = [], []
    for name, param in model.named_parameters():
        if not param.requires_grad:
            continue
        (no_decay if param.ndim <= 1 or name.endswith(".bias") or name in skip else decay).append(
            param
        )
    return [
        {"params": no_decay, "weight_decay": 0.0},
        {"params": decay, "weight_decay": weight_decay},
    ]


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--amp", action="store_true")
args = parser.parse_args([])
seed_everything(42)
device = get_device()
kwargs = {"num_workers": 0, "pin_memory": True} if device.type == "cuda" else {}
dataset = TensorDataset(
    torch.tensor(normal(12, 1, 8, 8)), torch.from_numpy(numbers.integers(0, 10, 12))
)
g = torch.Generator()
g.manual_seed(0)
loader = DataLoader(
    dataset, batch_size=4, shuffle=False, generator=g, worker_init_fn=None, **kwargs
)
model = begin(torch, Net()).to(device, memory_format=torch.channels_last)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
optimizer = torch.optim.SGD(param_groups(model, 1e-2), lr=0.1, momentum=0.9, nesterov=True)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[2])
scaler = torch.cuda.amp.GradScaler(enabled=args.amp)
losses = []
for epoch in range(args.epochs):
    meter, top1, end = AverageMeter(), AverageMeter(), time.time()
    model.train()
    for i, (images, target) in enumerate(loader):
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        target = target.to(device, non_blocking=True)
        with torch.autocast(device.type, enabled=args.amp):
            output = model(images)
            loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        meter.update(loss.item(), images.size(0))
        top1.update(acc5, images.size(0))
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    losses += [meter.avg, top1.avg, scheduler.get_last_lr()[-1]]
    state = {
        "epoch": epoch + 1,
        "state_dict": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": scaler.state_dict(),
        "best": meter.avg,
        "rng": torch.get_rng_state(),
    }
    path = os.path.join(tempfile.mkdtemp(), "checkpoint.pth.tar")
    torch.save(state, path)
    checkpoint = torch.load(path, map_location=device, weights_only=False)
    model = Net().to(device)
    model.load_state_dict(checkpoint["state_dict"])
    optimizer = torch.optim.SGD(param_groups(model, 1e-2), lr=0.1, momentum=0.9, nesterov=True)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[2])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    torch.set_rng_state(checkpoint["rng"])
torch.cuda.empty_cache()
losses.append(float(torch.cuda.device_count()))
