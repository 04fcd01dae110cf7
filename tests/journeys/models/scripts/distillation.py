"""A student learns a frozen teacher's soft labels."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal

x, y = torch.tensor(normal(12, 6)), torch.arange(12) % 4
teacher = begin(torch, nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)), seed=3)
teacher.eval()
student = begin(torch, nn.Sequential(nn.Linear(6, 5), nn.Hardswish(), nn.Linear(5, 4)))
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
soft, hard = nn.KLDivLoss(reduction="batchmean"), nn.CrossEntropyLoss()
T = 2.0
losses = []
for step in range(5):
    with torch.no_grad():
        goal = teacher(x)
    out = student(x)
    kd = soft(F.log_softmax(out / T, dim=1), F.softmax(goal / T, dim=1)) * T * T
    loss = 0.7 * kd + 0.3 * hard(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
