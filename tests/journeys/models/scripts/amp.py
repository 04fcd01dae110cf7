"""Mixed precision: autocast around the forward pass, a GradScaler that the type does not need."""

import torch
import torch.nn as nn
from begin import begin, normal

TOLERANCE = 1e-2  # products are rounded to bfloat16

device = torch.get_default_device()
x, y = torch.tensor(normal(16, 8)), torch.arange(16) % 4
model = begin(torch, nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(device.type, enabled=False)
losses = []
for step in range(4):
    optimizer.zero_grad()
    with torch.autocast(device_type=device.type, dtype=torch.bfloat16):
        output = model(x)
        loss = nn.functional.cross_entropy(output, y)
    assert output.dtype is torch.bfloat16
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
