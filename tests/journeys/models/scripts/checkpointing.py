"""Save model, optimizer and schedule, build all anew, and go on."""

import os
import tempfile

import torch
import torch.nn as nn
from begin import begin, normal

x, y = torch.tensor(normal(12, 4)), torch.arange(12) % 3
PATH = os.path.join(tempfile.mkdtemp(), "checkpoint.pt")


def build():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    return model, optimizer, scheduler


def train(model, optimizer, scheduler, steps):
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())


losses = []
model, optimizer, scheduler = build()
begin(torch, model)
train(model, optimizer, scheduler, 3)
torch.save(
    {
        "epoch": 3,
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
    },
    PATH,
)

model, optimizer, scheduler = build()
checkpoint = torch.load(PATH)
model.load_state_dict(checkpoint["model_state_dict"])
optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
scheduler.load_state_dict(checkpoint["scheduler"])
train(model, optimizer, scheduler, 3)
losses.append(float(checkpoint["epoch"]))
